"""What each tool call brought, told once: agents report the same text as a call's result and again as evidence."""

from collections.abc import Sequence

from observer_core.slices.relevance import words

RUN = 5
"""Words in a row that two texts must share to be about the same thing; shorter texts must be equal in all words."""
LOOKED_AT = 24
"""Words at the beginning of a piece of evidence in which such a run is looked for: a result may be cut later on."""
COVERED = 0.6
"""Share of a result's different words that its evidence must have to stand for it; the rest is JSON around it."""


def tell_results(
    results: Sequence[str], failed: Sequence[bool], evidence: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Match evidence with the calls that brought it.

    Args:
        results: the result of each call, as one line, `""` when there was none.
        failed: whether each call failed: then its result is an error text, which is told as it is.
        evidence: all evidence, each as one line.

    Returns:
        What to tell of each call: its evidence where that covers the result, else the result; `as N` for what call
        number N (from 1) had already. And the evidence that no call brought, each text once.
    """
    calls_with: dict[tuple[str, ...], list[int]] = {}
    known = [words(text) for text in results]
    for call, tokens in enumerate(known):
        for run in () if failed[call] else _runs(tokens):
            calls = calls_with.setdefault(run, [])
            if call not in calls[-1:]:
                calls.append(call)
    brought: list[list[str]] = [[] for _ in results]
    again: list[set[int]] = [set() for _ in results]
    covered: list[set[str]] = [set() for _ in results]
    rest: list[str] = []
    for item in dict.fromkeys(filter(None, evidence)):
        tokens = words(item)
        calls = sorted({call for run in _runs(tokens[:LOOKED_AT]) for call in calls_with.get(run, ())})
        for call in calls:
            covered[call].update(tokens)
            if call == calls[0]:
                brought[call].append(item)
            else:
                again[call].add(calls[0])
        if not calls:
            rest.append(item)
    told: list[str] = []
    first: dict[str, int] = {}
    for call, text in enumerate(results):
        different = set(known[call])
        if (brought[call] or again[call]) and len(different & covered[call]) >= COVERED * len(different):
            text = " ".join([*brought[call], *(f"as {other + 1}" for other in sorted(again[call]))])
        elif text in first:
            text = f"as {first[text]}"
        elif text:
            rest += brought[call]
            first[text] = call + 1
        told.append(text)
    return told, rest


def _runs(tokens: list[str]) -> list[tuple[str, ...]]:
    if len(tokens) < RUN:
        return [tuple(tokens)] if tokens else []
    return [tuple(tokens[i : i + RUN]) for i in range(len(tokens) - RUN + 1)]
