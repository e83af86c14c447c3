"""Bodies of the JSON API, so that `/docs` and generated clients know them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

from observer_core.decisions import CompleteReason, Decision, Severity, Verdict


class ErrorBody(BaseModel):
    """Every error of the API: one line that says what was wrong and the mend."""

    error: str


class ToolCallBody(BaseModel):
    """One call of a tool; further fields are kept."""

    model_config = ConfigDict(extra="allow")

    name: str
    args: Any = None
    status: Any = None
    result_preview: str | None = None


class TraceBody(BaseModel):
    """A trace; further fields are kept. `trace_id` is 32 hex digits; any other string is hashed to that."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "example": {
                "question": "Which river flows through Vienna?",
                "final_answer": "The Danube.",
                "tool_calls": [{"name": "search", "args": {"query": "river Vienna"}, "status": "ok"}],
                "evidence": ["Vienna lies on the Danube."],
            }
        },
    )

    question: str
    final_answer: str
    trace_id: str | None = None
    tool_calls: Annotated[list[ToolCallBody] | None, FailFast()] = None
    evidence: Annotated[list[str] | None, FailFast()] = None
    project: str | None = None


class AcceptedBody(BaseModel):
    """The trace is on disk; its decision is at `/v1/decisions/{trace_id}` soon."""

    trace_id: str


class DecisionBody(BaseModel):
    """A decision record."""

    trace_id: str
    decision: Verdict
    reason: str = Field(
        description="score, random_share, below_threshold, rule:<name>, over_budget, scorer_failed or overload"
    )
    p_wrong: float | None = Field(description="Calibrated probability that the answer is wrong; null when unscored")
    p_wrong_raw: float | None
    threshold: float | None
    keep_probability: float = Field(description="The probability with which this trace would have been kept")
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
    latency_ms: float = Field(description="Completion of the trace to its decision")
    state_truncated: bool
    late_spans: int
    exported: bool
    answers: dict[str, Any]
    shadow: dict[str, Any]
    evaluators: dict[str, Any]

    @classmethod
    def of(cls, decision: Decision) -> "DecisionBody":
        return cls.model_construct(**decision.to_json())


class DecisionPage(BaseModel):
    """Decisions, newest first; pass `next_cursor` as `cursor` for the page after this one."""

    decisions: list[DecisionBody]
    next_cursor: str | None


class ErasedBody(BaseModel):
    """What was removed of a trace."""

    trace_id: str
    decisions: int
    log_items: int = Field(description="Items of the write-ahead log")
    spool_rows: int
    queued: int = Field(description="Files of export queues and dead letters")
    exported: bool = Field(description="It was sent to a back end, which has to erase it itself")


class ModelBody(BaseModel):
    """The model that serves."""

    model: str
    model_version: str
    kind: str
    run: str | None
    since: str
    previous: dict[str, Any] | None = Field(description="What a rollback would serve again")


class ModelSwitch(BaseModel):
    """A run directory the service can read, or `builtin`."""

    model_config = ConfigDict(extra="forbid")

    run: str | None = Field(default=None, description="Path of a run directory on the service's machine")
    kind: Literal["local", "builtin"] = "local"
    version: str | None = Field(default=None, description="Registry version for `model_version`; else the run's hash")
    reason: str | None = Field(default=None, description="For the log of switches")


class PolicyBody(BaseModel):
    """The policy in force, all defaults filled in, without its hash key."""

    policy_version: str
    threshold: float
    policy: dict[str, Any]


class StatsBody(BaseModel):
    """Figures since the start of the process; rates over the last minute."""

    uptime_s: float
    spans_received: int
    kept: int
    dropped: int
    open_traces: int
    decisions_on_record: int
    spans_per_second: float
    decisions_per_second: float
    kept_per_second: float
    reasons: dict[str, int]
    p_wrong_histogram: list[int]
    latency_ms: dict[str, float | None]
    threshold: float
    wal_bytes: int
    wal_segments: int
    wal_damaged_bytes: int
    undeliverable: int = Field(description="Files of traces and late spans set aside for a fault of observer's")
    waiting_for_scorer: int
    model: str
    model_version: str
    policy_version: str
    exporters: list[dict[str, Any]]
    trace_url: str | None = Field(description="Where people see a kept trace; `{trace_id}` in it is to be replaced")


class Readiness(BaseModel):
    """Which parts are ready; `problems` names what to mend."""

    ready: bool
    parts: dict[str, bool]
    problems: dict[str, str]
