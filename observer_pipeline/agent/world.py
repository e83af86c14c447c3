"""A generated multi-hop world: invented people, places, works and organisations, and questions over them.

Every question gets a small piece of world of its own, made from (seed, index) alone: any number of questions streams in
constant memory, and the same question comes out whichever process makes it. Facts about an entity are invented when
they are first needed. Distractors are near-duplicates of what the question names, relatives of what it passes through,
and strangers.
"""

import random
import re
from collections.abc import Iterator

from observer_pipeline.agent.questions import AgentQuestion, Fact, Paragraph
from observer_pipeline.agent.world_facts import MONTHS, OCCUPATION_OF, YEARS, Entity, Facts
from observer_pipeline.agent.world_names import Namer
from observer_pipeline.agent.world_text import (
    COMPARISONS,
    LEADS,
    NOUN_PHRASES,
    QUESTIONS,
    SAME,
    SLOTS,
)

PARAGRAPHS = 10
STEMS_PER_QUESTION = 160


def generate_world(n: int, seed: int, *, first: int = 0) -> Iterator[AgentQuestion]:
    """The questions with indices from `first` to below `n` of the world with this seed."""
    return (world_question(seed, index) for index in range(first, n))


def world_question(seed: int, index: int) -> AgentQuestion:
    """The question with this index in the world with this seed."""
    return _Piece(seed, index).build()


