"""The phrasings of the generated world: how its paragraphs state facts and how its questions ask for them.

Placeholders: `{name}` and the attributes of the entity being described; `{S}` She/He/It, `{s}` in lower case, `{p}`
her/his/its; `{x}`, `{a}`, `{b}` are noun phrases in questions; `{other_…}` and `{before_year}` are values that belong
to something else (a reader must not take them for the entity's own).
"""

OCCUPATIONS = (
    "film director", "novelist", "composer", "architect", "botanist", "engineer", "painter", "physicist", "politician",
    "playwright", "explorer", "chemist", "cartographer", "astronomer",
)  # fmt: skip
INDUSTRIES = (
    "shipbuilding",
    "textiles",
    "publishing",
    "brewing",
    "glassmaking",
    "instruments",
    "rail equipment",
    "ceramics",
)
GENRES = ("drama", "comedy", "thriller", "western", "documentary", "romance")
STYLES = ("neoclassical", "modernist", "brick Gothic", "functionalist", "baroque revival")

# kind -> phrasings of the first sentence, then the slots of further sentences: (attributes stated, phrasings).
# A slot that only decorates states no attribute.
LEADS: dict[str, tuple[str, ...]] = {
    "person": (
        "{name} is a {nationality} {occupation}.",
        "{name} was a {nationality} {occupation} and occasional essayist.",
        "{name} is a {occupation} from {country}, also known as {alias}.",
        "{name}, often credited as {alias}, was a {nationality} {occupation}.",
    ),
    "town": (
        "{name} is a town in {country}.",
        "{name} is a {country_adjective} market town and former garrison.",
        "{name}, locally called {alias}, is a town in northern {country}.",
        "{name} is a municipality of {country}.",
    ),
    "river": (
        "The {name} is a river in {country}.",
        "The {name} is one of the rivers of {country}.",
        "The {name}, called {alias} in older maps, is a river in {country}.",
    ),
    "company": (
        "{name} is a {country_adjective} company active in {industry}.",
        "{name} is a firm in the {industry} trade, registered in {country}.",
        "{name}, formerly {alias}, is a {country_adjective} manufacturer in {industry}.",
    ),
    "university": (
        "{name} is a university in {country}.",
        "{name} is a public research university of {country}.",
        "{name}, colloquially {alias}, is a {country_adjective} university.",
    ),
    "film": (
        "{name} is a {year} {nationality} {genre} film directed by {director}.",
        "{name} is a {nationality} {genre} film from {year}.",
        "{name} is a {genre} film.",
        "{name}, released abroad as {alias}, is a {nationality} {genre} film.",
    ),
    "novel": (
        "{name} is a novel by {author}, published in {year}.",
        "{name} is a {year} novel.",
        "{name} is a {nationality} novel in three parts.",
        "{name}, translated as {alias}, is a {nationality} novel.",
    ),
    "building": (
        "{name} is a {style} building in {town}.",
        "{name} is a {style} landmark designed by {architect}.",
        "{name}, known to locals as {alias}, is a {style} building.",
        "{name} is a listed building.",
    ),
}

Slot = tuple[tuple[str, ...], tuple[str, ...]]

