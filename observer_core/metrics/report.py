"""The report of an evaluation: the verdict first, then numbers with intervals, plots, and how to serve the run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import pyarrow as pa

from observer_core.files import write_whole
from observer_core.metrics.compare import PairedDifference, compare, compare_slice
from observer_core.metrics.estimate import Estimate
from observer_core.metrics.evaluate import NO_PARTIAL, Metrics, evaluate, metrics_json
from observer_core.metrics.gate import GateSettings, GateVerdict, gate
from observer_core.metrics.plots import plots
from observer_core.metrics.predictions import SLICES, sample_of, scorers_of, write_predictions
from observer_core.metrics.report_pages import to_html, to_markdown
from observer_core.rundir import METRICS, PREDICTIONS, REPORT_HTML, REPORT_MD


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says, before it has a form.

    `others` and `against` are in the order of the scorers; `by_slice` holds the differences of AUROC and Brier score on
    each slice that has traces, `not_run` the scorers that could not be asked, with the reason.
    """

    title: str
    subtitle: str
    scorer: str
    metrics: Metrics
    others: dict[str, Metrics]
    against: list[PairedDifference]
    by_slice: dict[str, list[PairedDifference]]
    not_run: Mapping[str, str]
    verdict: GateVerdict
    notes: Mapping[str, str]
    warning: str | None
    run: str | None
    further: Mapping[str, Estimate]

    def metrics_json(self) -> dict[str, Any]:
        """What metrics.json holds: slice → metric → `value`, `lo`, `hi`, `n` (and `reason`)."""
        body = metrics_json(self.metrics)
        body["all"] |= {key: value.to_json() for key, value in self.further.items()}
        return body

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object, for programs."""
        return {
            "title": self.title,
            "scorer": self.scorer,
            "metrics": self.metrics_json(),
            "others": {name: metrics_json(metrics) for name, metrics in self.others.items()},
            "differences": [difference.to_json() for difference in self.against],
            "differences_by_slice": {name: [d.to_json() for d in of] for name, of in self.by_slice.items()},
            "not_run": dict(self.not_run),
            "gate": self.verdict.to_json(),
            "notes": dict(self.notes),
            "warning": self.warning,
        }

    @property
    def headlines(self) -> list[str]:
        """Whether the scorer ranks better than the others, in one sentence each."""
        if not self.against:
            return [f"{self.scorer} has AUROC {self.metrics['all']['auroc']}; nothing else was scored on these traces."]
        return [_beats(self.scorer, difference) for difference in self.against]


def build_report(
    predictions: pa.Table,
    *,
    scorer: str,
    title: str,
    notes: Mapping[str, str] | None = None,
    warning: str | None = None,
    baseline: str | None = "baseline",
    champion: str | None = None,
    run: str | None = None,
    settings: GateSettings | None = None,
    nights_before: int = 0,
    further: Mapping[str, Estimate] | None = None,
    not_run: Mapping[str, str] | None = None,
) -> Report:
    """Compute everything a report says.

    Args:
        scorer: whose metrics these are; the table's other scorers are set beside it.
        notes: lines for the report, such as the data's name.
        warning: what a reader must know before believing the numbers.
        baseline, champion: the scorers the gate compares with; a baseline the table lacks is passed over.
        run: the run directory as it will be named, for the lines on how to serve it.
        further: metrics that do not come from the predictions; metrics.json has them under `all`.
        not_run: scorers that could not be asked → why.
    """
    known = scorers_of(predictions)
    rivals = [name for name in known if name != scorer]
    return Report(
        title=title,
        subtitle=_subtitle(predictions, scorer),
        scorer=scorer,
        metrics=evaluate(predictions, scorer),
        others={name: evaluate(predictions, name) for name in rivals},
        against=[compare(predictions, scorer, name) for name in rivals],
        by_slice=_differences_by_slice(predictions, scorer, rivals),
        not_run=not_run or {},
        verdict=gate(
            predictions,
            challenger=scorer,
            champion=champion,
            baseline=baseline if baseline in known else None,
            settings=settings,
            nights_before=nights_before,
        ),
        notes=notes or {},
        warning=warning,
        run=run,
        further=further or {},
    )


def write_report(folder: Path, predictions: pa.Table, report: Report) -> None:
    """Write metrics.json, predictions.parquet, report.md and report.html (self-contained) into `folder`."""
    images = plots(predictions, [report.scorer, *report.others], format="svg")
    write_predictions(folder / PREDICTIONS, predictions)
    write_whole(folder / METRICS, (json.dumps(report.metrics_json(), indent=2, allow_nan=False) + "\n").encode())
    write_whole(folder / REPORT_MD, to_markdown(report).encode())
    write_whole(folder / REPORT_HTML, to_html(report, images).encode())


class ReportOptions(TypedDict, total=False):
    """The keyword arguments of `build_report`."""

    scorer: Required[str]
    title: Required[str]
    notes: Mapping[str, str] | None
    warning: str | None
    baseline: str | None
    champion: str | None
    run: str | None
    settings: GateSettings | None
    nights_before: int
    further: Mapping[str, Estimate] | None
    not_run: Mapping[str, str] | None


def write_evaluation(folder: Path, predictions: pa.Table, **options: Unpack[ReportOptions]) -> dict[str, Any]:
    """`build_report`, written into `folder` (see `write_report`); returns what metrics.json holds."""
    report = build_report(predictions, **options)
    write_report(folder, predictions, report)
    return report.metrics_json()


def _differences_by_slice(
    predictions: pa.Table, scorer: str, rivals: Sequence[str]
) -> dict[str, list[PairedDifference]]:
    """`natural`, `seeded` and each slice without `partial` labels, where there are such traces."""
    found: dict[str, list[PairedDifference]] = {}
    for name in SLICES:
        for partial in (True, False):
            if name == "all" and partial:
                continue
            differences = [compare_slice(predictions, scorer, rival, name, partial=partial) for rival in rivals]
            if differences and differences[0].n:
                found[name if partial else f"{name}{NO_PARTIAL}"] = differences
    return found


def _subtitle(predictions: pa.Table, scorer: str) -> str:
    sample = sample_of(predictions, scorer)
    splits = sorted(set(predictions["split"].to_pylist()))
    share = f", {100 * sample.wrong.mean():.0f} % of them wrong" if sample.n else ""
    return f"{sample.n} labeled traces of {sample.groups} user questions (split {', '.join(splits)}){share}"


def _beats(scorer: str, difference: PairedDifference) -> str:
    auroc = difference.differences["auroc"]
    if auroc.value is None:
        return f"{scorer} cannot be compared with {difference.b}: {auroc.reason}."
    size = f"AUROC {auroc.value:+.3f}"
    if auroc.lo is None or auroc.hi is None:
        return f"{scorer} against {difference.b}: {size}; {auroc.reason}."
    size += f" ({auroc.lo:+.3f} to {auroc.hi:+.3f})"
    if auroc.lo > 0:
        return f"{scorer} ranks better than {difference.b}: {size}."
    if auroc.hi < 0:
        return f"{scorer} ranks worse than {difference.b}: {size}."
    return f"{scorer} is not shown to rank better than {difference.b}: {size}."
