"""State format v2: never longer than its budget of tokens, never without the question and the answer.

    USER QUESTION:
    Which river is longer?

    TOOL CALLS:
    1. search(query=length of the Rhine): The Rhine is 1,233 km long. […]
    2. lookup(title=Elbe) -> error: timeout

    EVIDENCE:
    - The Elbe is one of the major rivers of Central Europe.

    FINAL ANSWER:
    The Rhine.

A call is its name, its arguments, a status that is not `ok`, and what came back (`results`). When not everything fits,
`[…]` stands wherever something was left out, and the room is shared out like this:

1. Question and answer come first. Only when they alone exceed the budget are they cut, in the middle, so that beginning
   and end stay: each gets half, or what the other leaves.
2. The calls share half of the rest, or what results and evidence leave of it: failed calls with beginning and end of
   what they said, then the others by relevance. Long arguments are cut in the middle.
3. Passages of results and evidence fill what remains, the most relevant to question and answer first (`relevance`).

Everything stays in its order. Tokens are the model's own; names of its special tokens become blanks.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from observer_core.errors import InputError
from observer_core.slices.relevance import Relevance, passages
from observer_core.slices.results import tell_results
from observer_core.tokenizer import TextTokens
from observer_core.traces.trace import ABSENT, ToolCall, Trace

MARK = "[…]"
NONE = "(none)"
CALLS_SHARE = 0.5
ARGUMENT_TOKENS = 32
ERROR_TOKENS = 48
MISSES = 20
"""Calls or passages in a row that do not fit, after which the room counts as full."""
MAX_CHARS = 300_000
"""Of results and evidence together; what lies beyond is left out unread, so that no trace takes seconds."""


@dataclass(slots=True)
class _Line:
    """A call with its result, or a piece of evidence, and which passages of `text` are printed."""

    name: str
    text: str
    arguments: str | None = None
    status: str | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    shown: set[int] = field(default_factory=set)
    visible: bool = True

    def __post_init__(self) -> None:
        self.spans = passages(self.text)
        self.shown = set(range(len(self.spans)))

    def replace(self, text: str) -> None:
        """Another text, which is one passage, in place of the one there is."""
        self.text, self.spans = text, [(0, len(text))] if text else []

    def passage(self, i: int) -> str:
        """One of the text's passages, with the blanks around it."""
        return self.text[slice(*self.spans[i])]

    @property
    def head(self) -> str:
        call = "" if self.arguments is None else f"({self.arguments})"
        status = "" if self.status is None else f" -> {self.status}"
        return f"{self.name}{call}{status}" + (": " if self.text and self.arguments is not None else "")

    def render(self) -> str:
        """The head, then the passages shown, with a mark for each gap."""
        parts: list[str] = []
        after = 0
        for i in sorted(self.shown):
            piece = self.passage(i)
            if parts and i == after:
                parts[-1] += piece
            else:
                parts += [MARK, piece] if i > after else [piece]
            after = i + 1
        if after < len(self.spans):
            parts.append(MARK)
        return self.head + " ".join(part.strip() for part in parts)


