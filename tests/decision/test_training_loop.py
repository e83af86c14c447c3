"""The loop's own promises on a tiny encoder: accumulation, checkpointing, precision, option order, and its alarms."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from decision.conftest import easy_traces
from torch import nn

from observer_core.decision.laya.layout import Layout, Row
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.trainer import logits, make_examples, permute_options, row_form
from observer_core.decision.training.data import About
from observer_core.decision.training.examples import Batch, Example, OptionShuffle, RowExamples
from observer_core.decision.training.health import WINDOW, Health, HeldOut, TrainingFailedError, auroc
from observer_core.decision.training.loop import Fitted, LoopOptions, fit, reproducible
from observer_core.errors import InputError
from observer_core.questions import DECISION_QUESTION, Question, default_questions
from observer_core.slices import build_state

ONE_STEP = LoopOptions(epochs=1.0, tokens_per_batch=10**6, evaluations=1)


@pytest.fixture(scope="module")
def layout(tiny_encoder: Path) -> Layout:
    return Layout(tiny_encoder, max_len=256, head_max_len=192)


def examples_of(layout: Layout, n: int, *, seed: int = 0) -> tuple[RowExamples[Row], RowExamples[Row]]:
    """Training rows with uneven weights, and validation rows of the question that decides."""
    rng = np.random.default_rng(seed)
    traces = easy_traces(n, seed=seed)
    states = [build_state(trace).text[: int(rng.integers(60, 300))] for trace in traces]
    questions = default_questions()
    train = make_examples(layout, states, traces, rng.uniform(0.1, 5, n).tolist(), questions)
    return train, make_examples(layout, states, traces, [1.0] * n, {DECISION_QUESTION: questions[DECISION_QUESTION]})


def model_of(encoder: Path) -> DecisionModel:
    """No dropout, and an encoder that is not frozen."""
    from transformers import AutoModel

    with reproducible(0):
        loaded = AutoModel.from_pretrained(
            encoder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, dtype=torch.float32
        )
        return DecisionModel(loaded, head_layers=1, actions=1, dropout=0.0)


def train(
    model: DecisionModel,
    examples: RowExamples[Row],
    held_out: RowExamples[Row],
    options: LoopOptions,
    *,
    lr: float = 1e-3,
    on_metric: Callable[[str, float, int], None] = lambda *_: None,
) -> Fitted:
    groups = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": lr}]
    with reproducible(options.seed):
        return fit(model, groups, examples, held_out, logits=logits, options=options, on_metric=on_metric)


def gradients(model: nn.Module, run: Callable[[], object]) -> dict[str, torch.Tensor]:
    """What every parameter's gradient had come to when the optimiser used it, before clipping."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[[nn.Parameter], None]:
        return lambda p: seen.__setitem__(name, p.grad.clone())  # type: ignore[union-attr]

    hooks = [p.register_post_accumulate_grad_hook(keep(name)) for name, p in model.named_parameters()]
    run()
    for hook in hooks:
        hook.remove()
    return seen


