"""How the generated world's questions ask: noun phrases for what a relation leads to, and the question forms.

`{x}`, `{a}`, `{b}` are noun phrases. Of two entities in a comparison `{a}` comes first in the text; where the wording
says which has more, `{a}` is the one that has.
"""

from typing import Literal

# (kind, relation) -> noun phrases for the entity at the end of it.
NOUN_PHRASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("film", "director"): ("the director of {x}", "the person who directed {x}", "the filmmaker behind {x}"),
    ("film", "star"): ("the star of {x}", "the actor who plays the lead in {x}"),
    ("novel", "author"): ("the author of {x}", "the person who wrote {x}", "the writer of {x}"),
    ("novel", "publisher"): ("the publisher of {x}", "the company that published {x}"),
    ("building", "architect"): ("the architect of {x}", "the person who designed {x}"),
    ("building", "town"): ("the town where {x} stands", "the town in which {x} is located"),
    ("company", "founder"): ("the founder of {x}", "the person who founded {x}"),
    ("company", "headquarters"): ("the town where {x} is headquartered", "the town that houses the head office of {x}"),
    ("university", "town"): ("the town where {x} is located", "the seat of {x}"),
    ("town", "river"): ("the river that flows through {x}", "the river on which {x} lies"),
    ("town", "mayor"): ("the mayor of {x}", "the person who is mayor of {x}"),
    ("person", "birthplace"): ("the birthplace of {x}", "the town where {x} was born"),
    ("person", "alma_mater"): ("the university where {x} studied", "the university that {x} graduated from"),
    ("person", "spouse"): ("the spouse of {x}", "the person who married {x}"),
}

# (kind, attribute) -> questions for it.
QUESTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("person", "birth_date"): ("When was {x} born?", "On what date was {x} born?", "What is the birth date of {x}?"),
    ("person", "birth_year"): ("In what year was {x} born?", "What is the birth year of {x}?"),
    ("person", "birthplace"): ("Where was {x} born?", "In which town was {x} born?", "What is the birthplace of {x}?"),
    ("person", "alma_mater"): ("Which university did {x} attend?", "Where did {x} study?"),
    ("person", "occupation"): ("What was the occupation of {x}?", "What did {x} do for a living?"),
    ("person", "spouse"): ("Who did {x} marry?", "Who was the spouse of {x}?"),
    ("town", "population"): ("What is the population of {x}?", "How many people live in {x}?"),
    ("town", "founded"): ("In what year was {x} founded?", "When did {x} receive its charter?"),
    ("town", "river"): ("Which river flows through {x}?", "On which river does {x} lie?"),
    ("town", "mayor"): ("Who is the mayor of {x}?",),
    ("town", "country"): ("In which country is {x}?", "What country does {x} belong to?"),
    ("river", "length"): ("How long is {x} in kilometres?", "What is the length of {x} in km?"),
    ("river", "mouth"): ("Into what does {x} flow?", "Where is the mouth of {x}?"),
    ("company", "founded"): ("In what year was {x} founded?", "When was {x} established?"),
    ("company", "founder"): ("Who founded {x}?", "Who was the founder of {x}?"),
    ("company", "headquarters"): ("Where is {x} headquartered?", "In which town is the head office of {x}?"),
    ("company", "industry"): ("In what industry is {x} active?",),
    ("company", "employees"): ("How many people does {x} employ?", "How many employees does {x} have?"),
    ("university", "town"): ("In which town is {x} located?",),
    ("university", "founded"): ("In what year was {x} founded?", "When was {x} established?"),
    ("university", "students"): ("How many students does {x} have?", "How many students are enrolled at {x}?"),
}

# (kind, attribute) -> (questions whose answer has the larger value, questions whose answer has the smaller value).
COMPARISONS: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("person", "birth_date"): (
        ("Who is younger, {a} or {b}?", "Who was born later, {a} or {b}?"),
        ("Who is older, {a} or {b}?", "Who was born first, {a} or {b}?", "Who came to the world earlier, {a} or {b}?"),
    ),
    ("town", "population"): (
        ("Which town has more inhabitants, {a} or {b}?", "Which is the more populous town, {a} or {b}?"),
        ("Which town has fewer inhabitants, {a} or {b}?",),
    ),
    ("town", "founded"): (
        ("Which town is younger, {a} or {b}?",),
        ("Which town was founded first, {a} or {b}?", "Which is the older town, {a} or {b}?"),
    ),
    ("river", "length"): (
        ("Which river is longer, {a} or {b}?", "Which has the longer course, {a} or {b}?"),
        ("Which river is shorter, {a} or {b}?",),
    ),
    ("company", "employees"): (
        ("Which company has more employees, {a} or {b}?", "Which is the larger employer, {a} or {b}?"),
        ("Which company has fewer employees, {a} or {b}?",),
    ),
    ("company", "founded"): (
        ("Which company was founded later, {a} or {b}?",),
        ("Which company was founded first, {a} or {b}?", "Which firm is older, {a} or {b}?"),
    ),
    ("university", "students"): (
        ("Which university has more students, {a} or {b}?",),
        ("Which university has fewer students, {a} or {b}?",),
    ),
    ("film", "year"): (
        ("Which film came out later, {a} or {b}?", "Which film is more recent, {a} or {b}?"),
        ("Which film was released first, {a} or {b}?", "Which film came out earlier, {a} or {b}?"),
    ),
    ("film", "minutes"): (
        ("Which film is longer, {a} or {b}?",),
        ("Which film is shorter, {a} or {b}?",),
    ),
    ("novel", "pages"): (
        ("Which novel has more pages, {a} or {b}?", "Which novel is longer, {a} or {b}?"),
        ("Which novel has fewer pages, {a} or {b}?",),
    ),
    ("building", "height"): (
        ("Which building is taller, {a} or {b}?", "Which is higher, {a} or {b}?"),
        ("Which building is less tall, {a} or {b}?",),
    ),
    ("building", "opened"): (
        ("Which building was completed later, {a} or {b}?",),
        ("Which building was completed first, {a} or {b}?", "Which building is older, {a} or {b}?"),
    ),
}  # fmt: skip

