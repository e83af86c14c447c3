"""Which parts of long texts belong to a question and its answer: cheap, deterministic, without a model.

A text is split into passages (sentences, long ones at blanks). A passage is worth the words it shares with question and
answer, each by its rarity among the passages (inverse document frequency: K. Spärck Jones 1972) and less each time an
earlier pick has said it already, as in maximal marginal relevance (J. Carbonell, J. Goldstein 1998).
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

PASSAGE_CHARS = 240
ANSWER_WEIGHT = 2.0
"""An answer's word counts this many times a question's: what is judged is whether the evidence bears the answer out."""
REPEATED = 0.3
"""What a word is still worth after each pick that contains it."""
SHORT = 8
"""Words added to a passage's length before its worth is divided by the root of it, so that scraps do not win."""

# Scripts without blanks between words count by character.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]|[^\W_]+")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]* |(?<=[。！？])")


def words(text: str) -> list[str]:
    """The words of a text, case folded."""
    return _WORD.findall(text.casefold())


def passages(text: str) -> list[tuple[int, int]]:
    """Where the sentences of a text without line breaks begin and end, those longer than `PASSAGE_CHARS` in parts."""
    out: list[tuple[int, int]] = []
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        while end - start > PASSAGE_CHARS:
            blank = text.rfind(" ", start + 1, start + PASSAGE_CHARS)
            cut = blank + 1 if blank > 0 else start + PASSAGE_CHARS
            out.append((start, cut))
            start = cut
        if end > start:
            out.append((start, end))
        start = end
    return out


class Relevance:
    """Picks passages, the most telling first.

    Args:
        texts: the passages.
        question, answer: what they should have to do with.
    """

    def __init__(self, texts: Sequence[str], question: str, answer: str) -> None:
        asked = dict.fromkeys(words(question), 1.0) | dict.fromkeys(words(answer), ANSWER_WEIGHT)
        tokens = [words(text) for text in texts]
        self._terms = [sorted(set(each) & asked.keys()) for each in tokens]
        found = Counter(term for terms in self._terms for term in terms)
        self._worth = {
            term: weight * math.log1p((1 + len(texts)) / (1 + found[term])) for term, weight in asked.items()
        }
        self._root = [math.sqrt(len(each) + SHORT) for each in tokens]

    def value(self, i: int) -> float:
        """What passage `i` adds to those picked so far."""
        return sum(self._worth[term] for term in self._terms[i]) / self._root[i]

    def ranked(self) -> Iterator[int]:
        """All passages, each best after those before it; equal ones in their order. `pick` what was really taken."""
        heap = [(-self.value(i), i) for i in range(len(self._terms))]
        heapq.heapify(heap)
        while heap:
            _, i = heapq.heappop(heap)
            now = -self.value(i)
            # Picks only lower values: the best of outdated values that is still the best now is the best of all.
            if heap and (now, i) > heap[0]:
                heapq.heappush(heap, (now, i))
            else:
                yield i

    def pick(self, i: int) -> None:
        """Passage `i` is shown: its words are worth less from now on."""
        for term in self._terms[i]:
            self._worth[term] *= REPEATED
