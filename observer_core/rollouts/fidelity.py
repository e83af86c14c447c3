"""The fidelity gate: do the rewards, run again, give what the run logged?

Drift is relative, |regraded − logged| / max(|regraded|, |logged|, 0.001): trainers log float32, whose rounding is
6e-8 of the value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TOLERANCE = 1e-6
_FLOOR = 1e-3
_SHOWN = 100


@dataclass(slots=True)
class RewardDrift:
    """Drift of one reward. `state_differs`: only one of logged and regraded has a score."""

    rows: int = 0
    total: float = 0.0
    max: float = 0.0
    differs: int = 0
    state_differs: int = 0
    inexact: int = 0
    float32: int = 0
    first_rows: list[int] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return self.total / self.rows if self.rows else 0.0

    @property
    def precision(self) -> str | None:
        """`float64`: every score equals; `float32`: those that do not are the float32 roundings; None: neither."""
        if not self.rows:
            return None
        if not self.inexact:
            return "float64"
        return "float32" if self.float32 == self.inexact else None

    def to_json(self) -> dict[str, Any]:
        return {
            "max": self.max,
            "mean": self.mean,
            "rows": self.rows,
            "differs": self.differs,
            "state_differs": self.state_differs,
            "first_rows": self.first_rows,
            "precision": self.precision,
        }


class Fidelity:
    """Compares regraded with logged scores, batch by batch."""

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self.tolerance = tolerance
        self.rewards: dict[str, RewardDrift] = {}

    def add(self, name: str, rows: np.ndarray, logged: np.ndarray, regraded: np.ndarray) -> None:
        """One batch of a reward; NaN means no score."""
        drift = self.rewards.setdefault(name, RewardDrift())
        both = ~(np.isnan(logged) | np.isnan(regraded))
        state = np.isnan(logged) != np.isnan(regraded)
        old, new = logged[both], regraded[both]
        relative = np.abs(new - old) / np.maximum(np.maximum(np.abs(new), np.abs(old)), _FLOOR)
        inexact = new != old
        rounded = new.astype(np.float32).astype(np.float64) == old
        drift.rows += int(both.sum())
        drift.total += float(relative.sum())
        drift.max = max(drift.max, float(relative.max(initial=0.0)))
        drift.differs += int((relative > self.tolerance).sum())
        drift.state_differs += int(state.sum())
        drift.inexact += int(inexact.sum())
        drift.float32 += int((inexact & rounded).sum())
        if len(drift.first_rows) < _SHOWN:
            wrong = np.concatenate([rows[both][relative > self.tolerance], rows[state]])
            drift.first_rows += np.sort(wrong)[: _SHOWN - len(drift.first_rows)].tolist()

    @property
    def holds(self) -> bool:
        """Whether every reward could be compared and is within the tolerance on every row."""
        return bool(self.rewards) and all(
            d.rows and d.max <= self.tolerance and not d.state_differs for d in self.rewards.values()
        )

    def sentence(self, revisions_changed: Mapping[str, tuple[str, str]] | None = None) -> str:
        """The verdict in one line, the worst reward first."""
        if not self.rewards:
            return "no reward of the log could be graded again"
        worst = max(self.rewards.items(), key=lambda item: (item[1].state_differs > 0, item[1].max))
        name, drift = worst
        changed = ""
        if revisions_changed:
            changed = f"; code changed since it was last graded: {', '.join(sorted(revisions_changed))}"
        if self.holds:
            return f"{len(self.rewards)} rewards agree with the log, largest drift {drift.max:.1e} ({name}){changed}"
        return (
            f"{name} does not agree with the log: largest drift {drift.max:.3g}, {drift.differs} rows above "
            f"{self.tolerance:g}, {drift.state_differs} scored only once{changed}"
        )
