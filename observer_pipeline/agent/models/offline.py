"""The offline model: a rule-based agent behind ADK's `BaseLlm` that plans, searches, reads and answers.

It sees what any model sees (the conversation and the declared tools) and nothing else. Its policy is a generator that
yields tool calls and is sent their results; since a model call is stateless, every call replays the conversation's
results into a fresh generator and takes the next move. Its mistakes are its own: names that almost match, wording its
cues do not know, values that stand closer, hops it leaves out when it is in a hurry.
"""

import random
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from typing import Any, Literal

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types

from observer_pipeline.agent.models.reading import (
    Ask,
    Reading,
    as_size,
    brackets,
    compared,
    guess,
    overlap,
    plain,
    read,
    understand,
)
from observer_pipeline.agent.models.relations import Relation

Skill = Literal["strong", "weak"]
Call = tuple[str, dict[str, Any]]
Moves = Generator[Call, dict[str, Any], str]


@dataclass(frozen=True, slots=True)
class Temper:
    """How carefully one run is done; drawn anew for every question."""

    attention: int  # results of a search it looks at
    patience: int  # further searches when something is not found
    insists: int  # searches in other words before it makes do with a guess
    words: float  # chance to know each cue word of a relation beyond the plainest
    strict: float  # word overlap at which it takes a page for the one it looked for
    skims: float  # chance to take the first value that fits
    hurries: float  # chance to leave out the rest once it has some value
    lookups: float  # chance to open a page by title instead of searching
    admits: float  # chance to say that it found nothing instead of guessing
    clips: float  # chance to answer with a part of the value

    @classmethod
    def draw(cls, rng: random.Random, skill: Skill) -> "Temper":
        """A strong model is mostly careful; a weak one knows fewer words and looks less far."""
        if skill == "weak":
            return cls(
                attention=1,
                patience=rng.choice((0, 0, 1)),
                insists=rng.choice((0, 0, 1, 2)),
                words=0.5,
                strict=0.3,
                skims=0.3,
                hurries=0.2,
                lookups=0.1,
                admits=0.1,
                clips=0.06,
            )
        careful = rng.random() < 0.7
        return cls(
            attention=rng.choice((2, 3, 3)) if careful else 1,
            patience=rng.choice((1, 2)) if careful else 0,
            insists=rng.choice((0, 1, 1, 2)),
            words=0.93 if careful else 0.7,
            strict=0.9 if careful else 0.45,
            skims=0.03 if careful else 0.2,
            hurries=0.02 if careful else 0.12,
            lookups=0.3,
            admits=0.35,
            clips=0.04,
        )


@dataclass(slots=True)
class Page:
    title: str
    text: str


class Stop(Exception):
    """The tools refuse further work; whatever is known must do."""


