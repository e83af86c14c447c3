"""ReAct as text: `Question:`, `Thought:`, `Action:`, `Observation:` lines, in the paper's form and in LangChain's.

The paper's (Yao et al. 2023) numbers its steps and writes `Action 1: Search[Rhine]` and `Finish[…]`; LangChain's writes
`Action: search`, `Action Input: Rhine` and `Final Answer: …`. A file holds any number of runs; each begins with its
question. What a field says may go on over several lines.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from observer_core.traces.trace import ABSENT, FieldError, Trace
from observer_pipeline.react_logs.steps import Step, parsed, result_of, trace_of

SUFFIXES = frozenset({".txt", ".log"})
_FIELD = re.compile(
    r"^\s*(?:>\s*)?(Question|Thought|Action Input|Action|Observation|Final Answer)(?: \d+)?\s*:[ \t]?(.*)$"
)
_BRACKETS = re.compile(r"^\s*([\w.-]+)\s*\[(.*)\]\s*\.?\s*$", re.DOTALL)
_FINISH = ("finish", "answer", "final answer")


def read(text: str) -> Iterator[Trace]:
    """The runs of a text, in order.

    Raises:
        FieldError: the text holds no question.
    """
    runs = list(_runs(text))
    if not runs:
        raise FieldError("(whole file)", "holds no line 'Question: …'")
    yield from (run.trace() for run in runs)


def write(trace: Trace) -> str:
    """A trace in LangChain's form; its label and other fields have no place in it."""
    lines = [f"Question: {trace.question}"]
    for call in trace.tool_calls:
        given = "" if call.args is ABSENT else call.args if isinstance(call.args, str) else json.dumps(call.args)
        lines += [f"Action: {call.name}", f"Action Input: {given}", f"Observation: {result_of(call)}"]
    lines += [f"Final Answer: {trace.final_answer}", "", ""]
    return "\n".join(lines)


@dataclass(slots=True)
class _Run:
    question: str
    steps: list[Step] = field(default_factory=list)
    answer: str = ""

    def trace(self) -> Trace:
        return trace_of(self.question, self.answer, self.steps, {})

    def take(self, name: str, text: str) -> None:
        """Enter a field."""
        if name == "Action":
            found = _BRACKETS.match(text)
            if found and found[1].casefold() in _FINISH:
                self.answer = found[2]
            elif found:
                self.steps.append(Step(found[1], parsed(found[2]) if found[2] else ABSENT))
            else:
                self.steps.append(Step(text))
        elif name == "Action Input" and self.steps:
            self.steps[-1] = Step(self.steps[-1].tool, parsed(text) if text else ABSENT, self.steps[-1].result)
        elif name == "Observation" and self.steps and self.steps[-1].result is ABSENT:
            self.steps[-1] = Step(self.steps[-1].tool, self.steps[-1].args, parsed(text))
        elif name == "Final Answer":
            self.answer = text


def _runs(text: str) -> Iterator[_Run]:
    run = None
    for name, value in _fields(text):
        if name == "Question":
            if run:
                yield run
            run = _Run(value)
        elif run:
            run.take(name, value)
    if run:
        yield run


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """The named fields in order, each with all its lines."""
    name, lines = "", []
    for line in text.splitlines():
        found = _FIELD.match(line)
        if found:
            if name:
                yield name, "\n".join(lines).strip()
            name, lines = found[1], [found[2]]
        else:
            lines.append(line)
    if name:
        yield name, "\n".join(lines).strip()
