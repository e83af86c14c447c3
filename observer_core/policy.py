"""The policy: which scored traces are kept, as one probability per trace.

Rules, score, budget, group minimum, scorer failure and overload each only shape P(keep). A trace is kept if and only if
u(trace id) < P, u a keyed hash: every replica decides the same, and the recorded `keep_probability` is exactly the P of
that comparison, so 1 / P is an exact weight. Pure: no I/O, the clock is handed in. The moving threshold of a review
budget is in `observer_core.review_budget`.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    SerializerFunctionWrapHandler,
    StringConstraints,
    field_validator,
    model_serializer,
    model_validator,
)

from observer_core.decisions import Severity, Verdict
from observer_core.durations import Duration
from observer_core.validation import validated

Share = Annotated[float, Field(ge=0, le=1)]
Scalar = str | bool | int | float
Unscored = Literal["scorer_failed", "overload"]


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """What a rule's `when` may look at, gathered over all spans of a trace.

    Attributes:
        statuses: span statuses, of `ok`, `error`, `unset`.
        kinds: OpenInference span kinds, upper case (`LLM`, `TOOL`, …).
        tools: names of the tools called.
        attributes: attribute key → the values it has on any span.
        spans: how many spans.
        duration_ms: from the first start to the last end.
        evaluators: evaluator → its value, `None` where it gave none.
    """

    statuses: Collection[str] = ()
    kinds: Collection[str] = ()
    tools: Collection[str] = ()
    attributes: Mapping[str, Collection[Any]] = field(default_factory=dict)
    service: str = ""
    project: str = ""
    spans: int = 0
    duration_ms: float = 0.0
    evaluators: Mapping[str, float | None] = field(default_factory=dict)

    def has_group(self, by: str) -> bool:
        """Whether the trace belongs to a group of the attribute `by` (`service.name`, `project` or any attribute)."""
        named = {"service.name": self.service, "project": self.project}
        return bool(named[by]) if by in named else by in self.attributes


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class Bounds(_Settings):
    """`min` ≤ p_wrong ≤ `max`."""

    min: Share = Field(default=0.0, description="Lowest score")
    max: Share = Field(default=1.0, description="Highest score")

    @model_validator(mode="after")
    def _ordered(self) -> "Bounds":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Range(_Settings):
    """`min` ≤ value ≤ `max`, either of which may be left out."""

    min: float | None = Field(default=None, description="Lowest value")
    max: float | None = Field(default=None, description="Highest value")

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    @model_serializer(mode="wrap")
    def _given_only(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}

    def holds(self, value: float | None) -> bool:
        """Whether there is a value and it lies within."""
        return value is not None and (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


def _equal(wanted: Scalar, value: Any) -> bool:
    return isinstance(wanted, bool) == isinstance(value, bool) and wanted == value


class When(_Settings):
    """The conditions of a rule; all that are given must hold, none given always holds."""

    model_config = ConfigDict(populate_by_name=True)

    span_status: Literal["ok", "error", "unset"] | None = Field(
        default=None, alias="span.status", description="A span has this status"
    )
    span_kind: str | None = Field(default=None, alias="span.kind", description="A span has this OpenInference kind")
    tool: str | None = Field(default=None, description="This tool was called")
    attribute: dict[str, Scalar] = Field(default_factory=dict, description="Spans have these attributes")
    service: str | None = Field(default=None, description="The root's `service.name`")
    project: str | None = Field(default=None, description="The trace's project")
    min_spans: Annotated[int, Field(ge=1)] | None = Field(default=None, description="At least so many spans")
    min_duration: Duration | None = Field(default=None, description="At least so long")
    p_wrong: Bounds | None = Field(default=None, description="The score lies within")
    evaluators: dict[str, Range] = Field(default_factory=dict, description="These evaluators' values lie within")

    @model_serializer(mode="wrap")
    def _given_only(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value not in (None, {})}

    def matches(self, facts: PolicyFacts, p_wrong: float | None) -> bool:
        """Whether a trace meets every given condition; an unscored trace is within no bounds of `p_wrong`."""
        bounds = self.p_wrong
        return (
            (self.span_status is None or self.span_status in facts.statuses)
            and (self.span_kind is None or self.span_kind.upper() in facts.kinds)
            and (self.tool is None or self.tool in facts.tools)
            and (self.service is None or self.service == facts.service)
            and (self.project is None or self.project == facts.project)
            and (self.min_spans is None or facts.spans >= self.min_spans)
            and (self.min_duration is None or facts.duration_ms >= self.min_duration * 1000)
            and (bounds is None or (p_wrong is not None and bounds.min <= p_wrong <= bounds.max))
            and all(wanted.holds(facts.evaluators.get(name)) for name, wanted in self.evaluators.items())
            and all(
                any(_equal(wanted, value) for value in facts.attributes.get(key, ()))
                for key, wanted in self.attribute.items()
            )
        )


class Rule(_Settings):
    """Traces that match `when` are kept with probability `keep`; 1 and 0 decide, anything between falls through."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)] = Field(
        description="What the reason calls it"
    )
    when: When = Field(description="Conditions that must all hold")
    keep: Share = Field(description="The probability; 1 and 0 decide")

    @property
    def decides(self) -> bool:
        return self.keep in (0.0, 1.0)


