"""Trains a Kev model on labeled traces: soft cross-entropy over all questions, in two stages.

As with Laya a new head first learns on the frozen backbone (`head`); then LoRA and head go on together, gently
(A. Kumar et al. 2022, arXiv 2202.10054).
"""

from dataclasses import dataclass, replace
from typing import Any

from accelerate import Accelerator

from observer_core.decision.kev.adapter import fresh_adapter
from observer_core.decision.kev.examples import KevExamples, logits
from observer_core.decision.kev.head import train_head
from observer_core.decision.kev.model import KevNetwork
from observer_core.decision.training.loop import Fitted, LoopOptions, fit
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.decision.training.session import Session


@dataclass(frozen=True, slots=True)
class KevTraining:
    """Settings of a Kev training.

    Args:
        learning_rate: of LoRA and head together.
        lora_rank: of new LoRA, `None` when the network has one to go on with.
        head_learning_rate: of the head alone, before.
        head_epochs: passes of the head alone; 0 for a head that has learnt already.
        loop: of LoRA and head together.
    """

    learning_rate: float
    lora_rank: int | None
    head_learning_rate: float
    head_epochs: float
    loop: LoopOptions
    weight_decay: float = 0.01


def parameter_groups(network: KevNetwork, backbone: float, head: float, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's groups: LoRA at one rate, the head at another."""
    lora = [parameter for parameter in network.backbone.parameters() if parameter.requires_grad]
    return [
        {"params": lora, "lr": backbone, "weight_decay": weight_decay},
        {"params": list(network.head.parameters()), "lr": head, "weight_decay": weight_decay},
    ]


def train_kev(
    network: KevNetwork,
    train: KevExamples,
    validation: KevExamples,
    options: KevTraining,
    *,
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> Fitted:
    """Train in place; LoRA is not merged.

    Raises:
        TrainingFailedError: it diverged or collapsed.
    """
    home = next(network.parameters()).device
    network.to(Accelerator(mixed_precision="no").device)  # the outputs of the frozen backbone too are computed there
    lora_progress = progress
    if options.head_epochs:
        lora_progress = part(progress, 0.3, 1.0)
        early = part(progress, 0.0, 0.3)
        groups = parameter_groups(network, 0.0, options.head_learning_rate, options.weight_decay)[1:]
        loop = replace(options.loop, epochs=options.head_epochs)
        train_head(network, groups, train, validation, loop, session=session, progress=early, on_metric=on_metric)
    if options.lora_rank is not None:
        network.backbone = fresh_adapter(network.backbone, rank=options.lora_rank)
    fitted = fit(
        network,
        parameter_groups(network, options.learning_rate, options.learning_rate, options.weight_decay),
        train,
        validation,
        logits=logits,
        options=options.loop,
        stage=session.stage("lora", "training"),
        progress=lora_progress,
        on_metric=on_metric,
    )
    network.to(home).eval()
    return fitted
