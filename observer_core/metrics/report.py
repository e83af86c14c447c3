"""The report of an evaluation: the verdict first, then numbers with intervals, plots, and how to serve the run."""

import base64
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from observer_core.files import write_whole
from observer_core.metrics.compare import PairedDifference, compare
from observer_core.metrics.estimate import Estimate
from observer_core.metrics.evaluate import NO_PARTIAL, Metrics, budget_name, evaluate, metrics_of
from observer_core.metrics.gate import GateSettings, GateVerdict, gate
from observer_core.metrics.plots import TITLES, plots
from observer_core.metrics.predictions import sample_of, scorers_of, write_predictions
from observer_core.metrics.ranking import BUDGETS, oracle_recall
from observer_core.metrics.report_style import STYLE
from observer_core.rundir import METRICS, PREDICTIONS, REPORT_HTML, REPORT_MD

LABELS = {
    "auroc": "AUROC",
    "auroc_within_agent": "AUROC within agents (mean)",
    "auprc": "AUPRC (random = share wrong)",
    "prevalence": "share wrong",
    "recall_at_1pct": "recall, reading 1 %",
    "recall_at_5pct": "recall, reading 5 %",
    "recall_at_10pct": "recall, reading 10 %",
    "recall_at_20pct": "recall, reading 20 %",
    "lift_at_5pct": "lift over random at 5 %",
    "lift_at_20pct": "lift over random at 20 %",
    "normalised_recall_at_5pct": "normalised recall at 5 %",
    "normalised_recall_at_20pct": "normalised recall at 20 %",
    "brier": "Brier score",
    "log_loss": "log loss",
    "ece_debiased": "calibration error (debiased)",
    "calibration_intercept": "calibration intercept (ideal 0)",
    "calibration_slope": "calibration slope (ideal 1)",
}
DIFFERENCES = {
    "auroc": "AUROC",
    "recall_at_5pct": "recall, reading 5 %",
    "recall_at_20pct": "recall, reading 20 %",
    "brier": "Brier score (less is better)",
    "log_loss": "log loss (less is better)",
}
EXPLANATIONS = {
    "Wrong": "labels wrong and partial together; the lines 'without partial' leave partial labels out.",
    "Interval": "95 %, clustered by user question, since traces of one question are not independent.",
    "Recall, reading 5 %": "the share of all wrong answers among the 5 % of traces with the highest scores.",
    "Normalised recall": "0 is random, 1 is the best that this share of wrong answers allows.",
    "Calibration error": "root mean squared gap of equal-mass bins, with the bins' sampling noise taken off.",
}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says, before it has a form."""

    title: str
    subtitle: str
    scorer: str
    metrics: Metrics
    others: dict[str, dict[str, Estimate]]
    against: list[PairedDifference]
    verdict: GateVerdict
    notes: Mapping[str, str]
    warning: str | None
    run: str | None
    further: Mapping[str, Estimate]

    def metrics_json(self) -> dict[str, Any]:
        """What metrics.json holds: slice → metric → `value`, `lo`, `hi`, `n` (and `reason`)."""
        body = {name: {key: value.to_json() for key, value in part.items()} for name, part in self.metrics.items()}
        body["all"] |= {key: value.to_json() for key, value in self.further.items()}
        return body

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object, for programs."""
        return {
            "title": self.title,
            "scorer": self.scorer,
            "metrics": self.metrics_json(),
            "others": {name: {key: e.to_json() for key, e in part.items()} for name, part in self.others.items()},
            "differences": [difference.to_json() for difference in self.against],
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
) -> Report:
    """Compute everything a report says.

    Args:
        scorer: whose metrics these are; the table's other scorers are set beside it.
        notes: lines for the report, such as the data's name.
        warning: what a reader must know before believing the numbers.
        baseline, champion: the scorers the gate compares with; a baseline the table lacks is passed over.
        run: the run directory as it will be named, for the lines on how to serve it.
        further: metrics that do not come from the predictions; metrics.json has them under `all`.
    """
    known = scorers_of(predictions)
    rivals = [name for name in known if name != scorer]
    return Report(
        title=title,
        subtitle=_subtitle(predictions, scorer),
        scorer=scorer,
        metrics=evaluate(predictions, scorer),
        others={name: metrics_of(sample_of(predictions, name)) for name in rivals},
        against=[compare(predictions, scorer, name) for name in rivals],
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


def write_evaluation(folder: Path, predictions: pa.Table, **options: Unpack[ReportOptions]) -> dict[str, Any]:
    """`build_report`, written into `folder` (see `write_report`); returns what metrics.json holds."""
    report = build_report(predictions, **options)
    write_report(folder, predictions, report)
    return report.metrics_json()


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


_BUDGET_OF = {f"recall_at_{budget_name(budget)}": budget for budget in BUDGETS}
Table = tuple[list[str], list[list[str]]]


HEADLINE = ("auroc", "recall_at_5pct", "recall_at_20pct", "brier", "prevalence")


def main_table(report: Report, *, short: bool = False) -> Table:
    """Metric × scorer, all traces; with `short` only the headline metrics."""
    columns: dict[str, dict[str, Estimate]] = {report.scorer: report.metrics["all"], **report.others}
    keys = HEADLINE if short else LABELS
    return ["", *columns], [[LABELS[key], *(str(column[key]) for column in columns.values())] for key in keys]


def text_table(content: Table) -> str:
    """A table as aligned plain text."""
    lines = [content[0], *content[1]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _slice_table(report: Report) -> Table:
    """Slice × headline metric, with and without `partial`."""
    rows = []
    for name, part in report.metrics.items():
        for suffix, words in (("", ""), (NO_PARTIAL, " without partial")):
            estimates = [part[key + suffix] for key in HEADLINE]
            n = estimates[0].n
            rows.append([f"{name}{words}", str(n), *(str(estimate) if n else "–" for estimate in estimates)])
    return ["traces", "n", *(LABELS[key] for key in HEADLINE)], rows


def difference_table(report: Report) -> Table:
    """Metric × other scorer: paired differences."""
    rows = [[label, *(str(other.differences[key]) for other in report.against)] for key, label in DIFFERENCES.items()]
    return [f"{report.scorer} minus …", *(other.b for other in report.against)], rows


def _serve_lines(report: Report) -> tuple[str, str]:
    run = json.dumps(report.run) if report.run else "RUN"
    return f"scorer: {{kind: local, run: {run}}}", "observer serve --config observer.yaml"


def to_markdown(report: Report) -> str:
    """The report as Markdown, without the plots."""

    def table(content: Table) -> str:
        head, rows = content
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    settings, command = _serve_lines(report)
    parts = [
        f"# {report.title}",
        report.subtitle + ".",
        *([f"> Warning: {report.warning}."] if report.warning else []),
        *(f"**{sentence}**" for sentence in report.headlines),
        f"Promotion gate: **{report.verdict.sentence}**",
        "\n".join(f"- {reason}" for reason in report.verdict.reasons),
        "## Numbers",
        table(main_table(report)),
        *(["## Paired differences", table(difference_table(report))] if report.against else []),
        f"## Slices of {report.scorer}",
        table(_slice_table(report)),
        f"The plots are in {REPORT_HTML}.",
        "## Serve it",
        f"```yaml\n# observer.yaml\n{settings}\n```\n\n```\n{command}\n```",
        *(["## Notes", "\n".join(f"- {key}: {value}" for key, value in report.notes.items())] if report.notes else []),
        "## How to read this",
        "\n".join(f"- **{key}**: {value}" for key, value in EXPLANATIONS.items()),
    ]
    return "\n\n".join(parts) + "\n"


def to_html(report: Report, images: Mapping[str, bytes]) -> str:
    """The report as one HTML page with the plots (SVG) inside."""
    e = html.escape

    def cell(text: str) -> str:
        value, bracket, interval = text.partition(" (")
        if not bracket:
            return e(text)
        return f'{e(value)} <span class="interval">({e(interval)}</span>'

    def table(content: Table, form: str = "") -> str:
        head, rows = content
        top = "".join(f"<th>{e(name)}</th>" for name in head)
        body = "".join(
            f"<tr><th>{e(row[0])}</th>{''.join(f'<td>{cell(text)}</td>' for text in row[1:])}</tr>" for row in rows
        )
        head_and_body = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
        return f'<div class="scroll"><table class="{form}">{head_and_body}</table></div>'

    def listed(items: Mapping[str, str]) -> str:
        return "<dl>" + "".join(f"<dt>{e(k)}</dt><dd>{e(v)}</dd>" for k, v in items.items()) + "</dl>"

    def section(title: str, content: str) -> str:
        return f"<section><h2>{e(title)}</h2>{content}</section>"

    tiles = "".join(
        f'<div class="tile"><span class="name">{e(LABELS[key])}</span>{_tile(report, key)}</div>'
        for key in ("auroc", "recall_at_5pct", "recall_at_20pct", "brier")
    )
    figures = "".join(
        f'<figure><figcaption>{e(TITLES[name])}</figcaption><img alt="{e(TITLES[name])}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(image).decode()}"></figure>'
        for name, image in images.items()
    )
    settings, command = _serve_lines(report)
    reasons = "".join(f"<li>{e(reason)}</li>" for reason in report.verdict.reasons)
    warning = f'<p class="warning">Warning: {e(report.warning)}.</p>' if report.warning else ""
    sections = [
        f'<div class="tiles">{tiles}</div>',
        f'<div class="figures">{figures}</div>' if figures else "",
        section("Numbers", table(main_table(report))),
        section("Paired differences", table(difference_table(report))) if report.against else "",
        section(f"Slices of {report.scorer}", table(_slice_table(report), "stacked")),
        section("Serve it", f"<pre># observer.yaml\n{e(settings)}</pre><pre>{e(command)}</pre>"),
        section("Notes", listed(report.notes)) if report.notes else "",
        section("How to read this", listed(EXPLANATIONS)),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{e(report.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body><main>'
        f'<header><h1>{e(report.title)}</h1><p class="subtitle">{e(report.subtitle)}</p>{warning}</header>'
        f'<div class="verdict {"yes" if report.verdict.promote else "no"}">'
        + "".join(f'<p class="headline">{e(sentence)}</p>' for sentence in report.headlines)
        + f'<p class="gate">Promotion gate: <strong>{e(report.verdict.sentence)}</strong></p><ul>{reasons}</ul></div>'
        f"{''.join(sections)}</main></body></html>\n"
    )


def _tile(report: Report, key: str) -> str:
    """A number in large type, under it its interval and, for a recall, what chance and an oracle would reach."""
    estimate, share = report.metrics["all"][key], report.metrics["all"]["prevalence"].value
    if estimate.value is None:
        return f'<span class="value">–</span><span class="interval">{html.escape(estimate.reason or "")}</span>'
    lines = [] if estimate.lo is None else [f"{estimate.lo:.3f} to {estimate.hi:.3f}"]
    if key in _BUDGET_OF and share:
        budget = _BUDGET_OF[key]
        lines.append(f"random {budget:.3f}, best {float(oracle_recall(share, np.array(budget))):.3f}")
    return f'<span class="value">{estimate.value:.3f}</span><span class="interval">{"<br>".join(lines)}</span>'
