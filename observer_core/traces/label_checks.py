"""How far labels can be trusted: doubts about single gold labels, and agreement between two sets of labels."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import get_args

from observer_core.traces.labels import CLOSED, gold_label, normalise_answer
from observer_core.traces.trace import Label

_ALIKE = 0.88
"""Share of equal letters from which two answers count as one spelled differently."""
_FUNCTION_WORDS = frozenset(
    ("of", "and", "in", "on", "at", "to", "for", "by", "with", "from", "or", "de", "la", "von", "van")
)
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two sets of labels on the same traces agree.

    `table` maps (first label, second label) to how often; `share` and `kappa` (Cohen 1960) are over the three labels,
    `share_wrong` and `kappa_wrong` over wrong (with partial) against correct; None without traces, or without variety.
    """

    n: int
    share: float | None
    kappa: float | None
    share_wrong: float | None
    kappa_wrong: float | None
    table: dict[tuple[Label, Label], int]


def agreement(pairs: Iterable[tuple[Label, Label]]) -> Agreement:
    """Agreement between gold labels and people's, or between any two; the pairs are of one trace each."""
    table = Counter(pairs)
    coarse: Counter[tuple[str, str]] = Counter()
    for (a, b), count in table.items():
        coarse["correct" if a == "correct" else "wrong", "correct" if b == "correct" else "wrong"] += count
    share, kappa = _kappa(table, get_args(Label))
    share_wrong, kappa_wrong = _kappa(coarse, ("wrong", "correct"))
    return Agreement(sum(table.values()), share, kappa, share_wrong, kappa_wrong, dict(table))


def _kappa(table: Counter, labels: Sequence[str]) -> tuple[float | None, float | None]:
    n = sum(table.values())
    if not n:
        return None, None
    observed = sum(table[label, label] for label in labels) / n
    chance = sum(
        sum(table[label, other] for other in labels) * sum(table[other, label] for other in labels) for label in labels
    ) / (n * n)
    return observed, (observed - chance) / (1 - chance) if chance < 1 else None


def label_doubts(
    answer: str, gold: str, aliases: Iterable[str] = (), *, evidence: Sequence[str] | None = None
) -> list[str]:
    """Why a reader might call the label of this answer wrong; empty for most.

    Of an answer labeled `wrong` or `partial`: `contains_gold` (the gold answer and more), `inside_gold` (a name without
    its middle name, a number without its unit), `yes_no_in_words`, `same_number` (in words), `same_date` (in another
    order or with more), `spelling` (nearly the same letters), `initials`. Of one labeled `correct`: `unsupported` (the
    gold answer stands nowhere in the evidence, so it was known or guessed), where `evidence` is given.
    """
    if gold_label(answer, gold, aliases).label == "correct":
        closed = normalise_answer(gold) in CLOSED
        shown = _padded(normalise_answer(" ".join(evidence or ())))
        names = [gold, *aliases]
        unsupported = (
            evidence is not None and not closed and not any(_padded(normalise_answer(n)) in shown for n in names)
        )
        return ["unsupported"] if unsupported else []
    if not normalise_answer(answer):
        return []
    return [name for name, holds in _DOUBTS.items() if any(holds(answer, form) for form in (gold, *aliases))]


def _contains_gold(answer: str, gold: str) -> bool:
    name = normalise_answer(gold)
    return bool(name) and name not in CLOSED and _padded(name) in _padded(normalise_answer(answer))


def _inside_gold(answer: str, gold: str) -> bool:
    ours, theirs = normalise_answer(answer).split(), normalise_answer(gold).split()
    if not ours or len(ours) >= len(theirs) or set(ours) <= _FUNCTION_WORDS:
        return False
    rest = iter(theirs)
    return all(word in rest for word in ours)  # in order, with gaps: a middle name may be missing


def _yes_no_in_words(answer: str, gold: str) -> bool:
    first = normalise_answer(answer).split()[:1]
    return normalise_answer(gold) in ("yes", "no") and first == [normalise_answer(gold)]


def _same_number(answer: str, gold: str) -> bool:
    ours, theirs = _number(answer), _number(gold)
    return ours is not None and ours == theirs


def _same_date(answer: str, gold: str) -> bool:
    ours, theirs = _date_parts(answer), _date_parts(gold)
    return bool(ours and theirs) and (ours <= theirs or theirs <= ours) and bool(ours & theirs & _years(ours | theirs))


def _spelling(answer: str, gold: str) -> bool:
    ours, theirs = normalise_answer(answer), normalise_answer(gold)
    if re.search(r"\d", ours + theirs) or min(len(ours), len(theirs)) < 5:
        return False
    return SequenceMatcher(None, ours, theirs).ratio() >= _ALIKE


def _initials(answer: str, gold: str) -> bool:
    ours, theirs = normalise_answer(answer).split(), normalise_answer(gold).split()
    if len(ours) < 2 or len(theirs) < 2 or ours[-1] != theirs[-1] or ours == theirs:
        return False
    a, b = ours[0], theirs[0]
    return a[0] == b[0] and (len(a) == 1 or len(b) == 1)


def _padded(text: str) -> str:
    return f" {text} "


def _number(text: str) -> int | None:
    """The number a text consists of, in digits or in words up to ninety-nine, whatever unit follows."""
    words = [word for word in re.split(r"[\s-]+", text.casefold().replace(",", "")) if word]
    if words and re.fullmatch(r"\d+", words[0]):
        return int(words[0])
    total = None
    for word in words:
        if word in _UNITS:
            total = (total or 0) + _UNITS.index(word)
        elif word in _TENS:
            total = (total or 0) + 10 * (_TENS.index(word) + 2)
        else:
            break
    return total


def _date_parts(text: str) -> frozenset[str]:
    """Day, month and year of a date, in whatever order; empty for what is no date."""
    words = normalise_answer(text).split()
    parts = [word for word in words if word in _MONTHS or re.fullmatch(r"\d{1,4}", word)]
    return frozenset(parts) if len(parts) == len(words) else frozenset()


def _years(parts: Iterable[str]) -> frozenset[str]:
    return frozenset(part for part in parts if len(part) == 4)


_DOUBTS: dict[str, Callable[[str, str], bool]] = {
    "contains_gold": _contains_gold,
    "inside_gold": _inside_gold,
    "yes_no_in_words": _yes_no_in_words,
    "same_number": _same_number,
    "same_date": _same_date,
    "spelling": _spelling,
    "initials": _initials,
}