@dataclass(slots=True)
class Solver:
    """One run of the policy over one question."""

    ask: Ask
    temper: Temper
    rng: random.Random
    pages: list[Page] = field(default_factory=list)
    best: Reading | None = None

    def moves(self) -> Moves:
        """The tool calls of this run, in order; returns the answer."""
        try:
            if self.ask.form == "chain" or len(self.ask.anchors) < 2:
                value = yield from self._chain()
            else:
                value = yield from self._comparison()
        except Stop:
            value = self.best.value if self.best else None
        return value or self.last_resort()

    def last_resort(self) -> str:
        """An answer out of what was read, or the admission that there is none."""
        if self.ask.form in ("same", "is_larger", "is_smaller"):
            return self.rng.choice(("no", "yes"))
        if self.ask.form in ("larger", "smaller") and self.ask.anchors:
            return self.rng.choice(self.ask.anchors[:2])
        if self.rng.random() >= self.temper.admits:
            for page in reversed(self.pages):
                found = guess(page.text, page.title, self.ask.wanted, self.ask.text)
                if found:
                    return found.value
            if not self.pages and self.ask.wanted == "year":  # a half memory
                return str(self.rng.randint(1850, 1990))
            if not self.pages and self.ask.wanted == "number":
                return str(self.rng.randint(2, 900))
        return self.rng.choice(("I could not find the answer.", "unknown", ""))

    def _chain(self) -> Generator[Call, dict[str, Any], str | None]:
        """Follow the relations one page after another."""
        if not self.ask.anchors:
            yield from self._search(self.ask.text)
            return None
        name, remaining = self.ask.anchors[0], list(self.ask.relations)
        value: Reading | None = None
        while True:
            page = yield from self._find(name, remaining[0] if remaining else None)
            if page is None:
                yield from self._insist()
                return self._settle(value)
            step = self._step(page, remaining)
            if step is None and self.temper.patience and remaining:
                page = (yield from self._again(name, remaining[0])) or page
                step = self._step(page, remaining)
            if step is None:
                yield from self._insist()
                return self._settle(value, page)
            relation, value = step
            remaining.remove(relation)
            if not remaining or relation.kind != "name":
                return self._finish(value, relation)
            if self.rng.random() < self.temper.hurries:
                return self._settle(value, page)
            self.best = value
            name = value.value

    def _step(self, page: Page, remaining: list[Relation]) -> tuple[Relation, Reading] | None:
        """The first relation still to follow that the page states; a careless reader also takes a later one."""
        careful = self.temper.strict > 0.6
        for relation in remaining[:1] if careful else remaining:
            found = self._read(page, relation)
            if found:
                return relation, found
        return None

    def _settle(self, value: Reading | None, page: Page | None = None) -> str | None:
        """Something to answer though the last relation was not read: the value so far, or a guess from the page."""
        if page and self.rng.random() >= self.temper.admits / 2:
            found = guess(page.text, page.title, self.ask.wanted, self.ask.text)
            if found:
                return found.value
        return value.value if value and self.ask.wanted == "name" and self.rng.random() < 0.5 else None

    def _finish(self, value: Reading, relation: Relation) -> str:
        """The value in the form the question wants."""
        text = value.value
        if self.ask.wanted == "year" and relation.kind in ("date", "year"):
            text = text.split()[-1].rstrip(".")
        words = text.split()
        if len(words) > 1 and self.rng.random() < self.temper.clips:
            return words[-1]
        return text

    def _comparison(self) -> Generator[Call, dict[str, Any], str | None]:
        """Read the compared value of both sides, then compare."""
        values: list[str | None] = []
        anchors = self.ask.anchors[:2] if len(self.ask.anchors) == 2 else (self.ask.anchors[0], self.ask.anchors[-1])
        choices = self.ask.relations if self.ask.form == "same" else compared(self.ask)
        used: Relation | None = None
        for name in anchors:
            if values and self.rng.random() < self.temper.hurries:
                break
            page = yield from self._find(name, (used or choices[0]) if choices else None)
            found = None
            for relation in [used] if used else choices:
                found = self._read(page, relation) if page else None
                if found:
                    used = relation
                    break
            values.append(found.value if found else None)
        known = [value for value in values if value is not None]
        if len(known) < 2:
            yield from self._insist()
            return None
        if self.ask.form == "same":
            return "yes" if plain(known[0]) == plain(known[1]) else "no"
        sizes = [size for value in known if (size := as_size(value)) is not None]
        if len(sizes) < 2:
            return None
        if self.ask.form in ("difference", "sum"):
            return self._calculate(sizes[0][0], sizes[1][0])
        smaller_first = sizes[0] < sizes[1]
        if self.ask.form in ("is_larger", "is_smaller"):
            return "yes" if smaller_first == (self.ask.form == "is_smaller") else "no"
        return anchors[0 if smaller_first == (self.ask.form == "smaller") else 1]

    def _calculate(self, first: int, second: int) -> str:
        """The difference or the sum of two numbers; in a hurry a carry gets lost."""
        result = abs(first - second) if self.ask.form == "difference" else first + second
        if self.rng.random() < self.temper.skims:
            result += self.rng.choice((-1, 1, 10, 100)) if result > 1 else 1
        return f"{result:,}"

    def _read(self, page: Page, relation: Relation) -> Reading | None:
        """Read with the cue words this run knows (the same ones each time)."""
        knows = random.Random(f"{self.ask.text}:{relation.name}:{self.temper.words}")
        cues = [cue for i, cue in enumerate(relation.cues) if knows.random() < self.temper.words or i == 0]
        return read(page.text, page.title, relation, cues, skim=self.rng.random() < self.temper.skims)

    def _find(self, name: str, relation: Relation | None) -> Generator[Call, dict[str, Any], Page | None]:
        """The page about a name: from what was seen, else by search or lookup; perhaps one that only looks like it."""
        seen = self._pick(name, self.pages, exact=True)
        if seen:
            return seen
        if self.rng.random() < self.temper.lookups:
            page = yield from self._lookup(name)
            if page:
                return page
        query = name if relation is None or self.rng.random() < 0.5 else f"{name} {relation.cues[0]}"
        results = yield from self._search(query)
        page = self._pick(name, results[: self.temper.attention], exact=False)
        tries = self.temper.patience
        while page is None and tries > 0:
            tries -= 1
            results = yield from self._search(
                f"{name} {relation.name.replace('_', ' ')}" if relation and tries else name
            )
            page = self._pick(name, results, exact=False)
        return page or (results[0] if results and self.temper.strict < 0.6 else None)

    def _pick(self, name: str, pages: list[Page], *, exact: bool) -> Page | None:
        """The page titled so, else one that names it in its first sentence, else one with a title like it."""
        same = [page for page in pages if plain(page.title) == plain(name)]
        if same:
            asked = self.ask.text.lower()
            kind = next((p for p in same if any(f"the {b} {name}".lower() in asked for b in brackets(p.title))), None)
            return kind or same[0]
        if exact:
            return None
        for page in pages:
            if plain(name) in plain(page.text[: len(page.title) + 160]):
                return page
        close = max(pages, key=lambda page: overlap(name, page.title), default=None)
        return close if close and overlap(name, close.title) >= self.temper.strict else None

    def _again(self, name: str, relation: Relation) -> Generator[Call, dict[str, Any], Page | None]:
        """One more search for a relation the page did not state in words it knows."""
        results = yield from self._search(f"{name} {relation.name.replace('_', ' ')}")
        return self._pick(name, results, exact=True)

    def _insist(self) -> Generator[Call, dict[str, Any], None]:
        """Search on in other words, as agents do that have not found it: real ones call more often where they fail."""
        words = [self.ask.text, *(f"{name} {self.ask.wanted}" for name in self.ask.anchors), *self.ask.anchors]
        if self.best:
            words.insert(1, f"{self.best.value} {self.ask.wanted}")
        for query in words[: self.temper.insists]:
            yield from self._search(query)

    def _search(self, query: str) -> Generator[Call, dict[str, Any], list[Page]]:
        response = yield from self._call("search", {"query": query})
        results = [
            Page(str(r.get("title", "")), str(r.get("text", "")))
            for r in response.get("results") or []
            if isinstance(r, dict)
        ]
        self._remember(results)
        return results

    def _lookup(self, title: str) -> Generator[Call, dict[str, Any], Page | None]:
        response = yield from self._call("lookup", {"title": title})
        if "text" not in response:
            return None
        page = Page(str(response.get("title", title)), str(response["text"]))
        self._remember([page])
        return page

    def _call(self, tool: str, args: dict[str, Any]) -> Generator[Call, dict[str, Any], dict[str, Any]]:
        """One call, made again when the tool broke down; a patient run asks more often."""
        for _ in range(2 + self.temper.patience):
            response = yield tool, args
            error = str(response.get("error", ""))
            if "budget" in error:
                raise Stop
            if not error or "no paragraph" in error:
                return response
        return response

    def _remember(self, pages: list[Page]) -> None:
        for page in pages:
            if page not in self.pages:
                self.pages.append(page)


