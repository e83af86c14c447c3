"""A training's spans in a real OTLP collector, and trainings whose back end is dead, slow or refuses."""

import math
import socket
import threading
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from decision.conftest import easy_traces, quick
from otlp_collector import OK, Collector, Received

from observer_core.decision.train import train_run
from observer_core.decision.training.data import About
from observer_core.decision.training.telemetry import ExampleScore, StepRecord, Telemetry, traces_url
from observer_core.errors import InputError
from observer_core.traces.splits import split_of


def attributes(span) -> dict[str, object]:
    values = {a.key: a.value for a in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def spans_of(collector: Collector) -> list:
    groups = [group for received in collector.requests for group in received.request.resource_spans]
    return [span for group in groups for scope in group.scope_spans for span in scope.spans]


def test_every_step_is_a_trace_and_every_example_a_span(tiny_encoder: Path, tmp_path: Path) -> None:
    traces, metrics = easy_traces(200), {}
    with Collector() as collector:
        run = train_run(
            traces,
            tmp_path / "run",
            quick(tiny_encoder, epochs=1.0, head_epochs=1.0),
            telemetry=Telemetry(collector.endpoint, "run", headers={"x-key": "secret"}),
            on_metric=lambda name, value, step: metrics.__setitem__((name, step), value),
        )
        found = spans_of(collector)
    assert collector.requests[0].headers["x-key"] == "secret"
    resource = {
        a.key: a.value.string_value for a in collector.requests[0].request.resource_spans[0].resource.attributes
    }
    assert resource == {"service.name": "observer-training", "openinference.project.name": "observer-training"}
    steps = [span for span in found if not span.parent_span_id]
    examples = [span for span in found if span.parent_span_id]
    assert len({span.span_id for span in found}) == len(found)
    assert run.manifest.training["telemetry"] == {"sent": len(found), "lost": 0}
    assert run.manifest.training["notes"]["Telemetry"] == f"{len(found)} spans sent to {collector.endpoint}"

    by_trace = defaultdict(list)
    for span in examples:
        by_trace[span.trace_id].append(span)
    assert len(by_trace) == len(steps)  # one trace per step
    for span in steps:
        have, children = attributes(span), by_trace[span.trace_id]
        head = "head/" if have["training.stage"] == "head" else ""
        step = have.pop("training.step")
        assert have.pop("training.loss") == metrics[f"{head}step_loss", step]
        assert have.pop("training.learning_rate") == metrics[f"{head}learning_rate", step]
        assert have.pop("training.grad_norm") == metrics[f"{head}grad_norm", step]
        assert have.pop("training.tokens") > len(children)
        assert have.pop("training.examples") == len(children)
        assert have.pop("training.stage") in ("head", "lora")
        assert have == {"openinference.span.kind": "CHAIN", "session.id": "run", "training.run": "run"}
        assert {child.parent_span_id for child in children} == {span.span_id}
        assert span.start_time_unix_nano < span.end_time_unix_nano
        losses = [attributes(child)["example.loss"] for child in children]
        assert sum(losses) / len(losses) == pytest.approx(metrics[f"{head}step_loss", step], rel=1e-5)  # equal weights

    # In one pass over the data each labeled training trace has its two questions, with its own label.
    labels = {t.trace_id: t.label for t in traces if split_of(t) == "train"}
    passes = Counter()
    for span in examples:
        have = attributes(span)
        right = {"answer_wrong": ("false", "true"), "answers_question": ("2", "0")}[str(have["example.question"])]
        assert have["example.label"] == right[labels[str(have["task.id"])] == "wrong"]
        assert have["example.p"] == pytest.approx(math.exp(-float(str(have["example.loss"]))))
        assert have["gen_ai.evaluation.score.value"] == have["example.p"]
        passes[have["training.stage"], have["task.id"], have["example.question"]] += 1
    assert set(passes.values()) == {1}
    assert len(passes) == 2 * 2 * len(labels)


def record(step: int, examples: int = 9) -> StepRecord:
    scores = [ExampleScore(row, About("t", "answer_wrong", "true"), 0.5) for row in range(examples)]
    return StepRecord("lora", step, 0.5, 1e-4, 1.0, 100, (1, 2), scores)


def test_a_dead_back_end_costs_spans_and_not_the_training(
    tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("observer_core.decision.training.telemetry.SEND_PATIENCE", 0.1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        run = train_run(
            easy_traces(200),
            tmp_path / "run",
            quick(tiny_encoder, epochs=0.2, head_epochs=0.0),
            telemetry=Telemetry(endpoint, "run"),
        )
    told = run.manifest.training
    assert told["telemetry"]["sent"] == 0
    assert told["telemetry"]["lost"] > 10
    n = told["telemetry"]["lost"]
    assert told["notes"]["Telemetry"].startswith(f"{n} of {n} spans did not reach {endpoint}/v1/traces (")
    assert "took no spans" in told["notes"]["Telemetry"]


def test_a_back_end_that_hangs_never_holds_a_step_up_and_is_counted() -> None:
    release, arrived = threading.Event(), threading.Event()

    def hang(_: Received):
        arrived.set()
        release.wait(20)
        return OK

    with Collector(answer=hang) as collector:
        telemetry = Telemetry(collector.endpoint, "run", queued_steps=5)
        telemetry.step(record(0))
        assert arrived.wait(20)
        for step in range(1, 101):  # would never return if a step waited
            telemetry.step(record(step))
        release.set()
        delivered = telemetry.close()
    assert delivered.sent == len(spans_of(collector)) == 10 * 6  # the one that hung and what the queue holds
    assert delivered.lost == 10 * 95
    assert str(delivered).endswith("(it takes them more slowly than training makes them)")


def test_a_back_end_that_refuses_is_named() -> None:
    with Collector(answer=lambda _: (403, {}, b"no such key")) as collector:
        telemetry = Telemetry(collector.endpoint, "run")
        telemetry.step(record(1))
        delivered = telemetry.close()
        assert telemetry.close() == delivered
    assert (delivered.sent, delivered.lost) == (0, 10)
    assert "refused spans: HTTP 403 'no such key'" in str(delivered)


def test_addresses() -> None:
    assert traces_url("http://host:4318") == traces_url("http://host:4318/") == "http://host:4318/v1/traces"
    assert traces_url("https://host/otlp/v1/traces") == "https://host/otlp/v1/traces"
    for bad in ("host:4318", "grpc://host:4317", "http://"):
        with pytest.raises(InputError, match=r"--otlp .* no http address"):
            traces_url(bad)