def assert_equal_gradients(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    scale = max(float(gradient.abs().max()) for gradient in a.values())
    assert scale > 1e-3
    for name, gradient in a.items():
        assert float((gradient - b[name]).abs().max()) < 2e-6 * scale, name


def test_accumulated_gradients_are_those_of_the_large_batch(tiny_encoder: Path, layout: Layout) -> None:
    examples, held_out = examples_of(layout, 24)
    one, many = model_of(tiny_encoder), model_of(tiny_encoder)
    small = replace(ONE_STEP, tokens_per_batch=700, accumulate=1000)
    large = gradients(one, lambda: train(one, examples, held_out, ONE_STEP))
    batches: list[int] = []

    class Counting(RowExamples):
        def batch(self, rows, shuffle=None) -> Batch:
            batches.append(len(rows))
            return super().batch(rows, shuffle)

    counting = Counting(examples._examples, examples._form)
    summed = gradients(many, lambda: train(many, counting, held_out, small))
    assert len(batches) > 5
    assert len(set(batches)) > 1  # batches of different sizes, which a plain mean of their means would get wrong
    assert sum(batches) == len(examples.lengths)
    assert_equal_gradients(large, summed)


def test_checkpointed_layers_give_the_same_gradients(tiny_encoder: Path, layout: Layout) -> None:
    examples, held_out = examples_of(layout, 12)
    found, calls = [], []
    for wanted in (False, True):
        model = model_of(tiny_encoder)
        passes: list[bool] = []
        inside = model.encoder.encoder.layer[0].intermediate
        inside.register_forward_hook(lambda m, *_, seen=passes: seen.append(m.training))
        options = replace(ONE_STEP, gradient_checkpointing=wanted)
        found.append(gradients(model, lambda model=model, options=options: train(model, examples, held_out, options)))
        calls.append(sum(passes))
    assert calls == [1, 2]  # the layer was really computed again
    assert_equal_gradients(found[0], found[1])


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(tiny_encoder: Path, layout: Layout) -> None:
    examples, held_out = examples_of(layout, 24)
    losses, kinds = {}, set()
    for precision in ("auto", "bf16"):
        model = model_of(tiny_encoder)
        model.encoder.encoder.layer[0].intermediate.dense.register_forward_hook(
            lambda *call, precision=precision: kinds.add((precision, call[2].dtype))
        )
        fitted = train(model, examples, held_out, LoopOptions(2.0, 1024, precision=precision))
        losses[fitted.computed_on] = fitted.best_loss
        assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert kinds == {("auto", torch.float32), ("bf16", torch.bfloat16)}
    assert losses["cpu fp32"] == pytest.approx(losses["cpu bf16"], abs=0.05)
    assert losses["cpu fp32"] != losses["cpu bf16"]


CHOICE = Question(
    type="choice",
    instructions="Which colour?",
    criteria={"red": "the answer is red", "blue": None, "green": "tool", "user": "x y z", "none": None},
)


def test_options_of_a_choice_change_places_and_targets_follow(layout: Layout) -> None:
    questions = {"colour": CHOICE, **default_questions()}
    rows = layout.rows("question red blue", questions)
    names = list(CHOICE.criteria)
    examples = RowExamples(
        [
            Example(row, target, 1.0, About("t", name, ""))
            for row, target, name in zip(rows, (3, 1, 2), questions, strict=True)
        ],
        row_form(layout.pad_id),
    )
    plain = examples.batch([0, 1, 2])

    def option(batch: Batch, row: int, place: int) -> list[int]:
        """The tokens from an option's [MASK] to the next."""
        ids, markers = batch["input_ids"][row].tolist(), batch["marker_pos"][row].tolist()
        end = markers[place + 1] if place + 1 < len(names) else ids.index(layout._sep, markers[place])
        return ids[markers[place] : end]

    by_name = {name: option(plain, 0, place) for place, name in enumerate(names)}
    orders = set()
    for epoch in range(8):
        shuffle = OptionShuffle(seed=1, epoch=epoch)
        batch = examples.batch([0, 1, 2], shuffle)
        for name in ("input_ids", "marker_pos", "target"):  # noul and score stay as they are
            assert torch.equal(batch[name][1:], plain[name][1:])
        order = shuffle.order(0, len(names))
        orders.add(tuple(order))
        assert [option(batch, 0, place) for place in range(len(names))] == [by_name[names[i]] for i in order]
        assert option(batch, 0, int(batch["target"][0].argmax())) == by_name[names[3]]
        assert sorted(batch["input_ids"][0].tolist()) == sorted(plain["input_ids"][0].tolist())
        again = examples.batch([0], shuffle)
        assert torch.equal(again["target"][0], batch["target"][0])
    assert len(orders) > 5
    assert permute_options(rows[0], range(5)) == rows[0]


def test_training_permutes_each_epoch_and_evaluation_never(tiny_encoder: Path, layout: Layout) -> None:
    examples, held_out = examples_of(layout, 12)
    asked: dict[str, set[OptionShuffle | None]] = {"train": set(), "held_out": set()}

    class Watched(RowExamples):
        name = ""

        def batch(self, rows, shuffle=None) -> Batch:
            asked[self.name].add(shuffle)
            return super().batch(rows, shuffle)

    for name, part in (("train", examples), ("held_out", held_out)):
        asked[name] = set()
        part.__class__ = type(name, (Watched,), {"name": name})
    train(model_of(tiny_encoder), examples, held_out, LoopOptions(3.0, 2048, seed=4))
    assert asked == {"train": {OptionShuffle(4, epoch) for epoch in range(3)}, "held_out": {None}}
    asked["train"] = set()
    train(model_of(tiny_encoder), examples, held_out, LoopOptions(1.0, 2048, permute_options=False))
    assert asked["train"] == {None}


def test_a_model_that_answers_everything_alike_is_named(tiny_encoder: Path, layout: Layout) -> None:
    examples, held_out = examples_of(layout, 24)
    with pytest.raises(TrainingFailedError, match=r"collapsed by step \d+: every validation trace gets the same.*--lr"):
        train(model_of(tiny_encoder), examples, held_out, LoopOptions(20.0, 1024), lr=0.3)


def test_healthy_courses_raise_no_alarm_and_sick_ones_do() -> None:
    def course(losses: list[float], start: float = 0.7) -> Health:
        health = Health("--lr")
        health.start(HeldOut(start, np.array([[0.4, 0.6], [0.6, 0.4]]), 0.5))
        for step, loss in enumerate(losses, 1):
            health.after_step(step, loss, 1.0)
        return health

    rng = np.random.default_rng(0)
    for _ in range(50):  # noisy plateaus, learning curves, single spikes, delta runs that start almost perfect
        noise = rng.gamma(4, 0.25, 400)
        course((0.69 * noise).tolist())
        course((np.linspace(1.1, 0.05, 400) * noise).tolist())
        course([0.7] * 50 + [15.0] + [0.7] * 50)
        course((0.02 * noise).tolist() + [0.6] * 40, start=0.01)
        course((5.5 * noise).tolist(), start=0.7 if noise[0] > 0.5 else 5.5)  # 255 options beside a noul
    with pytest.raises(
        TrainingFailedError, match=r"diverged at step 65 \(loss .* over 20 steps, began at 0.70\).*--lr"
    ):
        course([0.7] * 50 + list(np.linspace(1, 8, WINDOW)))
    for bad in (math.nan, math.inf):
        with pytest.raises(TrainingFailedError, match="diverged at step 3"):
            course([0.7, 0.7, bad])


def test_auroc_counts_ties_half() -> None:
    p, target = np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True])
    assert auroc(p, target) == 0.875
    assert auroc(p, target | True) is None


def test_bf16_is_refused_where_there_is_none() -> None:
    from observer_core.decision.training.device import choose_bf16

    with pytest.raises(InputError, match="--precision fp32 or auto"):
        choose_bf16("bf16", torch.device("meta"))
