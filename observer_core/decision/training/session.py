"""What a training keeps and tells besides its weights: checkpoints to go on from, and telemetry. Both are optional."""

from dataclasses import dataclass

from observer_core.decision.training.checkpoints import Checkpoints, StageCheckpoint
from observer_core.decision.training.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Session:
    """Handed from `train_run` through a family's trainer to every `fit`."""

    checkpoints: Checkpoints | None = None
    telemetry: Telemetry | None = None

    def stage(self, name: str, doing: str, rate_option: str = "--lr") -> "Stage":
        """One `fit` of this training (see `Stage`)."""
        return Stage(name, doing, rate_option, self)

    def confirm(self, name: str, value: str) -> None:
        """Tell the checkpoints what else decides the result (see `Checkpoints.confirm`)."""
        if self.checkpoints is not None:
            self.checkpoints.confirm(name, value)


@dataclass(frozen=True, slots=True)
class Stage:
    """One `fit` of a training.

    Args:
        name: unique in the training; names its checkpoint and its spans.
        doing: for people who wait.
        rate_option: the option of `observer train` that sets its learning rate, for errors.
    """

    name: str = "lora"
    doing: str = "training"
    rate_option: str = "--lr"
    session: Session = Session()

    def checkpoint(self) -> StageCheckpoint | None:
        """Where this stage is kept, if it is."""
        return None if self.session.checkpoints is None else self.session.checkpoints.stage(self.name)
