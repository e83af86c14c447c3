"""What went wrong in a run, found by one command: findings with their evidence, and the hypotheses that fell."""

from dataclasses import dataclass
from typing import Any

from observer_core.rollouts.features import Features
from observer_core.rollouts.findings.base import KINDS, Finding, Search, Settings
from observer_core.rollouts.findings.collapse import find_collapse
from observer_core.rollouts.findings.failures import find_parse_failures, find_truncation
from observer_core.rollouts.findings.habits import find_drift, find_duplicates, find_habit
from observer_core.rollouts.findings.hacking import find_reward_hacking
from observer_core.rollouts.findings.optimiser import find_degenerate_groups, find_optimiser_gap, find_persistent_zero
from observer_core.rollouts.findings.tasks import find_convergent_tasks

FINDERS = (
    find_collapse,
    find_parse_failures,
    find_truncation,
    find_reward_hacking,
    find_degenerate_groups,
    find_habit,
    find_optimiser_gap,
    find_persistent_zero,
    find_drift,
    find_duplicates,
    find_convergent_tasks,
)
"""In this order: the last one looks at what the others found."""


@dataclass(slots=True)
class Analysis:
    """The findings of one log."""

    features: Features
    findings: list[Finding]
    rejected: list[dict[str, Any]]

    def to_json(self, max_rows: int | None = None) -> dict[str, Any]:
        """The public form; `max_rows` cuts each finding's evidence (its count stays whole)."""
        return {
            "rows": len(self.features),
            "steps": len(self.features.steps),
            "drift": {name: drift.to_json() for name, drift in self.features.fidelity.rewards.items()},
            "findings": [finding.to_json(max_rows) for finding in self.findings],
            "rejected": self.rejected,
        }


def analyze(features: Features, settings: Settings | None = None) -> Analysis:
    """Search a log for everything in `KINDS`."""
    search = Search(features, settings or Settings())
    if len(features):
        for find in FINDERS:
            find(search)
    return Analysis(features, search.findings, search.rejected)


__all__ = ["KINDS", "Analysis", "Finding", "Settings", "analyze"]
