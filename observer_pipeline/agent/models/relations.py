"""What the offline model knows of language: how relations are asked for and stated."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "year", "date", "number", "trade"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation or attribute the offline model can follow.

    `asks` are patterns that show it in a question (their groups, or the whole match, are used up by it); `cues` are
    patterns near which a paragraph states it, the plainest first (that one is a word to search for).
    """

    name: str
    kind: Kind
    asks: tuple[str, ...]
    cues: tuple[str, ...]


RELATIONS = (
    Relation(
        "director",
        "name",
        (
            r"the director of",
            r"person who directed",
            r"filmmaker",
            r"same director",
            r"same person direct",
            r"direct(?:s|ed|or)",
        ),
        ("directed by", "director", "directed", "direction of", "director's chair"),
    ),
    Relation(
        "star",
        "name",
        (r"the star of", r"plays the lead", r"starr"),
        ("stars", "starring", "plays the lead", "lead role"),
    ),
    Relation(
        "author",
        "name",
        (r"author", r"person who wrote", r"writer of", r"wr(?:ote|itten)"),
        ("written by", "author", "wrote", "novel by", "pen of"),
    ),
    Relation(
        "publisher",
        "name",
        (r"publisher", r"company that published"),
        ("published by", "publisher", "published it", "brought out by"),
    ),
    Relation(
        "architect",
        "name",
        (r"architect", r"person who designed", r"designed"),
        ("designed by", "architect", "plans", "work of"),
    ),
    Relation(
        "founder",
        "name",
        (r"founder", r"person who founded", r"who founded"),
        ("founded by", "founder", "founded it", "established by", "workshop that", "founded"),
    ),
    Relation("mayor", "name", (r"person who is mayor", r"mayor"), ("mayor",)),
    Relation(
        "headquarters",
        "name",
        (
            r"(town where).*?(is headquartered)",
            r"(town that houses) (the head office)",
            r"headquartered",
            r"head office",
            r"based in",
        ),
        ("headquarters", "headquartered", "based", "head office"),
    ),
    Relation(
        "birthplace",
        "name",
        (
            r"(town where).*?(was born)",
            r"birthplace",
            r"(where was).*(born)",
            r"(in which town was).*(born)",
            r"born in the same town",
            r"place of birth",
        ),
        ("birthplace", "born in", "native town", r"family of \w+ from", "born on"),
    ),
    Relation(
        "birth_date",
        "date",
        (r"(when was).*(born)", r"(on what date).*(born)", r"birth date"),
        ("born on", "born", "world on"),
    ),
    Relation(
        "birth_year",
        "year",
        (r"(what year).*(born)", r"birth year", r"born in (?:what|which) year"),
        ("born on", "born", "world on"),
    ),
    Relation(
        "alma_mater",
        "name",
        (
            r"(university where).*?(studied)",
            r"(university that).*?(graduated from)",
            r"(which university did).*(attend)",
            r"(study).*(same university)",
            r"same university",
            r"stud(?:y|ied)",
            r"attend",
        ),
        ("studied at", "graduated from", "degree at", "education"),
    ),
    Relation("spouse", "name", (r"person who married", r"spouse", r"marr(?:y|ied)"), ("married", "spouse")),
    Relation(
        "occupation",
        "trade",
        (r"same occupation", r"occupation", r"for a living", r"profession"),
        ("is a", "was a", "is an", "was an"),
    ),
    Relation("industry", "trade", (r"industry",), ("active in", "in the", "manufacturer in")),
    Relation(
        "mouth",
        "name",
        (r"mouth", r"same body of water", r"(into what).*(flow)"),
        ("flows into", "empties into", "mouth", "reaches"),
    ),
    Relation("length", "number", (r"how long", r"length"), ("long", "length", "runs for", "course of")),
    Relation(
        "population",
        "number",
        (r"population", r"how many people live", r"inhabitants", r"populous"),
        ("inhabitants", r"population changed from [\d,]+ to", "population", "people live"),
    ),
    Relation(
        "employees",
        "number",
        (
            r"how many people does",
            r"employ(?:ees|er)?",
        ),
        ("employees", "employs", "workforce"),
    ),
    Relation("students", "number", (r"how many students", r"students"), ("students", "enrolment")),
    Relation(
        "founded",
        "year",
        (
            r"(what year).*(founded|established)",
            r"(when was).*(founded|established)",
            r"charter",
            r"founded",
            r"established",
        ),
        (
            "founded in",
            "established in",
            "charter",
            "founded",
            "founded it in",
            "town rights",
            "teaching began",
            "workshop",
            "established",
        ),
    ),
    Relation(
        "river",
        "name",
        (r"river that flows through", r"river on which", r"which river", r"same river"),
        ("lies on", "river", "flows through", "bank of", "waters of", "where the"),
    ),
    Relation(
        "country",
        "name",
        (r"which country", r"what country", r"same country"),
        ("town in", "northern", "municipality of"),
    ),
    Relation(
        "located",
        "name",
        (
            r"(town where).*?(is located|stands)",
            r"(town in which).*?(is located|stands)",
            r"seat of",
            r"located in",
            r"(in which town is).*(located)",
            r"located",
        ),
        ("located in", "stands in", "campus is in", "building in", "moved to", "seat is", "square of"),
    ),
    Relation("height", "number", (r"tall(?:er)?", r"higher", r"height"), ("tall", "height", "rises")),
    Relation("minutes", "number", (r"minutes",), ("running time", "the original", "runs for")),
    Relation("pages", "number", (r"pages",), ("pages",)),
    Relation(
        "released",
        "year",
        (r"came? out", r"released", r"recent"),
        ("released in", "premiered in", "cinemas in", "film from", "published in", r"is an?"),
    ),
    Relation("completed", "year", (r"completed", r"finished"), ("opened in", "completed in", "finished in")),
)
