"""ONNX export of decision models, with a comparison against torch before anything is served from it.

Export goes through `torch.export` (`dynamo=True`) with named dynamic dimensions: the older tracer bakes the length of
its example into the graph. Exporting needs torch, onnx and onnxscript; running a graph needs ONNX Runtime alone.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

GRAPH = "model.onnx"
INT8_GRAPH = "model.int8.onnx"
TOLERANCE = 1e-4
"""Largest difference of a probability between torch and the exported graph."""
INT8_TOLERANCE = 0.02

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Exported:
    """What the manifest says of a run's graphs (`onnx`).

    Args:
        served: file name of the graph to serve, `None` when torch serves.
        max_difference: of probabilities, torch against the float32 graph.
        int8_max_difference: torch against the quantised graph, when one was made.
        note: why torch serves, when it does.
    """

    served: str | None
    max_difference: float | None = None
    int8_max_difference: float | None = None
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def export_graph(
    model: Any, example: Inputs, dynamic: Mapping[str, Sequence[str]], file: Path, *, output: str = "logits"
) -> None:
    """Write the graph of a torch module.

    Args:
        model: a module in evaluation mode, called with the inputs by name.
        example: inputs whose dynamic dimensions are all at least 2 and pairwise different.
        dynamic: for each input the names of its dimensions; equal names are equal sizes.
        file: where the graph goes; weights are inside it.
        output: name of the only output.
    """
    import torch

    dims = {name: torch.export.Dim(name) for names in dynamic.values() for name in names}
    tensors = {name: torch.from_numpy(array) for name, array in example.items()}
    shapes = {name: {i: dims[dim] for i, dim in enumerate(names)} for name, names in dynamic.items()}
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
            output_names=[output],
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def quantise(file: Path, target: Path) -> None:
    """Write the graph again with int8 weights and dynamically quantised activations."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(file), str(target), weight_type=QuantType.QInt8)
