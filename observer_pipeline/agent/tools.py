"""The agent's tools: BM25 search and lookup by title over the paragraphs of one run, with a hard budget of calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bm25s

from observer_pipeline.agent.questions import Paragraph

TOP_K = 2
"""Paragraphs a search returns: few, so that a state of three evidence items reaches the second hop."""


def _plain(title: str) -> str:
    return " ".join(title.casefold().split())


class ParagraphIndex:
    """BM25 over paragraphs (titles count as text) and lookup by title."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        self.paragraphs = tuple(paragraphs)
        self._by_title = {_plain(p.title): p for p in reversed(self.paragraphs)}
        self._bm25 = bm25s.BM25()
        tokens = bm25s.tokenize([f"{p.title} {p.text}" for p in self.paragraphs], show_progress=False)
        self._bm25.index(tokens, show_progress=False)

    def search(self, query: str, k: int) -> list[Paragraph]:
        """The up to `k` best paragraphs that share a word with the query, best first."""
        tokens = bm25s.tokenize([query], show_progress=False)
        found, scores = self._bm25.retrieve(tokens, k=min(k, len(self.paragraphs)), show_progress=False)
        return [self.paragraphs[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]

    def lookup(self, title: str) -> Paragraph | None:
        """The paragraph with this title, whatever its case."""
        return self._by_title.get(_plain(title))


@dataclass(slots=True)
class Toolbox:
    """The tools of one run.

    `withheld` titles are not found and `altered` ones read differently, in search and lookup alike: this is how faults
    in the evidence enter, so that the trace shows only what a tool returned.
    """

    index: ParagraphIndex
    max_calls: int
    top_k: int = TOP_K
    withheld: frozenset[str] = frozenset()
    altered: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0

    def functions(self) -> list[Callable[..., dict[str, Any]]]:
        """The tools as functions an agent can be given; a model may pass them anything."""

        def search(query: str) -> dict[str, Any]:
            """Searches the paragraphs and returns the best matches.

            Args:
                query: A few words to search for.
            """
            return self._spend() or {"results": [self._shown(p) for p in self._found(str(query))]}

        def lookup(title: str) -> dict[str, Any]:
            """Returns the paragraph with exactly this title.

            Args:
                title: The title of a paragraph.
            """
            return self._spend() or self._page(str(title))

        return [search, lookup]

    def _spend(self) -> dict[str, Any] | None:
        self.calls += 1
        if self.calls > self.max_calls:
            return {"error": f"The budget of {self.max_calls} tool calls is spent. Answer now with what you know."}
        return None

    def _found(self, query: str) -> list[Paragraph]:
        found = self.index.search(query, self.top_k + len(self.withheld))
        return [p for p in found if p.title not in self.withheld][: self.top_k]

    def _page(self, title: str) -> dict[str, Any]:
        paragraph = self.index.lookup(title)
        if paragraph is None or paragraph.title in self.withheld:
            return {"error": f"There is no paragraph titled {title!r}. Try search."}
        return self._shown(paragraph)

    def _shown(self, paragraph: Paragraph) -> dict[str, str]:
        return {"title": paragraph.title, "text": self.altered.get(paragraph.title, paragraph.text)}
