"""The shapes of the generated world's questions: along a chain, or over a pair compared, equated or calculated with."""

from collections.abc import Callable
from dataclasses import dataclass

from observer_pipeline.agent.questions import QuestionType
from observer_pipeline.agent.world_asks import COMPARISONS, MORE, NOUN_PHRASES, QUESTIONS, SAME, SUMS
from observer_pipeline.agent.world_facts import MONTHS, YEARS, Entity
from observer_pipeline.agent.world_piece import Piece, known_occupation

Stated = tuple[Entity, str, tuple[str, ...]]
"""An entity, the attribute its paragraph must state, and values that could stand in its place."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A question about a piece of world; the fields are those of `AgentQuestion`, with entities for titles."""

    question: str
    answer: str
    level: str
    facts: list[Stated]
    type: QuestionType
    aliases: tuple[str, ...] = ()
    skipped_hop: str | None = None
    sibling: str | None = None


# --- along a chain ---------------------------------------------------------------------------------------------------


def bridge(piece: Piece) -> Shape:
    """What is true of what a chain of relations leads to."""
    rng = piece.rng
    chain, phrases = _walk(piece)
    entity, attribute = chain[-1]
    facts = [(e, a, piece.alternatives(e, a)) for e, a in chain]
    answer = piece.value(entity, attribute)
    aliases = (piece.text(answer, "alias"),) if isinstance(answer, Entity) and answer in piece.alias_needed else ()
    level = "hard" if len(chain) > 2 else "medium" if piece.alias_needed else "easy"
    return Shape(
        question=rng.choice(QUESTIONS[entity.kind, attribute]).format(x=phrases[-1]),
        answer=piece.text(entity, attribute),
        level=level,
        facts=facts,
        type="bridge",
        aliases=aliases,
        skipped_hop=_skipped_hop(piece, chain, phrases),
        sibling=_sibling(piece, entity, attribute, phrases[-1]),
    )


def _walk(piece: Piece) -> tuple[list[tuple[Entity, str]], list[str]]:
    """A chain of (entity, relation or final attribute), and the noun phrase for each of its entities."""
    rng = piece.rng
    hops = rng.choices((1, 2, 3), weights=(56, 36, 8))[0]
    entity = piece.anchor(rng.choice(["film", "novel", "building", "company", "person", "university", "town"]))
    phrases, chain = [piece.mention(entity)], []
    for _ in range(hops):
        relations = [relation for kind, relation in NOUN_PHRASES if kind == entity.kind]
        if entity.kind == "town" and chain:
            relations = ["river", "mayor"]
        if not relations:
            break
        relation = rng.choice(relations)
        phrases.append(rng.choice(NOUN_PHRASES[entity.kind, relation]).format(x=phrases[-1]))
        chain.append((entity, relation))
        piece.need(entity, relation)
        target = piece.value(entity, relation)
        assert isinstance(target, Entity)
        entity = target
    attributes = [a for kind, a in QUESTIONS if kind == entity.kind and (entity, a) not in chain]
    if known_occupation(chain[-1][1]):
        attributes = [a for a in attributes if a != "occupation"]
    attribute = rng.choice(attributes)
    piece.need(entity, attribute)
    return [*chain, (entity, attribute)], phrases


def _skipped_hop(piece: Piece, chain: list[tuple[Entity, str]], phrases: list[str]) -> str | None:
    """The question with its last hop left out, or another relation taken from the same entity to the same kind."""
    last, attribute = chain[-1]
    before, relation = chain[-2]
    asked = {a for kind, a in QUESTIONS if kind == before.kind and a != relation}
    if attribute in asked:
        piece.need(before, attribute)
        return piece.rng.choice(QUESTIONS[before.kind, attribute]).format(x=phrases[-2])
    for kind, other in NOUN_PHRASES:
        if kind == before.kind and other != relation and _leads_to(piece, before, other) == last.kind:
            phrase = piece.rng.choice(NOUN_PHRASES[kind, other]).format(x=phrases[-2])
            piece.need(before, other)
            return piece.rng.choice(QUESTIONS[last.kind, attribute]).format(x=phrase)
    return None


def _leads_to(piece: Piece, entity: Entity, relation: str) -> str:
    target = piece.value(entity, relation)
    return target.kind if isinstance(target, Entity) else ""


