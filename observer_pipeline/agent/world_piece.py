"""The piece of generated world that one question lives in: its entities and their paragraphs."""

import random
import re

from observer_pipeline.agent.questions import Paragraph
from observer_pipeline.agent.world_facts import OCCUPATION_OF, Entity, Facts
from observer_pipeline.agent.world_names import Namer, with_articles
from observer_pipeline.agent.world_text import LEADS, SLOTS

PARAGRAPHS = 10
STEMS_PER_QUESTION = 160


class Piece:
    """Invents entities, gives them paragraphs that state what is needed, and fills up with distractors."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = random.Random(f"world:{seed}:{index}")
        # Each seed starts elsewhere in the endless list of stems; within a seed no two questions share a stem.
        start = random.Random(f"names:{seed}").randrange(400_000)
        self.names = Namer(self.rng, start + index * STEMS_PER_QUESTION)
        self.facts = Facts(self.rng, self.names)
        self.value, self.text, self.entity = self.facts.value, self.facts.text, self.facts.entity
        self.entities: list[Entity] = []
        self.needed: dict[Entity, dict[str, None]] = {}
        self.alias_needed: set[Entity] = set()

    # --- entities --------------------------------------------------------------------------------------------------

    def need(self, entity: Entity, *attributes: str) -> Entity:
        """Give the entity a paragraph that states these attributes."""
        if entity not in self.needed:
            self.needed[entity] = {}
            self.entities.append(entity)
        self.needed[entity].update(dict.fromkeys(attributes))
        return entity

    def anchor(self, kind: str) -> Entity:
        """An entity a question names; some share their name with another, which has a paragraph too."""
        entity = self.entity(kind)
        roll = self.rng.random()
        if kind in ("film", "novel") and roll < 0.25:
            other = "novel" if kind == "film" else "film"
            entity.title = f"{entity.name} ({kind})"
            self.need(entity)
            self.need(Entity(other, entity.name, entity.stem, title=f"{entity.name} ({other})"))
        if kind == "person" and roll < 0.15:
            namesake = Entity("person", entity.name, entity.stem)
            while self.text(namesake, "occupation") == self.text(entity, "occupation"):
                del namesake.facts["occupation"]
            for one in (entity, namesake):
                one.title = f"{one.name} ({self.text(one, 'occupation')})"
                self.need(one, "occupation")
        return entity

    def mention(self, entity: Entity) -> str:
        """How a question names the entity: by its name, sometimes by an alias its paragraph states or with its kind."""
        roll = self.rng.random()
        shared = entity.title != entity.name
        if entity.kind == "person" and shared:
            return f"the {self.text(entity, 'occupation')} {entity.name}"
        if roll < 0.12 and entity.kind != "river":
            self.alias_needed.add(entity)
            return self.text(entity, "alias")
        if entity.kind in ("film", "novel") and (roll < 0.5 or shared):
            return f"the {entity.kind} {entity.name}"
        return entity.phrase

    def alternatives(self, entity: Entity, attribute: str) -> tuple[str, ...]:
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

    def distract(self) -> None:
        """Fill up to ten paragraphs: near-duplicates first, then strangers of the kinds at hand and of any kind."""
        gold = list(self.entities)
        for entity in gold:
            if len(self.entities) < PARAGRAPHS and self.rng.random() < 0.75:
                self.need(self.entity(entity.kind, like=entity))
        kinds = [entity.kind for entity in gold] + list(LEADS)
        while len(self.entities) < PARAGRAPHS:
            self.need(self.entity(self.rng.choice(kinds)))

    # --- paragraphs ------------------------------------------------------------------------------------------------

    def paragraph(self, entity: Entity) -> tuple[Paragraph, dict[str, int]]:
        """The entity's paragraph, and the index of the first sentence that states each attribute."""
        rng = self.rng
        wanted = {"birth_date" if a == "birth_year" else a for a in self.needed[entity]}
        in_slots = {attribute for attributes, _ in SLOTS[entity.kind] for attribute in attributes}
        lead_only = (wanted - in_slots) | ({"alias"} if entity in self.alias_needed else set())
        lead = rng.choice([text for text in LEADS[entity.kind] if lead_only <= stated(text)])
        in_lead = stated(lead)
        must = [phrasings for attributes, phrasings in SLOTS[entity.kind] if wanted & set(attributes) - in_lead]
        may = [phrasings for attributes, phrasings in SLOTS[entity.kind] if not (wanted | in_lead) & set(attributes)]
        # How much it states is drawn before what it must state counts: no paragraph is longer for being needed.
        count = max(2, sum(rng.random() < 0.7 for _ in (*must, *may)))
        slots = [
            rng.choice(phrasings) for phrasings in must + rng.sample(may, max(0, min(len(may), count - len(must))))
        ]
        rng.shuffle(slots)
        sentences, where = [], {}
        pronoun = {"s": "it", "p": "its"}
        if entity.kind == "person":
            pronoun = rng.choice(({"s": "she", "p": "her"}, {"s": "he", "p": "his"}))
        for index, template in enumerate((lead, *slots)):
            names = dict.fromkeys(re.findall(r"{(\w+)}", template))
            values = {name: self._fill(entity, name, pronoun) for name in names}
            sentences.append(with_articles(template.format(**values)))
            for name in stated(template):
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
            elif kind == "mouth":
                other = self.facts.mouth()
            elif kind == "date":
                other = self.facts.date(self._prime(entity) - 20)
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


def known_occupation(chain_relation: str) -> bool:
    """Whether a relation gives the occupation of whom it leads to away."""
    return chain_relation in OCCUPATION_OF


def stated(template: str) -> set[str]:
    """The attributes a phrasing states."""
    return set(re.findall(r"{(\w+)}", template))
