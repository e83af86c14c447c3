"""Questions for the agent: what is asked, the gold answer, and the paragraphs it may search."""

from dataclasses import dataclass
from typing import Any, Literal

QuestionType = Literal["bridge", "comparison"]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A titled paragraph. Sentences after the first begin with a blank, as in HotpotQA; joined they are the text."""

    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Fact:
    """A string the answer hangs on: `value` stands in the paragraph `title`; `alternatives` could stand there too."""

    title: str
    value: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentQuestion:
    """A question with its gold answer and the paragraphs of its run, supporting ones and distractors mixed.

    `supporting` holds (title, sentence index) pairs; `aliases` are other right forms of the answer; `facts` may be
    empty (a data set does not say where its answers stand). `skipped_hop` is the question with a hop left out or taken
    the wrong way round, and `sibling` another question about the same things; what an agent may take this one for.
    """

    qid: str
    question: str
    answer: str
    type: QuestionType
    level: str
    paragraphs: tuple[Paragraph, ...]
    supporting: tuple[tuple[str, int], ...] = ()
    aliases: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    skipped_hop: str | None = None
    sibling: str | None = None

    @property
    def supporting_titles(self) -> tuple[str, ...]:
        """The titles of the supporting paragraphs, each once, in order."""
        return tuple(dict.fromkeys(title for title, _ in self.supporting))

    @property
    def supporting_texts(self) -> list[str]:
        """The supporting sentences; the whole paragraph where a data set's index points at none."""
        pages = {p.title: p for p in self.paragraphs}
        found = [(pages[title], index) for title, index in self.supporting if title in pages]
        return [page.sentences[i] if i < len(page.sentences) else page.text for page, i in found]

    def to_hotpot(self) -> dict[str, Any]:
        """The question as a record of HotpotQA's distractor files."""
        return {
            "_id": self.qid,
            "question": self.question,
            "answer": self.answer,
            "type": self.type,
            "level": self.level,
            "supporting_facts": [list(pair) for pair in self.supporting],
            "context": [[p.title, list(p.sentences)] for p in self.paragraphs],
        }