class OfflineLlm(BaseLlm):
    """The offline model for ADK; the same conversation always gets the same reply for a `seed`."""

    model: str = "offline"
    skill: Skill = "strong"
    seed: int = 0

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield exactly one reply: a tool call, or the answer."""
        question, results = conversation(llm_request.contents)
        tools = {d.name for tool in _tools(llm_request) for d in tool.function_declarations or []}
        parts = self._reply(question, results, tools)
        read_chars = sum(len(str(content)) for content in llm_request.contents)
        written = sum(len(str(part.text or part.function_call)) for part in parts)
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=read_chars // 4,
            candidates_token_count=max(1, written // 4),
            total_token_count=read_chars // 4 + max(1, written // 4),
        )
        yield LlmResponse(
            content=types.Content(role="model", parts=parts),
            usage_metadata=usage,
            finish_reason=types.FinishReason.STOP,
            model_version=self.model,
        )

    def _reply(self, question: str, results: list[dict[str, Any]], tools: set[str | None]) -> list[types.Part]:
        rng = random.Random(f"{self.seed}:{self.skill}:{question}")
        manner = random.Random(f"manner:{self.seed}:{question}:{len(results)}")
        solver = Solver(understand(question), Temper.draw(rng, self.skill), rng)
        moves = solver.moves()
        try:
            call = next(moves)
            for result in results:
                call = moves.send(result)
        except StopIteration as end:
            return [types.Part(text=_wording(str(end.value), manner))]
        if call[0] not in tools:  # nothing can be called any more: answer from what was read
            value = solver.best.value if solver.best else solver.last_resort()
            return [types.Part(text=_wording(value, manner))]
        name, args = call
        thought = _thought(name, args, manner)
        said = [types.Part(text=thought)] if thought else []
        return [*said, types.Part(function_call=types.FunctionCall(name=name, args=args))]


def conversation(contents: list[types.Content]) -> tuple[str, list[dict[str, Any]]]:
    """The latest question of a conversation and the tool results since."""
    question, results = "", []
    for content in contents:
        for part in content.parts or []:
            if part.function_response is not None:
                results.append(dict(part.function_response.response or {}))
            elif content.role == "user" and part.text:
                question, results = part.text, []
    return question.strip(), results


def _tools(llm_request: LlmRequest) -> list[types.Tool]:
    tools = (llm_request.config.tools if llm_request.config else None) or []
    return [tool for tool in tools if isinstance(tool, types.Tool)]


def _thought(name: str, args: dict[str, Any], rng: random.Random) -> str:
    if rng.random() < 0.5:
        return ""
    subject = next(iter(args.values()), "")
    if name == "lookup":
        return rng.choice((f"Let me open the page on {subject}.", f"I will look up {subject}."))
    return rng.choice((f"I need to search for {subject}.", f"Next: {subject}.", "Let me search for that."))


def _wording(value: str, rng: random.Random) -> str:
    """Mostly the bare answer as instructed, sometimes with the usual wrapping."""
    if not value or rng.random() < 0.75:
        return value
    return rng.choice((f"Answer: {value}", f"**{value}**", f"{value}.", f"The answer is {value}."))
