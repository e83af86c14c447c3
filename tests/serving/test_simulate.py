"""`observer policy simulate`: what another policy would have kept, and what it cannot know."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from export.export_items import DECISION
from serving.harness import Service

from observer_core.decision.protocol import Score
from observer_core.decisions import Decision
from observer_core.errors import InputError
from observer_core.policy import Bounds, PolicyFacts, decide, read_policy, uniform
from observer_core.simulate import simulate
from observer_serving.clock import rfc3339
from observer_serving.score import LoadedModel, ModelChoice, Stage

KEY = b"key"
START = 1_790_000_000


def recorded(n: int, policy, seed: int = 0) -> list[Decision]:
    """Decisions as a service under `policy` (a fixed threshold) would have recorded them, one a second."""
    rng = np.random.default_rng(seed)
    out = []
    for i, p in enumerate(rng.beta(2, 6, n).tolist()):
        trace_id, project = f"{i:032x}", "shop" if i % 4 else "bank"
        outcome = decide(
            policy, u=uniform(KEY, trace_id), facts=PolicyFacts(service=project, project=project, spans=3), p_wrong=p,
            threshold=policy.keep_threshold,
        )  # fmt: skip
        out.append(
            replace(
                DECISION, trace_id=trace_id, decision=outcome.decision, would_decide=outcome.would_decide,
                reason=outcome.reason, p_wrong=p, project=project, spans=3, decided_at=rfc3339((START + i) * 10**9),
                keep_probability=outcome.keep_probability, policy_version=policy.version,
            )
        )  # fmt: skip
    return out


def test_the_same_policy_keeps_the_same_traces():
    policy = read_policy({"keep_threshold": 0.6})
    result = simulate(recorded(5_000, policy), policy, KEY)
    total = result.total
    assert total.traces == 5_000
    assert total.kept == total.would_keep == total.both > 100
    assert result.groups["project"]["bank"].traces == 1_250
    assert sum(tally.kept for tally in result.groups["recorded_reason"].values()) == total.kept


def test_another_threshold_and_a_budget_give_their_own_shares():
    decisions = recorded(20_000, read_policy({"keep_threshold": 0.6}))
    scores = np.array([d.p_wrong for d in decisions])
    lower = simulate(decisions, read_policy({"keep_threshold": 0.3}), KEY).total
    share = (scores >= 0.3).mean()
    assert lower.expected / lower.traces == pytest.approx(share + (1 - share) * 0.02, abs=1e-9)
    assert lower.both == lower.kept, "what was kept by a higher threshold is kept by a lower one"
    budget = read_policy({"review_budget": {"share": 0.1, "window": "10m"}})
    thrifty = simulate(decisions, budget, KEY).total
    assert thrifty.expected / thrifty.traces == pytest.approx(0.1, abs=0.01)


def test_what_the_record_does_not_hold_is_refused_by_name_or_left_out_on_request():
    rules = [
        {"name": "errors", "when": {"span.status": "error"}, "keep": 1},
        {"name": "bank", "when": {"project": "bank", "min_spans": 2}, "keep": 1},
    ]
    policy = read_policy({"keep_threshold": 0.9, "rules": rules, "min_share": {"by": "user.tier", "share": 0.1}})
    decisions = recorded(400, read_policy({"keep_threshold": 0.6}))
    decisions[0] = replace(decisions[0], reason="rule:errors")
    decisions[1] = replace(decisions[1], reason="scorer_failed", p_wrong=None)
    with pytest.raises(InputError, match=r"rule 'errors' looks at span\.status, .*--without errors"):
        simulate(decisions, policy, KEY)
    with pytest.raises(InputError, match=r"min_share looks at user\.tier, .*--without min_share"):
        simulate(decisions, policy, KEY, without=["errors"])
    with pytest.raises(InputError, match="no rule is named 'error'; it has bank, errors, min_share"):
        simulate(decisions, policy, KEY, without=["error"])
    result = simulate(decisions, policy, KEY, without=["errors", "min_share"])
    assert result.left_out == {"errors": "span.status", "min_share": "user.tier"}
    assert result.taken_by_left_out == 1
    assert result.total.unscored == 1
    assert result.groups["project"]["bank"].would_keep == 100
    assert json.loads(json.dumps(result.to_json()))["rules_left_out"] == result.left_out


def test_the_command_reads_a_running_service(service, tmp_path: Path):
    live: Service = service(policy={"keep_threshold": 0.0})
    for _ in range(5):
        live.post_trace({"question": "q", "final_answer": "a", "project": "shop"})
    live.wait_for_decisions(5)
    other = tmp_path / "other.yaml"
    other.write_text("policy: {keep_threshold: 1.0, random_share: 0.0, min_share: null}")

    def observer(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from observer_pipeline.cli import main; main()", "policy", "simulate", *arguments],
            env=os.environ | {"OBSERVER_HOME": str(live.home)}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    done = observer(str(other), "--json")
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)["total"]
    assert (total["traces"], total["kept"], total["would_keep"]) == (5, 5, 0)
    assert "5 decisions replayed" in observer(str(other)).stdout
    other.write_text("policy: {rules: [{name: slow, when: {tool: search}, keep: 1}]}")
    refused = observer(str(other))
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "rule 'slow' looks at tool" in refused.stderr
    assert "left out: slow, which looks at tool" in observer(str(other), "--without", "slow").stdout
    nothing = observer(str(other), "--without", "slow", "--since", "2999-01-01T00:00:00Z")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)


# --- scoring after the fact


class Fixed:
    model = "fixed"

    def __init__(self, version: str, p_wrong: float) -> None:
        self.model_version, self.p_wrong = version, p_wrong

    def score(self, traces):
        if any(trace.question == "poison" for trace in traces):
            raise RuntimeError("cannot read this one")
        return [Score(self.p_wrong, self.p_wrong) for _ in traces]


def test_a_batch_is_scored_by_cascade_and_loses_only_what_cannot_be_read():
    from observer_core.traces.trace import Trace
    from observer_pipeline.backfill import annotation, score_all

    first, second = Fixed("1", 0.5), Fixed("2", 0.9)
    model = LoadedModel(ModelChoice("cascade"), Stage(first), Stage(second), Bounds(min=0.4, max=0.6))
    scored = score_all(model, [Trace("q", "a"), Trace("poison", "a"), Trace("q", "a")])
    assert [one and (one[0].p_wrong, one[1].model_version) for one in scored] == [(0.9, "2"), None, (0.9, "2")]
    assert scored[0] is not None
    row = annotation("ab" * 16, *scored[0])
    assert (row["name"], row["identifier"], row["annotator_kind"]) == ("observer.p_wrong", "observer:2", "CODE")