def _sibling(piece: Piece, entity: Entity, attribute: str, phrase: str) -> str | None:
    """Another question about the same thing, which its paragraph answers too."""
    others = [a for kind, a in QUESTIONS if kind == entity.kind and a not in (attribute, "occupation")]
    if not others:
        return None
    other = piece.rng.choice(others)
    piece.need(entity, other)
    return piece.rng.choice(QUESTIONS[entity.kind, other]).format(x=phrase)


# --- over a pair -----------------------------------------------------------------------------------------------------


def compare(piece: Piece) -> Shape:
    """Which of two has more, or less, of something."""
    rng = piece.rng
    (kind, attribute), (larger, smaller) = rng.choice(list(COMPARISONS.items()))
    pair = _unequal_pair(piece, kind, attribute)
    want_larger = rng.random() < 0.5
    pick = max if want_larger else min
    winner = pick(pair, key=lambda e: size(piece.text(e, attribute)))
    loser = next(e for e in pair if e is not winner)
    a, b = (piece.mention(entity) for entity in pair)
    beyond = _beyond(piece, piece.text(loser, attribute), attribute, larger=not want_larger)
    return Shape(
        question=rng.choice(larger if want_larger else smaller).format(a=a, b=b),
        answer=winner.name,
        level="medium",
        facts=[(winner, attribute, (beyond,)), (loser, attribute, ())],
        type="comparison",
        aliases=(piece.text(winner, "alias"),) if winner in piece.alias_needed else (),
        skipped_hop=rng.choice(smaller if want_larger else larger).format(a=a, b=b),
        sibling=_sum_sibling(piece, pair, attribute, a, b) or _pair_sibling(piece, pair, attribute, a, b),
    )


def more(piece: Piece) -> Shape:
    """Whether one of two has more, or less, of something: yes or no."""
    rng = piece.rng
    (kind, attribute), forms = rng.choice(list(MORE.items()))
    pair = _unequal_pair(piece, kind, attribute)
    larger, smaller = sorted(pair, key=lambda e: size(piece.text(e, attribute)), reverse=True)
    asks_larger, first_is_larger = rng.random() < 0.5, rng.random() < 0.5
    first, second = (larger, smaller) if first_is_larger else (smaller, larger)
    a, b = piece.mention(first), piece.mention(second)
    beyond = _beyond(piece, piece.text(second, attribute), attribute, larger=not first_is_larger)
    return Shape(
        question=rng.choice(forms[0 if asks_larger else 1]).format(a=a, b=b),
        answer="yes" if asks_larger == first_is_larger else "no",
        level="medium",
        facts=[(first, attribute, (beyond,)), (second, attribute, ())],
        type="comparison",
        skipped_hop=rng.choice(forms[1 if asks_larger else 0]).format(a=a, b=b),
        sibling=_closed_sibling(piece, [first, second], attribute, (a, b), yes=asks_larger != first_is_larger)
        or _pair_sibling(piece, pair, attribute, a, b),
    )


def same(piece: Piece) -> Shape:
    """Whether two have the same value of something: yes or no."""
    rng = piece.rng
    (kind, attribute), questions = rng.choice(list(SAME.items()))
    # Namesakes are told apart by what they do, which would answer the question.
    pair = [piece.entity(kind) if attribute == "occupation" else piece.anchor(kind) for _ in range(2)]
    equal = rng.random() < 0.5
    for entity in pair:
        piece.need(entity, attribute)
    first = piece.value(pair[0], attribute)
    if equal:
        pair[1].facts[attribute] = first
        if attribute == "country":
            pair[1].facts["_country"] = pair[0].facts["_country"]
    else:
        while piece.text(pair[1], attribute) == piece.text(pair[0], attribute):
            pair[1].facts.pop(attribute)
            pair[1].facts.pop("_country", None)
    a, b = (piece.mention(entity) for entity in pair)
    other = piece.alternatives(pair[1], attribute) if equal else (piece.text(pair[0], attribute),)
    return Shape(
        question=rng.choice(questions).format(a=a, b=b),
        answer="yes" if equal else "no",
        level="medium",
        facts=[(pair[0], attribute, ()), (pair[1], attribute, other)],
        type="comparison",
        sibling=_closed_sibling(piece, pair, attribute, (a, b), yes=not equal)
        or _pair_sibling(piece, pair, attribute, a, b),
    )