# (kind, attribute) -> yes/no questions that ask whether both have the same value.
SAME: dict[tuple[str, str], tuple[str, ...]] = {
    ("person", "birthplace"): ("Were {a} and {b} born in the same town?", "Do {a} and {b} share a birthplace?"),
    ("person", "alma_mater"): ("Did {a} and {b} study at the same university?",),
    ("person", "occupation"): ("Did {a} and {b} have the same occupation?",),
    ("town", "river"): ("Do {a} and {b} lie on the same river?",),
    ("town", "country"): ("Are {a} and {b} in the same country?",),
    ("river", "mouth"): ("Do {a} and {b} flow into the same body of water?",),
    ("company", "headquarters"): ("Are {a} and {b} headquartered in the same town?",),
    ("film", "director"): ("Did the same person direct {a} and {b}?", "Do {a} and {b} have the same director?"),
    ("novel", "author"): ("Were {a} and {b} written by the same author?",),
    ("building", "town"): ("Are {a} and {b} located in the same town?",),
}

# (kind, attribute) -> yes/no questions: (yes if the first has the larger value, yes if it has the smaller one).
MORE: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("person", "birth_date"): (
        ("Is {a} younger than {b}?", "Was {a} born after {b}?"),
        ("Is {a} older than {b}?", "Was {a} born before {b}?", "Was {a} born earlier than {b}?"),
    ),
    ("town", "population"): (
        ("Does {a} have more inhabitants than {b}?", "Is {a} more populous than {b}?"),
        ("Does {a} have fewer inhabitants than {b}?",),
    ),
    ("town", "founded"): (("Was {a} founded after {b}?",), ("Was {a} founded before {b}?", "Is {a} older than {b}?")),
    ("river", "length"): (("Is {a} longer than {b}?",), ("Is {a} shorter than {b}?",)),
    ("company", "employees"): (
        ("Does {a} have more employees than {b}?",),
        ("Does {a} have fewer employees than {b}?",),
    ),
    ("university", "students"): (
        ("Does {a} have more students than {b}?",),
        ("Does {a} have fewer students than {b}?",),
    ),
    ("building", "height"): (("Is {a} taller than {b}?",), ("Is {a} less tall than {b}?",)),
    ("novel", "pages"): (("Does {a} have more pages than {b}?",), ("Does {a} have fewer pages than {b}?",)),
}

Sum = Literal["difference", "sum"]
# (kind, attribute) -> (what is calculated from both values, questions).
SUMS: dict[tuple[str, str], tuple[tuple[Sum, tuple[str, ...]], ...]] = {
    ("person", "birth_date"): (("difference", ("How many years lie between the birth years of {a} and {b}?",)),),
    ("town", "population"): (
        ("difference", ("How many more inhabitants does {a} have than {b}?",)),
        (
            "sum",
            ("How many inhabitants do {a} and {b} have together?", "What is the combined population of {a} and {b}?"),
        ),
    ),
    ("town", "founded"): (
        ("difference", ("How many years lie between the years in which {a} and {b} were founded?",)),
    ),
    ("river", "length"): (
        ("difference", ("How many kilometres longer is {a} than {b}?",)),
        ("sum", ("What is the combined length of {a} and {b} in km?",)),
    ),
    ("company", "employees"): (
        ("difference", ("How many more employees does {a} have than {b}?",)),
        ("sum", ("How many employees do {a} and {b} have together?",)),
    ),
    ("university", "students"): (
        ("difference", ("How many more students does {a} have than {b}?",)),
        ("sum", ("How many students do {a} and {b} have in total?",)),
    ),
    ("novel", "pages"): (
        ("difference", ("How many more pages does {a} have than {b}?",)),
        ("sum", ("How many pages do {a} and {b} have together?",)),
    ),
    ("building", "height"): (("difference", ("By how many metres is {a} taller than {b}?",)),),
}  # fmt: skip

PREAMBLES = (
    "Quick question: {q}", "For a quiz: {q}", "I would like to know: {q}", "Next one: {q}", "{q} Thanks!",
    "{q} Please check your sources.", "Help me with this: {q}",
)  # fmt: skip
