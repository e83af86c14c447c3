"""Seeds, deterministic kernels, and the state of every random number generator, for runs that repeat bit for bit."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seeds torch, numpy and python, and asks torch for deterministic kernels; afterwards all is as it was before."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    before = random_state()
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore  # a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        set_random_state(before)


def random_state() -> dict[str, Any]:
    """The generators of torch (CPU and each CUDA device), numpy and python, in types that `torch.load` reads safely."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (name, torch.from_numpy(np.array(keys, dtype=np.int64)), position, has_gauss, gauss),
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put every generator where `random_state` found it."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
