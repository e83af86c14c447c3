"""Whether every number of a checkpoint is finite."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from observer_core.decision.baseline import WEIGHTS_FILE
from observer_core.decision.stacked import LAYER_FILE
from observer_core.rundir import RunDirectory


def tensors_not_finite(run: RunDirectory) -> tuple[list[str], int]:
    """The tensors of a run's checkpoint with NaN or infinity as `file:tensor`, and how many tensors were looked at.

    Reads `*.safetensors` (without torch; bfloat16 by its bits), Kev's `head.pt`, and the numbers in the JSON of a
    baseline or stacked run.
    """
    bad: list[str] = []
    seen = 0
    for file in sorted(run.checkpoint.rglob("*.safetensors")):
        for name, finite in _safetensors(file.read_bytes()):
            seen += 1
            if not finite:
                bad.append(f"{file.relative_to(run.checkpoint)}:{name}")
    for file in sorted(run.checkpoint.rglob("head.pt")):
        for name, finite in _head(file):
            seen += 1
            if not finite:
                bad.append(f"{file.relative_to(run.checkpoint)}:{name}")
    for file in (run.checkpoint / WEIGHTS_FILE, run.checkpoint / LAYER_FILE):
        if file.is_file():
            for name, value in json.loads(file.read_text(encoding="utf-8")).items():
                seen += 1
                if not _finite_json(value):
                    bad.append(f"{file.name}:{name}")
    return bad, seen


_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def _safetensors(data: bytes) -> list[tuple[str, bool]]:
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    out = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        raw = memoryview(data)[8 + size + start : 8 + size + end]
        if entry["dtype"] == "BF16":
            exponent = np.frombuffer(raw, np.uint16) & 0x7F80
            out.append((name, bool((exponent != 0x7F80).all())))
        elif entry["dtype"] in _DTYPES:
            out.append((name, bool(np.isfinite(np.frombuffer(raw, _DTYPES[entry["dtype"]])).all())))
        else:
            out.append((name, True))  # integers and booleans are always finite
    return out


def _head(file: Path) -> list[tuple[str, bool]]:
    import torch

    body = torch.load(file, map_location="cpu", weights_only=True)
    found: list[tuple[str, bool]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append((name, bool(torch.isfinite(value).all())))
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}".lstrip("."), inner)

    walk("", body)
    return found


def _finite_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_finite_json(v) for v in value.values())
    if isinstance(value, list):
        return all(_finite_json(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)
