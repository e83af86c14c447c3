"""Evaluators on live traces: in the record, on the spans, in rules; what fails is named and holds nothing up."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from serving.bench import Bench
from serving.harness import Service, new_trace, wait_until

from observer_core.decisions import Decision
from observer_core.errors import InputError
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.config import EvaluatorsSettings
from observer_serving.evaluate import Evaluated, Evaluators
from observer_serving.metrics import Metrics

REWARDS = str(Path(__file__).with_name("rewards_live.py"))


def make_bench(folder: Path, settings: dict[str, Any], **policy: Any) -> Bench:
    bench = Bench(folder, **policy)
    bench.evaluators = Evaluators(
        EvaluatorsSettings.model_validate(settings), lambda event: bench.engine.put(event), bench.metrics
    )
    bench.open()
    return bench


def post(bench: Bench, answer: str, **fields: Any) -> str:
    trace_id, _ = new_trace()
    body = orjson.dumps({"question": "Which river?", "final_answer": answer} | fields)
    bench.put(Received(bench.clock.now_ns(), (JsonTrace(trace_id, body),)))
    return trace_id.hex()


def finish(bench: Bench) -> dict[str, Decision]:
    bench.engine.step()
    while bench.scoring.run_once():
        bench.engine.step()
    assert bench.evaluators is not None
    while bench.evaluators.run_once():
        bench.engine.step()
    return {d.trace_id: d for d in bench.decisions()}


def failures(metrics: Metrics, evaluator: str, kind: str) -> float | None:
    return metrics.registry.get_sample_value(
        "observer_evaluator_failures_total", {"evaluator": evaluator, "kind": kind}
    )


def test_values_decide_in_rules_and_leave_with_the_trace(tmp_path: Path):
    rule = {"name": "repeats", "when": {"evaluators": {"varied": {"max": 0.5}}}, "keep": 1}
    settings = {"rewards": {"varied": "repetition", "right": "quality"}, "columns": {"reference": "gold"}}
    bench = make_bench(tmp_path, settings, keep_threshold=0.99, rules=[rule])
    repeats = post(bench, "the same words again " * 9, gold="the Rhine")
    fine = post(bench, "It is the Rhine, which is longer than the Elbe.")
    decisions = finish(bench)
    assert decisions[repeats].evaluators["varied"] < 0.5
    assert decisions[repeats].evaluators["right"] == pytest.approx(0.0526, abs=1e-4)
    assert (decisions[repeats].decision, decisions[repeats].reason) == ("keep", "rule:repeats")
    assert decisions[fine].evaluators == {"varied": 1.0}, "without a reference quality does not apply"
    assert decisions[fine].decision == "drop"
    (item,) = bench.exporters[0].items
    root = item.resource_spans[0].scope_spans[0].spans[0]
    assert {a.key: a.value.double_value for a in root.attributes}["observer.evaluators.varied"] < 0.5


def test_what_raises_hangs_or_crashes_is_named_and_costs_only_itself(tmp_path: Path):
    rewards = {name: f"{REWARDS}:{name}" for name in ("grounded", "raises", "hangs")}
    bench = make_bench(tmp_path, {"rewards": rewards, "timeout": "500ms"})
    good = post(bench, "Danube", evidence=["on the Danube"])
    poison, hang = post(bench, "poison"), post(bench, "hang")
    decisions = finish(bench)
    assert bench.evaluators is not None
    assert decisions[good].evaluators == {"grounded": 1.0, "raises": 1.0, "hangs": 0.5}
    assert decisions[poison].evaluators == {"grounded": 0.0, "raises": None, "hangs": 0.5}
    assert decisions[hang].evaluators == {"grounded": 0.0, "raises": 1.0, "hangs": None}
    assert failures(bench.metrics, "raises", "exception") == 1
    assert failures(bench.metrics, "hangs", "timeout") == 1
    bench.evaluators.stop()


def test_a_process_that_dies_is_started_anew(tmp_path: Path):
    bench = make_bench(tmp_path, {"rewards": {"bad": f"{REWARDS}:crashes"}})
    crashed = post(bench, "crash")
    assert finish(bench)[crashed].evaluators == {"bad": None}
    assert failures(bench.metrics, "bad", "crash") == 1
    after = post(bench, "fine")
    assert finish(bench)[after].evaluators == {"bad": 0.5}
    assert bench.evaluators is not None
    bench.evaluators.stop()


def test_a_decision_waits_no_longer_than_the_deadline(tmp_path: Path):
    bench = make_bench(tmp_path, {"rewards": {"varied": "repetition"}, "deadline": "3s"})
    trace_id = post(bench, "The Rhine.")
    bench.engine.step()
    bench.scoring.run_once()
    bench.engine.step()
    assert bench.decisions() == [], "scored, but the evaluator is not done"
    bench.clock.advance(3)
    bench.engine.step()
    (decision,) = bench.decisions()
    assert decision.evaluators == {"varied": None}
    assert failures(bench.metrics, "varied", "late") == 1
    bench.engine.put([Evaluated(trace_id, {"varied": 1.0})])
    bench.engine.step()
    assert bench.decisions() == [decision], "what comes later changes nothing"


def test_an_unknown_reward_is_refused_at_start(tmp_path: Path):
    with pytest.raises(InputError, match="no reward is named"):
        make_bench(tmp_path, {"rewards": {"x": "nothing_of_that_name"}})


def test_a_service_with_an_evaluator_of_its_own(service):
    live: Service = service(
        policy={"keep_threshold": 0.0},
        evaluators={"rewards": {"grounded": f"{REWARDS}:grounded"}, "timeout": "20s", "deadline": "60s"},
    )
    trace_id = live.post_trace({"question": "q", "final_answer": "Danube", "evidence": ["the Danube"]})
    wait_until(lambda: live.get("/v1/stats")["decisions_on_record"] == 1, seconds=60)
    assert live.get(f"/v1/decisions/{trace_id}")["evaluators"] == {"grounded": 1.0}
    assert live.terminate() == 0
