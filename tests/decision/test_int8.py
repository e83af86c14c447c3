"""Quantised products: what shares a scale, and that no processor's arithmetic can overflow."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from observer_core.decision.int8 import by_block, by_row

WIDTH, COLUMNS = 128, 96


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """y = x·A and z = x·A·B with A from the first word, B narrower than is worth quantising."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(WIDTH, COLUMNS)).astype(np.float32), "A")]
    weights.append(numpy_helper.from_array(rng.normal(size=(COLUMNS, 2)).astype(np.float32), "B"))
    nodes = [helper.make_node("MatMul", ["x", "A"], ["y"]), helper.make_node("MatMul", ["y", "B"], ["z"])]
    shapes = [("x", [1, None, WIDTH]), ("y", [1, None, COLUMNS]), ("z", [1, None, 2])]
    given, *made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes)
    body = helper.make_graph(nodes, "g", [given], made, weights)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "g.onnx")
    return tmp_path / "g.onnx"


def computed(file: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]  # pyright: ignore


@pytest.mark.parametrize("quantise", [by_row, partial(by_block, size=32)])
def test_a_large_token_does_not_blur_the_others(graph: Path, quantise: Callable[[Path, Path], None]) -> None:
    x = np.random.default_rng(1).normal(size=(1, 20, WIDTH)).astype(np.float32)
    x[0, 3] *= 1000
    x[0, 7] = 0
    exact = computed(graph, x)
    quantise(graph, graph.with_name("q.onnx"))
    got = computed(graph.with_name("q.onnx"), x)
    assert not np.array_equal(got, exact)
    error = np.abs(got - exact).max(-1)[0]
    assert (error <= 0.03 * np.abs(exact).max(-1)[0]).all()
    assert error[7] == 0
    assert error[0] < 1 < error[3]


def test_two_products_fit_sixteen_bits(graph: Path) -> None:
    by_row(graph, graph.with_name("q.onnx"))
    made = onnx.load(graph.with_name("q.onnx")).graph
    weights = {each.name: numpy_helper.to_array(each) for each in made.initializer}
    (integers,) = (each.astype(int) for each in weights.values() if each.dtype == np.int8 and each.ndim == 2)
    assert 2 * 255 * np.abs(integers).max() < 2**15
    assert set(weights) & {"A", "B"} == {"B"}
