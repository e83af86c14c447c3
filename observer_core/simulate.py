"""What another policy would have kept, replayed over recorded decisions.

A record holds the score, the project, the number of spans and the evaluators' values, not the spans: a policy with a
rule that looks at anything else is refused, for what such a rule would have taken changes every figure; whoever wants
the figures without it says so. Decisions without a score are replayed as unscored and counted apart:
what the scorer would have said of them nobody knows.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from observer_core.decisions import Decision
from observer_core.errors import InputError
from observer_core.policy import Policy, PolicyFacts, Rule, decide, uniform
from observer_core.review_budget import BudgetThreshold

MIN_SHARE = "min_share"
_REPLAYABLE = frozenset({"project", "min_spans", "p_wrong", "evaluators"})


@dataclass(slots=True)
class Tally:
    """Counts of one group.

    `kept` is what the recorded policy decided (or, in a dry run, would have); `expected` sums the keep probabilities
    under the other policy: its share without chance.
    """

    traces: int = 0
    kept: int = 0
    would_keep: int = 0
    both: int = 0
    expected: float = 0.0
    unscored: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "traces": self.traces,
            "kept": self.kept,
            "would_keep": self.would_keep,
            "both": self.both,
            "expected_share": self.expected / self.traces if self.traces else None,
            "unscored": self.unscored,
        }


@dataclass(slots=True)
class Simulation:
    """The outcome: over all decisions, and by group.

    `left_out` are the rules it was asked to do without, each with what it looks at that no record holds.
    """

    policy_version: str
    total: Tally = field(default_factory=Tally)
    groups: dict[str, dict[str, Tally]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    taken_by_left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        groups = {by: {name: tally.to_json() for name, tally in each.items()} for by, each in self.groups.items()}
        return {
            "policy_version": self.policy_version,
            "total": self.total.to_json(),
            "groups": groups,
            "rules_left_out": self.left_out,
            "recorded_reason_is_a_rule_left_out": self.taken_by_left_out,
        }


def unreplayable(rule: Rule) -> str | None:
    """What a rule looks at that no record holds, in words; `None` when it can be replayed."""
    given = rule.when.model_dump(by_alias=True)
    missing = sorted(name for name in given if name not in _REPLAYABLE)
    return ", ".join(missing) or None


def simulate(
    decisions: Iterable[Decision], policy: Policy, hash_key: bytes, *, without: Collection[str] = ()
) -> Simulation:
    """Replay decisions, given in the order in which they were made, under `policy`.

    Args:
        without: rules (or `min_share`) of `policy` to leave out.

    Raises:
        InputError: a rule that is not left out looks at what no record holds, or none has a name in `without`.
    """
    names = {rule.name for rule in policy.rules} | {MIN_SHARE}
    unknown = next((name for name in without if name not in names), None)
    if unknown is not None:
        raise InputError(f"no rule is named {unknown!r}; it has {', '.join(sorted(names))}")
    missing = {rule.name: why for rule in policy.rules if (why := unreplayable(rule)) is not None}
    if policy.min_share is not None and policy.min_share.by not in ("service.name", "project"):
        missing[MIN_SHARE] = policy.min_share.by
    for name, why in missing.items():
        if name not in without:
            what = "min_share" if name == MIN_SHARE else f"rule {name!r}"
            raise InputError(
                f"{what} looks at {why}, which no decision record holds; leave it out with --without {name}"
            )
    left_out = {name: missing.get(name, "") for name in without}
    rules = tuple(rule for rule in policy.rules if rule.name not in left_out)
    floor = None if MIN_SHARE in left_out else policy.min_share
    replayed = policy.model_copy(update={"rules": rules, "min_share": floor, "mode": "enforce"})
    out = Simulation(policy.version, left_out=left_out)
    budget = BudgetThreshold(replayed)
    for decision in decisions:
        now = datetime.fromisoformat(decision.decided_at).timestamp()
        epoch = budget.epoch(now)
        outcome = decide(
            replayed,
            u=uniform(hash_key, decision.trace_id),
            facts=_facts(decision),
            p_wrong=decision.p_wrong,
            threshold=epoch.threshold,
            at_threshold=epoch.at_threshold,
            thin=epoch.thin,
            unscored="overload" if decision.reason == "overload" else "scorer_failed",
        )
        budget.observe(outcome, now)
        out.taken_by_left_out += decision.reason.removeprefix("rule:") in left_out
        for tally in _tallies(out, decision):
            tally.traces += 1
            tally.kept += decision.would_decide == "keep"
            tally.would_keep += outcome.would_decide == "keep"
            tally.both += decision.would_decide == outcome.would_decide == "keep"
            tally.expected += outcome.keep_probability
            tally.unscored += decision.p_wrong is None
    return out


def _facts(decision: Decision) -> PolicyFacts:
    """What a record tells; the project stands for the service, from which it is taken where none is named."""
    return PolicyFacts(
        service=decision.project, project=decision.project, spans=decision.spans, evaluators=decision.evaluators
    )


def _tallies(out: Simulation, decision: Decision) -> Iterator[Tally]:
    yield out.total
    for by, name in (("project", decision.project), ("recorded_reason", decision.reason)):
        yield out.groups.setdefault(by, {}).setdefault(name, Tally())