def calculate(piece: Piece) -> Shape:
    """The difference or the sum of two values."""
    rng = piece.rng
    (kind, attribute), forms = rng.choice(list(SUMS.items()))
    operation, questions = rng.choice(forms)
    pair = _unequal_pair(piece, kind, attribute, years=operation == "difference")
    pair.sort(key=lambda e: size(piece.text(e, attribute)), reverse=True)
    large, small = (size(piece.text(e, attribute))[0] for e in pair)
    result = large - small if operation == "difference" else large + small
    a, b = (piece.mention(entity) for entity in pair)
    return Shape(
        question=rng.choice(questions).format(a=a, b=b),
        answer=f"{result:,}",
        level="hard",
        facts=[(e, attribute, piece.alternatives(e, attribute)) for e in pair],
        type="comparison",
        skipped_hop=_pair_sibling(piece, pair[:1], "", a, b),
        sibling=rng.choice(rng.choice(COMPARISONS[kind, attribute])).format(a=a, b=b),
    )


SHAPES: dict[Callable[[Piece], Shape], int] = {bridge: 58, compare: 16, same: 10, more: 8, calculate: 8}
"""How often each is drawn, of a hundred."""


def _unequal_pair(piece: Piece, kind: str, attribute: str, *, years: bool = False) -> list[Entity]:
    """Two entities that differ in an attribute (`years`: in the year of it)."""
    pair = [piece.need(piece.anchor(kind), attribute) for _ in range(2)]

    def sizes() -> set:
        found = [size(piece.text(e, attribute)) for e in pair]
        return {value[0] for value in found} if years else set(found)

    while len(sizes()) < 2:
        del pair[1].facts[attribute]
        pair[1].facts.pop("birth_year", None)
    return pair


def _pair_sibling(piece: Piece, pair: list[Entity], attribute: str, a: str, b: str) -> str | None:
    """Another question about one of the two."""
    entity, phrase = piece.rng.choice(list(zip(pair, (a, b), strict=False)))
    return _sibling(piece, entity, attribute, phrase)


def _sum_sibling(piece: Piece, pair: list[Entity], attribute: str, a: str, b: str) -> str | None:
    """What could be calculated from the two, if anything."""
    forms = SUMS.get((pair[0].kind, attribute))
    if forms is None:
        return None
    if size(piece.text(pair[0], attribute)) < size(piece.text(pair[1], attribute)):
        a, b = b, a
    return piece.rng.choice(piece.rng.choice(forms)[1]).format(a=a, b=b)


def _closed_sibling(
    piece: Piece, pair: list[Entity], attribute: str, phrases: tuple[str, str], *, yes: bool
) -> str | None:
    """Another yes-or-no question about the two whose answer is `yes`, if there is one."""
    kind = pair[0].kind
    asked = [a for k, a in (*SAME, *MORE) if k == kind and a not in (attribute, "occupation", "country")]
    if not asked:
        return None
    other = piece.rng.choice(asked)
    if (kind, other) in SAME:
        shared = piece.value(pair[0], other)
        if yes:
            pair[1].facts[other] = shared
        elif piece.text(pair[1], other) == piece.text(pair[0], other):
            return None
        questions = SAME[kind, other]
    else:
        first, second = (size(piece.text(entity, other)) for entity in pair)
        if first == second:
            return None
        questions = MORE[kind, other][0 if (first > second) == yes else 1]
    for entity in pair:
        piece.need(entity, other)
    return piece.rng.choice(questions).format(a=phrases[0], b=phrases[1])


def _beyond(piece: Piece, value: str, attribute: str, *, larger: bool) -> str:
    """A value of this attribute that is larger (or smaller) than `value`."""
    factor = piece.rng.uniform(1.1, 1.6)
    if attribute == "birth_date" or attribute in YEARS:
        *day, year = value.split()
        return " ".join([*day, str(int(year) + (1 if larger else -1) * piece.rng.randint(2, 25))])
    number = int(value.replace(",", ""))
    return f"{max(1, round(number * factor if larger else number / factor)) + (1 if larger else -1):,}"


def size(value: str) -> tuple[int, ...]:
    """A sort key for numbers, years and dates written as text."""
    parts = value.replace(",", "").split()
    if len(parts) == 3:
        return int(parts[2]), MONTHS.index(parts[1]), int(parts[0])
    return (int(parts[0]),)
