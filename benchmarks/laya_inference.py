"""Laya inference: ours against the `laya` package on the same checkpoint and texts, in one run.

    uv run python benchmarks/laya_inference.py [--texts 500] [--rounds 2] [--threads 2] [--encoder laya-mini]

The checkpoint is the preset's encoder with a new head; the texts are made up, uniform in 64 to 512 tokens long.
Every contender reads the same rows in a process of its own, so that peak memory is its own too. The package runs as its
users run it, one text after another and in batches sorted by length; ours is compared with the better of the two. The
best of the rounds counts, by wall clock and by processor time.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from observer_core.decision.laya.config import TOKENIZER_DIR
from observer_core.decision.laya.layout import Layout
from observer_core.decision.laya.presets import find_preset
from observer_core.decision.laya.runtime import LayaModel
from observer_core.decision.onnx import GRAPH, INT8_GRAPH
from observer_core.decision.protocol import read
from observer_core.questions import DECISION_QUESTION, default_questions

QUESTION = {DECISION_QUESTION: default_questions()[DECISION_QUESTION]}
CHECKPOINT, ONNX, TEXTS = "checkpoint", "onnx", "texts.json"
WINDOW = 512
CHUNK = 64
Reader = Callable[[list[str]], list[float]]


def ours(folder: Path, graph: str | None) -> Reader:
    """P(true) by our runtime, in chunks as a scorer gets them."""
    model = LayaModel.open(folder / CHECKPOINT, onnx=None if graph is None else folder / ONNX / graph)

    def answer(texts: list[str]) -> list[float]:
        return [
            reading.answers[DECISION_QUESTION].noul
            for start in range(0, len(texts), CHUNK)
            for reading in read(model, texts[start : start + CHUNK], QUESTION)
        ]

    return answer


def package(folder: Path, *, batch: int | None) -> Reader:
    """P(true) by the `laya` package: one by one, or in batches sorted by length."""
    import laya

    agent = laya.load(str(folder / CHECKPOINT), device="cpu")
    questions = {name: question.model_dump(exclude_none=True) for name, question in QUESTION.items()}

    def answer(texts: list[str]) -> list[float]:
        if batch is None:
            results = [agent.predict(text, questions) for text in texts]
        else:
            results = agent.predict_batch(texts, questions, batch_size=batch, sort_by_length=True)
        return [result["answers"][DECISION_QUESTION]["noul"] for result in results]

    return answer


CONTENDERS: dict[str, Callable[[Path], Reader]] = {
    "laya, one by one": lambda folder: package(folder, batch=None),
    "laya, sorted batches of 8": lambda folder: package(folder, batch=8),
    "ours, torch": lambda folder: ours(folder, None),
    "ours, ONNX": lambda folder: ours(folder, GRAPH),
    "ours, ONNX int8": lambda folder: ours(folder, INT8_GRAPH),
}


def contend(name: str, folder: Path, threads: int) -> dict[str, Any]:
    """One measurement, in the process that was started for it."""
    if "torch" in name or name.startswith("laya"):
        import torch

        torch.set_num_threads(threads)
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    answer = CONTENDERS[name](folder)
    answer(texts[:8])
    wall, cpu = time.perf_counter(), time.process_time()
    values = answer(texts)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": wall, "cpu": cpu, "peak": peak, "values": values}


def make_texts(layout: Layout, n: int, rng: np.random.Generator) -> list[str]:
    """Texts of lengths uniform in 64 to 512 tokens."""
    words = [
        "lake",
        "tower",
        "river",
        "engineer",
        "county",
        "bridge",
        "opened",
        "north",
        "film",
        "album",
        "born",
        "1931",
    ]
    texts = []
    for length in rng.integers(64, 513, n):
        text = " ".join(rng.choice(words, length))
        texts.append(layout.tokenizer.decode(layout.tokenizer.encode(text, add_special_tokens=False).ids[:length]))
    return texts


def prepare(folder: Path, encoder: str, n: int) -> None:
    """Write the checkpoint, its graphs, and the texts."""
    from observer_core.decision.laya.checkpoint import copy_tokenizer, round_to_half, save_checkpoint
    from observer_core.decision.laya.run import export_laya
    from observer_core.decision.laya.trainer import fresh_model
    from observer_core.decision.training.determinism import reproducible

    preset = find_preset(encoder)
    with reproducible(0):
        model, config = fresh_model(preset, max_len=WINDOW)
    model.eval()
    round_to_half(model)
    copy_tokenizer(preset.tokenizer, folder / CHECKPOINT / TOKENIZER_DIR)
    config = config.model_copy(update={"max_len": WINDOW})
    save_checkpoint(model, config, folder / CHECKPOINT)
    layout = Layout(folder / CHECKPOINT / TOKENIZER_DIR, max_len=WINDOW, head_max_len=config.head_max_len)
    texts = make_texts(layout, n, np.random.default_rng(0))
    (folder / TEXTS).write_text(json.dumps(texts), encoding="utf-8")
    exported = export_laya(model, config, layout, texts[:6], QUESTION, folder / ONNX, int8=True)
    print(f"exported: {exported.to_json()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each contender, taken in turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--encoder", default="laya-mini", help="a preset or an encoder's folder")
    parser.add_argument("--contend", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--prepare", metavar="FOLDER", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.prepare:
        prepare(Path(asked.prepare), asked.encoder, asked.texts)
        return
    if asked.contend:
        name, folder = asked.contend
        print(json.dumps(contend(name, Path(folder), asked.threads)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        # In a process of its own: what this one takes would count as every child's peak.
        command = [
            sys.executable,
            __file__,
            "--encoder",
            asked.encoder,
            "--texts",
            str(asked.texts),
            "--prepare",
            scratch,
        ]
        print(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
        for _ in range(asked.rounds):
            for name in CONTENDERS:
                command = [sys.executable, __file__, "--threads", str(asked.threads), "--contend", name, scratch]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results[name].append(json.loads(done.stdout.splitlines()[-1]))
                took = results[name][-1]
                print(f"{name:26} {took['wall']:6.1f} s, {took['cpu']:6.1f} core-s", flush=True)
    report(results, asked.texts, asked.threads)


def report(results: dict[str, list[dict[str, Any]]], texts: int, threads: int) -> None:
    """Print speed, memory and the ratios."""
    wall, cpu, peak = (
        {name: min(r[key] for r in runs) for name, runs in results.items()} for key in ("wall", "cpu", "peak")
    )
    exact = np.array(results["ours, torch"][0]["values"])
    print(f"\n{texts} texts of 64 to 512 tokens, {threads} threads, best of {len(results['ours, torch'])} rounds")
    for name, runs in results.items():
        differs = float(np.abs(np.array(runs[0]["values"]) - exact).max())
        print(
            f"{name:26} {texts / wall[name]:7.1f} traces/s, {1000 * cpu[name] / texts:6.1f} core-ms each, "
            f"peak {peak[name]:5.0f} MB, probabilities differ by {differs:.1e}"
        )
    rivals = [name for name in results if name.startswith("laya")]
    for name, others in [*((n, rivals) for n in results if n not in rivals), ("ours, ONNX int8", ["ours, ONNX"])]:
        by_wall, by_cpu, by_peak = (min(each[o] for o in others) / each[name] for each in (wall, cpu, peak))
        print(
            f"ratio {name} to {' or '.join(others)}: {by_wall:.2f} times the traces/s, {by_cpu:.2f} by processor time, "
            f"{1 / by_peak:.2f} times the peak memory"
        )


if __name__ == "__main__":
    main()
