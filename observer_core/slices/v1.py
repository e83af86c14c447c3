"""State format v1: what the seed system's run directories were trained on, byte for byte.

Four sections separated by one blank line, no trailing newline. Tool calls are numbered, arguments as Python's `repr` of
the JSON value; the first three evidence items are cut to 1,500 code points each, whatever the model's window.
"""

from observer_core.traces.trace import ABSENT, ToolCall, Trace

MAX_EVIDENCE = 3
MAX_EVIDENCE_CHARS = 1500
_NONE = "(none)"


def _call(number: int, call: ToolCall) -> str:
    args = "" if call.args is ABSENT else call.args
    status = "ok" if call.status is ABSENT else call.status
    return f"{number}. {call.name}({args!r}) -> {status}"


def render_v1(trace: Trace) -> tuple[str, bool]:
    """The state text of a trace, and whether it lost evidence to the format's limits."""
    calls = "\n".join(_call(i, call) for i, call in enumerate(trace.tool_calls, 1))
    shown = trace.evidence[:MAX_EVIDENCE]
    evidence = "\n".join(f"[{i}] {text[:MAX_EVIDENCE_CHARS]}" for i, text in enumerate(shown, 1))
    truncated = len(trace.evidence) > MAX_EVIDENCE or any(len(text) > MAX_EVIDENCE_CHARS for text in shown)
    state = (
        f"USER QUESTION:\n{trace.question}\n\nTOOL CALLS:\n{calls or _NONE}\n\n"
        f"EVIDENCE:\n{evidence or _NONE}\n\nFINAL ANSWER:\n{trace.final_answer}"
    )
    return state, truncated
