"""What a finding is, what may be set, and where findings gather."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from observer_core.rewards.builtin import builtin_name
from observer_core.rollouts.features import Features
from observer_core.rollouts.findings.stats import log_fisher_tail

KINDS = (
    "collapse",
    "parse_failures",
    "truncation",
    "reward_hacking",
    "degenerate_groups",
    "habit",
    "optimiser_gap",
    "persistent_zero",
    "convergent_tasks",
    "drift",
    "duplicates",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """`alpha`: chance that a healthy log has any finding, as far as its rows are independent. The shares are what is
    tolerated.

    `poor`: a quality below it is bad. `gap_advantage`: an advantage above it is a strong reward.
    """

    alpha: float = 0.01
    poor: float = 0.25
    gap_advantage: float = 1.0
    tolerated_failures: float = 0.01
    tolerated_gap: float = 0.02
    tolerated_degenerate: float = 0.10
    tolerated_duplicates: float = 0.20
    habit_share: float = 0.30
    collapse_drop: float = 0.25
    drift_change: float = 0.5


@dataclass(slots=True)
class Finding:
    """Something that went wrong. `steps` are the log's; `rows` the evidence (all of it; reports show the first ones).

    `share` is of the rows it is about (the sentence says which). `tasks` are those that stand out, `series` what a
    plot shows: name → one value per step of the log.
    """

    kind: str
    steps: tuple[int, int]
    rewards: tuple[str, ...]
    tasks: tuple[str, ...]
    rows: np.ndarray
    share: float
    sentence: str
    series: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.rows)

    def to_json(self, max_rows: int | None = None) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "steps": list(self.steps),
            "rewards": list(self.rewards),
            "tasks": list(self.tasks),
            "count": self.count,
            "share": self.share,
            "rows": self.rows[:max_rows].tolist(),
            "sentence": self.sentence,
        }


class Search:
    """One search through a log: findings and the hypotheses that were tested and fell, with the number that killed
    them.
    """

    def __init__(self, features: Features, settings: Settings) -> None:
        self.features = features
        self.settings = settings
        self.findings: list[Finding] = []
        self.rejected: list[dict[str, Any]] = []
        tests = 25 + 6 * len(features.rewards)
        self.log_alpha = math.log(settings.alpha / tests)

    def significant(self, log_p: float, tried: int = 1) -> bool:
        """Whether a p-value stands after everything that was tested, `tried` alternatives of this test included."""
        return log_p + math.log(max(tried, 1)) < self.log_alpha

    def reject(self, hypothesis: str, number: float | np.floating) -> None:
        self.rejected.append({"hypothesis": hypothesis, "number": round(float(number), 6)})

    def add(
        self,
        kind: str,
        flag: np.ndarray,
        sentence: str,
        *,
        share: float | np.floating,
        rewards: tuple[str, ...] = (),
        tasks: tuple[str, ...] = (),
        steps: tuple[int, int] | None = None,
        series: dict[str, np.ndarray] | None = None,
    ) -> None:
        """A finding whose evidence is the flagged rows; its steps are theirs unless given."""
        features = self.features
        span = steps
        if span is None:
            flagged = features.step[flag]
            span = (int(flagged.min()), int(flagged.max())) if len(flagged) else (0, 0)
        rows = features.row[flag]
        self.findings.append(Finding(kind, span, rewards, tasks, rows, float(share), sentence, series or {}))

    @property
    def quality(self) -> str | None:
        """The reward that says whether the answer was good."""
        names = self.features.rewards
        for test in (
            lambda n: builtin_name(n) == "quality",
            lambda n: any(word in n.lower() for word in ("quality", "correct", "accuracy", "rouge", "acc")),
        ):
            found = next((name for name in names if test(name)), None)
            if found:
                return found
        return None

    def outstanding_tasks(self, flag: np.ndarray, among: np.ndarray | None = None) -> list[int]:
        """Tasks in which flagged rows are far more frequent (significantly, and at least twice) than among the other
        tasks.
        """
        features = self.features
        base = np.ones(len(features), bool) if among is None else among
        size = len(features.task_names)
        trials = np.bincount(features.task[base], minlength=size)
        hits = np.bincount(features.task[flag & base], minlength=size)
        if not hits.sum():
            return []
        log_p = log_fisher_tail(hits, trials, hits.sum(), trials.sum())
        with np.errstate(invalid="ignore", divide="ignore"):
            high = (hits / trials) >= 2 * (hits.sum() - hits) / np.maximum(trials.sum() - trials, 1)
        chosen = np.flatnonzero(high & (hits >= 3) & (log_p + math.log(size) < self.log_alpha))
        return chosen[np.argsort(-hits[chosen])].tolist()

    def names(self, tasks: list[int], limit: int = 10) -> tuple[str, ...]:
        return tuple(self.features.task_names[t] for t in tasks[:limit])


def percent(share: float | np.floating) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def span_words(steps: tuple[int, int]) -> str:
    return f"step {steps[0]}" if steps[0] == steps[1] else f"steps {steps[0]} to {steps[1]}"
