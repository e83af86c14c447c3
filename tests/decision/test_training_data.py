"""Replay never leaks a held-out question; weights that were cut are reported; both reach the run and its report."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from decision.conftest import easy_traces, quick

from observer_core.decision.load import load_scorer
from observer_core.decision.train import TrainOptions, train_run
from observer_core.decision.training.data import MAX_WEIGHT, data_sha, draw_replay, questions_to_learn, split_traces
from observer_core.errors import InputError
from observer_core.questions import FAILURE_QUESTION, label_index
from observer_core.traces.splits import normalise_question, split_of
from observer_core.traces.trace import Trace


def earlier_traces(n: int, **changes: object) -> list[Trace]:
    """Traces of another time: other ids, other questions."""
    return [
        dataclasses.replace(t, trace_id=f"e{i:031x}", question=f"earlier {i}", **changes)
        for i, t in enumerate(easy_traces(n, seed=9))
    ]


def test_replay_is_drawn_from_training_questions_alone() -> None:
    new = easy_traces(200)
    held = [t for t in new if split_of(t) != "train"]
    forced = dataclasses.replace(earlier_traces(1)[0], trace_id="f" * 32, question="held here", split="test")
    new.append(forced)
    earlier = [
        *earlier_traces(300),
        *(dataclasses.replace(t, trace_id=f"x{i}", split="train") for i, t in enumerate(held)),  # held out in new data
        dataclasses.replace(forced, trace_id="y", question="  HELD   Here ", split="train"),
        dataclasses.replace(earlier_traces(1)[0], label=None),
        *[t for t in new if split_of(t) == "train"],  # already there
    ]
    replay = draw_replay(new, earlier, share=0.3, rows=None, seed=0)
    n_train = sum(split_of(t) == "train" for t in new)
    assert len(replay.traces) == round(0.3 / 0.7 * n_train)
    questions = {normalise_question(t.question) for t in new if split_of(t) != "train"}
    everything = draw_replay(new, earlier, share=0.0, rows=10**6, seed=0)
    for chosen in (replay, everything):
        assert {split_of(t) for t in chosen.traces} == {"train"}
        assert not {normalise_question(t.question) for t in chosen.traces} & questions
        assert not {t.trace_id for t in chosen.traces} & {t.trace_id for t in new}
    usable = [t for t in earlier_traces(300) if split_of(t) == "train"]
    assert everything.traces == usable
    assert (everything.usable, everything.left_out) == (len(usable), len(earlier) - len(usable))
    assert replay.traces == draw_replay(new, earlier, share=0.3, rows=None, seed=0).traces
    assert replay.traces != draw_replay(new, earlier, share=0.3, rows=None, seed=1).traces
    assert len(draw_replay(new, earlier, share=0.9, rows=7, seed=0).traces) == 7
    with pytest.raises(InputError, match=rf"none of the {len(held)} traces to replay can be used"):
        draw_replay(new, held, share=0.3, rows=None, seed=0)


def test_a_run_records_its_replay_and_its_weights(tmp_path: Path) -> None:
    new = [
        dataclasses.replace(t, keep_probability=0.001 if i % 50 == 0 else 0.5) for i, t in enumerate(easy_traces(200))
    ]
    earlier, metrics, said = earlier_traces(300, keep_probability=0.5), {}, []
    options = TrainOptions(family="baseline", weights=True, replay_rows=40)
    run = train_run(
        new,
        tmp_path / "run",
        options,
        replay=earlier,
        on_metric=lambda name, value, _: metrics.__setitem__(name, value),
        progress=lambda doing, _: said.append(doing),
    )
    drawn = draw_replay(new, earlier, share=0.3, rows=40, seed=0)
    new_train = [t for t in new if split_of(t) == "train"]
    training = run.manifest.training
    assert training["replay"] == {"traces": 40, "usable": drawn.usable, "sha": data_sha(drawn.traces)}
    assert run.manifest.train_data_sha == data_sha(new_train + drawn.traces)
    part = split_traces(new, weights=True, replay=drawn.traces)["train"]
    rare = sum(t.keep_probability == 0.001 for t in new_train)
    assert part.cut == rare == training["weights"]["cut"] == metrics["weights/cut"]
    assert part.limit == pytest.approx(MAX_WEIGHT * np.mean([t.weight for t in part.traces]))
    assert part.weight.max() == MAX_WEIGHT
    w = part.weight
    assert metrics["weights/effective_n"] == pytest.approx(w.sum() ** 2 / (w**2).sum())
    weights = f"{rare} were cut to 1 / selection probability = {part.limit:,.4g}, 20 times the mean"
    replay = f"40 earlier traces beside {len(new_train)} new ones ({40 / (40 + len(new_train)):.0%}), drawn from "
    assert any(text.startswith("weights: ") and text.endswith(weights) for text in said)
    report = (run.path / "report.md").read_text()
    assert weights in report
    assert replay in report


def test_the_validation_questions_stay_out_of_sight(tmp_path: Path) -> None:
    """The same traces as new and as replayed data: there is nothing to draw, and nothing of the test split is drawn."""
    traces = easy_traces(200)
    with pytest.raises(InputError, match="can be used"):
        train_run(traces, tmp_path / "run", TrainOptions(family="baseline"), replay=traces)
    assert list(tmp_path.iterdir()) == []


def test_the_optional_question_is_answered_by_seeded_faults_and_by_correct_natural_runs(
    tiny_encoder: Path, tmp_path: Path
) -> None:
    kinds = ["contradiction", "early_stop", None, None]
    traces = [dataclasses.replace(t, failure_type=kinds[i % 4]) for i, t in enumerate(easy_traces(240))]
    next(t for t in traces if split_of(t) == "train").failure_type = "rare"
    part = split_traces(traces, weights=False)["train"]
    assert list(questions_to_learn(part, failure=False)) == ["answer_wrong", "answers_question"]
    question = questions_to_learn(part, failure=True)[FAILURE_QUESTION]
    assert list(question.criteria) == ["none", "contradiction", "early_stop"]
    expected = {("wrong", None): None, ("wrong", "rare"): None, ("correct", None): 0, ("correct", "early_stop"): 2}
    for (label, kind), index in expected.items():
        assert label_index(FAILURE_QUESTION, question, label, kind) == index
    for trace in part.traces:
        trace.failure_type = None
    with pytest.raises(InputError, match=r"--failure needs a failure_type with 5 traces .*found: none"):
        questions_to_learn(part, failure=True)

    faulty = [dataclasses.replace(t, failure_type=kinds[i % 4]) for i, t in enumerate(easy_traces(200))]
    run = train_run(faulty, tmp_path / "run", quick(tiny_encoder, epochs=0.2, head_epochs=0.0, failure=True))
    (score,) = load_scorer(run).score(faulty[:1])
    assert set(score.answers[FAILURE_QUESTION]["probabilities"]) == {"none", "contradiction", "early_stop"}
