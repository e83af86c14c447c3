"""An agent that does not do its work to the end: `early_stop`, `other_question`, `lost_context`, `weak_model`."""

import random

from observer_pipeline.agent.faults.behaviour import Forgets, ReadsInstead, StopsEarly
from observer_pipeline.agent.faults.injection import Injection
from observer_pipeline.agent.questions import AgentQuestion

OPENINGS = ("Tell me about {x}.", "What do you know about {x}?", "And {x}?", "Who or what is {x}?")
FALLBACK_QUESTIONS = ("In what year was {x} founded?", "Where is {x} located?", "When was {x} born?")
LONG_CHAT = (4, 9)
_FROM_MEMORY = 0.05
"""Share of early stops that answer without a single result: plain to see, and not worth more."""


def early_stop(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """The agent answers after fewer tool results than there are supporting paragraphs."""
    needed = len(question.supporting_titles)
    after = 0 if rng.random() < _FROM_MEMORY else rng.randrange(1, max(2, needed))
    if needed <= after:
        return None
    return Injection("early_stop", {"after": after}, model=StopsEarly(after))


def other_question(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """The agent works on, and answers, a question that was not asked."""
    other = question.sibling
    if not other:
        titles = [page.title for page in question.paragraphs]
        other = rng.choice(FALLBACK_QUESTIONS).format(x=rng.choice(titles)) if titles else ""
    return Injection("other_question", {"worked_on": other}, model=ReadsInstead(other)) if other else None


def lost_context(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """Late in a long chat the model sees the latest result of its own run and no earlier one."""
    history = _long_chat(question, rng)
    details = {"turns": len(history), "results_remembered": 1}
    return Injection("lost_context", details, model=Forgets(1), history=history)


def lost_context_harmless(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A long chat in which nothing gets lost."""
    history = _long_chat(question, rng)
    return Injection("lost_context", {"turns": len(history)}, harmless=True, history=history)


def weak_model(_question: AgentQuestion, _rng: random.Random) -> Injection:
    """A weaker model does the run."""
    return Injection("weak_model", {}, weak=True)


def _long_chat(question: AgentQuestion, rng: random.Random) -> tuple[tuple[str, str], ...]:
    """Earlier turns about other things."""
    pages = [page for page in question.paragraphs if page.title not in question.supporting_titles]
    turns = rng.randint(*LONG_CHAT)
    rng.shuffle(pages)
    return tuple((rng.choice(OPENINGS).format(x=page.title), page.sentences[0].strip()) for page in pages[:turns])
