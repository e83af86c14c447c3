"""Which completions were compared with each other. TRL logs no group: it follows from prompt and order."""

import numpy as np


def group_ids(
    step: np.ndarray, prompt: np.ndarray, given: np.ndarray | None = None, size: int | None = None
) -> np.ndarray:
    """A group number per row, from 0 in order of first appearance.

    A group is a run of rows with one step and one prompt. A step's file can hold several generations of one prompt in
    a row (gradient accumulation): a run that is a multiple of the usual run length is cut into groups of that length.
    Where most runs are single rows the log is not in generation order, and rows of one step and prompt are gathered
    instead.

    Args:
        step, prompt: int64, prompts as digests.
        given: a logged group id (digest); rows of one step and id are a group, nothing is inferred.
        size: completions per group, where it is known.
    """
    rows = len(step)
    if rows == 0:
        return np.zeros(0, np.int64)
    key = prompt if given is None else given
    new = np.ones(rows, bool)
    new[1:] = (step[1:] != step[:-1]) | (key[1:] != key[:-1])
    starts = np.flatnonzero(new)
    lengths = np.diff(np.append(starts, rows))
    if given is not None or (size is None and np.median(lengths) == 1 and _repeats(step, key)):
        run = _gathered(step, key)
        if given is not None:
            return run
        order = np.argsort(run, kind="stable")
        counts = np.bincount(run)
        position = np.empty(rows, np.int64)
        position[order] = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        lengths = counts
    else:
        run = np.cumsum(new) - 1
        position = np.arange(rows) - starts[run]
    usual = size or int(np.bincount(lengths).argmax())
    cut = (lengths % usual == 0) & (lengths > usual) if size is None else lengths > usual
    part = np.where(cut[run], position // usual, 0)
    return _gathered(run, part)


def _repeats(step: np.ndarray, key: np.ndarray) -> bool:
    return len(np.unique(np.stack([step, key]), axis=1)[0]) < len(step)


def _gathered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Number the pairs (a, b) in order of first appearance."""
    pairs = np.empty(len(a), dtype=[("a", np.int64), ("b", np.int64)])
    pairs["a"], pairs["b"] = a, b
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