class ReviewBudget(_Settings):
    """The share of traces people can read; the threshold follows the scores of the last `window`."""

    share: Annotated[float, Field(gt=0, le=1)] = Field(default=0.05, description="Of all traces; includes random_share")
    window: Duration = Field(default=600.0, description="The scores the threshold follows")

    @model_validator(mode="after")
    def _positive(self) -> "ReviewBudget":
        if self.window <= 0:
            raise ValueError("window must be longer than 0s")
        return self


class MinShare(_Settings):
    """Traces that carry the attribute `by` are kept with at least probability `share`, whatever the budget says."""

    by: str = Field(default="service.name", description="`service.name`, `project` or any attribute")
    share: Annotated[float, Field(gt=0, le=1)] = Field(default=0.005, description="The least keep probability")


class Policy(_Settings):
    """The settings under `policy:`; every key optional. `read_policy` reads them with errors of one line."""

    mode: Literal["enforce", "dry_run"] = Field(
        default="enforce", description="`dry_run` forwards everything, marked with what would have happened"
    )
    keep_threshold: Share | None = Field(default=None, description="A fixed threshold on p_wrong, or")
    review_budget: ReviewBudget | None = Field(
        default=None, description="a threshold that follows the scores; the default when neither is given"
    )
    random_share: Share = Field(
        default=0.02, description="Kept whatever the score, so that the error rate is estimable"
    )
    severity_high: Share = Field(default=0.8, description="Kept traces from this score on have severity `high`")
    on_scorer_failure: Literal["random_share", "keep"] = Field(
        default="random_share", description="What happens to a trace the scorer gave no score"
    )
    min_share: MinShare | None = Field(default=MinShare(), description="No group is ever invisible")
    hash_key: SecretStr | None = Field(
        default=None, description="The same on every replica; without one it is made once under `serving/`"
    )
    rules: tuple[Rule, ...] = Field(default=(), description="The first that matches wins")

    @field_validator("hash_key")
    @classmethod
    def _not_empty(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not key.get_secret_value():
            raise ValueError("a key must not be empty; leave it out for one made by the service")
        return key

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("keep_threshold") is None and "review_budget" not in data:
            return data | {"review_budget": {}}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> "Policy":
        if (self.keep_threshold is None) == (self.review_budget is None):
            raise ValueError("set either keep_threshold or review_budget, the other one null or absent")
        if self.review_budget is not None and self.review_budget.share <= self.random_share:
            raise ValueError(
                f"review_budget.share {self.review_budget.share:g} includes random_share {self.random_share:g} "
                f"and must be above it; lower random_share"
            )
        names = [rule.name for rule in self.rules]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"two rules are named {repeated!r}; rename one")
        return self

    def to_json(self) -> dict[str, Any]:
        """The policy with all defaults filled in, as settings write it; without `hash_key`, which is a secret."""
        return self.model_dump(mode="json", by_alias=True, exclude={"hash_key"})

    @property
    def version(self) -> str:
        """12 hex digits of the sha256 of the canonical policy, without the hash key: P does not depend on it."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def floor(self, facts: PolicyFacts) -> float:
        """The keep probability that nothing but a `drop` rule takes from this trace."""
        return self.min_share.share if self.min_share and facts.has_group(self.min_share.by) else 0.0


def read_policy(data: Any, *, where: str = "policy") -> Policy:
    """The policy of the parsed settings under `policy:` (`None` and `{}` give the defaults).

    Raises:
        InputError: a setting is unknown or unusable; names its path, such as `policy.rules[0].keep`.
    """
    return validated(Policy, {} if data is None else data, where=where)


def uniform(hash_key: bytes, trace_id: str) -> float:
    """u in [0, 1) of a trace: 53 bits of keyed BLAKE2b (RFC 7693), so no sender can pick ids that are always kept."""
    key = hash_key if len(hash_key) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(hash_key).digest()
    digest = hashlib.blake2b(trace_id.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the policy says of one trace; the fields of the decision record it fills.

    Attributes:
        decision: what happens; in a dry run always `keep`, with `keep_probability` 1.
        would_decide: what enforcing does; `reason` explains this one.
        keep_probability: the P of `keep iff u < P`.
        base: P without the score and the budget: what rules and random share alone would give (a budget counts it).
    """

    decision: Verdict
    reason: str
    keep_probability: float
    severity: Severity
    would_decide: Verdict
    threshold: float | None
    p_wrong: float | None
    base: float


