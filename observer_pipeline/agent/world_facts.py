"""Entities of the generated world, and their facts, invented when they are first asked for."""

import random
from dataclasses import dataclass, field

from observer_pipeline.agent.world_names import Namer
from observer_pipeline.agent.world_text import GENRES, INDUSTRIES, OCCUPATIONS, STYLES

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
# relation -> kind of the entity at its end
_RELATIONS = {
    "director": "person",
    "star": "person",
    "author": "person",
    "architect": "person",
    "founder": "person",
    "mayor": "person",
    "spouse": "person",
    "publisher": "company",
    "birthplace": "town",
    "headquarters": "town",
    "town": "town",
    "river": "river",
    "alma_mater": "university",
}
OCCUPATION_OF = {"director": "film director", "author": "novelist", "architect": "architect"}
_NUMBERS = {
    "population": (1_200, 480_000),
    "length": (38, 1_400),
    "employees": (60, 24_000),
    "students": (900, 38_000),
    "minutes": (74, 190),
    "pages": (120, 890),
    "height": (18, 240),
}
YEARS = {"founded": (1480, 1960), "year": (1905, 2015), "opened": (1700, 2010)}
_DEFINITE = {"river"}


@dataclass(eq=False, slots=True)
class Entity:
    """Something invented; `facts` fills up as facts are needed, with text or other entities."""

    kind: str
    name: str
    stem: str
    facts: dict[str, "str | Entity"] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        self.title = self.title or self.name

    @property
    def phrase(self) -> str:
        return f"the {self.name}" if self.kind in _DEFINITE else self.name


class Facts:
    """Invents entities and what is true of them."""

    def __init__(self, rng: random.Random, names: Namer) -> None:
        self.rng = rng
        self.names = names
        stems = [names.word().rstrip("x") for _ in range(3)]
        self.taken: set[str] = set()  # names and aliases: an alias that is another's name would have two right answers
        self.countries = [(f"{stem}ia", f"{stem}ian") for stem in stems]

    def entity(self, kind: str, *, like: Entity | None = None) -> Entity:
        """A new entity, a near-duplicate of `like` when given."""
        if like is None:
            name, made = self.names.fresh(kind)
        else:
            name, made = self.names.pattern(kind, like.stem, avoid=self.taken), like.stem
        self.taken.add(name)
        return Entity(kind, name, made)

    def value(self, entity: Entity, attribute: str) -> "str | Entity":
        """The fact, invented when asked for the first time."""
        if attribute not in entity.facts:
            entity.facts[attribute] = self._invent(entity, attribute)
        return entity.facts[attribute]

    def text(self, entity: Entity, attribute: str) -> str:
        value = self.value(entity, attribute)
        return value.name if isinstance(value, Entity) else value

    def _invent(self, entity: Entity, attribute: str) -> "str | Entity":
        rng = self.rng
        if attribute in _RELATIONS and not (entity.kind == "person" and attribute == "town"):
            made = self.entity(_RELATIONS[attribute])
            if attribute in OCCUPATION_OF:
                made.facts["occupation"] = OCCUPATION_OF[attribute]
            return made
        if attribute in _NUMBERS:
            low, high = _NUMBERS[attribute]
            return f"{round(low * (high / low) ** rng.random()):,}"
        if attribute in YEARS:
            return str(rng.randint(*YEARS[attribute]))
        if attribute == "birth_date":
            return self.date(rng.randint(1820, 1990))
        if attribute == "birth_year":
            return self.text(entity, "birth_date").split()[-1]
        if attribute in ("country", "country_adjective", "nationality"):
            name, adjective = entity.facts.setdefault("_country", self.rng.choice(self.countries))  # type: ignore[arg-type]
            return name if attribute == "country" else adjective
        if attribute == "mouth":
            return self.mouth()
        if attribute == "alias":
            made = self._alias(entity)
            self.taken.add(made)
            return made
        choices = {"occupation": OCCUPATIONS, "industry": INDUSTRIES, "genre": GENRES, "style": STYLES}
        return rng.choice(choices[attribute])

    def date(self, year: int) -> str:
        """A day of this year."""
        return f"{self.rng.randint(1, 28)} {self.rng.choice(MONTHS)} {year}"

    def mouth(self) -> str:
        """A body of water that a river may flow into."""
        made = self.names.word()
        if self.rng.random() < 0.8:
            return f"the {self.names.pattern('river', made, avoid=frozenset())}"
        return self.rng.choice((f"the {made} Sea", f"Lake {made}", f"the Gulf of {made}", f"the Bay of {made}"))

    def _alias(self, entity: Entity) -> str:
        if entity.kind == "person":
            first, last = entity.name.split(" ", 1)
            forms = (f"{first[0]}. {last}", *(f"{first[:2]}{end} {last}" for end in "oyu"))
            return self.rng.choice([form for form in forms if form not in self.taken] or forms)
        return self.names.pattern(entity.kind, entity.stem, avoid=self.taken)
