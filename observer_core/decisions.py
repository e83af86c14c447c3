"""The decision record: what was decided about a trace and why. The one home of its fields.

The same fields appear in the JSON API, the log line, the spool (Parquet) and, as `observer.<field>`, on the root span.
"""

import json
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Verdict = Literal["keep", "drop"]
Severity = Literal["high", "normal", "none"]
CompleteReason = Literal["root_ended", "timeout", "span_cap", "byte_cap", "evicted", "shutdown"]

REASONS = ("score", "random_share", "below_threshold", "over_budget", "scorer_failed", "overload")
"""The closed list of reasons; `rule:<name>` is the one open form."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. Times are RFC 3339 UTC; `latency_ms` is completion → decision; `p_wrong` is null when unscored.

    `keep_probability` is the probability with which this trace would have been kept under everything that acted.
    `would_decide` is what enforcing would have done (the same as `decision` outside a dry run).
    """

    trace_id: str
    decision: Verdict
    reason: str
    p_wrong: float | None
    p_wrong_raw: float | None
    threshold: float | None
    keep_probability: float
    severity: Severity
    model: str
    model_version: str
    policy_version: str
    project: str
    mode: Literal["enforce", "dry_run"]
    would_decide: Verdict
    complete_reason: CompleteReason
    spans: int
    received_at: str
    decided_at: str
    latency_ms: float
    state_truncated: bool = False
    late_spans: int = 0
    exported: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    shadow: dict[str, Any] = field(default_factory=dict)
    evaluators: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object; its objects are the record's own, not copies."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> "Decision":
        """Read a record; fields of later versions are ignored."""
        return cls(**{f.name: obj[f.name] for f in fields(cls) if f.name in obj})

    def span_attributes(self) -> dict[str, str | bool | int | float]:
        """`observer.<field>` for the root span: objects as compact JSON, nulls and empty objects left out.

        An evaluator's value is also an attribute of its own, `observer.evaluators.<name>`: back ends filter numbers,
        not what is inside a JSON text.
        """
        out: dict[str, str | bool | int | float] = {}
        for name, value in self.to_json().items():
            if value is None or value == {}:
                continue
            out[f"observer.{name}"] = json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else value
        for name, value in self.evaluators.items():
            if value is not None:
                out[f"observer.evaluators.{name}"] = value
        return out


OBJECTS = ("answers", "shadow", "evaluators")
"""Fields that are JSON objects; the spool holds them as JSON text."""


def decision_row(decision: Decision) -> dict[str, Any]:
    """The record as a row of `spool_tables.DECISION_SCHEMA`."""
    row = decision.to_json()
    return row | {name: json.dumps(row[name], separators=(",", ":")) for name in OBJECTS}