SLOTS: dict[str, tuple[Slot, ...]] = {
    "person": (
        (("birth_date", "birthplace"), (
            " {S} was born on {birth_date} in {birthplace}.",
            " {S} was born in {birthplace} on {birth_date}, the second of four children.",
            " Born on {birth_date} to a family of millers from {birthplace}, {s} left school early.",
            " {S} came into the world on {birth_date}; {p} native town is {birthplace}.",
            " {S} grew up in {other_town}, but {p} birthplace was {birthplace}, where {s} was born on {birth_date}.",
        )),
        (("alma_mater",), (
            " {S} studied at {alma_mater}.",
            " {S} graduated from {alma_mater} in {other_year}.",
            " After two years of work in {other_town}, {s} took a degree at {alma_mater}.",
            " {p_cap} education began with private tutors and ended at {alma_mater}.",
            " {S} turned down a place at {other_university} and studied at {alma_mater} instead.",
        )),
        (("spouse",), (
            " {S} married {spouse} in {other_year}.",
            " {p_cap} spouse was {spouse}.",
            " In {other_year} {s} and {spouse} were married.",
        )),
        ((), (
            " {S} received a state medal in {other_year}.",
            " A street in {other_town} carries {p} name.",
            " {S} gave up public life in {other_year}.",
            " Critics often compared {p} work with that of {other_person}.",
            " {S} worked for {other_company} from {other_year} on.",
        )),
    ),
    "town": (
        (("river",), (
            " It lies on the {river}.",
            " The river {river} flows through it.",
            " The old quarter sits where the {river} bends, a day's walk from the {other_river}.",
            " Its mills were driven by the waters of the {river}.",
            " The town stands on the left bank of the {river}.",
        )),
        (("population",), (
            " It has a population of {population}.",
            " The last census counted {population} inhabitants.",
            " Its population changed from {other_number} to {population} within a generation.",
            " About {population} people live there.",
        )),
        (("founded",), (
            " It was founded in {founded}.",
            " Its charter dates from {founded}.",
            " Founded in {founded}, it burned down in {other_year} and was rebuilt.",
            " The settlement received town rights in {founded}.",
        )),
        (("mayor",), (
            " Its mayor is {mayor}.",
            " {mayor} has been mayor since {other_year}.",
            " The office of mayor is held by {mayor}, who succeeded {other_person}.",
        )),
        ((), (
            " A railway line to {other_town} opened in {other_year}.",
            " It is twinned with {other_town}.",
            " {other_person} lived here for some years.",
            " The weekly market was first held in {other_year}.",
        )),
    ),
    "river": (
        (("length",), (
            " It is {length} km long.",
            " Its length is {length} km, of which {other_small} km are navigable.",
            " It runs for {length} km from its springs to its mouth.",
            " Over a course of {length} km it drops by {other_number} metres.",
        )),
        (("mouth",), (
            " It flows into {mouth}.",
            " It empties into {mouth}.",
            " After joining the {other_river}, it reaches {mouth}.",
            " Its mouth is on {mouth}.",
        )),
        ((), (
            " A dam was completed in {other_year}.",
            " It passes {other_town} and several villages.",
            " Flooding was recorded in {other_year}.",
            " Its basin covers {other_number} square km.",
        )),
    ),
    "company": (
        (("founder", "founded"), (
            " It was founded in {founded} by {founder}.",
            " {founder} founded it in {founded}.",
            " It was established by {founder} in {founded} and went public in {other_year}.",
            " The firm goes back to a workshop that {founder} opened in {founded}.",
        )),
        (("headquarters",), (
            " Its headquarters are in {headquarters}.",
            " It is headquartered in {headquarters}.",
            " It moved from {other_town} to {headquarters}, where it is based today.",
            " The head office stands in {headquarters}.",
        )),
        (("employees",), (
            " It has {employees} employees.",
            " It employs {employees} people.",
            " Its workforce is {employees}, after {other_number} in better times.",
        )),
        ((), (
            " It was run by {other_person} for a decade.",
            " It bought a rival in {other_year}.",
            " A second plant near {other_town} closed in {other_year}.",
        )),
    ),
    "university": (
        (("town",), (
            " Its campus is in {town}.",
            " It is located in {town}.",
            " It moved to {town} from {other_town}.",
            " Its main seat is {town}.",
        )),
        (("founded",), (
            " It was founded in {founded}.",
            " It was established in {founded} and rebuilt in {other_year}.",
            " Teaching began in {founded}.",
        )),
        (("students",), (
            " It has {students} students.",
            " Some {students} students are enrolled.",
            " Enrolment stands at {students}.",
        )),
        ((), (
            " Its library was given by {other_person}.",
            " A branch in {other_town} existed until {other_year}.",
            " It admits about {other_number} guests to its summer school.",
        )),
    ),
    "film": (
        (("director",), (
            " It was directed by {director}.",
            " {director} directed it.",
            " It was made by the director {director} after {other_person} had left the project.",
            " {director} took the director's chair.",
            " The film was shot by {other_person} under the direction of {director}.",
        )),
        (("year",), (
            " It was released in {year}.",
            " It premiered in {year}.",
            " Shot in {before_year}, it came to cinemas in {year}.",
        )),
        (("minutes",), (
            " It runs for {minutes} minutes.",
            " Its running time is {minutes} minutes.",
            " The cut shown abroad lasts {other_small} minutes, the original {minutes} minutes.",
        )),
        (("star",), (
            " It stars {star}.",
            " {star} plays the lead.",
            " The lead role went to {star}, though it had been written for {other_person}.",
        )),
        ((), (
            " It was restored in {other_year}.",
            " Parts of it were filmed in {other_town}.",
            " It won a prize in {other_year}.",
        )),
    ),
    "novel": (
        (("author",), (
            " It was written by {author}.",
            " {author} wrote it.",
            " Its author is {author}; the preface is by {other_person}.",
            " It came from the pen of {author}.",
        )),
        (("year",), (
            " It was published in {year}.",
            " It first appeared in {year}.",
            " Finished in {before_year}, it was published in {year}.",
        )),
        (("pages",), (
            " The first edition has {pages} pages.",
            " It is {pages} pages long.",
            " It fills {pages} pages, the abridged edition {other_small} pages.",
        )),
        (("publisher",), (
            " The publisher was {publisher}.",
            " It was brought out by {publisher}.",
            " After {other_company} refused it, {publisher} published it.",
        )),
        ((), (
            " It was adapted for the stage in {other_year}.",
            " Its story is set in {other_town}.",
            " A new translation followed in {other_year}.",
        )),
    ),
    "building": (
        (("architect",), (
            " It was designed by {architect}.",
            " Its architect was {architect}.",
            " The plans were drawn by {architect}; {other_person} supervised the works.",
            " It is the work of {architect}.",
        )),
        (("town",), (
            " It stands in {town}.",
            " It is located in {town}.",
            " Visitors reach it from the main square of {town}.",
        )),
        (("opened",), (
            " It was opened in {opened}.",
            " It was completed in {opened}.",
            " Begun in {before_year}, it was finished in {opened}.",
        )),
        (("height",), (
            " It is {height} m tall.",
            " Its height is {height} m.",
            " The tower rises to {height} m.",
        )),
        ((), (
            " The roof was renewed in {other_year}.",
            " A copy of it was built in {other_town}.",
            " It was damaged by a storm in {other_year}.",
        )),
    ),
}  # fmt: skip

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
