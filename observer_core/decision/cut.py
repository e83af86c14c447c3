"""Where a state that does not fit the model's window is cut, the same for every family."""

from collections.abc import Container, Sequence
from typing import Literal

from tokenizers import Encoding

Cut = Literal["end", "start", "before_final_answer"]
"""Where a state that does not fit is cut: at its `end`, as the released models do; at its `start`, as Laya does with
lists of turns, whose newest comes last; or `before_final_answer`, for states of format v1, whose last section is the
answer under judgement: the text before that section (in effect the later evidence) is cut and the section stays. A
final answer longer than half of the room is itself cut at its end, to that half or to what the rest of the state
leaves."""

FINAL_ANSWER = "\n\nFINAL ANSWER:\n"


def plain(ids: Sequence[int], structural: Container[int]) -> list[int]:
    """Without structural tokens, should normalisation have made one out of other text."""
    return [i for i in ids if i not in structural]


def cut_state(text: str, encoding: Encoding, room: int, cut: Cut, structural: Container[int]) -> list[int]:
    """At most `room` tokens of a state that has more.

    Args:
        text: the state, as it was tokenised.
        encoding: its tokens.
        structural: tokens that text must not become.
    """
    if cut == "start":
        ids = plain(encoding.ids, structural)
        return ids[len(ids) - room :]
    at = text.rfind(FINAL_ANSWER) if cut == "before_final_answer" else -1
    if at < 0:
        return plain(encoding.ids, structural)[:room]
    split = next((i for i, (_, end) in enumerate(encoding.offsets) if end > at), len(encoding.ids))
    before, answer = plain(encoding.ids[:split], structural), plain(encoding.ids[split:], structural)
    answer = answer[: max(room // 2, room - len(before))]
    return before[: room - len(answer)] + answer
