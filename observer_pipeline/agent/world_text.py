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
            " {S} was born in {birthplace} on {birth_date} and baptised on {other_date}.",
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
            " On old maps it ends in {other_mouth}, but it flows into {mouth}.",
            " It empties into {mouth}, not far from {other_mouth}.",
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
