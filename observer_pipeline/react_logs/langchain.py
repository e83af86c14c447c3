"""LangChain's agent executor with `return_intermediate_steps`: `input`, `output`, `[[action, observation], …]`."""

import json
from typing import Any

from observer_core.traces.trace import ABSENT, FieldError, Trace
from observer_pipeline.react_logs.steps import Step, others_of, parsed, result_of, trace_of

_STEPS = "intermediate_steps"
_INPUTS = ("input", "question", "query")
_OUTPUTS = ("output", "answer", "result")


def matches(value: Any) -> bool:
    """Whether a JSON value is of this format."""
    return isinstance(value, dict) and isinstance(value.get(_STEPS), list)


def read(value: dict[str, Any]) -> Trace:
    """The trace of one run; actions may be plain objects, LangChain's own dumps, or `[tool, tool_input, log]`.

    Raises:
        FieldError: a step or a field cannot be used.
    """
    question = next((value[key] for key in _INPUTS if key in value), "")
    answer = next((value[key] for key in _OUTPUTS if key in value), "")
    others = {key: item for key, item in value.items() if key not in (_STEPS, *_INPUTS, *_OUTPUTS)}
    steps = [_step(number, item) for number, item in enumerate(value[_STEPS])]
    return trace_of(_text(question), _text(answer), steps, others)


def write(trace: Trace) -> dict[str, Any]:
    """The run of a trace, with the fields that the format does not know beside it."""
    steps = []
    for call in trace.tool_calls:
        given = "" if call.args is ABSENT else call.args
        log = f"Action: {call.name}\nAction Input: {given if isinstance(given, str) else json.dumps(given)}"
        steps.append([{"tool": call.name, "tool_input": given, "log": log}, result_of(call)])
    return {"input": trace.question, "output": trace.final_answer, _STEPS: steps} | others_of(trace)


def _step(number: int, item: Any) -> Step:
    path = f"{_STEPS}[{number}]"
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise FieldError(path, "must be a pair of action and observation")
    action, observation = item
    if isinstance(action, list | tuple) and len(action) >= 2:
        action = {"tool": action[0], "tool_input": action[1]}
    if isinstance(action, dict) and isinstance(action.get("kwargs"), dict):
        action = action["kwargs"]
    if not isinstance(action, dict) or not isinstance(action.get("tool"), str):
        raise FieldError(f"{path}[0]", "must be an action with its tool")
    given = action.get("tool_input", "")
    return Step(action["tool"], ABSENT if given == "" else parsed(given), parsed(observation))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return next((item for item in value.values() if isinstance(item, str)), "")
    return value if isinstance(value, str) else ""
