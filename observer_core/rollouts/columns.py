"""Which column of a stored log means what: defaults for TRL, verl and OpenRLHF, each a setting."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import pyarrow as pa

ALIASES: dict[str, tuple[str, ...]] = {
    "step": ("step", "global_step", "global_steps", "training_step", "iteration"),
    "prompt": ("prompt", "prompts", "input", "query"),
    "completion": ("completion", "completions", "output", "response", "responses", "generation"),
    "advantage": ("advantage", "advantages"),
    "task_id": ("task_id", "task", "sample_id", "uid", "problem_id"),
    "group_id": ("group_id", "group"),
    "reference": ("reference", "gts", "ground_truth", "solution", "label", "answer", "gold"),
    "citations": ("citations",),
    "truncated": ("truncated", "is_truncated", "finish_reason"),
}
"""Canonical column → names looked for in turn, when the setting is left alone. verl's `trainer.rollout_data_dir` writes
`<step>.jsonl` with `input`, `output`, `gts`, `score`, `step` and what its reward function adds; OpenRLHF's batch
inference writes `input`, `output` and `reward`."""

NOT_REWARDS = frozenset(
    {
        "epoch",
        "index",
        "id",
        "idx",
        "seed",
        "rank",
        "length",
        "tokens",
        "num_tokens",
        "completion_length",
        "prompt_length",
        "response_length",
        "prompt_tokens",
        "response_tokens",
        "num_turns",
        "rollout_n",
        "sample_index",
    }
    | {"loss", "kl", "entropy", "lr", "learning_rate", "timestamp", "time", "sum", "total"}
)
"""Numeric columns that are no reward unless named as one."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Column names of a log; None: look for the usual names. `rewards` None: every numeric column that is nothing
    else.
    """

    step: str | None = None
    prompt: str | None = None
    completion: str | None = None
    advantage: str | None = None
    task_id: str | None = None
    group_id: str | None = None
    reference: str | None = None
    citations: str | None = None
    truncated: str | None = None
    rewards: tuple[str, ...] | None = None

    def mapped(self) -> dict[str, str]:
        """Canonical name → the log's column, for those that are set."""
        names = (f.name for f in fields(self) if f.name != "rewards")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def resolve_columns(wanted: Columns, names: Sequence[str], numeric: Iterable[str]) -> Columns:
    """Fill in what `wanted` leaves open from the columns that the log has."""
    available = set(names)
    found = {}
    for canonical, aliases in ALIASES.items():
        setting = getattr(wanted, canonical)
        found[canonical] = setting or next((alias for alias in aliases if alias in available), None)
    resolved = replace(wanted, **found)
    if wanted.rewards is None:
        taken = set(resolved.mapped().values()) | NOT_REWARDS
        rewards = tuple(n for n in names if n in set(numeric) and n not in taken and not n.endswith("_id"))
        resolved = replace(resolved, rewards=rewards)
    return resolved


def step_in_name(stem: str) -> int | None:
    """The step that a file's name ends with (`completions_00012`, `12`), or None."""
    match = re.search(r"(\d+)$", stem)
    return int(match.group(1)) if match else None


LOGGED = "logged."
"""Prefix of a logged reward's column in the canonical batches."""


def rollout_schema(rewards: Iterable[str]) -> pa.Schema:
    """The canonical columns: one row per completion; `logged.<reward>` are the scores the run recorded (null: none).

    `row` counts every stored row of the log from 0, files in order of their names; `messages` holds prompt and
    completion as JSON where the log has messages instead of text; `extra` the other columns as JSON.
    """
    return pa.schema(
        [
            ("row", pa.int64()),
            ("step", pa.int64()),
            ("prompt", pa.string()),
            ("completion", pa.large_string()),
            ("messages", pa.large_string()),
            ("advantage", pa.float64()),
            ("task_id", pa.string()),
            ("group_id", pa.string()),
            ("reference", pa.string()),
            ("citations", pa.list_(pa.string())),
            ("truncated", pa.bool_()),
            ("extra", pa.large_string()),
            *((LOGGED + name, pa.float64()) for name in rewards),
        ]
    )
