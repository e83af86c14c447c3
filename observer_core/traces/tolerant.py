"""JSON texts as they arrive in attributes: often cut in the middle, sometimes huge, sometimes not JSON at all."""

import json
import re
from typing import Any

MAX_CHARS = 1_000_000
"""Longer texts are cut before they are parsed; tool results of 11 MB have been seen."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CLOSERS = {"{": "}", "[": "]"}


def parse_tolerant(text: str) -> tuple[Any, bool]:
    """The JSON value of a text, and whether the text was cut short.

    A cut text gives the value as far as it goes; a text that is no JSON is its own value. `NaN` and `Infinity`, which
    Python writes and JSON has not, become strings.
    """
    if len(text) > MAX_CHARS:
        value, _ = parse_tolerant(text[:MAX_CHARS])
        return value, True
    value, truncated = _parse(text)
    return (_mend(value) if _SURROGATE.search(text) else value), truncated


def _parse(text: str) -> tuple[Any, bool]:
    stripped = text.lstrip()
    try:
        return json.loads(stripped, parse_constant=str), False
    except RecursionError:
        return text, False
    except ValueError:
        pass
    if stripped[:1] not in ("{", "[", '"'):
        return text, False
    for completed in _completions(stripped):
        try:
            value = json.loads(completed, parse_constant=str)
        except (ValueError, RecursionError):
            continue
        if value:  # an empty rest says nothing: it was more likely prose that starts with a bracket
            return value, True
    return text, False


def _completions(text: str) -> list[str]:
    """The text closed where it stops, and closed after its last whole member: one of the two is JSON if it was cut."""
    stack: list[str] = []
    whole_at, whole_stack = 0, ""
    in_string = escaped = False
    for position, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in _CLOSERS:
            stack.append(_CLOSERS[char])
            whole_at, whole_stack = position + 1, "".join(reversed(stack))
        elif char in "}]":
            if not stack or stack.pop() != char:
                return []
        elif char == ",":
            whole_at, whole_stack = position, "".join(reversed(stack))
    if not stack and not in_string:
        return []  # it ends where it should, so it was not cut: it is no JSON
    closers = "".join(reversed(stack))
    if not in_string:
        return [text + closers, text[:whole_at] + whole_stack]
    # An escape sequence that was cut (`\`, `\u12`) goes with it.
    tail = text.rfind("\\", max(0, len(text) - 6))
    cut_escape = escaped or (tail != -1 and text[tail + 1 : tail + 2] == "u" and len(text) - tail < 6)
    head = text[:tail] if cut_escape else text
    return [head + '"' + closers, text[:whole_at] + whole_stack]


def _mend(value: Any) -> Any:
    """Replace halves of surrogate pairs, which a cut leaves behind and which are not text, by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_mend(item) for item in value]
    if isinstance(value, dict):
        return {_mend(key): _mend(item) for key, item in value.items()}
    return value
