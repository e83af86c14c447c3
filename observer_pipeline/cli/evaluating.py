"""Runs on labeled traces: which traces, which scorers, what is warned of, how the report is delivered."""

import json
import os.path
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from observer_core.decision.protocol import Scorer
from observer_core.errors import InputError
from observer_core.metrics.predictions import predict
from observer_core.metrics.report import Report, write_report
from observer_core.metrics.report_pages import main_table, notes_of, text_table
from observer_core.rundir import REPORT_HTML, RunDirectory, open_run
from observer_core.traces.splits import split_of
from observer_core.traces.trace import Trace
from observer_pipeline.cli.evaluation import Split
from observer_pipeline.cli.progress import progress_bar

BUILTIN, JEV = "builtin", "jev"


def open_runs(paths: Sequence[Path]) -> dict[str, RunDirectory]:
    """Name → run: the folder's name, or its whole path where two folders share one.

    Raises:
        InputError: a run cannot be read, or one is given twice.
    """
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise InputError(f"{path} is given twice; name different run directories")
    names = [path.name for path in resolved]
    shared = [name for name in names if names.count(name) > 1 or name in (BUILTIN, JEV)]
    return {
        os.path.normpath(path) if real.name in shared else real.name: open_run(path)
        for path, real in zip(paths, resolved, strict=True)
    }


def load_scorers(runs: Mapping[str, RunDirectory]) -> dict[str, Scorer]:
    """Name → scorer of each run."""
    from observer_core.decision.load import load_scorer

    return {name: load_scorer(run) for name, run in runs.items()}


@dataclass(frozen=True, slots=True)
class Labeled:
    """The labeled traces of a source, and how many have no label."""

    labeled: list[Trace]
    unlabeled: int


def read_labeled(source: str, *, skip_invalid: bool) -> Labeled:
    """Read a source of labeled traces.

    Raises:
        InputError: unreadable, or nothing in it has a label.
    """
    from observer_pipeline.sources import load_traces

    every = load_traces(source, skip_invalid=skip_invalid)
    labeled = [trace for trace in every if trace.label is not None]
    if not labeled:
        raise InputError(f"none of the {len(every)} traces of {source} has a label; label them first")
    return Labeled(labeled, len(every) - len(labeled))


def choose_traces(source: str, found: Labeled, split: Split) -> tuple[list[Trace], dict[str, str]]:
    """The labeled traces to score, and what the report says about their choice.

    Raises:
        InputError: no labeled trace of that split; says how many there are elsewhere.
    """
    labeled = found.labeled
    held_out = [trace for trace in labeled if split_of(trace) == "test"]
    notes = {"Data": source}
    if found.unlabeled:
        notes["Without a label"] = f"{found.unlabeled} traces, left out"
    others = len(labeled) - len(held_out)
    if split == "all":
        notes["Rows"] = f"all {len(labeled)} labeled traces, {others} of them of questions runs train or calibrate on"
        return labeled, notes
    if not held_out:
        raise InputError(
            f"none of the {len(labeled)} labeled traces of {source} is of a test question; give more traces, or "
            "--split all if no run was trained on these"
        )
    notes["Rows"] = f"the {len(held_out)} traces of test questions; {others} of questions runs train on are left out"
    return held_out, notes


def score_jev(labeled: Sequence[Trace], traces: Sequence[Trace], max_usd: float | None) -> tuple[pa.Table, str]:
    """Jev's predictions, calibrated on the calibration split of `labeled`, and what the report says of them.

    The cost is told before anything is asked; answers are kept under OBSERVER_HOME.

    Args:
        max_usd: the most it may cost; `None` for whatever it is.

    Raises:
        NotRunError: no key.
        InputError: it would cost more.
        ObserverError: the server cannot be reached, or gave something that is no answer.
    """
    from observer_core.decision.jev.scorer import jev_cache, jev_scorer
    from observer_core.decision.zero_shot import calibrated
    from observer_core.home import Home

    scorer = jev_scorer(cache=jev_cache(Home.from_env()))
    cost = scorer.cost([*traces, *(t for t in labeled if split_of(t) == "calibration")])
    print(cost, file=sys.stderr)
    if max_usd is not None:
        try:
            cost.check(max_usd)
        except InputError as error:
            raise InputError(f"{error}: pass --yes") from None
    fitted, said = calibrated(scorer, labeled)
    return score_all({JEV: fitted}, traces), f"{said}; {scorer.jev.spent}"


def leakage(traces: Sequence[Trace], runs: Mapping[str, RunDirectory]) -> str | None:
    """What to warn of when these traces may have been trained on: a run's fingerprint of its train split tells."""
    from observer_core.decision.training.data import data_sha

    if all(split_of(trace) == "test" for trace in traces):
        return None
    digest = data_sha([trace for trace in traces if split_of(trace) == "train"])
    seen = [name for name, run in runs.items() if run.manifest.train_data_sha == digest]
    if seen:
        return f"{', '.join(seen)} was trained on these very traces; this is no held-out result"
    return "a held-out result only if no run was trained on any of these questions"


def score_all(scorers: Mapping[str, Scorer], traces: Sequence[Trace]) -> pa.Table:
    """The predictions of every scorer on the same traces."""
    with progress_bar() as progress:
        tables = [predict(name, scorer, traces, progress=progress) for name, scorer in scorers.items()]
    return pa.concat_tables(tables)


def deliver(report: Report, predictions: pa.Table, out: Path | None, *, as_json: bool) -> None:
    """Write the report if a folder is given; print it as text or JSON."""
    if out is not None:
        write_report(out, predictions, report)
    if as_json:
        print(json.dumps(report.to_json(), indent=2, allow_nan=False))
        return
    print(f"{report.title}: {report.subtitle}")
    if report.warning:
        print(f"Warning: {report.warning}.")
    print()
    print(text_table(main_table(report, short=True)))
    print()
    for sentence in report.headlines:
        print(sentence)
    print(f"Promotion gate: {report.verdict.sentence}")
    for reason in report.verdict.reasons:
        print(f"  - {reason}")
    for name, note in notes_of(report).items():
        print(f"{name}: {note}")
    if out is not None:
        print(f"Report: {out / REPORT_HTML}")
