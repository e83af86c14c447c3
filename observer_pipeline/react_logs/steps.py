"""What the log formats have in common: a run as question, steps and answer, beside fields of a trace."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from observer_core.traces.evidence import evidence_texts, is_error_result, result_text
from observer_core.traces.normalise import PREVIEW_CHARS
from observer_core.traces.tolerant import parse_tolerant
from observer_core.traces.trace import ABSENT, ToolCall, Trace


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call with what came back: any JSON value, or `ABSENT` when the log does not say."""

    tool: str
    args: Any = ABSENT
    result: Any = ABSENT


def trace_of(question: str, answer: str, steps: Iterable[Step], others: Mapping[str, Any]) -> Trace:
    """A trace from a log's run. `others` are further fields: those of a labeled trace win, unknown ones are kept.

    Raises:
        FieldError: a field of `others` cannot be used.
    """
    calls, evidence = [], []
    for step in steps:
        failed = is_error_result(step.result)
        preview = None if step.result is ABSENT or step.result is None else result_text(step.result)[:PREVIEW_CHARS]
        status = ABSENT if step.result is ABSENT else "error" if failed else "ok"
        calls.append(ToolCall(step.tool, step.args, status, preview))
        if step.result is not ABSENT:
            evidence += evidence_texts(step.result)
    trace = Trace.from_json(dict(others) | {"question": question, "final_answer": answer, "tool_calls": []})
    trace.tool_calls = calls
    trace.evidence = trace.evidence or list(dict.fromkeys(evidence))
    return trace


def others_of(trace: Trace) -> dict[str, Any]:
    """The fields of a trace that a log's own form has no place for, the evidence among them."""
    fields = trace.to_json()
    return {name: value for name, value in fields.items() if name not in ("question", "final_answer", "tool_calls")}


def result_of(call: ToolCall) -> str:
    """What came back from a call, as a log shows it; a failure as JSON with a key `error`, so that it reads as one."""
    preview = call.result_preview or ""
    if call.status in (ABSENT, "ok") or is_error_result(parse_tolerant(preview)[0]):
        return preview
    return json.dumps({"error": preview or str(call.status)}, ensure_ascii=False)


def parsed(text: Any) -> Any:
    """A result or argument as JSON where it is some, else as it stands."""
    if not isinstance(text, str):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict | list) else text
