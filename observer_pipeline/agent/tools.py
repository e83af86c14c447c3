"""The agent's tools: BM25 search and lookup by title over the paragraphs of one run, with a hard budget of calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bm25s

from observer_pipeline.agent.faults.injection import ResultFault
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

    `pages` says what is found in the place of the paragraph with a title (None: nothing), `late` names one that is not
    found the first time it should be, and `results` changes what the tools hand back. This is how faults in the
    evidence enter, so that the trace shows only what a tool returned.
    """

    index: ParagraphIndex
    max_calls: int
    top_k: int = TOP_K
    pages: Mapping[str, Paragraph | None] = field(default_factory=dict)
    late: str | None = None
    results: ResultFault | None = None
    calls: int = 0

    def functions(self) -> list[Callable[..., dict[str, Any]]]:
        """The tools as functions an agent can be given; a model may pass them anything."""

        def search(query: str) -> dict[str, Any]:
            """Searches the paragraphs and returns the best matches.

            Args:
                query: A few words to search for.
            """
            return self._call("search", lambda: {"results": [_shown(p) for p in self._found(str(query))]})

        def lookup(title: str) -> dict[str, Any]:
            """Returns the paragraph with exactly this title.

            Args:
                title: The title of a paragraph.
            """
            return self._call("lookup", lambda: self._page(str(title)))

        return [search, lookup]

    def _call(self, tool: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.calls += 1
        if self.calls > self.max_calls:
            return {"error": f"The budget of {self.max_calls} tool calls is spent. Answer now with what you know."}
        result = work()
        return self.results(self.calls - 1, tool, result) if self.results else result

    def _found(self, query: str) -> list[Paragraph]:
        hidden = sum(page is None for page in self.pages.values()) + (self.late is not None)
        best = self.index.search(query, self.top_k + hidden)
        if self.late in [page.title for page in best[: self.top_k]]:
            best = [page for page in best if page.title != self.late]
            self.late = None
        found = [self.pages.get(page.title, page) for page in best]
        return [page for page in found if page is not None][: self.top_k]

    def _page(self, title: str) -> dict[str, Any]:
        paragraph = self.index.lookup(title)
        shown = self.pages.get(paragraph.title, paragraph) if paragraph else None
        if shown and shown.title == self.late:
            shown = self.late = None
        return _shown(shown) if shown else {"error": f"There is no paragraph titled {title!r}. Try search."}


def _shown(paragraph: Paragraph) -> dict[str, str]:
    return {"title": paragraph.title, "text": paragraph.text}
