"""From settings, or a switch while running, to models that passed their checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from observer_core.decision.builtin import BuiltinScorer
from observer_core.errors import InputError
from observer_core.policy import Bounds
from observer_core.rundir import MANIFEST, open_run
from observer_serving.active import ModelChoice
from observer_serving.config import (
    BuiltinSettings,
    CascadeScorerSettings,
    LocalSettings,
    OneModel,
    ScorerSettings,
    SystemOneSettings,
)
from observer_serving.score.lane import Stage
from observer_serving.start_checks import StartChecks

_REQUEST_S = 10.0
_ATTEMPTS = 2
"""Of one request to a remote scorer: a live service does not wait out an outage, the deadline decides."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed its checks. With a `second` stage it is a cascade: scores of the first one within
    `uncertain` go on to it.

    `validation_scores` are those of the model that scores most traces; they set the first threshold of a budget.
    """

    choice: ModelChoice
    first: Stage
    second: Stage | None = None
    uncertain: Bounds = field(default_factory=Bounds)
    shadow: Mapping[str, Stage] = field(default_factory=dict)
    validation_scores: Sequence[float] = ()

    @property
    def model(self) -> str:
        """The name, of both stages in a cascade."""
        return self.first.scorer.model + (f" → {self.second.scorer.model}" if self.second else "")

    @property
    def model_version(self) -> str:
        second = f" → {self.second.scorer.model_version}" if self.second else ""
        return self.first.scorer.model_version + second


def patience(settings: ScorerSettings) -> float:
    """Seconds that a trace waits for its score at the most."""
    if isinstance(settings, CascadeScorerSettings):
        return settings.cascade.first.deadline + settings.cascade.second.deadline
    return settings.deadline


def load_model(
    choice: ModelChoice, settings: ScorerSettings, *, shadows: bool = True, checks: StartChecks | None = None
) -> LoadedModel:
    """Load a model and prove it: hashes of all files, then the golden traces. (ONNX Runtime is imported only here.)

    Args:
        settings: the scorer settings; they give the limits whichever model serves, and the rest of a choice that only
            they know.
        shadows: whether to load the settings' shadow models too.
        checks: those of a start; without them all golden traces are replayed, whatever has passed before.

    Raises:
        InputError: no run directory, a file that differs, a golden trace that scores differently, or a choice that the
            settings no longer make.
    """
    beside = {name: load_stage(one, checks)[0] for name, one in settings.shadow.items()} if shadows else {}
    if choice.from_settings:
        if settings.kind != choice.kind:
            raise InputError(f"scorer.kind is {settings.kind} now, not {choice.kind}; there is nothing to go back to")
        if isinstance(settings, CascadeScorerSettings):
            first, scores = load_stage(settings.cascade.first, checks)
            second, _ = load_stage(settings.cascade.second, checks)
            return LoadedModel(choice, first, second, settings.cascade.uncertain, beside, scores)
        assert isinstance(settings, SystemOneSettings)
        stage, scores = load_stage(settings, checks)
        return LoadedModel(choice, stage, shadow=beside, validation_scores=scores)
    limits = settings.cascade.first if isinstance(settings, CascadeScorerSettings) else settings
    common = {name: getattr(limits, name) for name in ("deadline", "max_batch", "max_batch_tokens")}
    one: OneModel = BuiltinSettings(**common)
    if choice.kind == "local":
        one = LocalSettings(run=Path(choice.run or ""), version=choice.version, backend=choice.backend, **common)  # pyright: ignore[reportArgumentType]
    stage, scores = load_stage(one, checks)
    version = stage.scorer.model_version if choice.kind == "local" else choice.version
    return LoadedModel(replace(choice, version=version), stage, shadow=beside, validation_scores=scores)


def load_stage(settings: OneModel, checks: StartChecks | None = None) -> tuple[Stage, Sequence[float]]:
    """One model under its limits, and its validation scores.

    Raises:
        InputError: as `load_model`.
    """
    limits = {"deadline": settings.deadline, "max_batch": settings.max_batch}
    limits["max_batch_tokens"] = settings.max_batch_tokens
    if isinstance(settings, BuiltinSettings):
        return Stage(BuiltinScorer(), **limits), ()
    if isinstance(settings, SystemOneSettings):
        return _systemone(settings, limits)
    from observer_core.decision.load import load_scorer, replay_golden

    run = open_run(settings.run.expanduser())
    if checks is not None:
        scorer = checks.scorer(run, settings.backend)
    else:
        scorer = load_scorer(run, backend=settings.backend)
        replay_golden(scorer, run)
    scorer.model_version = settings.version or run.version
    window = run.manifest.slice_spec.get("max_tokens")
    return Stage(scorer, window=window, **limits), run.manifest.validation_scores


def _systemone(settings: SystemOneSettings, limits: Mapping[str, Any]) -> tuple[Stage, Sequence[float]]:
    from observer_core.decision.jev.scorer import systemone_scorer

    run = None
    if settings.manifest is not None:
        path = settings.manifest.expanduser()
        run = open_run(path.parent if path.name == MANIFEST else path)
    key = settings.api_key.get_secret_value() if settings.api_key else None
    scorer = systemone_scorer(
        settings.endpoint,
        settings.model,
        run.manifest if run else None,
        model_version=settings.version or (run.version if run else None),
        tokenizer=run.tokenizer if run else None,
        api_key=key,
        timeout=min(_REQUEST_S, settings.deadline),
        attempts=_ATTEMPTS,
    )
    window = run.manifest.slice_spec.get("max_tokens") if run else None
    return Stage(scorer, window=window, **limits), run.manifest.validation_scores if run else ()
