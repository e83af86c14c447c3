"""The built-in rewards. Each takes a completion as read and the row's columns, and gives a number in [0, 1],
or None where it does not apply. Every one gives 0 to a completion that it cannot read.

| reward | value | needs |
|---|---|---|
| `format` | 1 when the completion is the object asked for, else 0 | – |
| `quality` | ROUGE-L F of the answer against `reference` | `reference` |
| `citation` | share of cited artefacts that the row has; with none cited 1 if it has none, else 0 | `citations` |
| `calibration` | 1 − (confidence − quality)² | `reference` |
| `parsimony` | 1 while no more is cited than `citations` has (at least one), else their ratio | – |
| `repetition` | share of the answer's word trigrams that are distinct (1: nothing repeats) | – |
"""

from collections.abc import Callable, Mapping
from typing import Any

from observer_core.rewards.completion import Completion
from observer_core.rewards.rouge import rouge_l, tokenize

RowReward = Callable[[Completion, Mapping[str, Any]], float | None]


def format_reward(completion: Completion, _row: Mapping[str, Any]) -> float | None:
    return 1.0 if completion.error is None else 0.0


def quality_reward(completion: Completion, row: Mapping[str, Any]) -> float | None:
    reference = row.get("reference")
    if reference is None:
        return None
    return 0.0 if completion.answer is None else rouge_l(reference, completion.answer)


def citation_reward(completion: Completion, row: Mapping[str, Any]) -> float | None:
    citations = row.get("citations")
    if citations is None:
        return None
    if completion.cited is None:
        return 0.0
    if not completion.cited:
        return 0.0 if citations else 1.0
    known = set(citations)
    return sum(item in known for item in completion.cited) / len(completion.cited)


def calibration_reward(completion: Completion, row: Mapping[str, Any]) -> float | None:
    quality = quality_reward(completion, row)
    if quality is None:
        return None
    return 0.0 if completion.confidence is None else 1.0 - (completion.confidence - quality) ** 2


def parsimony_reward(completion: Completion, row: Mapping[str, Any]) -> float | None:
    if completion.cited is None:
        return 0.0
    needed = max(1, len(row.get("citations") or ()))
    return 1.0 if len(completion.cited) <= needed else needed / len(completion.cited)


def repetition_reward(completion: Completion, _row: Mapping[str, Any]) -> float | None:
    if completion.answer is None:
        return 0.0
    words = tokenize(completion.answer)
    trigrams = len(words) - 2
    return 1.0 if trigrams < 2 else len(set(zip(words, words[1:], words[2:], strict=False))) / trigrams


BUILTIN: dict[str, RowReward] = {
    "format": format_reward,
    "quality": quality_reward,
    "citation": citation_reward,
    "calibration": calibration_reward,
    "parsimony": parsimony_reward,
    "repetition": repetition_reward,
}

ALIASES = {
    "rouge_l": "quality",
    "rougel": "quality",
    "rouge": "quality",
    "citations": "citation",
    "citation_grounding": "citation",
    "grounding": "citation",
    "citation_quality": "citation",
    "no_repetition": "repetition",
    "conciseness": "parsimony",
    "brevity": "parsimony",
}


def builtin_name(column: str) -> str | None:
    """The built-in that a reward column's name means (`quality_reward`, `reward_quality`, `ROUGE_L` → `quality`), or
    None.
    """
    name = column.lower().removeprefix("rewards/").removeprefix("reward_").removesuffix("_reward").removesuffix("_func")
    name = name.removesuffix("_reward").removesuffix("_score")
    name = ALIASES.get(name, name)
    return name if name in BUILTIN else None
