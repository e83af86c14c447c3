"""From a run directory to a decision model or a scorer."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from observer_core.decision.baseline import BaselineModel
from observer_core.decision.cut import Cut
from observer_core.decision.onnx import INT8_GRAPH, INT8_TOLERANCE, TOLERANCE
from observer_core.decision.protocol import DecisionModel
from observer_core.decision.scorer import RawScorer, RunScorer, baseline_scorer, state_scorer
from observer_core.decision.stacked import StackedLayer, stacked_scorer
from observer_core.errors import InputError
from observer_core.rundir import CHECKPOINT, MANIFEST, ONNX, STACKED_BASE, Manifest, RunDirectory, open_run
from observer_core.traces.trace import Trace

Backend = Literal["auto", "onnx", "torch"]


def load_scorer(run: RunDirectory, *, backend: Backend = "auto", verified: bool = False) -> RunScorer:
    """Load a run's model, after checking the sha256 of every file its manifest lists.

    Args:
        backend: `auto` serves the exported graph when the run has one, else torch. With a graph torch is not imported.
        verified: the caller has checked the files.

    Raises:
        InputError: a file is missing, renamed, cut off or altered, holds a number that is not finite, or the family or
            back end is not available; names the file.
    """
    if not verified:
        run.verify()
    return RunScorer(run.manifest, run.version, raw_scorer(run.path, run.manifest, backend=backend))


def open_model(run: RunDirectory, *, backend: Backend = "auto") -> DecisionModel:
    """A run's decision model, to be asked any questions; it reads states as the run's scorer does.

    Args:
        backend: see `load_scorer`.

    Raises:
        InputError: as `load_scorer`, and for a family that answers no questions.
    """
    family = run.manifest.family
    if family not in _MODELS:
        raise InputError(f"{run.path} is a {family} run, which answers no questions; name one of {', '.join(_MODELS)}")
    run.verify()
    return _MODELS[family](run.path, run.manifest, backend)


def raw_scorer(folder: Path, manifest: Manifest, *, backend: Backend = "auto") -> RawScorer:
    """The uncalibrated scorer of a run's folder, sealed or not (see `load_scorer`)."""
    if manifest.family not in _FAMILIES:
        raise InputError(
            f"{folder}: this version cannot load family {manifest.family}; it loads {', '.join(_FAMILIES)}"
        )
    return _FAMILIES[manifest.family](folder, manifest, backend)


def replay_golden(scorer: RunScorer, run: RunDirectory, *, proven: bool = False) -> None:
    """Score the run's golden traces again and compare with the scores it was saved with.

    They are asked what decides, which is what was saved; the first one is scored in full, as a trace is that comes in.

    Args:
        proven: all of them have passed on this machine, with this run and these libraries: only the shortest one is
            scored, which tells that the model still computes what it did.

    Raises:
        InputError: one differs by more than 1e-4 (0.02 when an int8 graph made them): these are not the weights, the
            state or the arithmetic that were evaluated.
    """
    allowed = INT8_TOLERANCE if run.manifest.onnx.get("served") == INT8_GRAPH else TOLERANCE
    chosen = run.manifest.golden
    if proven:
        chosen = sorted(chosen, key=lambda golden: len(str(golden.trace)))[:1]
    traces = [Trace.from_json(golden.trace) for golden in chosen]
    scores = [*scorer.score(traces[:1]), *(scorer.raw(traces[1:], only_deciding=True) if traces[1:] else ())]
    for trace, golden, score in zip(traces, chosen, scores, strict=True):
        difference = abs(score.p_wrong_raw - golden.p_wrong_raw)
        if not difference <= allowed:
            raise InputError(
                f"run {run.path}: golden trace {trace.trace_id} scores {score.p_wrong_raw:.6f}, saved as "
                f"{golden.p_wrong_raw:.6f}; it is not the model that was evaluated, copy the run again or train anew"
            )


def _load_baseline(folder: Path, _manifest: Manifest, _backend: Backend) -> RawScorer:
    return baseline_scorer(BaselineModel.load(folder / CHECKPOINT))


def _open_laya(folder: Path, manifest: Manifest, backend: Backend) -> DecisionModel:
    from observer_core.decision.laya.runtime import LayaModel

    graph = served_graph(folder, manifest, backend)
    _require_torch(folder, graph)
    max_tokens, cut = _window(folder, manifest)
    return LayaModel.open(folder / CHECKPOINT, onnx=graph, max_tokens=max_tokens, cut=cut)


def _open_kev(folder: Path, manifest: Manifest, backend: Backend) -> DecisionModel:
    from observer_core.decision.kev.runtime import KevModel

    graph = served_graph(folder, manifest, backend)
    _require_torch(folder, graph)
    max_tokens, cut = _window(folder, manifest)
    return KevModel.open(folder / CHECKPOINT, onnx=graph, max_tokens=max_tokens, cut=cut)


_MODELS: dict[str, Callable[[Path, Manifest, Backend], DecisionModel]] = {"laya": _open_laya, "kev": _open_kev}


def _load_questioned(folder: Path, manifest: Manifest, backend: Backend) -> RawScorer:
    model = _MODELS[manifest.family](folder, manifest, backend)
    return state_scorer(model, manifest, tokenizer=RunDirectory(folder, manifest).tokenizer)


def _load_stacked(folder: Path, manifest: Manifest, backend: Backend) -> RawScorer:
    checkpoint = folder / CHECKPOINT
    base = open_run(checkpoint / STACKED_BASE)
    asked = base.manifest.model_copy(update={"questions": manifest.questions})
    return stacked_scorer(StackedLayer.load(checkpoint), raw_scorer(base.path, asked, backend=backend))


_FAMILIES: dict[str, Callable[[Path, Manifest, Backend], RawScorer]] = {
    "baseline": _load_baseline,
    "laya": _load_questioned,
    "kev": _load_questioned,
    "stacked": _load_stacked,
}


def _window(folder: Path, manifest: Manifest) -> tuple[int | None, Cut]:
    """How many tokens the model reads of a state, and where a longer one is cut.

    Raises:
        InputError: the manifest's `slice` says something else there.
    """
    max_tokens, cut = manifest.slice_spec.get("max_tokens"), manifest.slice_spec.get("cut", "end")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise InputError(f"{folder / MANIFEST}: field 'slice.max_tokens' is {max_tokens!r}, no number of tokens")
    if cut not in get_args(Cut):
        raise InputError(f"{folder / MANIFEST}: field 'slice.cut' is {cut!r}, none of {', '.join(get_args(Cut))}")
    return max_tokens, cut


def _require_torch(folder: Path, graph: Path | None) -> None:
    if graph is None and importlib.util.find_spec("torch") is None:
        raise InputError(f"{folder} has no ONNX graph and torch is not installed; install observer-pipeline[train]")


def served_graph(folder: Path, manifest: Manifest, backend: Backend) -> Path | None:
    """The graph to serve, `None` for torch.

    Raises:
        InputError: `onnx` was asked for and the run has no graph, or its name is none.
    """
    name = manifest.onnx.get("served")
    if name is not None and (not isinstance(name, str) or Path(name).name != name):
        raise InputError(f"{folder / MANIFEST}: field 'onnx.served' is {name!r}, no file name; copy the run again")
    if backend == "torch" or (backend == "auto" and name is None):
        return None
    if name is None:
        why = manifest.onnx.get("note") or "it was trained without one"
        raise InputError(f"{folder} has no ONNX graph ({why}); load it with torch or train anew")
    return folder / ONNX / name
