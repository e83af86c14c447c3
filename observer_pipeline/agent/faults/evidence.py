"""Evidence that is wrong or missing: `contradiction`, `missing_evidence`, `stale_result`, `truncated_result`."""

import random
from dataclasses import dataclass
from typing import Any

from observer_pipeline.agent.faults.injection import Injection
from observer_pipeline.agent.faults.values import facts_of, kind_of, page_of, replace_word
from observer_pipeline.agent.questions import AgentQuestion, Fact, Paragraph

CUT_MARKS = (" …", "...", " [truncated]", "")


def contradiction(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """One supporting paragraph states something else than the truth, wherever it is shown."""
    found = _altered_fact(question, rng, facts_of(question, rng))
    if found is None:
        return None
    fact, false, page = found
    return Injection("contradiction", _details(fact, false), pages={fact.title: page})


def missing_evidence(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """One supporting paragraph cannot be found."""
    if not question.supporting_titles:
        return None
    title = rng.choice(question.supporting_titles)
    return Injection("missing_evidence", {"title": title}, pages={title: None})


def missing_evidence_harmless(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A supporting paragraph is not found the first time it should be."""
    if not question.supporting_titles:
        return None
    title = rng.choice(question.supporting_titles)
    return Injection("missing_evidence", {"title": title}, harmless=True, late=title)


def stale_result(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """Search serves an old copy of a supporting paragraph; opening the page by its title shows the present one."""
    changing = [fact for fact in facts_of(question, rng) if kind_of(fact.value) != "date"]
    found = _altered_fact(question, rng, changing)
    if found is None:
        return None
    fact, false, page = found
    return Injection("stale_result", _details(fact, false), results=OldCopy(fact.title, page.text))


def truncated_result(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A supporting paragraph comes back cut off before what is needed from it."""
    facts = facts_of(question, rng)
    rng.shuffle(facts)
    for fact in facts:
        page = page_of(question, fact.title)
        at = page.text.find(fact.value) if page else -1
        if at > 0:
            cut = rng.randint(max(1, at // 2), at)
            details = {"title": fact.title, "characters": cut, "lost": fact.value}
            return Injection("truncated_result", details, results=CutOff(fact.title, cut, rng.choice(CUT_MARKS)))
    return None


def truncated_result_harmless(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """A paragraph comes back cut off after what is needed from it, or one that does not matter."""
    needed: dict[str, int] = {}
    for fact in facts_of(question, rng):
        page = page_of(question, fact.title)
        if page:
            needed[fact.title] = max(needed.get(fact.title, 0), page.text.find(fact.value) + len(fact.value))
    share = rng.betavariate(2.5, 3)  # as much as the fault leaves
    pages = list(question.paragraphs)
    rng.shuffle(pages)
    # Supporting paragraphs first, then what looks like them: those are the ones that the agent gets to see.
    for page in sorted(pages, key=lambda page: _seldom_seen(question, page)):
        cut = max(1, round(share * len(page.text)))
        if needed.get(page.title, 0) <= cut < len(page.text):
            details = {"title": page.title, "characters": cut}
            fault = CutOff(page.title, cut, rng.choice(CUT_MARKS))
            return Injection("truncated_result", details, harmless=True, results=fault)
    return None


def _seldom_seen(question: AgentQuestion, page: Paragraph) -> int:
    """0 for a supporting paragraph, 1 for one whose title begins a word as the question does, else 2."""
    if page.title in question.supporting_titles:
        return 0
    asked = question.question.casefold()
    return 1 if any(word[:5] in asked for word in page.title.casefold().split() if len(word) > 3) else 2


@dataclass(frozen=True, slots=True)
class OldCopy:
    """Replaces the text of one paragraph in search results only."""

    title: str
    text: str

    def __call__(self, _number: int, tool: str, result: dict[str, Any]) -> dict[str, Any]:
        return _with_text(result, self.title, lambda _: self.text) if tool == "search" else result


@dataclass(frozen=True, slots=True)
class CutOff:
    """Cuts one paragraph to its first `characters`, wherever it is shown."""

    title: str
    characters: int
    mark: str

    def __call__(self, _number: int, _tool: str, result: dict[str, Any]) -> dict[str, Any]:
        return _with_text(result, self.title, lambda text: text[: self.characters].rstrip() + self.mark)


def _with_text(result: dict[str, Any], title: str, change: Any) -> dict[str, Any]:
    """The tool's result with the text of one paragraph changed."""
    if result.get("title") == title:
        return result | {"text": change(result["text"])}
    if "results" in result:
        return result | {"results": [_with_text(item, title, change) for item in result["results"]]}
    return result


def _altered_fact(question: AgentQuestion, rng: random.Random, facts: list[Fact]) -> tuple[Fact, str, Paragraph] | None:
    """A fact, what is to stand in its place, and its paragraph so altered."""
    usable = [fact for fact in facts if fact.alternatives]
    rng.shuffle(usable)
    for fact in usable:
        page = page_of(question, fact.title)
        false = rng.choice(fact.alternatives)
        altered = replace_word(page.text, fact.value, false) if page else ""
        if page and altered != page.text:
            return fact, false, Paragraph(page.title, (altered,))
    return None


def _details(fact: Fact, false: str) -> dict[str, Any]:
    return {"title": fact.title, "true": fact.value, "false": false}
