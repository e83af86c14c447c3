"""Batches of rows of like length, so that little is spent on padding."""

from collections.abc import Sequence

import numpy as np

LENGTH_JITTER = 0.1
"""Lengths are multiplied by 1 ± this before sorting, so that an epoch does not repeat the last one's batches."""


def plan_batches(lengths: Sequence[int], tokens_per_batch: int, rng: np.random.Generator) -> list[list[int]]:
    """Divide all rows into batches of at most `tokens_per_batch` padded tokens, in random order.

    Rows are sorted by jittered length and cut greedily. A row longer than the budget is a batch of its own; none is
    dropped.

    Returns:
        Lists of row numbers; every row is in exactly one.
    """
    sizes = np.asarray(lengths, dtype=np.float64)
    order = np.argsort(sizes * rng.uniform(1 - LENGTH_JITTER, 1 + LENGTH_JITTER, len(sizes)), kind="stable")
    batches: list[list[int]] = []
    longest = 0
    for row in map(int, order):
        longest = max(longest, lengths[row])
        if not batches or longest * (len(batches[-1]) + 1) > tokens_per_batch:
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return [batches[i] for i in rng.permutation(len(batches))]
