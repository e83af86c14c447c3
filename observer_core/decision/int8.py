"""Writes a graph again with its products by constant matrices in int8, weights and activations alike.

How many numbers share a scale decides both speed and exactness. One scale for a whole activation, as ONNX Runtime's
dynamic quantisation has it, will not do: the separators of an encoder carry values ten times larger than all other
tokens, which moved probabilities by up to 0.12. Here every token has one (`by_row`), or, where that is too coarse,
every few numbers of a token (`by_block`), whose products are two to three times slower.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 63
"""Of a quantised weight, one bit less than int8 holds. Processors without VNNI add two products of a weight and an
activation (at most 255) in 16 bits, and 2 · 255 · 64 is the most that fits: the same numbers come out everywhere."""
_LEAST_COLUMNS = 8
"""Of a matrix that is worth the trouble."""
_TINY = 1e-30
_BLOCK_ARITHMETIC = 4
"""ONNX Runtime's name for arithmetic in int8 (1 is float32)."""
_MICROSOFT = "com.microsoft"


def by_row(file: Path, target: Path) -> None:
    """One scale for each token's activations and one for each column of a matrix.

    ONNX Runtime's product takes one scale for a whole activation. So each row is divided by its largest number first,
    which makes one scale right for all, and what comes out is multiplied by it again.
    """
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(file)
    graph = model.graph
    matrices = {weights.name: numpy_helper.to_array(weights) for weights in graph.initializer if len(weights.dims) == 2}
    made: list[Any] = []
    constants = {"int8.last_axis": np.array([-1], np.int64), "int8.tiny": np.array(_TINY, np.float32)}
    scaled: set[str] = set()
    for node in graph.node:
        matrix = matrices.get(node.input[1]) if node.op_type == "MatMul" else None
        if matrix is None or matrix.shape[1] < _LEAST_COLUMNS:
            made.append(node)
            continue
        given, weights, (product,) = node.input[0], node.input[1], node.output
        largest, row, bare = f"{given}.largest", f"{given}.row", f"{product}.bare"
        if given not in scaled:
            scaled.add(given)
            made += [
                helper.make_node("Abs", [given], [f"{given}.abs"]),
                helper.make_node("ReduceMax", [f"{given}.abs", "int8.last_axis"], [f"{given}.most"]),
                helper.make_node("Max", [f"{given}.most", "int8.tiny"], [largest]),
                helper.make_node("Div", [given, largest], [row]),
            ]
        integers, scales = _columns(matrix)
        parts = {
            f"{weights}.int8": integers,
            f"{weights}.scale": scales,
            f"{weights}.zero": np.zeros(len(scales), np.int8),
        }
        constants |= parts
        made += [
            helper.make_node("DynamicQuantizeMatMul", [row, *parts], [bare], node.name, domain=_MICROSOFT),
            helper.make_node("Mul", [bare, largest], [product]),
        ]
    used = {name for node in made for name in node.input}
    kept = [weights for weights in graph.initializer if weights.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(made)
    graph.initializer.extend(kept)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
    onnx.save(model, target)


def _columns(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers of at most `_LARGEST`, and the scale of each column."""
    scales = np.maximum(np.abs(matrix).max(axis=0) / _LARGEST, _TINY).astype(np.float32)
    return np.rint(matrix / scales).astype(np.int8), scales


def by_block(file: Path, target: Path, *, size: int) -> None:
    """One scale for `size` numbers of a token's activations, and for as many of a matrix's column."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.ERROR)
    how = DefaultWeightOnlyQuantConfig(bits=8, block_size=size, is_symmetric=True, accuracy_level=_BLOCK_ARITHMETIC)
    quantizer = MatMulNBitsQuantizer(onnx.load(file), algo_config=how)
    quantizer.process()
    onnx.save(quantizer.model.model, target)  # pyright: ignore[reportAttributeAccessIssue]  # it wraps the graph it took


QUANTISERS: dict[str, Callable[[Path, Path], None]] = {
    "token": by_row,
    "128 numbers": partial(by_block, size=128),
    "64 numbers": partial(by_block, size=64),
    "32 numbers": partial(by_block, size=32),
}
"""By what shares a scale, from the fastest to the exactest."""
