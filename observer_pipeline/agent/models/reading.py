"""How the offline model understands questions and reads paragraphs: word cues and nearest values, no hidden knowledge.

A question is taken apart into what it names (anchors), the relations it asks for in the order they must be followed,
and, for comparisons, what is compared. A paragraph is read by looking for a relation's cue words and taking the nearest
value of the right kind. Both are shallow on purpose: they err where the wording is unusual or another value stands closer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "year", "date", "number", "trade"]
Form = Literal["chain", "larger", "smaller", "same"]


@dataclass(frozen=True, slots=True)
class Relation:
    """`asks`: patterns that show the relation in a question (their groups, or the whole match, are used up by it); `cues`:
    words near which a paragraph states it, the plainest first."""

    name: str
    kind: Kind
    asks: tuple[str, ...]
    cues: tuple[str, ...]


RELATIONS = (
    Relation("director", "name", (r"the director of", r"person who directed", r"filmmaker", r"same director", r"same person direct", r"direct(?:s|ed|or)"),
             ("directed by", "director", "directed", "direction of", "director's chair")),
    Relation("star", "name", (r"the star of", r"plays the lead", r"starr"), ("stars", "starring", "plays the lead", "lead role")),
    Relation("author", "name", (r"author", r"person who wrote", r"writer of", r"wr(?:ote|itten)"), ("written by", "author", "wrote", "novel by", "pen of")),
    Relation("publisher", "name", (r"publisher", r"company that published"), ("published by", "publisher", "published it", "brought out by")),
    Relation("architect", "name", (r"architect", r"person who designed", r"designed"), ("designed by", "architect", "plans", "work of")),
    Relation("founder", "name", (r"founder", r"person who founded", r"who founded"), ("founded by", "founder", "founded it", "established by", "workshop that")),
    Relation("mayor", "name", (r"person who is mayor", r"mayor"), ("mayor",)),
    Relation("headquarters", "name", (r"(town where).*?(is headquartered)", r"(town that houses) (the head office)", r"headquartered", r"head office", r"based in"),
             ("headquarters", "headquartered", "based", "head office")),
    Relation("birthplace", "name", (r"(town where).*?(was born)", r"birthplace", r"(where was).*(born)", r"(in which town was).*(born)", r"born in the same town", r"place of birth"),
             ("birthplace", "born in", "born on", "from", "native town")),
    Relation("birth_date", "date", (r"(when was).*(born)", r"(on what date).*(born)", r"birth date"), ("born on", "born", "world on")),
    Relation("birth_year", "year", (r"(what year).*(born)", r"birth year", r"born in (?:what|which) year"), ("born on", "born", "world on")),
    Relation("alma_mater", "name", (r"(university where).*?(studied)", r"(university that).*?(graduated from)", r"which university did", r"same university", r"stud(?:y|ied)", r"attend"),
             ("studied at", "graduated from", "degree at", "education")),
    Relation("spouse", "name", (r"person who married", r"spouse", r"marr(?:y|ied)"), ("married", "spouse")),
    Relation("occupation", "trade", (r"same occupation", r"occupation", r"for a living", r"profession"), ("is a", "was a", "is an", "was an")),
    Relation("industry", "trade", (r"industry",), ("active in", "in the", "manufacturer in")),
    Relation("mouth", "name", (r"mouth", r"same body of water", r"(into what).*(flow)"), ("flows into", "empties into", "mouth", "reaches")),
    Relation("length", "number", (r"how long", r"length"), ("long", "length", "runs for", "course of")),
    Relation("population", "number", (r"population", r"how many people live", r"inhabitants", r"populous"), ("population", "inhabitants", "people live")),
    Relation("employees", "number", (r"how many people does", r"employ(?:ees|er)?",), ("employees", "employs", "workforce")),
    Relation("students", "number", (r"how many students", r"students"), ("students", "enrolment")),
    Relation("founded", "year", (r"(what year).*(founded|established)", r"(when was).*(founded|established)", r"charter", r"founded", r"established"),
             ("founded in", "established in", "charter", "founded", "founded it in", "town rights", "teaching began", "workshop")),
    Relation("river", "name", (r"river that flows through", r"river on which", r"which river", r"same river"), ("lies on", "river", "flows through", "bank of", "waters of", "where the")),
    Relation("country", "name", (r"which country", r"what country", r"same country"), ("town in", "northern", "municipality of")),
    Relation("located", "name", (r"(town where).*?(is located|stands)", r"(town in which).*?(is located|stands)", r"seat of", r"located in", r"(in which town is).*(located)", r"located"),
             ("located in", "stands in", "campus is in", "building in", "moved to", "seat is", "square of")),
    Relation("height", "number", (r"tall(?:er)?", r"higher", r"height"), ("tall", "height", "rises")),
    Relation("pages", "number", (r"pages",), ("pages",)),
    Relation("released", "year", (r"came? out", r"released", r"recent"), ("released in", "premiered in", "cinemas in", "film from", "published in")),
    Relation("completed", "year", (r"completed", r"finished"), ("opened in", "completed in", "finished in")),
)  # fmt: skip
BY_NAME = {relation.name: relation for relation in RELATIONS}

# What a bare comparison adjective is about is decided from the page: the first of these that it states.
_AGE = ("birth_year", "founded", "released", "completed")
_EXTENT = ("length", "pages")
_SMALLER = re.compile(r"\b(older|first|earlier|fewer|shorter|smaller)\b")
_LARGER = re.compile(r"\b(younger|later|more|longer|larger|taller|higher|populous|recent|tall)\b")
_AGE_WORD = re.compile(r"\b(older|younger|first|earlier|later|recent)\b")

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE = re.compile(rf"\b\d{{1,2}} (?:{_MONTHS}) \d{{4}}\b|\b(?:{_MONTHS}) \d{{1,2}}, \d{{4}}\b")
_YEAR = re.compile(r"\b(?:1[0-9]|20)\d\d\b(?!,)")
_NUMBER = re.compile(r"\b\d{1,3}(?:,\d{3})+\b|\b\d{1,3}\b(?! (?:%s))" % _MONTHS)
_NATIONALITY = re.compile(r"[A-Z][a-z]+(?:ian|ese|ish|can)")
_OPENERS = frozenset(
    "what which who whom whose where when why how in on into at from did do does were was are is has have the a an if of".split()
)
_LINKS = frozenset("of the and & at for in de von van".split())
_PRONOUNS = frozenset("it its he his she her they their in after although about some born shot begun finished over an a".split())


@dataclass(frozen=True, slots=True)
class Ask:
    """A question taken apart: what it names, the relations in the order to follow, and the form of the answer."""

    text: str
    form: Form
    anchors: tuple[str, ...]
    relations: tuple[Relation, ...]
    wanted: Kind


def understand(question: str) -> Ask:
    """Take a question apart."""
    anchors = name_spans(question, question_opening=True)
    position = question.find(anchors[0]) if anchors else len(question)
    found = _relations(question, anchors)
    before = sorted((item for item in found if item[0] < position), key=lambda item: -item[0])
    after = sorted(item for item in found if item[0] >= position)
    relations = tuple(BY_NAME[name] for _, name in (*before, *after))
    lowered = question.lower()
    form: Form = "chain"
    if len(anchors) >= 2 and " or " in lowered and (_SMALLER.search(lowered) or _LARGER.search(lowered)):
        form = "smaller" if _SMALLER.search(lowered) else "larger"
    elif len(anchors) >= 2 and re.match(r"(did|do|does|were|was|are|is)\b", lowered):
        form = "same"
    return Ask(question, form, tuple(anchors), relations, _wanted(lowered, relations))


def _relations(question: str, anchors: Sequence[str]) -> list[tuple[int, str]]:
    """(position, name) of each relation asked for; words taken by one relation are not free for the next."""
    rest = question.lower()
    for anchor in anchors:  # a title's own words ask for nothing
        rest = rest.replace(anchor.lower(), " " * len(anchor))
    found = []
    for relation in RELATIONS:
        for pattern in relation.asks:
            match = re.search(pattern, rest)
            if not match:
                continue
            spans = [match.span(i) for i in range(1, (match.re.groups or 0) + 1)] or [match.span()]
            for start, end in spans:
                rest = rest[:start] + "_" * (end - start) + rest[end:]
            found.append((spans[0][0], relation.name))
            break
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
    """Runs of capitalised words, joined across small words; the opening word of a sentence counts unless it is a common one."""
    tokens = re.findall(r"[\w'’.&()/-]+|[,;:?!\"“”]", text)
    spans: list[list[str]] = []
    current: list[str] = []

    def close() -> None:
        while current and current[-1].lower() in _LINKS:
            current.pop()
        if current:
            spans.append(current.copy())
        current.clear()

    for i, token in enumerate(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        capital = token[0].isupper() or (bool(current) and token[0].isdigit())
        opening = i == 0 or tokens[i - 1].endswith((".", "?", "!")) and not current
        common = token.lower() in (_OPENERS if question_opening else _PRONOUNS)
        if re.fullmatch(_MONTHS, token) and (following[:1].isdigit() or (i and tokens[i - 1].isdigit())):
            close()  # a date, not a name
            continue
        if capital and not (opening and common and not (token in ("The", "A", "An") and following[:1].isupper())):
            current.append(token)
            if len(token) > 2 and token.endswith(".") and not token[:-1].endswith("."):
                close()
        elif current and token.lower() in _LINKS and _continues(tokens, i):
            current.append(token)
        else:
            close()
    close()
    return [" ".join(span).rstrip(".") for span in spans]


def _continues(tokens: list[str], i: int) -> bool:
    """Whether the small word at `i` belongs to a name: `of Prundon`, `and the Glass Wall`, but not `and Grevia`."""
    following = tokens[i + 1 : i + 3]
    if not following:
        return False
    if tokens[i].lower() == "and":
        return following[0] in ("the", "a") and len(following) > 1 and following[1][0].isupper()
    return following[0][0].isupper() or (following[0] in ("the", "a") and len(following) > 1 and following[1][0].isupper())


@dataclass(frozen=True, slots=True)
class Reading:
    """A value found in a paragraph; `sure` when a cue word pointed to it."""

    value: str
    sure: bool


def read(text: str, title: str, relation: Relation, cues: Sequence[str], *, skim: bool = False) -> Reading | None:
    """Look for a relation in a paragraph.

    Args:
        cues: those of the relation's cue words that the reader knows, tried in this order.
        skim: take the first value of the right kind in the sentence instead of the nearest to the cue.
    """
    for cue in cues:
        for sentence in _sentences(text):
            lowered = sentence.lower()
            match = re.search(rf"\b{re.escape(cue)}\b", lowered)
            if not match:
                continue
            values = _values(sentence, relation.kind, title, match.end())
            if values:
                best = values[0] if skim else min(values, key=lambda item: _distance(item, match.span()))
                return Reading(best[2], True)
    return None


def guess(text: str, title: str, kind: Kind, question: str) -> Reading | None:
    """Without a cue: a value of the right kind from the sentence that shares most words with the question."""
    words = set(re.findall(r"\w{4,}", question.lower()))
    best: tuple[int, str] | None = None
    for sentence in _sentences(text):
        values = [v for v in _values(sentence, kind, title, 0) if v[2].lower() not in question.lower()]
        shared = len(words & set(re.findall(r"\w{4,}", sentence.lower())))
        if values and (best is None or shared > best[0]):
            best = (shared, values[0][2])
    return Reading(best[1], False) if best else None


def _sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[a-z0-9)][.?!])\s+(?=[A-Z\"])", text) if part]


def _distance(item: tuple[int, int, str], cue: tuple[int, int]) -> int:
    """Characters between a value and the cue; what stands before the cue counts as farther away."""
    start, end, _ = item
    return start - cue[1] if start >= cue[1] else 2 * (cue[0] - end) + 8


def _values(sentence: str, kind: Kind, title: str, after: int) -> list[tuple[int, int, str]]:
    """(start, end, text) of the values of a kind in a sentence."""
    if kind == "trade":
        match = re.search(r"\b(?:(?:is|was) an?|active in|in the|manufacturer in) ((?:[\w-]+ )*?[\w-]+)(?= trade|[.,]| and | from )", sentence)
        if not match:
            return []
        words = [word for word in match[1].split() if not word[0].isupper()]
        return [(match.start(1), match.end(1), " ".join(words))] if words else []
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


def overlap(a: str, b: str) -> float:
    """The share of the words of `a` that occur in `b`, in [0, 1]."""
    ours, theirs = set(plain(a).split()), set(plain(b).split())
    return len(ours & theirs) / len(ours) if ours else 0.0


def as_size(value: str) -> tuple[int, ...] | None:
    """Numbers, years and dates as something that can be ordered; None when it is none of them."""
    if _DATE.fullmatch(value):
        names = _MONTHS.split("|")
        month = next(i for i, name in enumerate(names) if name in value)
        numbers = [int(n) for n in re.findall(r"\d+", value)]
        return max(numbers), month, min(numbers)
    digits = value.replace(",", "")
    return (int(digits),) if digits.isdigit() else None
