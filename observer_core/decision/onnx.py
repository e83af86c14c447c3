"""ONNX export of decision models, with a comparison against torch before anything is served from it.

Export goes through `torch.export` (`dynamo=True`) with named dynamic dimensions: the older tracer bakes the length of
its example into the graph. Exporting needs torch, onnx and onnxscript; running a graph needs ONNX Runtime alone.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.int8 import QUANTISERS
from observer_core.errors import one_line

GRAPH = "model.onnx"
INT8_GRAPH = "model.int8.onnx"
WEIGHTS = "model.onnx.data"
"""Of `GRAPH`: ONNX Runtime maps this file, where it would copy weights that are inside the graph."""
TOLERANCE = 1e-4
"""Largest difference of a probability between torch and the exported graph."""
INT8_TOLERANCE = 0.02
_OPSET = 23
"""The first that has an operator for attention, which ONNX Runtime computes in one go."""

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Exported:
    """What the manifest says of a run's graphs (`onnx`).

    Args:
        served: file name of the graph to serve, `None` when torch serves.
        max_difference: of probabilities, torch against the float32 graph.
        int8_max_difference: torch against the quantised graph, when one was made.
        int8_scales: which numbers share a scale in it (`observer_core.decision.int8`).
        note: why torch serves, or float32 where int8 was asked for.
    """

    served: str | None
    max_difference: float | None = None
    int8_max_difference: float | None = None
    int8_scales: str | None = None
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def export_graph(
    model: Any,
    example: Inputs,
    dynamic: Mapping[str, Sequence[str]],
    file: Path,
    *,
    outputs: Sequence[str] = ("logits",),
) -> None:
    """Write the graph of a torch module.

    Args:
        model: a module in evaluation mode, called with the inputs by name.
        example: inputs whose dynamic dimensions are all at least 2 and pairwise different.
        dynamic: for each input the names of its dimensions; equal names are equal sizes, an empty name is a size that
            never changes.
        file: where the graph goes; its weights go beside it, into a file of the same name with `.data` added.
        outputs: names of what the model returns.
    """
    import torch

    dims = {name: torch.export.Dim(name) for names in dynamic.values() for name in names if name}
    tensors = {name: torch.from_numpy(array) for name, array in example.items()}
    shapes = {name: {i: dims[dim] for i, dim in enumerate(names) if dim} for name, names in dynamic.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            model,
            (),
            str(file),
            kwargs=tensors,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_shapes=shapes,
            dynamo=True,
            opset_version=_OPSET,
            external_data=True,
            verbose=False,
        )


def export_checked(
    export: Callable[[Path], None],
    answers: Callable[[Path], NDArray[Any]],
    reference: NDArray[Any],
    folder: Path,
    *,
    int8: bool,
) -> Exported:
    """Export a graph into `folder` and serve from it only if it answers as torch does.

    Args:
        export: writes the graph (see `export_graph`).
        answers: probabilities that a graph gives for some states and questions.
        reference: those that torch gives for them.
        int8: also make a quantised graph, and serve that one if it is close enough (`INT8_TOLERANCE`).

    Returns:
        What the manifest records. Without an equal graph nothing is left in `folder` and the note says why.
    """
    graph, int8_graph = folder / GRAPH, folder / INT8_GRAPH
    try:
        export(graph)
        exact = float(np.abs(answers(graph) - reference).max())
    except Exception as error:  # exporter, compiler and ONNX Runtime raise many kinds; torch can serve this run as well
        _remove(folder)
        return Exported(served=None, note=f"export failed: {type(error).__name__}: {one_line(error)}")
    if not exact <= TOLERANCE:
        _remove(folder)
        return Exported(served=None, note=f"the graph's probabilities differ from torch's by {exact:.2g}")
    if not int8:
        return Exported(served=GRAPH, max_difference=exact)
    rough = float("inf")
    for scales, quantise in QUANTISERS.items():
        try:
            quantise(graph, int8_graph)
            rough = float(np.abs(answers(int8_graph) - reference).max())
        except Exception as error:  # ONNX and its runtime raise many kinds; the float32 graph can serve this run
            int8_graph.unlink(missing_ok=True)
            note = f"int8 failed: {type(error).__name__}: {one_line(error)}; fp32 is served"
            return Exported(served=GRAPH, max_difference=exact, note=note)
        if rough <= INT8_TOLERANCE:
            return Exported(served=INT8_GRAPH, max_difference=exact, int8_max_difference=rough, int8_scales=scales)
    int8_graph.unlink()
    note = f"the int8 graph's probabilities differ by {rough:.2g}, more than {INT8_TOLERANCE}; fp32 is served"
    return Exported(served=GRAPH, max_difference=exact, note=note)


def _remove(folder: Path) -> None:
    """The float32 graph and its weights, whichever of them were written."""
    for name in (GRAPH, WEIGHTS):
        (folder / name).unlink(missing_ok=True)
