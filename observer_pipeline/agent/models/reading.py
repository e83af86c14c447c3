"""How the offline model understands questions and reads paragraphs: word cues and nearest values, no hidden knowledge.

A question is taken apart into what it names (anchors), the relations it asks for in the order they must be followed,
and, for comparisons, what is compared. A paragraph is read by looking for a relation's cue words and taking the nearest
value of the right kind. That is enough for nearly every question of the generated world, whatever its shape, so that
what goes wrong there does not hang on how a question is worded; of other texts they understand less.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from observer_pipeline.agent.models.relations import RELATIONS, Kind, Relation

Form = Literal["chain", "larger", "smaller", "same", "is_larger", "is_smaller", "difference", "sum"]


BY_NAME = {relation.name: relation for relation in RELATIONS}

# What a bare comparison adjective is about is decided from the page: the first of these that it states.
_AGE = ("birth_date", "birth_year", "founded", "released", "completed")
_EXTENT = ("length", "pages", "minutes")
_SMALLER = re.compile(r"\b(older|first|earlier|fewer|shorter|smaller|less)\b")
_LARGER = re.compile(r"\b(younger|later|more|longer|larger|taller|higher|populous|recent|tall)\b")
_SUM = re.compile(r"\b(together|combined|in total)\b")
_DIFFERENCE = re.compile(r"\bhow many (?:more|fewer|years lie)\b|\bhow many \w+ longer\b|\bby how many\b")
_YES_NO = re.compile(r"(?:did|do|does|were|was|are|is)\b")
_BEFORE = re.compile(r"\bbefore\b")
_AFTER = re.compile(r"\bafter\b")
_PREAMBLE = re.compile(r"^[^:?]{3,40}: (?=[A-Z][^:]*\?)")
_AGE_WORD = re.compile(r"\b(older|younger|first|earlier|later|recent|before|after|years)\b")

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_MONTHS = "|".join(MONTHS)
_DATE = re.compile(rf"\b\d{{1,2}} (?:{_MONTHS}) \d{{4}}\b|\b(?:{_MONTHS}) \d{{1,2}}, \d{{4}}\b")
_YEAR = re.compile(r"\b(?:1[0-9]|20)\d\d\b(?!,\d)")
_NUMBER = re.compile(rf"\b\d{{1,3}}(?:,\d{{3}})+\b|\b\d{{1,3}}\b(?! (?:{_MONTHS}))")
_NATIONALITY = re.compile(r"[A-Z][a-z]+(?:ian|ese|ish|can)")

# Looks ahead, so that `is a company active in brewing` has both `company active in brewing` and `brewing`.
_TRADE = re.compile(
    r"\b(?:(?:is|was) an?|active in|in the|manufacturer in) (?=((?:[\w-]+ )*?[\w-]+)(?: trade|[.,]| and | from ))"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPENERS = _words(
    "what which who whom whose where when why how in on into at from did do does were was are is has have "
    "the a an if of by"
)
_LINKS = _words("of the and & at for in de von van")
_THINGS = _words(
    "town city municipality river film novel building hall firm company manufacturer university college by"
)
_PRONOUNS = _words(
    "it its he his she her they their in after although about some born shot begun finished over an a "
    "founded visitors critics parts flooding enrolment teaching do"
)


@dataclass(frozen=True, slots=True)
class Ask:
    """A question taken apart: what it names, the relations in the order to follow, and the form of the answer."""

    text: str
    form: Form
    anchors: tuple[str, ...]
    relations: tuple[Relation, ...]
    wanted: Kind


def understand(question: str) -> Ask:
    """Take a question apart; what is said before or after it does not count."""
    question = _PREAMBLE.sub("", question)
    question = question[: question.rfind("?") + 1] or question
    spans = name_spans(question, question_opening=True)
    anchors = [span for span in spans if not _NATIONALITY.fullmatch(span)] or spans
    position = question.find(anchors[0]) if anchors else len(question)
    found = _relations(question, anchors)
    before = sorted((item for item in found if item[0] < position), key=lambda item: -item[0])
    after = sorted(item for item in found if item[0] >= position)
    relations = tuple(BY_NAME[name] for _, name in (*before, *after))
    lowered = question.lower()
    form = _pair_form(lowered) if len(anchors) >= 2 else "chain"
    return Ask(question, form, tuple(anchors), relations, _wanted(lowered, relations))


def _pair_form(lowered: str) -> Form:
    """What is asked of two named things."""
    smaller, larger = _SMALLER.search(lowered), _LARGER.search(lowered)
    if " or " in lowered and (smaller or larger):
        return "smaller" if smaller else "larger"
    if _SUM.search(lowered):
        return "sum"
    if _DIFFERENCE.search(lowered):
        return "difference"
    if not _YES_NO.match(lowered):
        return "chain"
    if " than " in lowered or _BEFORE.search(lowered) or _AFTER.search(lowered):
        return "is_smaller" if smaller or _BEFORE.search(lowered) else "is_larger"
    return "same"


def _relations(question: str, anchors: Sequence[str]) -> list[tuple[int, str]]:
    """(position, name) of each relation asked for, as often as it is; words taken by one are not free for the next."""
    rest = question.lower()
    for anchor in anchors:  # a title's own words ask for nothing, nor does the trade before a person's name
        own = re.compile(rf"(?:\b(?:director|architect) )?{re.escape(anchor.lower())}")
        rest = own.sub(lambda match: " " * len(match[0]), rest)
    found = []
    for relation in RELATIONS:
        for pattern in relation.asks:
            while match := re.search(pattern, rest):
                spans = [match.span(i) for i in range(1, (match.re.groups or 0) + 1)] or [match.span()]
                for start, end in spans:
                    rest = rest[:start] + "_" * (end - start) + rest[end:]
                found.append((spans[0][0], relation.name))
    return found


def _wanted(lowered: str, relations: Sequence[Relation]) -> Kind:
    if re.search(r"\b(what|which) year\b", lowered):
        return "year"
    if re.match(r"(when|on what date)\b", lowered):
        return "date" if "born" in lowered else "year"
    if re.match(r"how (many|long|much|tall|high)\b", lowered):
        return "number"
    return relations[-1].kind if relations else "name"


def compared(ask: Ask) -> tuple[Relation, ...]:
    """The relations a comparison may be about, likeliest first."""
    lowered = ask.text.lower()
    named = tuple(r for r in ask.relations if r.kind in ("number", "year", "date"))
    if named:
        return named
    if _AGE_WORD.search(lowered):
        return tuple(BY_NAME[name] for name in _AGE)
    return tuple(BY_NAME[name] for name in _EXTENT)


def name_spans(text: str, *, question_opening: bool = False) -> list[str]:
    """Runs of capitalised words, joined across small words; dates are none, nor is a sentence's common opening word."""
    tokens = re.findall(r"[\w'’.&()/-]+|[,;:?!\"“”]", text)
    spans: list[list[str]] = []
    current: list[str] = []
    definite = False

    def close() -> None:
        while current and current[-1].lower() in _LINKS:
            current.pop()
        if current:
            spans.append(current.copy())
        current.clear()

    for i, token in enumerate(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        capital = token[0].isupper() or (bool(current) and token[0].isdigit())
        opening = i == 0 or (tokens[i - 1].endswith((".", "?", "!")) and not current)
        common = token.lower() in (_OPENERS if question_opening else _PRONOUNS)
        if re.fullmatch(_MONTHS, token) and (following[:1].isdigit() or (i and tokens[i - 1].isdigit())):
            close()  # a date, not a name
            continue
        if capital and not (opening and common and not (token in ("The", "A", "An") and following[:1].isupper())):
            if not current:
                definite = i > 0 and tokens[i - 1] == "the"
            current.append(token)
            if len(token) > 2 and token.endswith(".") and not token[:-1].endswith("."):
                close()
        elif current and token.lower() in _LINKS and _continues(tokens, i, definite):
            current.append(token)
        else:
            close()
    close()
    return [" ".join(span).rstrip(".") for span in spans]


def _continues(tokens: list[str], i: int, definite: bool) -> bool:
    """Whether the small word at `i` belongs to a name: `of Prundon`, `and the Glass Wall`, but not `and Grevia`.

    Nor does `and the Brin` where the name itself had an article (`the Orsa`).
    """
    following = tokens[i + 1 : i + 3]
    if not following:
        return False
    if tokens[i].lower() == "and":
        return not definite and following[0] in ("the", "a") and len(following) > 1 and following[1][0].isupper()
    return following[0][0].isupper() or (
        following[0] in ("the", "a") and len(following) > 1 and following[1][0].isupper()
    )


def read(text: str, title: str, relation: Relation) -> str | None:
    """The value a paragraph states for a relation: the one nearest to the first of its cues that has any."""
    sentences = _sentences(text)
    for cue in relation.cues:
        for sentence in sentences:
            match = re.search(rf"\b{cue}\b", sentence.lower())
            if not match:
                continue
            values = _values(sentence, relation.kind, title)
            if values:
                return min(values, key=lambda item: _distance(item, match.span()))[2]
    return None


def values_of(text: str, title: str, kind: Kind) -> list[str]:
    """All values of a kind that a paragraph states, whatever they are about."""
    return [value for sentence in _sentences(text) for _, _, value in _values(sentence, kind, title)]


def guess(text: str, title: str, kind: Kind, question: str, *, unlike: str | None = None) -> str | None:
    """Without a cue: a value of the right kind from the sentence that shares most words with the question.

    Args:
        unlike: a value that it is not.
    """
    words = set(re.findall(r"\w{4,}", question.lower()))
    best: tuple[int, str] | None = None
    for sentence in _sentences(text):
        values = [
            value
            for _, _, value in _values(sentence, kind, title)
            if value.lower() not in question.lower() and value != unlike
        ]
        shared = len(words & set(re.findall(r"\w{4,}", sentence.lower())))
        if values and (best is None or shared > best[0]):
            best = (shared, values[0])
    return best[1] if best else None


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[a-z0-9)][.?!])\s+(?=[A-Z\"])", text) if part]


