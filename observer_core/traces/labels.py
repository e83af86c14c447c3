"""Gold labels: HotpotQA's exact match, F1 and supporting facts, and the label they mean.

The rules are those of HotpotQA's evaluation script (`hotpot_evaluate_v1.py`, Yang et al. 2018): answers are compared
after lower-casing, removing ASCII punctuation and the articles a, an, the; F1 is over tokens, and is 0 when one of the
two answers is yes, no or noanswer and the other is not the same. Supporting facts are compared as sets of (title,
sentence) pairs.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from observer_core.traces.trace import Label

CORRECT_F1 = 0.8
PARTIAL_F1 = 0.3

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
CLOSED = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong as a whole."""


@dataclass(frozen=True, slots=True)
class GoldLabel:
    """How an answer compares with the gold answer: exact match, token F1 in [0, 1], and the label they mean."""

    em: bool
    f1: float
    label: Label


def normalise_answer(text: str) -> str:
    """The form in which answers are compared: lower case, no punctuation, no articles, single blanks."""
    without = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without).split())


def exact_match(answer: str, gold: str) -> bool:
    """Whether both answers are equal once normalised."""
    return normalise_answer(answer) == normalise_answer(gold)


def f1(answer: str, gold: str) -> float:
    """Token F1 of the normalised answers, in [0, 1]; all or nothing when either is yes, no or noanswer."""
    ours, theirs = normalise_answer(answer), normalise_answer(gold)
    if ours != theirs and (ours in CLOSED or theirs in CLOSED):
        return 0.0
    ours_tokens, their_tokens = ours.split(), theirs.split()
    common = sum((Counter(ours_tokens) & Counter(their_tokens)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(ours_tokens), common / len(their_tokens)
    return 2 * precision * recall / (precision + recall)


def gold_label(answer: str, gold: str, aliases: Iterable[str] = ()) -> GoldLabel:
    """Compare an answer with the gold answer, or with whichever of its aliases fits best.

    `correct`: exact match or F1 of at least 0.8; `partial`: F1 of at least 0.3; else, and for an empty answer, `wrong`.
    """
    if not answer.strip():
        return GoldLabel(em=False, f1=0.0, label="wrong")
    em, best = max((exact_match(answer, name), f1(answer, name)) for name in (gold, *aliases))
    if em or best >= CORRECT_F1:
        return GoldLabel(em, best, "correct")
    return GoldLabel(em, best, "partial" if best >= PARTIAL_F1 else "wrong")


@dataclass(frozen=True, slots=True)
class SupportScore:
    """How named supporting facts compare with the gold ones, each in [0, 1]."""

    em: bool
    precision: float
    recall: float
    f1: float


def supporting_score(named: Iterable[tuple[str, int]], gold: Iterable[tuple[str, int]]) -> SupportScore:
    """Supporting facts as HotpotQA's script compares them: sets of (title, sentence index)."""
    ours, theirs = set(named), set(gold)
    right = len(ours & theirs)
    precision = right / len(ours) if ours else 0.0
    recall = right / len(theirs) if theirs else 0.0
    both = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return SupportScore(ours == theirs, precision, recall, both)


def supporting_coverage(evidence: Iterable[str], sentences: Sequence[str]) -> float | None:
    """The share of the supporting sentences that stand in the evidence, in [0, 1]; None when none are known."""
    if not sentences:
        return None
    shown = squeezed("\n".join(evidence))
    return sum(squeezed(sentence) in shown for sentence in sentences) / len(sentences)


def squeezed(text: str) -> str:
    """The text with every run of white space as one blank."""
    return " ".join(text.split())
