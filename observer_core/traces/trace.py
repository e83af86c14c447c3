"""One agent run as Observer sees it: what was asked, what was done, what was answered.

The JSON form is the interchange format for labeled traces: the fields of `Trace`, unknown fields kept.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from observer_core.errors import InputError

Label = Literal["wrong", "partial", "correct"]
Split = Literal["train", "validation", "calibration", "test"]
LabelSource = Literal["gold", "annotation"]


class _Absent:
    """Marks a JSON key that was not there, which `None` (JSON null) cannot."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()


class FieldError(InputError):
    """A field of a trace that cannot be used. `field` is its path, such as `tool_calls[2].name`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"field '{field}' {problem}")
        self.field = field
        self.problem = problem


@dataclass(slots=True)
class ToolCall:
    """One call of a tool.

    `args` is any JSON value, `ABSENT` when the trace did not say; `status` is `ok`, an error word, or any JSON value
    the source used, `ABSENT` when it did not say (which counts as ok); `result_preview` is the start of what came back.
    """

    name: str
    args: Any = ABSENT
    status: Any = ABSENT
    result_preview: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"name": self.name}
        if self.args is not ABSENT:
            out["args"] = self.args
        if self.status is not ABSENT:
            out["status"] = self.status
        if self.result_preview is not None:
            out["result_preview"] = self.result_preview
        return out | self.extra


@dataclass(slots=True)
class Trace:
    """An agent run; the fields after `evidence` are known only for labeled traces.

    `wrong` and `partial` labels both count as wrong for the decision question (`is_wrong`).
    """

    question: str
    final_answer: str
    trace_id: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    label: Label | None = None
    split: Split | None = None
    qid: str | None = None
    gold_answer: str | None = None
    em: bool | None = None
    f1: float | None = None
    failure_type: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    steps: int | None = None
    latency_ms: float | None = None
    label_source: LabelSource | None = None
    keep_probability: float | None = None
    review_probability: float | None = None
    annotator: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_wrong(self) -> bool:
        """Whether the label counts as wrong for the decision question.

        Raises:
            ValueError: the trace has no label.
        """
        if self.label is None:
            raise ValueError("the trace has no label")
        return self.label != "correct"

    @property
    def weight(self) -> float:
        """1 / (keep probability × review probability): what this trace stands for in its population."""
        return 1.0 / ((self.keep_probability or 1.0) * (self.review_probability or 1.0))

    def to_json(self) -> dict[str, Any]:
        """The JSON object of this trace: `None` fields left out, unknown fields put back."""
        out: dict[str, Any] = {}
        for name in _JSON_FIELDS:
            value = getattr(self, name)
            if name == "tool_calls":
                out[name] = [call.to_json() for call in value]
            elif value is not None:
                out[name] = value
        return out | self.extra

    @classmethod
    def from_json(cls, obj: Any) -> "Trace":
        """Read a trace from its JSON object.

        Raises:
            FieldError: a field is missing or has an unusable value; names its path.
        """
        if not isinstance(obj, dict):
            raise FieldError("(whole line)", f"must be a JSON object, not {_kind(obj)}")
        values = {name: obj[name] for name in _JSON_FIELDS if obj.get(name) is not None}
        for name in ("question", "final_answer"):
            if name not in obj:
                raise FieldError(name, "is missing")
            _expect(name, obj[name], str)
        for name, value in values.items():
            _CHECKS.get(name, _any)(name, value)
        calls = [_tool_call(i, call) for i, call in enumerate(values.pop("tool_calls", []))]
        extra = {name: value for name, value in obj.items() if name not in _JSON_FIELDS}
        return cls(**values, tool_calls=calls, extra=extra)


_JSON_FIELDS = tuple(f.name for f in fields(Trace) if f.name != "extra")
_CALL_FIELDS = ("name", "args", "status", "result_preview")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}.get(type(value), "a number")


def _expect(path: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FieldError(path, f"must be {_kind(kind())}, not {_kind(value)}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FieldError(path, "holds half of a surrogate pair, which is not text") from None


def _any(path: str, value: Any) -> None: ...


def _string(path: str, value: Any) -> None:
    _expect(path, value, str)


def _one_of(kind: Any) -> Any:
    allowed = get_args(kind)

    def check(path: str, value: Any) -> None:
        if value not in allowed:
            raise FieldError(path, f"must be one of {', '.join(allowed)}, not {value!r}")

    return check


def _number(path: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise FieldError(path, f"must be a finite number, not {value!r}")


def _probability(path: str, value: Any) -> None:
    _number(path, value)
    if not 0 < value <= 1:
        raise FieldError(path, f"must be above 0 and at most 1, not {value!r}")


def _flag(path: str, value: Any) -> None:
    if value not in (0, 1):
        raise FieldError(path, f"must be true or false, not {value!r}")


def _strings(path: str, value: Any) -> None:
    _expect(path, value, list)
    for i, item in enumerate(value):
        _expect(f"{path}[{i}]", item, str)


def _list(path: str, value: Any) -> None:
    _expect(path, value, list)


_CHECKS = {
    "trace_id": _string, "tool_calls": _list, "evidence": _strings, "label": _one_of(Label), "split": _one_of(Split),
    "qid": _string, "gold_answer": _string, "em": _flag, "f1": _number, "failure_type": _string, "model": _string,
    "stop_reason": _string, "steps": _number, "latency_ms": _number, "label_source": _one_of(LabelSource),
    "keep_probability": _probability, "review_probability": _probability, "annotator": _string,
}  # fmt: skip
NUMBER_FIELDS = frozenset(name for name, check in _CHECKS.items() if check in (_number, _probability, _flag))
"""The fields of a trace that nothing but a number fits in."""


def _tool_call(index: int, obj: Any) -> ToolCall:
    path = f"tool_calls[{index}]"
    _expect(path, obj, dict)
    if "name" not in obj:
        raise FieldError(f"{path}.name", "is missing")
    _expect(f"{path}.name", obj["name"], str)
    preview = obj.get("result_preview")
    if preview is not None:
        _expect(f"{path}.result_preview", preview, str)
    return ToolCall(
        name=obj["name"],
        args=obj.get("args", ABSENT),
        status=obj.get("status", ABSENT),
        result_preview=preview,
        extra={name: value for name, value in obj.items() if name not in _CALL_FIELDS},
    )
