"""System One's confidence: how far a distribution is from knowing nothing, 0 to 1.

Servers define it differently, so it is always computed here from the probabilities, whatever a server says of it. The
formulas are those of the wire contract's official documentation.
"""

from collections.abc import Sequence

import numpy as np


def choice_confidence(probabilities: Sequence[float]) -> float:
    """(max p − 1/n) / (1 − 1/n) over a choice's options; 1 for a single option.

    The probabilities are normalised first; all zero counts as uniform.

    Raises:
        ValueError: no option, or a value that is negative or not finite.
    """
    p = _normalised(probabilities)
    if p.size == 1:
        return 1.0
    return float(np.clip((p.max() - 1 / p.size) / (1 - 1 / p.size), 0.0, 1.0))


def score_confidence(probabilities: Sequence[float]) -> float:
    """max(0, 1 − Σ p_i·|i − mode| / D) over a score's levels in order; 1 for a single level.

    D is the mean distance of a uniform distribution from its centre, Σ |i − (n−1)/2| / n. Normalisation and errors as
    in `choice_confidence`.
    """
    p = _normalised(probabilities)
    if p.size == 1:
        return 1.0
    level = np.arange(p.size)
    spread = float((p * np.abs(level - p.argmax())).sum())
    widest = float(np.abs(level - (p.size - 1) / 2).mean())
    return max(0.0, 1.0 - spread / widest)


def _normalised(probabilities: Sequence[float]) -> np.ndarray:
    p = np.asarray(probabilities, dtype=np.float64)
    if p.size == 0 or not np.isfinite(p).all() or (p < 0).any():
        raise ValueError(f"not a distribution: {list(probabilities)}")
    total = p.sum()
    return p / total if total > 0 else np.full(p.size, 1 / p.size)
