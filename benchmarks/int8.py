"""What int8 costs a trained run in ranking and gains it in speed: every quantisation of its graph against float32.

    uv run python benchmarks/int8.py --run RUN --data traces.jsonl [--traces 400] [--rounds 2]

The run's graph is exported anew in float32 and quantised in each way this version knows; the one marked is what an
export would serve (the first within 0.02 of torch on the golden states). Each scores the same traces in turn, as the
service does; printed are the best round by wall and by processor time, the AUROC and how far it is from float32's, and
the largest difference of a probability.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from observer_core.decision.golden import golden_traces
from observer_core.decision.int8 import QUANTISERS
from observer_core.decision.onnx import GRAPH, INT8_TOLERANCE
from observer_core.decision.protocol import DecisionModel, read
from observer_core.rundir import RunDirectory, open_run
from observer_core.slices import StateBuilder
from observer_core.traces.jsonl import read_jsonl

CHUNK = 64


def opener(run: RunDirectory) -> Callable[[Path | None], DecisionModel]:
    """Opens the run's model over a graph, or in torch."""
    spec = run.manifest.slice_spec
    limits = {"max_tokens": spec.get("max_tokens"), "cut": spec.get("cut", "end")}
    if run.manifest.family == "laya":
        from observer_core.decision.laya.runtime import LayaModel

        return lambda graph: LayaModel.open(run.checkpoint, onnx=graph, **limits)
    from observer_core.decision.kev.runtime import KevModel

    return lambda graph: KevModel.open(run.checkpoint, onnx=graph, **limits, kept_bytes=0)


def export(run: RunDirectory, states: list[str], folder: Path) -> Path:
    """The run's float32 graph."""
    questions = run.manifest.questions
    if run.manifest.family == "laya":
        from observer_core.decision.laya.checkpoint import load_checkpoint
        from observer_core.decision.laya.run import export_laya
        from observer_core.decision.laya.runtime import LayaModel

        model, config = load_checkpoint(run.checkpoint)
        layout = LayaModel.open(run.checkpoint, max_tokens=run.manifest.slice_spec.get("max_tokens")).layout
        made = export_laya(model, config, layout, states, questions, folder, int8=False)
    else:
        from observer_core.decision.kev.checkpoint import load_checkpoint as load_kev
        from observer_core.decision.kev.graph import export_kev
        from observer_core.decision.kev.runtime import KevModel

        loaded = load_kev(run.checkpoint)
        layout = KevModel.open(run.checkpoint).layout
        made = export_kev(loaded.network, loaded.config, layout, states, questions, folder, int8=False)
    assert made.served == GRAPH, made
    return folder / GRAPH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="labeled traces as JSONL")
    parser.add_argument("--traces", type=int, default=400, help="the last so many of the file")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    run = open_run(asked.run)
    decides = run.manifest.decision_question
    question = {decides: run.manifest.questions[decides]}
    builder = StateBuilder(run.manifest.slice_spec, run.tokenizer)
    traces = read_jsonl(asked.data, skip_invalid=True)[-asked.traces :]
    states = [builder.build(trace).text for trace in traces]
    golden = [builder.build(trace).text for trace in golden_traces()]
    wrong = np.array([trace.is_wrong for trace in traces])
    opened = opener(run)

    def answers(model: DecisionModel, texts: list[str]) -> np.ndarray:
        parts = [read(model, texts[start : start + CHUNK], question) for start in range(0, len(texts), CHUNK)]
        return np.array([reading.answers[decides].noul for part in parts for reading in part])

    def everything(model: DecisionModel) -> np.ndarray:
        given = read(model, golden, run.manifest.questions)
        return np.array([p for of in given for each in of.answers.values() for p in each.probabilities.values()])

    with tempfile.TemporaryDirectory() as scratch:
        graphs = {"float32": export(run, golden, Path(scratch))}
        for name, quantise in QUANTISERS.items():
            graphs[name] = Path(scratch, f"{name}.onnx")
            quantise(graphs["float32"], graphs[name])
        models = {name: opened(graph) for name, graph in graphs.items()}
        exact = everything(opened(None))
    off = {name: float(np.abs(everything(model) - exact).max()) for name, model in models.items()}
    served = next((name for name in QUANTISERS if off[name] <= INT8_TOLERANCE), None)
    p: dict[str, np.ndarray] = {}
    wall, core = dict.fromkeys(models, float("inf")), dict.fromkeys(models, float("inf"))
    for _ in range(asked.rounds):
        for name, model in models.items():
            began, used = time.perf_counter(), time.process_time()
            p[name] = answers(model, states)
            wall[name] = min(wall[name], time.perf_counter() - began)
            core[name] = min(core[name], time.process_time() - used)
    print(f"{asked.run}: {len(states)} traces, {wrong.mean():.0%} wrong; best of {asked.rounds} rounds")
    base = roc_auc_score(wrong, p["float32"])
    for name in models:
        auroc = roc_auc_score(wrong, p[name])
        ratios = [took["float32"] / took[name] for took in (wall, core)]
        print(
            f"{name:12} {'served' if name == served else '':7}{len(states) / wall[name]:7.1f} traces/s "
            f"({ratios[0]:.2f} times), {1000 * core[name] / len(states):6.1f} core-ms each ({ratios[1]:.2f} times); "
            f"AUROC {auroc:.4f} ({auroc - base:+.4f}); probabilities differ by "
            f"{np.abs(p[name] - p['float32']).max():.3f} here, {off[name]:.4f} on the golden states"
        )


if __name__ == "__main__":
    main()
