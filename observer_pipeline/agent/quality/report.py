"""The data quality report: findings first, then tables and plots; as Markdown, one HTML file and JSON."""

import base64
import html
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.decision.training.progress import Progress, no_progress
from observer_core.errors import InputError
from observer_core.files import whole_dir, write_whole
from observer_core.metrics.report_style import STYLE
from observer_core.traces.label_checks import Agreement
from observer_core.traces.trace import Trace
from observer_pipeline.agent.quality.contents import (
    LABELS,
    Duplicates,
    Relabeled,
    Share,
    balance,
    doubts,
    duplicates,
    gold_against_people,
    gold_anew,
    telling_words,
)
from observer_pipeline.agent.quality.guessing import Guess
from observer_pipeline.agent.quality.plots import plots
from observer_pipeline.agent.quality.probe import FAMILIES, Probed, ProbeRow, probe
from observer_pipeline.agent.quality.surface import LIMIT, MAY_TELL, PARTS, surface_baselines

REPORT_MD, REPORT_HTML, REPORT_JSON = "quality.md", "quality.html", "quality.json"
MIN_TRACES = 50
"""With fewer, chance hides everything that the report looks for."""
_ONE_SIDED = 0.05


@dataclass(frozen=True, slots=True)
class Quality:
    """Everything the report says, before it has a form; `probe` is empty without spans."""

    title: str
    n: int
    balance: dict[str, list[Share]]
    doubts: Counter[str]
    gold_labels: int
    relabeled: list[Relabeled]
    agreement: Agreement
    duplicates: Duplicates
    telling: Counter[str]
    surface: dict[str, Guess]
    probe: Probed

    def verdict(self, part: str) -> str:
        """Whether a part of the trace keeps the label to itself: `passes`, `fails`, or `may tell`."""
        if part in MAY_TELL:
            return "may tell"
        auroc = self.surface[part].auroc
        return "fails" if auroc is not None and auroc > LIMIT else "passes"

    @property
    def problems(self) -> list[str]:
        """What is wrong with the data, one sentence each; empty when nothing was found."""
        found = [
            f"The label can be guessed from the {name} alone: AUROC {g.auroc:.3f}."
            for name, g in self.surface.items()
            if self.verdict(name) == "fails"
        ]
        found += self.probe.told
        twice = self.duplicates
        found += [
            sentence
            for count, sentence in (
                (twice.trace_ids, f"{twice.trace_ids} trace ids occur more than once."),
                (twice.questions_in_splits, f"{twice.questions_in_splits} user questions are in two splits."),
                (twice.contradicting, f"{twice.contradicting} states occur with different labels."),
                (len(self.relabeled), f"{len(self.relabeled)} gold labels are not what HotpotQA's rules give."),
                (self.telling.total(), f"The state names faults or labels: {', '.join(sorted(self.telling))}."),
            )
            if count
        ]
        whole = sum((share.labels for share in self.balance["fault"]), Counter())
        wrong = 1 - whole["correct"] / self.n
        if not _ONE_SIDED <= wrong <= 1 - _ONE_SIDED:
            found.append(f"{wrong:.0%} of the traces are wrong: one class is nearly missing.")
        return found

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON object, for programs."""
        return {
            "title": self.title,
            "traces": self.n,
            "problems": self.problems,
            "balance": {
                name: {share.name: dict(share.labels) for share in shares} for name, shares in self.balance.items()
            },
            "doubts": dict(self.doubts),
            "gold_labels": {"checked": self.gold_labels, "differ": [asdict(one) for one in self.relabeled]},
            "agreement": {
                **{key: getattr(self.agreement, key) for key in ("n", "share", "kappa", "share_wrong", "kappa_wrong")},
                "table": {f"{a} > {b}": count for (a, b), count in self.agreement.table.items()},
            },
            "duplicates": asdict(self.duplicates),
            "telling_words": dict(self.telling),
            "surface": {name: {**asdict(g), "verdict": self.verdict(name)} for name, g in self.surface.items()},
            "probe": asdict(self.probe),
        }


def examine(
    traces: Sequence[Trace],
    *,
    title: str,
    spans: dict[str, list[ResourceSpans]] | None = None,
    progress: Progress = no_progress,
) -> Quality:
    """Look at labeled traces.

    Args:
        title: what the report is called.
        spans: trace id → its spans, for the leakage probe.
        progress: is told what is being looked at, and the share that is done.

    Raises:
        InputError: too few labeled traces.
    """
    labeled = [trace for trace in traces if trace.label is not None]
    if len(labeled) < MIN_TRACES:
        raise InputError(f"{len(labeled)} labeled traces are too few to judge; give at least {MIN_TRACES}")
    rows = [
        ProbeRow(spans[trace.trace_id], trace.question, trace.failure_type)
        for trace in labeled
        if spans and trace.trace_id in spans
    ]
    kinds = {row.fault for row in rows} - {None}
    steps, done = len(PARTS) + (len(FAMILIES) + 1 + len(kinds) if rows else 0), itertools.count()

    def told(what: str) -> None:
        progress(what, next(done) / steps)

    gold_labels, relabeled = gold_anew(labeled)
    return Quality(
        title=title,
        n=len(labeled),
        balance=balance(labeled),
        doubts=doubts(labeled),
        gold_labels=gold_labels,
        relabeled=relabeled,
        agreement=gold_against_people(labeled),
        duplicates=duplicates(labeled),
        telling=telling_words(labeled),
        surface=surface_baselines(labeled, told),
        probe=probe(rows, told),
    )


def write_quality(folder: Path, quality: Quality) -> None:
    """Write quality.md, quality.html (self-contained) and quality.json into a new folder, whole or not at all."""
    with whole_dir(folder) as inside:
        write_whole(inside / REPORT_MD, to_markdown(quality).encode())
        write_whole(inside / REPORT_HTML, to_html(quality).encode())
        write_whole(inside / REPORT_JSON, (json.dumps(quality.to_json(), indent=2) + "\n").encode())


@dataclass(frozen=True, slots=True)
class _Section:
    """A heading, what to know about it, and a table."""

    name: str
    note: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def _sections(quality: Quality) -> list[_Section]:
    sections = [
        _Section(
            f"By {name}", "", (name, "traces", *LABELS, "share wrong"),
            [(s.name, str(s.n), *(str(s.labels[label]) for label in LABELS), f"{s.wrong:.0%}") for s in shares],
        )
        for name, shares in quality.balance.items()
    ]  # fmt: skip
    sections.append(_Section(
        "Guessing the label from one part of the trace",
        f"Cross-validated by user question. Above {LIMIT} the look of that part gives the label away; the whole answer "
        "(refusals are wrong), the calls and the lengths (which show the calls) may, as in life.",
        ("part", "AUROC", f"at most {LIMIT}"),
        [(name, str(g), quality.verdict(name)) for name, g in quality.surface.items()],
    ))  # fmt: skip
    alike = "Among traces with as many calls and failed calls. A trained probe must do no better than chance."
    if quality.probe.families:
        sections.append(_Section(
            "Telling seeded runs from natural ones without reading", alike,
            ("features", "AUROC"), [(name, str(g)) for name, g in quality.probe.families.items()],
        ))  # fmt: skip
        sections.append(_Section(
            "Telling each kind of fault without reading",
            f"By all of these features together. {alike} Chance is meant for all kinds at once.",
            ("fault", "runs compared", "AUROC"), [(name, str(g.n), str(g)) for name, g in quality.probe.kinds.items()],
        ))  # fmt: skip
    twice = quality.duplicates
    sections.append(_Section(
        "Duplicates", "", ("what", "how many"),
        [("trace ids used twice", str(twice.trace_ids)), ("questions in two splits", str(twice.questions_in_splits)),
         ("traces with the state of another", str(twice.same_state)),
         ("states with different labels", str(twice.contradicting)),
         ("questions that differ from another only in names and numbers", f"{twice.templates:.0%}")],
    ))  # fmt: skip
    sections.append(_Section(
        "Doubtful gold labels", "What a reader might call right though it is labeled wrong, or lucky.",
        ("reason", "traces"), [(name, str(count)) for name, count in quality.doubts.most_common()],
    ))  # fmt: skip
    sections.append(_Section(
        "Gold labels by HotpotQA's rules", f"{len(quality.relabeled)} of {quality.gold_labels} differ.",
        ("trace", "answer", "gold answer", "label", "by the rules"),
        [(one.trace_id, one.answer, one.gold_answer, one.label, one.by_the_rules) for one in quality.relabeled],
    ))  # fmt: skip
    agree = quality.agreement
    if agree.n:
        head = ("gold label", *(f"people: {label}" for label in LABELS))
        rows = [(a, *(str(agree.table.get((a, b), 0)) for b in LABELS)) for a in LABELS]
        note = f"{agree.n} traces with both: {agree.share:.0%} agree"
        if agree.kappa_wrong is not None:
            note += f"; wrong against correct {agree.share_wrong:.0%}, kappa {agree.kappa_wrong:.2f}"
        sections.append(_Section("Gold labels against people's verdicts", note + ".", head, rows))
    return sections


def _verdict(quality: Quality) -> str:
    count = len(quality.problems)
    return "Nothing was found against these data." if not count else f"{count} problem{'s' if count > 1 else ''} found."


def to_markdown(quality: Quality) -> str:
    """The report as Markdown."""
    lines = [f"# {quality.title}", "", f"{quality.n} labeled traces. **{_verdict(quality)}**", ""]
    lines += [f"- {problem}" for problem in quality.problems]
    for section in _sections(quality):
        lines += ["", f"## {section.name}", ""]
        lines += [section.note, ""] if section.note else []
        if section.rows:
            lines += ["| " + " | ".join(section.head) + " |", "|" + "---|" * len(section.head)]
            lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in section.rows]
        else:
            lines.append("*(none)*")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A text that stays inside its cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def to_html(quality: Quality) -> str:
    """The report as one self-contained HTML page."""
    escape = html.escape
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in quality.problems)
    figures = "".join(
        f'<figure><figcaption>{escape(name)}</figcaption><img alt="{escape(name)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(image).decode()}"></figure>'
        for name, image in plots(quality.balance["fault"], quality.surface, quality.probe.families).items()
    )
    sections = "".join(_html_section(section) for section in _sections(quality))
    kind = "verdict" if quality.problems else "verdict yes"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(quality.title)}</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{escape(quality.title)}</h1>"
        f'<p class="subtitle">{quality.n} labeled traces</p>'
        f'<div class="{kind}"><p class="headline">{escape(_verdict(quality))}</p><ul>{problems}</ul></div>'
        f'<div class="figures" style="margin-top:18px">{figures}</div>{sections}</main></body></html>\n'
    )


def _html_section(section: _Section) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in section.head)
    rows = "".join(
        "<tr>"
        + f"<th>{html.escape(row[0])}</th>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in section.rows
    )
    note = f"<p>{html.escape(section.note)}</p>" if section.note else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if rows else "<p>(none)</p>"
    return f'<section><h2>{html.escape(section.name)}</h2>{note}<div class="scroll">{table}</div></section>'
