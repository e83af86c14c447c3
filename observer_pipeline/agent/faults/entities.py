"""The wrong thing at a hop: `wrong_entity` of the same name, `swapped_hop`."""

import random
import re

from observer_pipeline.agent.faults.behaviour import AnswersInstead, ReadsInstead
from observer_pipeline.agent.faults.injection import Injection
from observer_pipeline.agent.faults.values import facts_of, kind_of, other_side, page_of, wrong_value
from observer_pipeline.agent.questions import AgentQuestion, Paragraph


def wrong_entity(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """The page of a supporting entity is that of a namesake: same name, other facts."""
    titles = list(question.supporting_titles)
    rng.shuffle(titles)
    for title in titles:
        name = re.sub(r" \([^)]*\)$", "", title)
        models = [page for page in question.paragraphs if page.title not in titles and _subject(page)]
        if models and page_of(question, title):
            model = rng.choice(models)
            text = model.text.replace(_subject(model), name)
            details = {"title": title, "facts_of": model.title}
            return Injection("wrong_entity", details, pages={title: Paragraph(title, (text,))})
    return None


def swapped_hop(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A hop is left out or taken the wrong way round: the question is followed wrongly, or answered half-way."""
    if question.skipped_hop and rng.random() < 0.8:
        model = ReadsInstead(question.skipped_hop)
        return Injection("swapped_hop", {"followed": question.skipped_hop}, model=model)
    kind = kind_of(question.answer)
    values = [fact.value for fact in facts_of(question, rng)[:-1] if kind_of(fact.value) == kind]
    instead = other_side(question) or (rng.choice(values) if values else None)
    if kind == "closed":
        instead = wrong_value(question, rng)
    elif instead is None and kind == "name":
        named = [title for title in question.supporting_titles if title != question.answer]
        instead = rng.choice(named) if named else None
    if instead is None or instead == question.answer:
        return None
    return Injection("swapped_hop", {"answered": instead}, model=AnswersInstead(instead))


def _subject(page: Paragraph) -> str:
    """The name by which a paragraph begins: its title, with or without the bracketed addition; else nothing."""
    name = re.sub(r" \([^)]*\)$", "", page.title)
    return name if name in page.text[: len(name) + 20] else ""
