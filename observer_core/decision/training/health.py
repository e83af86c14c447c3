"""Whether a training still makes sense: divergence and collapse, told apart from plateaus and overfitting."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from observer_core.errors import ObserverError

FAR_ABOVE = 4.0
"""A loss this many times that of the start is divergence. The start counts as at least ln 2, what guessing yes or no
costs: after an earlier run that fits perfectly, a small loss is not a standard to be measured by."""

WINDOW = 20
"""Steps over which the loss is averaged for that: a single hard batch is no divergence."""

CONSTANT = 1e-5
"""Validation probabilities that all lie this close together are one answer, whatever the trace."""

CONSTANT_EVALUATIONS = 2
"""Evaluations in a row with one answer for all after which it counts as collapse."""


class TrainingFailedError(ObserverError):
    """Training again from where it stood would fail again: the settings or the data have to change."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """An evaluation on validation rows of one question.

    `p` float64 (rows, options); `loss` their mean cross-entropy by weight; `auroc` of the second option against the
    first, `None` with more than two options or a single class.
    """

    loss: float
    p: NDArray[np.float64]
    auroc: float | None

    @property
    def spread(self) -> float:
        """The largest difference between two rows' probabilities of one option."""
        return float(np.ptp(self.p, axis=0).max())


def auroc(p: NDArray[np.float64], target: NDArray[np.bool_]) -> float | None:
    """The share of (true, false) pairs that `p` orders rightly, ties counting half; `None` for one class."""
    true, false = p[target], np.sort(p[~target])
    if not len(true) or not len(false):
        return None
    below = (np.searchsorted(false, true, "left") + np.searchsorted(false, true, "right")) / 2
    return float(below.mean() / len(false))


@dataclass(slots=True)
class Health:
    """Follows a training's losses and evaluations.

    Args:
        rate_option: what lowers the learning rate, for the errors.
    """

    rate_option: str
    start_loss: float = math.log(2)
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    constant: int = 0

    def start(self, held_out: HeldOut) -> None:
        """The evaluation before the first step."""
        self.start_loss = max(self.start_loss, held_out.loss)

    def after_step(self, step: int, loss: float, grad_norm: float) -> None:
        """Raises:
        TrainingFailedError: loss or gradients are not finite, or the loss lies far above where it began.
        """
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingFailedError(
                f"training diverged at step {step} (loss {loss}, gradient norm {grad_norm}); "
                f"lower the learning rate ({self.rate_option})"
            )
        if not self.losses:
            self.start_loss = max(self.start_loss, loss)
        self.losses.append(loss)
        mean = sum(self.losses) / len(self.losses)
        if len(self.losses) == WINDOW and mean > FAR_ABOVE * self.start_loss:
            raise TrainingFailedError(
                f"training diverged at step {step} (loss {mean:.2f} over {WINDOW} steps, began at "
                f"{self.start_loss:.2f}); lower the learning rate ({self.rate_option})"
            )

    def after_evaluation(self, step: int, spread: float) -> None:
        """Raises:
        TrainingFailedError: the model has given one and the same answer to every trace for some time.
        """
        self.constant = self.constant + 1 if spread <= CONSTANT else 0
        if self.constant >= CONSTANT_EVALUATIONS:
            self.at_the_end(step, spread)

    def at_the_end(self, step: int, spread: float) -> None:
        """Raises:
        TrainingFailedError: the weights to be kept, those of `step`, give one and the same answer to every trace.
        """
        if spread <= CONSTANT:
            raise TrainingFailedError(
                f"training collapsed by step {step}: every validation trace gets the same answer (they differ by "
                f"{spread:.1g}; AUROC 0.5); lower the learning rate ({self.rate_option}) or check that traces and "
                "labels belong together"
            )

    def state(self) -> dict[str, Any]:
        return {"start_loss": self.start_loss, "losses": list(self.losses), "constant": self.constant}

    def restore(self, state: dict[str, Any]) -> None:
        self.start_loss, self.constant = state["start_loss"], state["constant"]
        self.losses.extend(state["losses"])
