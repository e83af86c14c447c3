"""Training tokens per second: our loop against a plain peft loop over the same model and the same batches, in one run.

    uv run python benchmarks/training.py [--steps 20] [--rounds 3]

The plain loop is what one writes first: padded batch, forward, backward, clip, AdamW. It runs twice: over the very
model our loop trains (the ratio is what our loop costs or saves by itself), and over the model as loaded, with the
dropout the encoder ships and batches in random order padded to their longest row (the ratio is what a user gains).
Peak memory is that of a process of its own for each loop, model and libraries included.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from observer_core.decision.laya.layout import Layout, Row
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.presets import HEAD_MAX_LEN, find_preset
from observer_core.decision.laya.trainer import (
    fresh_model,
    logits,
    make_examples,
    parameter_groups,
    switch_off_dropout,
)
from observer_core.decision.training.batches import plan_batches
from observer_core.decision.training.examples import RowExamples
from observer_core.decision.training.loop import LoopOptions, fit, reproducible
from observer_core.decision.training.lora import LoraOptions, add_lora
from observer_core.decision.training.options import TrainOptions
from observer_core.questions import default_questions
from observer_core.slices import build_state
from observer_core.traces.trace import ToolCall, Trace

PRESET = "laya-mini"
OPTIONS = TrainOptions("laya")


def made_up_traces(n: int, rng: np.random.Generator) -> list[Trace]:
    """Traces of the lengths that question-answering agents have: up to four calls, up to three paragraphs."""
    words = ["lake", "tower", "river", "engineer", "county", "bridge", "opened", "north", "film", "album", "born"]

    def text(length: int) -> str:
        return " ".join(rng.choice(words, length))

    return [
        Trace(
            question=text(int(rng.integers(8, 25))) + "?",
            tool_calls=[ToolCall("search", {"query": text(6)}) for _ in range(rng.integers(0, 5))],
            evidence=[text(int(rng.integers(20, 60))) for _ in range(rng.integers(0, 4))],
            final_answer=text(int(rng.integers(1, 6))),
            label=("wrong", "partial", "correct")[i % 3],
        )
        for i, _ in enumerate(range(n))
    ]


def fresh(*, tuned: bool) -> DecisionModel:
    with reproducible(0):
        model, _ = fresh_model(find_preset(PRESET), max_len=OPTIONS.max_tokens)
        if tuned:
            switch_off_dropout(model)
        model.encoder = add_lora(model.encoder, LoraOptions(OPTIONS.lora_rank))
    return model


def ours(model: DecisionModel, examples: RowExamples[Row], loop: LoopOptions) -> float:
    """Tokens per second of our loop; evaluations, here of the two shortest rows, cost next to nothing."""
    shortest = sorted(range(len(examples.lengths)), key=examples.lengths.__getitem__)[:2]
    fitted = fit(
        model,
        parameter_groups(model, OPTIONS.learning_rate, OPTIONS.head_learning_rate, 0.01),
        examples,
        examples.subset(shortest),
        logits=logits,
        options=loop,
    )
    return fitted.tokens_per_second


def plain(model: DecisionModel, examples: RowExamples[Row], batches: Sequence[Sequence[int]]) -> float:
    """Tokens per second (padding not counted) of the loop one writes first."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=OPTIONS.learning_rate)
    model.train()
    started = time.perf_counter()
    for rows in batches:
        optimizer.zero_grad()
        batch = examples.batch(rows)
        each = -(batch["target"] * torch.log_softmax(logits(model, batch), dim=-1)).sum(-1)
        ((batch["weight"] * each).sum() / batch["weight"].sum()).backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
    seconds = time.perf_counter() - started
    return sum(examples.lengths[row] for rows in batches for row in rows) / seconds


def random_batches(lengths: Sequence[int], count: int, rng: np.random.Generator) -> list[list[int]]:
    """As many batches in random order as ours, of the same mean number of rows."""
    order = rng.permutation(len(lengths))
    return [part.tolist() for part in np.array_split(order, count)]


def loops(steps: int) -> tuple[int, int, dict[str, tuple[bool, Callable[[DecisionModel], float]]]]:
    """Batches, tokens, and each loop with whether its model is tuned; the same data in every process."""
    rng = np.random.default_rng(0)
    traces = made_up_traces(400, rng)
    layout = Layout(
        find_preset(PRESET).folder, max_len=OPTIONS.max_tokens, head_max_len=HEAD_MAX_LEN, cut="before_final_answer"
    )
    states = [build_state(trace).text for trace in traces]
    everything = make_examples(layout, states, traces, [1.0] * len(traces), default_questions())
    all_batches = plan_batches(everything.lengths, OPTIONS.tokens_per_batch, rng)[:steps]
    examples = everything.subset([row for rows in all_batches for row in rows])
    loop = replace(LoopOptions(1.0, OPTIONS.tokens_per_batch), evaluations=1)
    batches = plan_batches(examples.lengths, OPTIONS.tokens_per_batch, np.random.default_rng(loop.seed))
    shuffled = random_batches(examples.lengths, len(batches), rng)
    found = {
        "ours": (True, lambda model: ours(model, examples, loop)),
        "plain, same model and batches": (True, lambda model: plain(model, examples, batches)),
        "plain, as loaded, random batches": (False, lambda model: plain(model, examples, shuffled)),
    }
    return len(batches), sum(examples.lengths), found


def own_peak() -> float:
    """The peak in MB of this process (Linux); what `getrusage` says would count the process that started it too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def peak_megabytes(name: str, steps: int) -> float:
    """Peak resident memory of a process that runs one loop."""
    command = [sys.executable, __file__, "--steps", str(steps), "--memory-of", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps of each measurement")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each loop, taken in turn; the best counts"
    )
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    batches, tokens, measured = loops(asked.steps)
    if asked.memory_of:
        tuned, measure = measured[asked.memory_of]
        measure(fresh(tuned=tuned))
        print(own_peak())
        return
    wall, cpu = dict.fromkeys(measured, 0.0), dict.fromkeys(measured, 0.0)
    for _ in range(asked.rounds):
        for name, (tuned, measure) in measured.items():
            model = fresh(tuned=tuned)
            started = time.process_time()
            wall[name] = max(wall[name], measure(model))
            cpu[name] = max(cpu[name], tokens / (time.process_time() - started))
    print(f"{batches} steps, {tokens} tokens, {torch.get_num_threads()} threads; best of {asked.rounds} rounds")
    for name in measured:
        by_wall, by_cpu = wall["ours"] / wall[name], cpu["ours"] / cpu[name]
        print(
            f"{name:34} {wall[name]:6.0f} tokens/s, ours {by_wall:.2f} times as fast; {cpu[name]:6.0f} tokens per "
            f"core-second, {by_cpu:.2f} times; peak memory {peak_megabytes(name, asked.steps):,.0f} MB"
        )


if __name__ == "__main__":
    main()
