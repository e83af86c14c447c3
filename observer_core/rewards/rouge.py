"""ROUGE-L (Lin 2004), equal to the package `rouge-score` without stemming and many times faster.

The longest common subsequence is found bit-parallel (Crochemore et al. 2001; Hyyrö 2004): one addition on an integer
as wide as the reference per token of the prediction, instead of a table of reference × prediction cells.
"""

import re
from functools import lru_cache

_TOKEN = re.compile(r"[a-z0-9]+")


def tokenize(text: str) -> list[str]:
    """Lower-cased runs of ASCII letters and digits, as ROUGE-1.5.5 and `rouge-score` take them."""
    return _TOKEN.findall(text.lower())


@lru_cache(maxsize=4096)
def _reference_masks(reference: str) -> tuple[int, dict[str, int]]:
    """Length of the reference and, per token, the bits of the places where it stands (a group shares its reference)."""
    tokens = tokenize(reference)
    masks: dict[str, int] = {}
    bit = 1
    for token in tokens:
        masks[token] = masks.get(token, 0) | bit
        bit <<= 1
    return len(tokens), masks


def rouge_l(reference: str, prediction: str) -> float:
    """F-measure of ROUGE-L in [0, 1]; 0 when either side has no tokens."""
    length, masks = _reference_masks(reference)
    tokens = tokenize(prediction)
    if not length or not tokens:
        return 0.0
    full = (1 << length) - 1
    state = full
    find = masks.get
    for token in tokens:
        mask = find(token)
        if mask is not None:
            matched = state & mask
            state = ((state + matched) | (state - matched)) & full
    common = length - state.bit_count()
    if not common:
        return 0.0
    precision, recall = common / len(tokens), common / length
    return 2 * precision * recall / (precision + recall)
