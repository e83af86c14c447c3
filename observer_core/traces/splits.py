"""Which split a trace belongs to: decided by its user question, so that no question is in two splits."""

import hashlib
import unicodedata

from observer_core.traces.trace import Split, Trace

_UPPER_BOUNDS: tuple[tuple[int, Split], ...] = (
    (60, "train"),
    (70, "validation"),
    (80, "calibration"),
    (100, "test"),
)


def normalise_question(question: str) -> str:
    """The question as a grouping key: NFKC, case folded, runs of white space as one blank."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())


def split_of_question(question: str) -> Split:
    """The split of a user question: sha256 of its normalised text mod 100, the same for ever."""
    digest = hashlib.sha256(normalise_question(question).encode()).digest()
    bucket = int.from_bytes(digest, "big") % 100
    return next(split for bound, split in _UPPER_BOUNDS if bucket < bound)


def split_of(trace: Trace) -> Split:
    """The trace's own `split` if it has one, else that of its user question."""
    return trace.split or split_of_question(trace.question)