class _Piece:
    """The piece of world one question lives in."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = random.Random(f"world:{seed}:{index}")
        # Each seed starts elsewhere in the endless list of stems; within a seed no two questions share a stem.
        start = random.Random(f"names:{seed}").randrange(400_000)
        self.names = Namer(self.rng, start + index * STEMS_PER_QUESTION)
        self.qid = f"world-{seed}-{index}"
        self.facts = Facts(self.rng, self.names)
        self.value, self.text, self.entity = self.facts.value, self.facts.text, self.facts.entity
        self.entities: list[Entity] = []
        self.needed: dict[Entity, dict[str, None]] = {}
        self.alias_needed: set[Entity] = set()

    # --- paragraphs ------------------------------------------------------------------------------------------------

    def need(self, entity: Entity, *attributes: str) -> Entity:
        """Give the entity a paragraph that states these attributes."""
        if entity not in self.needed:
            self.needed[entity] = {}
            self.entities.append(entity)
        self.needed[entity].update(dict.fromkeys(attributes))
        return entity

    def paragraph(self, entity: Entity) -> tuple[Paragraph, dict[str, int]]:
        """The entity's paragraph, and the index of the first sentence that states each attribute."""
        rng = self.rng
        wanted = {"birth_date" if a == "birth_year" else a for a in self.needed[entity]}
        in_slots = {attribute for attributes, _ in SLOTS[entity.kind] for attribute in attributes}
        lead_only = (wanted - in_slots) | ({"alias"} if entity in self.alias_needed else set())
        lead = rng.choice([text for text in LEADS[entity.kind] if lead_only <= _stated(text)])
        stated = _stated(lead)
        slots = [
            rng.choice(phrasings)
            for attributes, phrasings in SLOTS[entity.kind]
            if wanted & set(attributes) - stated or (not stated & set(attributes) and rng.random() < 0.7)
        ]
        rng.shuffle(slots)
        sentences, where = [], {}
        pronoun = {"s": "it", "p": "its"}
        if entity.kind == "person":
            pronoun = rng.choice(({"s": "she", "p": "her"}, {"s": "he", "p": "his"}))
        for index, template in enumerate((lead, *slots)):
            names = dict.fromkeys(re.findall(r"{(\w+)}", template))
            values = {name: self._fill(entity, name, pronoun) for name in names}
            sentences.append(_articles(template.format(**values)))
            for name in _stated(template):
                where.setdefault(name, index)
        return Paragraph(entity.title, tuple(sentences)), where

    def _fill(self, entity: Entity, name: str, pronoun: dict[str, str]) -> str:
        if name == "name":
            return entity.name
        if name in ("S", "s", "p", "p_cap"):
            word = pronoun[name[0].lower()]
            return word.capitalize() if name in ("S", "p_cap") else word
        if name == "before_year":
            return str(self._prime(entity) - self.rng.randint(2, 9))
        if name.startswith("other_"):
            return self._other(entity, name.removeprefix("other_"))
        return self.text(entity, name)

    def _other(self, entity: Entity, kind: str) -> str:
        """A value that is not one of the entity's own facts."""
        rng = self.rng
        own = {self.text(entity, attribute) for attribute in list(entity.facts) if not attribute.startswith("_")}
        while True:
            if kind == "year":
                other = str(min(2019, self._prime(entity) + rng.randint(3, 70)))
            elif kind in ("number", "small"):
                other = f"{rng.randint(20, 90) if kind == 'small' else rng.randint(200, 90_000):,}"
            else:
                known = [e.name for e in self.entities if e.kind == kind and e is not entity]
                other = rng.choice(known) if known and rng.random() < 0.6 else self.names.fresh(kind)[0]
            if not any(other in value for value in own):
                return other

    def _prime(self, entity: Entity) -> int:
        """The year in which the entity came to be (for a person, came of age)."""
        if entity.kind == "person":
            return int(self.text(entity, "birth_year")) + 20
        attribute = {"building": "opened", "film": "year", "novel": "year", "river": "opened"}.get(
            entity.kind, "founded"
        )
        return int(self.text(entity, attribute))

    # --- questions -------------------------------------------------------------------------------------------------

    def build(self) -> AgentQuestion:
        """Invent a question with its paragraphs."""
        shape = self.rng.choices((self._bridge, self._compare, self._same), weights=(66, 22, 12))[0]
        question, answer, level, facts, aliases, kind = shape()
        self._distract()
        made = [self.paragraph(entity) for entity in self.entities]
        titles = {entity: paragraph.title for entity, (paragraph, _) in zip(self.entities, made, strict=True)}
        supporting = []
        for entity, attribute, _ in facts:
            _, where = made[self.entities.index(entity)]
            supporting.append((titles[entity], where["birth_date" if attribute == "birth_year" else attribute]))
        paragraphs = [paragraph for paragraph, _ in made]
        self.rng.shuffle(paragraphs)
        return AgentQuestion(
            qid=self.qid,
            question=_articles(question),
            answer=answer,
            type=kind,
            level=level,
            paragraphs=tuple(paragraphs),
            supporting=tuple(dict.fromkeys(supporting)),
            aliases=aliases,
            facts=tuple(
                Fact(titles[e], self.text(e, "birth_date" if a == "birth_year" else a), alternatives)
                for e, a, alternatives in facts
            ),
        )

    def _mention(self, entity: Entity) -> str:
        """How a question names the entity: by its name, sometimes by an alias its paragraph states or with its kind."""
        roll = self.rng.random()
        if roll < 0.12 and entity.kind != "river":
            self.alias_needed.add(entity)
            return self.text(entity, "alias")
        if entity.kind in ("film", "novel") and (roll < 0.5 or entity.title != entity.name):
            return f"the {entity.kind} {entity.name}"
        return entity.phrase

    def _walk(self) -> tuple[list[tuple[Entity, str]], str]:
        """A chain of (entity, relation or final attribute) and the noun phrase for its last entity."""
        rng = self.rng
        hops = rng.choices((1, 2), weights=(62, 38))[0]
        entity = self._anchor(rng.choice(["film", "novel", "building", "company", "person", "university", "town"]))
        phrase, chain = self._mention(entity), []
        for _ in range(hops):
            relations = [relation for kind, relation in NOUN_PHRASES if kind == entity.kind]
            if entity.kind == "town" and chain:
                relations = ["river"]
            if not relations:
                break
            relation = rng.choice(relations)
            phrase = rng.choice(NOUN_PHRASES[entity.kind, relation]).format(x=phrase)
            chain.append((entity, relation))
            self.need(entity, relation)
            target = self.value(entity, relation)
            assert isinstance(target, Entity)
            entity = target
        attributes = [a for kind, a in QUESTIONS if kind == entity.kind and (entity, a) not in chain]
        if chain[-1][1] in OCCUPATION_OF:  # the question itself would give it away
            attributes = [a for a in attributes if a != "occupation"]
        attribute = rng.choice(attributes)
        self.need(entity, attribute)
        return [*chain, (entity, attribute)], phrase

    def _bridge(self) -> tuple:
        chain, phrase = self._walk()
        entity, attribute = chain[-1]
        question = self.rng.choice(QUESTIONS[entity.kind, attribute]).format(x=phrase)
        facts = [(e, a, self._alternatives(e, a)) for e, a in chain]
        answer = self.value(entity, attribute)
        aliases = (self.text(answer, "alias"),) if isinstance(answer, Entity) and answer in self.alias_needed else ()
        level = "hard" if len(chain) > 2 else "medium" if self.alias_needed else "easy"
        return question, self.text(entity, attribute), level, facts, aliases, "bridge"

    def _anchor(self, kind: str) -> Entity:
        """An entity a question names; a film or novel may share its title with a work of the other kind."""
        entity = self.entity(kind)
        if kind in ("film", "novel") and self.rng.random() < 0.25:
            other = "novel" if kind == "film" else "film"
            entity.title = f"{entity.name} ({kind})"
            self.need(entity)
            self.need(Entity(other, entity.name, entity.stem, title=f"{entity.name} ({other})"))
        return entity

    def _compare(self) -> tuple:
        rng = self.rng
        (kind, attribute), (larger, smaller) = rng.choice(list(COMPARISONS.items()))
        pair = [self.need(self._anchor(kind), attribute) for _ in range(2)]
        while len({_size(self.text(e, attribute)) for e in pair}) < 2:
            del pair[1].facts[attribute]
        want_larger = rng.random() < 0.5
        pick = max if want_larger else min
        winner = pick(pair, key=lambda e: _size(self.text(e, attribute)))
        loser = next(e for e in pair if e is not winner)
        question = rng.choice(larger if want_larger else smaller).format(
            a=self._mention(pair[0]), b=self._mention(pair[1])
        )
        beyond = [self._beyond(self.text(loser, attribute), attribute, larger=not want_larger)]
        facts = [(winner, attribute, tuple(beyond)), (loser, attribute, ())]
        aliases = (self.text(winner, "alias"),) if winner in self.alias_needed else ()
        return question, winner.name, "medium", facts, aliases, "comparison"

    def _beyond(self, value: str, attribute: str, *, larger: bool) -> str:
        """A value of this attribute that is larger (or smaller) than `value`."""
        factor = self.rng.uniform(1.1, 1.6)
        if attribute == "birth_date" or attribute in YEARS:
            *day, year = value.split()
            return " ".join([*day, str(int(year) + (1 if larger else -1) * self.rng.randint(2, 25))])
        number = int(value.replace(",", ""))
        return f"{max(1, round(number * factor if larger else number / factor)) + (1 if larger else -1):,}"

    def _same(self) -> tuple:
        rng = self.rng
        (kind, attribute), questions = rng.choice(list(SAME.items()))
        pair = [self._anchor(kind) for _ in range(2)]
        same = rng.random() < 0.5
        for entity in pair:
            self.need(entity, attribute)
        first = self.value(pair[0], attribute)
        if same:
            pair[1].facts[attribute] = first
            if attribute == "country":
                pair[1].facts["_country"] = pair[0].facts["_country"]
        else:
            while self.text(pair[1], attribute) == self.text(pair[0], attribute):
                pair[1].facts.pop(attribute)
                pair[1].facts.pop("_country", None)
        question = rng.choice(questions).format(a=self._mention(pair[0]), b=self._mention(pair[1]))
        other = self._alternatives(pair[1], attribute) if same else (self.text(pair[0], attribute),)
        facts = [(pair[0], attribute, ()), (pair[1], attribute, other)]
        return question, "yes" if same else "no", "medium", facts, (), "comparison"

    def _alternatives(self, entity: Entity, attribute: str) -> tuple[str, ...]:
        """Values that could stand in the place of this fact: those of distractors of the same kind, and new ones."""
        probe = Entity(entity.kind, entity.name, entity.stem)
        attribute = "birth_date" if attribute == "birth_year" else attribute
        own = self.text(entity, attribute)
        values: list[str] = []
        while len(values) < 2:
            probe.facts.clear()
            other = self.value(probe, attribute)
            if isinstance(other, Entity) and not values:
                self.need(other)  # the false trail leads to a real paragraph
            made = other.name if isinstance(other, Entity) else other
            if made not in (own, *values):
                values.append(made)
        return tuple(values)

    def _distract(self) -> None:
        """Fill up to ten paragraphs: near-duplicates first, then strangers of the kinds at hand and of any kind."""
        gold = list(self.entities)
        for entity in gold:
            if len(self.entities) < PARAGRAPHS and self.rng.random() < 0.75:
                self.need(self.entity(entity.kind, like=entity))
        kinds = [entity.kind for entity in gold] + list(LEADS)
        while len(self.entities) < PARAGRAPHS:
            self.need(self.entity(self.rng.choice(kinds)))


def _stated(template: str) -> set[str]:
    """The attributes a phrasing states; a country's adjective names the country."""
    names = set(re.findall(r"{(\w+)}", template))
    return names | {"country"} if "country_adjective" in names else names


def _size(value: str) -> tuple[int, ...]:
    """A sort key for numbers, years and dates written as text."""
    parts = value.replace(",", "").split()
    if len(parts) == 3:
        return int(parts[2]), MONTHS.index(parts[1]), int(parts[0])
    return (int(parts[0]),)


def _articles(text: str) -> str:
    """Mend the indefinite article before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeioAEIOU])", r"\1n ", text)
