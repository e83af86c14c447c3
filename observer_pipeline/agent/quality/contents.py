"""What a set of labeled traces holds: classes, doubts about labels, agreement, duplicates, telling words."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from observer_core.slices import build_state
from observer_core.traces.label_checks import Agreement, agreement, label_doubts
from observer_core.traces.labels import gold_label
from observer_core.traces.splits import normalise_question, split_of
from observer_core.traces.trace import Label, Trace
from observer_pipeline.agent.faults import FAULTS

LABELS: tuple[Label, ...] = get_args(Label)
_TELLING = re.compile(r"\b(?:" + "|".join((*FAULTS, "fault injection", "failure_type", "gold_answer")) + r")\b")


@dataclass(frozen=True, slots=True)
class Share:
    """One class of traces: how many, by label."""

    name: str
    labels: Counter[str]

    @property
    def n(self) -> int:
        return sum(self.labels.values())

    @property
    def wrong(self) -> float:
        """The share that counts as wrong."""
        return 1 - self.labels["correct"] / self.n


def balance(traces: Sequence[Trace]) -> dict[str, list[Share]]:
    """The labeled traces by fault, model, question type, level, length of the answer, calls and split."""
    return {name: _shares(traces, key) for name, key in _KEYS.items()}


_KEYS: dict[str, Callable[[Trace], str]] = {
    "fault": lambda t: t.failure_type or "natural",
    "model": lambda t: t.model or "unknown",
    "question type": lambda t: str(t.extra.get("question_type", "unknown")),
    "level": lambda t: str(t.extra.get("level", "unknown")),
    "answer's words": lambda t: _step(len(t.final_answer.split()), (0, 1, 2, 4, 8)),
    "tool calls": lambda t: _step(len(t.tool_calls), (0, 1, 2, 3, 5)),
    "split": split_of,
}


def _shares(traces: Sequence[Trace], key: Callable[[Trace], str]) -> list[Share]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for trace in traces:
        found[key(trace)][str(trace.label)] += 1
    return [Share(name, counts) for name, counts in sorted(found.items())]


def _step(value: int, bounds: Sequence[int]) -> str:
    below = [bound for bound in bounds if value >= bound]
    following = bounds[len(below)] - 1 if len(below) < len(bounds) else None
    return (
        f"{below[-1]}+"
        if following is None
        else str(below[-1])
        if following == below[-1]
        else f"{below[-1]}-{following}"
    )


def doubts(traces: Sequence[Trace]) -> Counter[str]:
    """How many gold labels a reader might dispute, by reason; a trace may have several."""
    found: Counter[str] = Counter()
    for trace in traces:
        if trace.gold_answer is not None:
            found.update(label_doubts(_answer(trace), trace.gold_answer, _aliases(trace), evidence=trace.evidence))
    return found


@dataclass(frozen=True, slots=True)
class Relabeled:
    """A gold label that is not the one HotpotQA's rules give for its answer."""

    trace_id: str
    answer: str
    gold_answer: str
    label: str
    by_the_rules: str


def gold_anew(traces: Sequence[Trace]) -> tuple[int, list[Relabeled]]:
    """How many gold labels there are to check, and those that the rules would give otherwise."""
    gold = [t for t in traces if t.label_source != "annotation" and t.gold_answer is not None and t.label is not None]
    own = [gold_label(_answer(trace), str(trace.gold_answer), _aliases(trace)).label for trace in gold]
    return len(gold), [
        Relabeled(str(trace.trace_id), _answer(trace), str(trace.gold_answer), str(trace.label), label)
        for trace, label in zip(gold, own, strict=True)
        if label != trace.label
    ]


def _answer(trace: Trace) -> str:
    return str(trace.extra.get("cleaned_answer", trace.final_answer))


def _aliases(trace: Trace) -> list[str]:
    return [str(alias) for alias in trace.extra.get("gold_aliases") or ()]


def gold_against_people(traces: Sequence[Trace]) -> Agreement:
    """Gold labels against people's, on the traces that have a verdict and a gold answer."""
    pairs: list[tuple[Label, Label]] = [
        (gold_label(_answer(trace), trace.gold_answer, _aliases(trace)).label, trace.label)
        for trace in traces
        if trace.label_source == "annotation" and trace.gold_answer is not None and trace.label is not None
    ]
    return agreement(pairs)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Traces that are there twice.

    Attributes:
        trace_ids: ids that more than one trace has.
        questions_in_splits: user questions that are in more than one split.
        same_state: traces whose state another trace has too, letter by letter.
        contradicting: of these, states with different labels.
        templates: the share of questions that differ from another only in names and numbers.
    """

    trace_ids: int
    questions_in_splits: int
    same_state: int
    contradicting: int
    templates: float


def duplicates(traces: Sequence[Trace]) -> Duplicates:
    """Look for duplicates."""
    ids = Counter(trace.trace_id for trace in traces if trace.trace_id)
    splits: defaultdict[str, set[str]] = defaultdict(set)
    states: defaultdict[str, list[str]] = defaultdict(list)
    for trace in traces:
        splits[normalise_question(trace.question)].add(split_of(trace))
        states[build_state(trace, {"format": "v1"}).text].append(str(trace.label))
    questions = Counter(_template(question) for question in {trace.question for trace in traces})
    repeated = sum(count for count in questions.values() if count > 1)
    return Duplicates(
        trace_ids=sum(count > 1 for count in ids.values()),
        questions_in_splits=sum(len(found) > 1 for found in splits.values()),
        same_state=sum(len(labels) for labels in states.values() if len(labels) > 1),
        contradicting=sum(len(set(labels)) > 1 for labels in states.values()),
        templates=repeated / max(1, sum(questions.values())),
    )


def telling_words(traces: Sequence[Trace]) -> Counter[str]:
    """Names of faults and of label fields that stand in a trace's state, where no scorer may see them."""
    found: Counter[str] = Counter()
    for trace in traces:
        found.update(set(_TELLING.findall(build_state(trace, {"format": "v1"}).text)))
    return found


def _template(question: str) -> str:
    """A question with its names and numbers taken out."""
    words = question.split()
    return " ".join(
        "N" if re.search(r"\d", word) or (i and word[:1].isupper()) else word.casefold() for i, word in enumerate(words)
    )
