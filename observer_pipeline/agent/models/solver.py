"""The offline model's policy: plan, search, read and answer, as a generator that yields tool calls and is sent results.

Its rules find the answer of nearly every question of the generated world; what it gets wrong is its `Temper`'s mistake.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from observer_pipeline.agent.models.reading import (
    MONTHS,
    Ask,
    as_size,
    brackets,
    compared,
    guess,
    overlap,
    plain,
    read,
    values_of,
)
from observer_pipeline.agent.models.relations import Relation
from observer_pipeline.agent.models.temper import Temper

Call = tuple[str, dict[str, Any]]
Moves = Generator[Call, dict[str, Any], str]

_ALIKE = 0.9
"""Share of a name's words that a title must have to be taken for it."""
_AT_A_LOSS = 0.8
"""Chance to admit that nothing was found where a page, or one side of a pair, was not."""


@dataclass(slots=True)
class Page:
    title: str
    text: str


class Stop(Exception):
    """The tools refuse further work; whatever is known must do."""


@dataclass(slots=True)
class Solver:
    """One run of the policy over one question.

    How many calls it makes does not hang on whether it finds the answer: `spare` searches beyond the way are drawn
    before, a page that is not found uses them up, and a way that was lost is searched for as long as it would have
    been. Else a run would show by its length how it ends.
    """

    ask: Ask
    temper: Temper
    rng: random.Random
    pages: list[Page] = field(default_factory=list)
    best: str | None = None
    unseen: str | None = None
    spare: int = field(init=False)
    lost: bool = False

    def __post_init__(self) -> None:
        self.spare = self.temper.spare

    def moves(self) -> Moves:
        """The tool calls of this run, in order; returns the answer."""
        value = None
        try:
            if self.ask.form == "chain" or len(self.ask.anchors) < 2:
                value = yield from self._chain()
            else:
                value = yield from self._comparison()
            yield from self._search_on()
        except Stop:
            value = value or self.half_way
        return value or self.last_resort()

    @property
    def half_way(self) -> str | None:
        """The last name read on the way, where a name is wanted."""
        return self.best if self.ask.wanted == "name" else None

    def last_resort(self) -> str:
        """An answer out of what was read, or the admission that there is none."""
        pair = self.ask.form != "chain" and len(self.ask.anchors) >= 2
        if self.rng.random() >= (_AT_A_LOSS if self.lost else self.temper.admits):
            if self.ask.form in ("same", "is_larger", "is_smaller"):
                return self.rng.choice(("no", "yes"))
            if self.ask.form in ("larger", "smaller") and pair:
                return self.rng.choice(self.ask.anchors[:2])
            found = self._elsewhere()
            if found:
                return found
            if self.ask.wanted in ("date", "year", "number"):  # a half memory
                return self._remembered()
        return self.rng.choice(("I could not find the answer.", "unknown", ""))

    def _elsewhere(self) -> str | None:
        """What other pages state for the relation asked for, else anything of the kind wanted."""
        last = self.ask.relations[-1] if self.ask.relations else None
        for page in reversed(self.pages):
            found = read(page.text, page.title, last) if last and last.kind == self.ask.wanted else None
            if found and found != self.unseen:
                return found
        for page in reversed(self.pages):
            found = guess(page.text, page.title, self.ask.wanted, self.ask.text, unlike=self.unseen)
            if found:
                return found
        return None

    def _remembered(self) -> str:
        """A date, a year or a number out of nowhere."""
        if self.ask.wanted == "date":
            return f"{self.rng.randint(1, 28)} {self.rng.choice(MONTHS)} {self.rng.randint(1820, 1990)}"
        if self.ask.wanted == "year":
            return str(self.rng.randint(1480, 2010))
        return f"{round(30 * 10_000 ** self.rng.random()):,}"

    def _chain(self) -> Generator[Call, dict[str, Any], str | None]:
        """Follow the relations one page after another."""
        if not self.ask.anchors:
            yield from self._search(self.ask.text)
            return None
        name, relations = self.ask.anchors[0], self.ask.relations
        mistaken = min(int(self.temper.late * len(relations)), len(relations) - 1) if self.temper.mistake else -1
        value: str | None = None
        for hop, relation in enumerate(relations):
            page = yield from self._find(name, relation)
            found = read(page.text, page.title, relation) if page else None
            if page and hop == mistaken:
                found = self._mistaken(page, relation, found)
            if found is None:
                yield from self._grope(relations[hop + 1 :])
                yield from self._search_on()
                return self._settle(value, page)
            value = found
            if hop == len(relations) - 1 or relation.kind != "name":
                break
            if hop == mistaken and self.temper.mistake == "skips":
                yield from self._grope(relations[hop + 1 :])
                break
            self.best = name = value
        if value is None:
            page = yield from self._find(name, None)
            return self._settle(None, page)
        return self._finish(value)

    def _mistaken(self, page: Page, relation: Relation, right: str | None) -> str | None:
        """What is read there instead of the right value."""
        last = self.ask.relations[-1]
        if right is None or (self.temper.mistake == "clips" and relation is last):
            return right  # `_finish` clips
        if self.temper.mistake == "overlooks":
            self.unseen = right
            return None
        if self.temper.mistake == "skips" and relation is not last:
            return read(page.text, page.title, last) or right
        return self._misread(page, relation, right)

    def _misread(self, page: Page, relation: Relation, right: str) -> str | None:
        """A value of the same kind: the same relation of another page at hand, else something else on this page."""
        others = [read(other.text, other.title, relation) for other in self.pages if other is not page]
        choices = [value for value in others if value and value != right]
        if not choices or self.rng.random() < 0.3:
            choices += [value for value in values_of(page.text, page.title, relation.kind) if value != right]
        if not choices and as_size(right):
            return self._slipped(right)
        if not choices:
            self.unseen = right
        return self.rng.choice(choices) if choices else None

    def _slipped(self, value: str) -> str:
        """A number or date with one of its digits read wrongly."""
        places = [i for i, letter in enumerate(value) if letter.isdigit()][1:] or [0]
        place = self.rng.choice(places[-2:])
        return value[:place] + str((int(value[place]) + self.rng.choice((1, 3, 5))) % 10) + value[place + 1 :]

    def _settle(self, value: str | None, page: Page | None = None) -> str | None:
        """Something to answer though the last relation was not read: a guess from the page, or the value so far."""
        if self.lost or self.rng.random() < self.temper.admits:
            return None
        if self.rng.random() < 0.5 and (found := self._elsewhere()):
            return found
        found = page and guess(page.text, page.title, self.ask.wanted, self.ask.text, unlike=self.unseen)
        return found or (value if self.ask.wanted == "name" else None)

    def _finish(self, value: str) -> str:
        """The value in the form the question wants."""
        if self.ask.wanted == "year":
            value = value.split()[-1].rstrip(".")
        words = value.split()
        if self.temper.mistake == "clips" and len(words) > 1:
            return words[-1]
        return value

    def _comparison(self) -> Generator[Call, dict[str, Any], str | None]:
        """Read the compared value of both sides, then compare."""
        values: list[str | None] = []
        anchors = self.ask.anchors[:2] if len(self.ask.anchors) == 2 else (self.ask.anchors[0], self.ask.anchors[-1])
        choices = self.ask.relations if self.ask.form == "same" else compared(self.ask)
        used: Relation | None = None
        pages: list[Page | None] = []
        for name in anchors:
            page = yield from self._find(name, (used or choices[0]) if choices else None)
            found = None
            for relation in (used, *choices) if used else choices:
                found = read(page.text, page.title, relation) if page else None
                if found:
                    used = relation
                    break
            pages.append(page)
            values.append(found)
        first, second = values
        if first is None or second is None or used is None:
            return None
        if self.temper.mistake == "overlooks":
            self.lost = True
            return None
        turned = self.temper.mistake is not None
        if self.ask.form == "same":
            return "yes" if (plain(first) == plain(second)) != turned else "no"
        sizes = as_size(first), as_size(second)
        if sizes[0] is None or sizes[1] is None:
            return None
        if self.ask.form in ("difference", "sum"):
            misread = self._misread(pages[1], used, second) if self.temper.mistake == "misreads" and pages[1] else None
            if misread and misread != first and (other := as_size(misread)):
                return self._calculate(sizes[0][0], other[0], turned=False)
            return self._calculate(sizes[0][0], sizes[1][0], turned=turned)
        smaller_first = (sizes[0] < sizes[1]) != turned
        if self.ask.form in ("is_larger", "is_smaller"):
            return "yes" if smaller_first == (self.ask.form == "is_smaller") else "no"
        return anchors[0 if smaller_first == (self.ask.form == "smaller") else 1]

    def _calculate(self, first: int, second: int, *, turned: bool) -> str:
        """The difference or the sum of two numbers; turned, a carry gets lost."""
        result = abs(first - second) if self.ask.form == "difference" else first + second
        if turned:
            result += self.rng.choice((-1, 1, 10, 100)) if result > 1 else 1
        return f"{result:,}"

    def _find(self, name: str, relation: Relation | None) -> Generator[Call, dict[str, Any], Page | None]:
        """The page about a name: from what was seen, else by search or lookup; perhaps one that only looks like it."""
        seen = self._titled(name, self.pages)
        if seen:
            return seen
        if self.pages and self.rng.random() < self.temper.lookups:
            page = yield from self._lookup(name)
            if page:
                return page
        query = name if relation is None or self.rng.random() < 0.5 else f"{name} {relation.cues[0]}"
        if not self.pages and self.rng.random() < self.temper.whole:
            query = self.ask.text
        results = yield from self._search(query)
        page = self._titled(name, results) or self._named(name, results)
        if page is None:
            results = yield from self._search(f"{name} {relation.cues[0]}" if relation and query == name else name)
            page = self._titled(name, results) or self._named(name, results)
        while page is None and self.spare > 0:
            self.spare -= 1
            results = yield from self._search(relation.cues[0] if relation else name)
            page = self._titled(name, results) or self._named(name, results) or self._like(name, results)
        self.lost = self.lost or page is None
        return page

    def _titled(self, name: str, pages: list[Page]) -> Page | None:
        """The page titled so; of namesakes the one whose bracketed addition the question has before the name."""
        same = [page for page in pages if plain(page.title) == plain(name)]
        asked = self.ask.text.lower()
        kind = next((p for p in same if any(f"the {b} {name}".lower() in asked for b in brackets(p.title))), None)
        return kind or (same[0] if same else None)

    def _named(self, name: str, pages: list[Page]) -> Page | None:
        """A page that has the name at its beginning, beside that of its title."""
        for page in pages:
            if plain(name) in plain(page.text[: len(page.title) + 160]) and plain(name) not in plain(page.title):
                return page
        return None

    def _like(self, name: str, pages: list[Page]) -> Page | None:
        """A page whose title has nearly all words of the name."""
        close = max(pages, key=lambda page: overlap(name, page.title), default=None)
        return close if close and overlap(name, close.title) >= _ALIKE else None

    def _grope(self, relations: Sequence[Relation]) -> Generator[Call, dict[str, Any], None]:
        """Search for what is left of the way without a name to go by: as long as the way would have been."""
        for relation in relations:
            yield from self._search(relation.cues[0])

    def _search_on(self) -> Generator[Call, dict[str, Any], None]:
        """Use up what effort is left, whether it has found the answer or not: open or search for what is named."""
        around = [name for page in self.pages[-1:] for name in values_of(page.text, page.title, "name")]
        self.rng.shuffle(around)
        words = [*around[:2], self.ask.text, *(f"{name} {self.ask.wanted}" for name in self.ask.anchors)]
        spare, self.spare = self.spare, 0
        for query in words[:spare]:
            if query in around and self.rng.random() < self.temper.lookups:
                yield from self._lookup(query)
            else:
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