def decide(
    policy: Policy,
    *,
    u: float,
    facts: PolicyFacts,
    p_wrong: float | None,
    threshold: float,
    at_threshold: float = 1.0,
    thin: float = 1.0,
    unscored: Unscored = "scorer_failed",
) -> Outcome:
    """Decide one trace.

    A rule with keep 1 or 0 decides; else P = r + (1 - r) · s, where r is the probability of the matching rule (0
    without one) and s what the score gives: 1 above the threshold, the random share below. A budget under pressure
    multiplies by `thin`; the group minimum is the floor.

    Args:
        u: `uniform(hash_key, trace_id)`.
        p_wrong: the calibrated score; `None` when there is none, for the reason `unscored`.
        threshold: scores above it are kept.
        at_threshold: the share kept of scores that equal the threshold (ties are common with coarse scores).
        thin: the share kept of what would otherwise be kept (`review_budget.Epoch`).
    """
    rule = next((rule for rule in policy.rules if rule.when.matches(facts, p_wrong)), None)
    if rule is not None and rule.decides:
        return _outcome(policy, u, rule.keep, f"rule:{rule.name}", p_wrong, threshold, base=rule.keep)

    by_rule = rule.keep if rule is not None else 0.0
    floor = policy.floor(facts)

    def compose(by_score: float) -> float:
        return by_rule + (1 - by_rule) * by_score

    base = max(floor, compose(policy.random_share))
    if p_wrong is None:
        if unscored == "scorer_failed" and policy.on_scorer_failure == "keep":
            return _outcome(policy, u, 1.0, unscored, p_wrong, threshold, base=base)
        by_score = wanted = policy.random_share
        kept_because = dropped_because = unscored
    elif p_wrong < threshold:
        by_score = wanted = policy.random_share
        kept_because, dropped_because = "random_share", "below_threshold"
    else:
        chance = 1.0 if p_wrong > threshold else at_threshold
        by_score, wanted = policy.random_share + (1 - policy.random_share) * chance, 1.0
        kept_because, dropped_because = "score", "over_budget"

    probability = max(floor, thin * compose(by_score))
    if u < thin * by_rule:
        reason = f"rule:{rule.name}" if rule is not None else kept_because
    elif u < probability:
        reason = kept_because
    elif u < compose(wanted):
        reason = "over_budget"
    else:
        reason = dropped_because
    return _outcome(policy, u, probability, reason, p_wrong, threshold, base=base)


def _outcome(
    policy: Policy, u: float, probability: float, reason: str, p_wrong: float | None, threshold: float, *, base: float
) -> Outcome:
    would: Verdict = "keep" if u < probability else "drop"
    dry = policy.mode == "dry_run"
    decision: Verdict = "keep" if dry else would
    severity: Severity = "none"
    if decision == "keep":
        severity = "high" if p_wrong is not None and p_wrong >= policy.severity_high else "normal"
    return Outcome(decision, reason, 1.0 if dry else probability, severity, would, threshold, p_wrong, base)