class V2:
    """Renders traces within a budget.

    Args:
        tokens: the model's.
        budget: tokens of a state.

    Raises:
        InputError: the budget is too small for the frame of a state.
    """

    def __init__(self, tokens: TextTokens, budget: int) -> None:
        self._tokens, self._budget = tokens, budget
        self._mark = tokens.count(f" {MARK}")
        self._frame = tokens.count(_state(MARK, MARK, MARK, MARK)) - 2 * tokens.count(MARK)
        if 2 * (self._frame + 2 * self._mark) > budget:
            raise InputError(
                f"{budget} tokens are too few for a state, whose frame alone takes {self._frame}; raise max_tokens or "
                "ask shorter questions"
            )

    def render(self, trace: Trace) -> tuple[str, bool]:
        """The state text of a trace, and whether it lost anything."""
        asked, answer = self._tokens.clean(trace.question), self._tokens.clean(trace.final_answer)
        calls, evidence, unread = self._lines(trace)
        whole = _state(asked, _section(calls), _section(evidence), answer)
        if not unread and self._tokens.fits(whole, self._budget):
            return whole, False
        # The sum of the parts' tokens is not exactly the whole's: what is over comes off the room.
        over = 0
        while True:
            text = self._fitted(asked, answer, calls, evidence, self._budget - over)
            excess = self._tokens.count(text) - self._budget
            if excess <= 0:
                return text, True
            over += excess

    def _lines(self, trace: Trace) -> tuple[list[_Line], list[_Line], bool]:
        """Calls and evidence, each text once; and whether some was left unread."""
        texts = [*(call.result_preview or "" for call in trace.tool_calls), *trace.evidence]
        room, unread = MAX_CHARS, False
        for i, text in enumerate(texts):
            unread = unread or len(text) > room
            texts[i] = self._flat(text[:room])
            room -= min(room, len(text))
        n = len(trace.tool_calls)
        told, rest = tell_results(texts[:n], [_failed(call) for call in trace.tool_calls], texts[n:])
        calls = [
            self._call(i, call, text) for i, (call, text) in enumerate(zip(trace.tool_calls, told, strict=True), 1)
        ]
        return calls, [_Line("- ", text) for text in rest], unread

    def _call(self, number: int, call: ToolCall, text: str) -> _Line:
        status = self._flat(_plain(call.status)) if _failed(call) else None
        return _Line(f"{number}. {self._flat(call.name)}", text, self._flat(_arguments(call.args)), status)

    def _flat(self, text: str) -> str:
        """On one line, without the names of special tokens."""
        return " ".join(self._tokens.clean(text).split())

    def _middle(self, text: str, room: int) -> str:
        """The text, cut in its middle when it has more tokens than there is room for."""
        if self._tokens.fits(text, room):
            return text
        kept = max(0, room - self._mark)
        parts = (self._tokens.start(text, kept - kept // 2), MARK, self._tokens.end(text, kept // 2))
        return " ".join(part.strip() for part in parts if part)

    def _fitted(self, asked: str, answer: str, calls: Sequence[_Line], evidence: Sequence[_Line], budget: int) -> str:
        asked, answer, room = self._share(asked, answer, budget - self._frame)
        for call in calls:
            call.arguments = self._middle(call.arguments or "", ARGUMENT_TOKENS)
            if call.status is not None:
                call.status = self._middle(call.status, ERROR_TOKENS)
                call.replace(self._middle(call.text, ERROR_TOKENS))
        choice = _Choice((calls, evidence), self._tokens, self._mark, room)
        told = [line for line in (*calls, *evidence) if line.status is None]
        places = [(line, i) for line in told for i in range(len(line.spans))]
        relevance = Relevance([line.passage(i) for line, i in places], asked, answer)
        worth = {id(line): 0.0 for line in calls}
        for number, (line, _) in enumerate(places):
            worth[id(line)] = max(worth.get(id(line), 0.0), relevance.value(number))

        texts = " ".join(line.text for line in told)
        needed = self._tokens.count(texts) if self._tokens.fits(texts, room) else room
        choice.limit(max(round(CALLS_SHARE * room), room - needed))
        _until_full(
            (call.status is not None and bool(call.spans) and choice.show(call, 0)) or choice.show(call)
            for call in sorted(calls, key=lambda call: (call.status is None, -worth[id(call)]))
        )
        choice.limit(room)

        def take(number: int) -> bool:
            taken = choice.show(*places[number])
            if taken:
                relevance.pick(number)
            return taken

        _until_full(map(take, relevance.ranked()))
        return _state(asked, _section(calls), _section(evidence), answer)

    def _share(self, asked: str, answer: str, room: int) -> tuple[str, str, int]:
        """Question and answer as they are shown, and the room they leave."""
        sizes = [self._tokens.count(t) if self._tokens.fits(t, room) else room + 1 for t in (asked, answer)]
        if sum(sizes) <= room:
            return asked, answer, room - sum(sizes)
        first = max(room // 2, room - sizes[1])
        return self._middle(asked, first), self._middle(answer, room - min(sizes[0], first)), 0


class _Choice:
    """Which heads and passages are printed, at first none, and the room they leave. Marks are paid for too."""

    def __init__(self, sections: Sequence[Sequence[_Line]], tokens: TextTokens, mark: int, room: int) -> None:
        self._tokens, self._mark, self._room, self._limit, self._taken = tokens, mark, room, room, 0
        self._place = {id(line): (section, i) for section in sections for i, line in enumerate(section)}
        for line in (*sections[0], *sections[1]):
            line.visible, line.shown = False, set()

    def limit(self, tokens: int) -> None:
        """How much may be taken in all from now on."""
        self._limit = min(tokens, self._room)

    def show(self, line: _Line, passage: int | None = None) -> bool:
        """Print the head of a line, and one of its passages, if there is room."""
        cost = 0
        if not line.visible:
            section, i = self._place[id(line)]
            marks = _more_gaps(i, len(section), lambda at: section[at].visible) + bool(line.spans)
            cost += self._tokens.count(line.head) + self._mark * marks
        if passage is not None:
            marks = _more_gaps(passage, len(line.spans), line.shown.__contains__)
            cost += self._tokens.count(line.passage(passage)) + self._mark * marks
        if self._taken + cost > self._limit:
            return False
        self._taken += cost
        line.visible = True
        if passage is not None:
            line.shown.add(passage)
        return True


def _until_full(attempts: Iterable[bool]) -> None:
    """Makes attempts to show something until `MISSES` in a row have failed."""
    misses = 0
    for success in attempts:
        misses = 0 if success else misses + 1
        if misses == MISSES:
            return


def _more_gaps(i: int, n: int, shown: Callable[[int], bool]) -> int:
    """How many runs of hidden ones there are more, of `n`, once number `i` is shown: 1, 0 or -1."""
    return (i > 0 and not shown(i - 1)) + (i + 1 < n and not shown(i + 1)) - 1


def _section(lines: Sequence[_Line]) -> str:
    printed: list[str] = []
    for line in lines:
        if line.visible:
            printed.append(line.render())
        elif printed[-1:] != [MARK]:
            printed.append(MARK)
    return "\n".join(printed)


def _state(asked: str, calls: str, evidence: str, answer: str) -> str:
    sections = {"USER QUESTION": asked or NONE, "TOOL CALLS": calls or NONE, "EVIDENCE": evidence}
    shown = [f"{name}:\n{text}" for name, text in sections.items() if text]
    return "\n\n".join([*shown, f"FINAL ANSWER:\n{answer or NONE}"])


def _failed(call: ToolCall) -> bool:
    return call.status is not ABSENT and call.status != "ok"


def _arguments(args: Any) -> str:
    """`name=value` pairs of a map, else the value."""
    if args is ABSENT:
        return ""
    if isinstance(args, dict):
        return ", ".join(f"{name}={_plain(value)}" for name, value in args.items())
    return _plain(args)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
