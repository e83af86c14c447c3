"""Kev goes through the same loop: it resumes to the same weights, tells its examples, and learns the optional choice."""

from pathlib import Path

import pytest
from decision.conftest import easy_traces
from decision.tiny_kev import write_base
from otlp_collector import Collector

from observer_core.decision.load import load_scorer
from observer_core.decision.train import TrainOptions, train_run
from observer_core.decision.training.checkpoints import partial_of
from observer_core.decision.training.telemetry import Telemetry
from observer_core.questions import FAILURE_QUESTION

WEIGHTS = ("adapter_model.safetensors", "head.pt")


@pytest.mark.parametrize("stop", [("head/step_loss", 2), ("step_loss", 3)])
def test_an_interrupted_kev_training_ends_alike(tmp_path: Path, stop: tuple[str, int]) -> None:
    options = TrainOptions(
        "kev", preset=str(write_base(tmp_path / "base", "llama")), epochs=0.5, head_epochs=1.0, learning_rate=5e-3,
        max_tokens=320, onnx=False, failure=True, accumulate=2, checkpoint_steps=1, gradient_checkpointing=True,
    )  # fmt: skip
    traces = easy_traces(200)

    def interrupt(name: str, _value: float, step: int) -> None:
        if (name, step) == stop:
            raise KeyboardInterrupt

    with Collector() as collector:
        whole = train_run(traces, tmp_path / "whole", options, telemetry=Telemetry(collector.endpoint, "whole"))
        groups = [group for received in collector.requests for group in received.request.resource_spans]
    spans = [span for group in groups for scope in group.scope_spans for span in scope.spans]
    with pytest.raises(KeyboardInterrupt):
        train_run(traces, tmp_path / "out", options, on_metric=interrupt)
    assert partial_of(tmp_path / "out").is_dir()
    out = train_run(traces, tmp_path / "out", options)
    for name in WEIGHTS:
        assert (out.checkpoint / name).read_bytes() == (whole.checkpoint / name).read_bytes()
    assert out.metrics() == whole.metrics()

    # A row holds all questions about a trace; each is an example of its own.
    assert len({span.span_id for span in spans}) == len(spans) == whole.manifest.training["telemetry"]["sent"]
    asked = {a.value.string_value for span in spans for a in span.attributes if a.key == "example.question"}
    assert asked == {"answer_wrong", "answers_question", FAILURE_QUESTION}
    assert list(whole.manifest.questions[FAILURE_QUESTION].criteria) == ["none", "contradiction"]
    (score,) = load_scorer(out).score(traces[:1])
    assert set(score.answers[FAILURE_QUESTION]["probabilities"]) == {"none", "contradiction"}