def _distance(item: tuple[int, int, str], cue: tuple[int, int]) -> int:
    """Characters between a value and the cue; what stands before the cue counts as farther away, inside it as last."""
    start, end, _ = item
    if start < cue[1] and end > cue[0]:
        return 10_000
    return start - cue[1] if start >= cue[1] else 2 * (cue[0] - end) + 8


def _values(sentence: str, kind: Kind, title: str) -> list[tuple[int, int, str]]:
    """(start, end, text) of the values of a kind in a sentence."""
    if kind == "trade":
        found = []
        for match in _TRADE.finditer(sentence):
            words = [word for word in match[1].split() if not word[0].isupper()]
            if words and words[-1] not in _THINGS and not _LINKS & set(words):
                found.append((match.start(1), match.end(1), " ".join(words)))
        return found
    if kind == "name":
        own = plain(title)
        found, at = [], 0
        for span in name_spans(sentence):
            at = max(at, sentence.find(span, at))
            if plain(span) != own and not _NATIONALITY.fullmatch(span):
                found.append((at, at + len(span), span))
        return found
    pattern = {"date": _DATE, "year": _YEAR, "number": _NUMBER}[kind]
    return [(m.start(), m.end(), m[0]) for m in pattern.finditer(sentence)]


def plain(name: str) -> str:
    """A name for comparing: lower case, without article, bracketed addition and punctuation."""
    name = re.sub(r"\s*\([^)]*\)$", "", name).lower()
    name = re.sub(r"^(the|a|an) ", "", name)
    return " ".join(re.findall(r"\w+", name))


def brackets(title: str) -> list[str]:
    """A bracketed addition to a title, whole and by words: `1960 film`, `1960`, `film` of `The Gate (1960 film)`."""
    if not title.endswith(")") or "(" not in title:
        return []
    inside = title[title.rfind("(") + 1 : -1]
    return [inside, *inside.split()]


def overlap(a: str, b: str) -> float:
    """The share of the words of `a` that occur in `b`, in [0, 1]."""
    ours, theirs = set(plain(a).split()), set(plain(b).split())
    return len(ours & theirs) / len(ours) if ours else 0.0


def as_size(value: str) -> tuple[int, ...] | None:
    """Numbers, years and dates as something that can be ordered; None when it is none of them."""
    if _DATE.fullmatch(value):
        month = next(i for i, name in enumerate(MONTHS) if name in value)
        numbers = [int(n) for n in re.findall(r"\d+", value)]
        return max(numbers), month, min(numbers)
    digits = value.replace(",", "")
    return (int(digits),) if digits.isdigit() else None
