"""Predictions of made-up scorers."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from observer_core.metrics.predictions import PREDICTION_SCHEMA


def _table(questions: int, *, seed: int = 0, rows: int = 3, split: str = "test", **skill: float) -> pa.Table:
    """Calibrated scorers of a given skill on the same traces; labels and scores depend on the question."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(questions), rows)
    truth = rng.normal(0, 1.2, questions)[group] + rng.normal(0, 1, len(group))
    wrong = rng.random(len(group)) < 1 / (1 + np.exp(-truth))
    parts = []
    for name, s in skill.items():
        seen = s * truth + (1 - s) * rng.normal(0, 1.2, questions)[group]
        parts += [
            {
                "scorer": name, "trace_id": f"t{i}", "group": f"g{g}", "split": split,
                "label": "wrong" if w else "correct", "weight": 1.0, "p_wrong_raw": p, "p_wrong": p,
            }
            for i, (g, w, p) in enumerate(zip(group, wrong, 1 / (1 + np.exp(-seen)), strict=True))
        ]  # fmt: skip
    return pa.Table.from_pylist(parts, schema=PREDICTION_SCHEMA)


@pytest.fixture
def table() -> Callable[..., pa.Table]:
    """`table(questions, seed=…, rows=…, split=…, NAME=SKILL, …)`: predictions of scorers of a given skill."""
    return _table
