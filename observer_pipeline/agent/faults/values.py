"""Values as faults see them: their kind, values that could stand in their place, and slips of the pen."""

import random
import re
from typing import Literal

from observer_core.traces.labels import normalise_answer
from observer_pipeline.agent.questions import AgentQuestion, Fact, Paragraph

ValueKind = Literal["closed", "date", "year", "number", "name"]

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_MONTH = "|".join(MONTHS)
DATE = re.compile(rf"\b\d{{1,2}} (?:{_MONTH}) \d{{4}}\b|\b(?:{_MONTH}) \d{{1,2}}, \d{{4}}\b")
YEAR = re.compile(r"\b(?:1[0-9]|20)\d\d\b(?!,)")
NUMBER = re.compile(r"\b\d+(?:,\d{3})*\b")
_ABOUT_DATES = re.compile(
    r"\b(?:older|younger|born|first|earlier|later|founded|released|recent|died|established)\b", re.I
)


def kind_of(value: str) -> ValueKind:
    """What sort of value an answer or a fact is."""
    if value.strip().casefold().rstrip(".") in ("yes", "no"):
        return "closed"
    for kind, pattern in (("date", DATE), ("year", YEAR), ("number", NUMBER)):
        if pattern.search(value):
            return kind  # pyright: ignore[reportReturnType]
    return "name"


def replace_word(text: str, value: str, other: str) -> str:
    """Put `other` where `value` stands as a whole word."""
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: other, text)


def page_of(question: AgentQuestion, title: str) -> Paragraph | None:
    """The question's paragraph with this title."""
    return next((p for p in question.paragraphs if p.title == title), None)


def facts_of(question: AgentQuestion, rng: random.Random) -> list[Fact]:
    """What the answer hangs on; for a data set that does not say, the answer where it is supported, else years."""
    if question.facts:
        return list(question.facts)
    texts = {p.title: p.text for p in question.paragraphs}
    facts = []
    for title in question.supporting_titles:
        text = texts.get(title, "")
        if re.search(rf"(?<!\w){re.escape(question.answer)}(?!\w)", text) and title != question.answer:
            facts.append(Fact(title, question.answer, others(question, question.answer, rng)))
        elif question.type == "comparison":
            facts += [Fact(title, year, (shift(year, rng),)) for year in re.findall(r"\b1\d{3}\b|\b20\d\d\b", text)[:1]]
    return facts


def others(question: AgentQuestion, value: str, rng: random.Random) -> tuple[str, ...]:
    """What could stand in a value's place: the same with other numbers, else titles of unrelated paragraphs."""
    if re.search(r"\d", value):
        return (re.sub(r"\d+", lambda match: shift(match[0], rng), value),)
    supporting = set(question.supporting_titles)
    return tuple(p.title for p in question.paragraphs if p.title not in supporting and p.title != value)


def shift(number: str, rng: random.Random) -> str:
    """Another number of about the same size."""
    return str(max(1, int(number) + rng.choice((-1, 1)) * rng.randint(3, 40)))


def other_side(question: AgentQuestion) -> str | None:
    """For a comparison, the entity that is not the answer."""
    if question.type != "comparison" or kind_of(question.answer) != "name":
        return None
    right = {normalise_answer(name) for name in (question.answer, *question.aliases)}
    titles = [re.sub(r" \([^)]*\)$", "", title) for title in question.supporting_titles]
    rest = [title for title in titles if normalise_answer(title) not in right]
    return rest[0] if len(rest) == 1 else None


def compared_kind(question: AgentQuestion) -> ValueKind:
    """What a comparison compares: numbers, or points in time."""
    for fact in question.facts:
        kind = kind_of(fact.value)
        if kind in ("date", "year", "number"):
            return kind
    return "date" if _ABOUT_DATES.search(question.question) else "number"


def wrong_value(question: AgentQuestion, rng: random.Random) -> str | None:
    """A plausible wrong answer of the right kind, preferably one that stands in none of the paragraphs."""
    kind = kind_of(question.answer)
    if kind == "closed":
        return "no" if question.answer.strip().casefold().startswith("yes") else "yes"
    swapped = other_side(question)
    if swapped:
        return swapped
    if kind == "name":
        texts = " ".join(p.text for p in question.paragraphs)
        last = question.facts[-1].alternatives if question.facts else ()
        invented = [value for value in last if kind_of(value) == "name" and value not in texts]
        pool = invented or [*last, *others(question, question.answer, rng)]
        return rng.choice(pool) if pool else None
    return slip_of_date(question.answer, rng) if kind in ("date", "year") else slip_of_number(question.answer, rng)


def slip_of_number(text: str, rng: random.Random) -> str | None:
    """The text with its last number miscalculated: two digits swapped, or a carry too many or too few."""
    found = list(NUMBER.finditer(text))
    if not found:
        return None
    match = found[-1]
    number = int(match[0].replace(",", ""))
    slipped = _slip(number, rng)
    shown = f"{slipped:,}" if "," in match[0] else str(slipped)
    return text[: match.start()] + shown + text[match.end() :]


def slip_of_date(text: str, rng: random.Random) -> str | None:
    """The text with its date or year slightly wrong: another year, the neighbouring month, or another day."""
    date = DATE.search(text)
    if date and rng.random() < 0.5:
        words = date[0].replace(",", "").split()
        place = next(i for i, word in enumerate(words) if word in MONTHS)
        if rng.random() < 0.5:
            changed = date[0].replace(words[place], MONTHS[(MONTHS.index(words[place]) + rng.choice((1, 11))) % 12])
        else:
            day = words[1 - place]
            changed = re.sub(rf"\b{day}\b", str(int(day) % 28 + rng.choice((1, 3))), date[0], count=1)
        return text[: date.start()] + changed + text[date.end() :]
    year = YEAR.search(text)
    if year is None:
        return None
    moved = int(year[0]) + rng.choice((-100, -10, -2, -1, 1, 2, 10))
    return text[: year.start()] + str(moved) + text[year.end() :]


def _slip(number: int, rng: random.Random) -> int:
    digits = str(number)
    swaps = [i for i in range(len(digits) - 1) if digits[i] != digits[i + 1] and digits[i + 1] != "0"]
    if swaps and rng.random() < 0.5:
        i = rng.choice(swaps)
        return int(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :])
    step = 10 ** rng.randrange(len(digits))
    return number - step if number > step and rng.random() < 0.5 else number + step
