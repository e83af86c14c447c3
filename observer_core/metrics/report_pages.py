"""The forms of a report: tables, Markdown, a self-contained HTML page."""

import base64
import html
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from observer_core.metrics.evaluate import NO_PARTIAL, Metrics, budget_name
from observer_core.metrics.plots import TITLES
from observer_core.metrics.ranking import BUDGETS, oracle_recall
from observer_core.metrics.report_style import STYLE
from observer_core.rundir import REPORT_HTML

if TYPE_CHECKING:
    from observer_core.metrics.report import Report

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
    "Paired differences": "on the same traces, each at 95 %, not adjusted for how many are shown.",
    "Calibration error": "root mean squared gap of equal-mass bins, with the bins' sampling noise taken off.",
}
SLICE_DIFFERENCES = ("auroc", "brier")

_BUDGET_OF = {f"recall_at_{budget_name(budget)}": budget for budget in BUDGETS}
Table = tuple[list[str], list[list[str]]]


HEADLINE = ("auroc", "recall_at_5pct", "recall_at_20pct", "brier", "prevalence")
BY_SLICE = ("auroc", "recall_at_20pct", "brier")
NOT_RUN = "not run"


def main_table(report: "Report", *, short: bool = False) -> Table:
    """Metric × scorer, all traces; with `short` only the headline metrics. Scorers that were not run say so."""
    keys = HEADLINE if short else LABELS
    columns = _columns(report)
    rows = [[LABELS[key], *(str(column["all"][key]) for column in columns.values())] for key in keys]
    return ["", *columns, *report.not_run], [[*row, *[NOT_RUN] * len(report.not_run)] for row in rows]


def _columns(report: "Report") -> dict[str, Metrics]:
    return {report.scorer: report.metrics, **report.others}


def text_table(content: Table) -> str:
    """A table as aligned plain text."""
    lines = [content[0], *content[1]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def slice_table(report: "Report") -> Table:
    """Slice and metric × scorer, each slice with and without `partial` labels; slices without traces are left out."""
    columns = _columns(report)
    rows = []
    for name in report.metrics:
        for suffix in ("", NO_PARTIAL):
            of = report.metrics[name][f"prevalence{suffix}"]
            if of.value is None:
                continue
            head = f"{_slice_title(name + suffix)} ({of.n}, {100 * of.value:.0f} % wrong)"
            for key in BY_SLICE:
                cells = [str(column[name][key + suffix]) for column in columns.values()]
                rows.append([head, LABELS[key], *cells])
                head = ""
    return ["traces", "", *columns], rows


def slice_difference_table(report: "Report") -> Table:
    """Slice and metric × other scorer: paired differences."""
    rows = []
    for name, differences in report.by_slice.items():
        head = f"{_slice_title(name)} ({differences[0].n})"
        for key in SLICE_DIFFERENCES:
            rows.append([head, DIFFERENCES[key], *(str(of.differences[key]) for of in differences)])
            head = ""
    return ["traces", f"{report.scorer} minus …", *(of.b for of in report.against)], rows


def _slice_title(name: str) -> str:
    return f"{name.removesuffix(NO_PARTIAL)} without partial" if name.endswith(NO_PARTIAL) else name


def notes_of(report: "Report") -> dict[str, str]:
    """The notes, with what was not run and why."""
    return {**report.notes, **{f"{name} ({NOT_RUN})": reason for name, reason in report.not_run.items()}}


def difference_table(report: "Report") -> Table:
    """Metric × other scorer: paired differences."""
    rows = [[label, *(str(other.differences[key]) for other in report.against)] for key, label in DIFFERENCES.items()]
    return [f"{report.scorer} minus …", *(other.b for other in report.against)], rows


def _serve_lines(report: "Report") -> tuple[str, str]:
    run = json.dumps(report.run) if report.run else "RUN"
    return f"scorer: {{kind: local, run: {run}}}", "observer serve --config observer.yaml"


def to_markdown(report: "Report") -> str:
    """The report as Markdown, without the plots."""

    def table(content: Table) -> str:
        head, rows = content
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    settings, command = _serve_lines(report)
    notes = notes_of(report)
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
        "## Slices",
        table(slice_table(report)),
        *(["### Paired differences", table(slice_difference_table(report))] if report.by_slice else []),
        f"The plots are in {REPORT_HTML}.",
        "## Serve it",
        f"```yaml\n# observer.yaml\n{settings}\n```\n\n```\n{command}\n```",
        *(["## Notes", "\n".join(f"- {key}: {value}" for key, value in notes.items())] if notes else []),
        "## How to read this",
        "\n".join(f"- **{key}**: {value}" for key, value in EXPLANATIONS.items()),
    ]
    return "\n\n".join(parts) + "\n"


def to_html(report: "Report", images: Mapping[str, bytes]) -> str:
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
        section("Slices", table(slice_table(report), "stacked")),
        section("Paired differences by slice", table(slice_difference_table(report))) if report.by_slice else "",
        section("Serve it", f"<pre># observer.yaml\n{e(settings)}</pre><pre>{e(command)}</pre>"),
        section("Notes", listed(notes_of(report))) if notes_of(report) else "",
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


def _tile(report: "Report", key: str) -> str:
    """A number in large type, under it its interval and, for a recall, what chance and an oracle would reach."""
    estimate, share = report.metrics["all"][key], report.metrics["all"]["prevalence"].value
    if estimate.value is None:
        return f'<span class="value">–</span><span class="interval">{html.escape(estimate.reason or "")}</span>'
    lines = [] if estimate.lo is None else [f"{estimate.lo:.3f} to {estimate.hi:.3f}"]
    if key in _BUDGET_OF and share:
        budget = _BUDGET_OF[key]
        lines.append(f"random {budget:.3f}, best {float(oracle_recall(share, np.array(budget))):.3f}")
    return f'<span class="value">{estimate.value:.3f}</span><span class="interval">{"<br>".join(lines)}</span>'
