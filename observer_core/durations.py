"""Durations as settings write them: `500ms`, `2s`, `10m`, `1h`, `30d`. In the code they are seconds."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 36_500 * 86_400.0  # what clocks and locks of the operating system can wait for, roundly
_FORM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: Any) -> float:
    """Seconds of `500ms`, `2s`, `1.5m`, `1h`, `30d`.

    Raises:
        ValueError: longer than a hundred years, or not of that form; a number without a unit is refused because it
            could be seconds or milliseconds.
    """
    match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it as 500ms, 2s, 10m, 1h or 30d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is too long; at most 36500d can be waited for")
    return seconds


def format_duration(seconds: float) -> str:
    """The duration in the largest unit that gives a whole number; what `parse_duration` reads back."""
    for unit in ("d", "h", "m", "s", "ms"):
        amount = seconds / _SECONDS[unit]
        if amount >= 1 and abs(amount - round(amount)) < 1e-9:
            return f"{round(amount)}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def _seconds(value: Any) -> float:
    return value if isinstance(value, float) else parse_duration(value)


Duration = Annotated[float, BeforeValidator(_seconds), PlainSerializer(format_duration, return_type=str)]
"""A pydantic field that reads `10m`, holds 600.0 and is dumped as `10m` again; code may set it in (float) seconds."""
