"""`observer serve --check`: whether the settings are right and, apart from that, whether what they name answers."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from observer_core.decision.golden import golden_traces
from observer_core.errors import ObserverError
from observer_core.home import Home
from observer_serving.active import read_active
from observer_serving.config import Settings
from observer_serving.evaluate import Evaluators
from observer_serving.export import make_exporter
from observer_serving.listen import tls_context
from observer_serving.loading import load_models
from observer_serving.metrics import Metrics
from observer_serving.score import LoadedModel, Stage


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the settings name; `problem` says why it cannot be used right now, `None` that it can."""

    part: str
    what: str
    problem: str | None = None


def check(settings: Settings, home: Home) -> list[Finding]:
    """Load what runs here and ask what runs elsewhere.

    Raises:
        InputError: the settings are not usable wherever the service runs: a model that does not pass, an unknown
            evaluator, a certificate that is none, a folder that cannot be written.
    """
    if settings.tls is not None:
        tls_context(settings.tls)
    models = load_models(read_active(home.ensure(home.serving), settings), settings)
    if settings.evaluators.rewards:
        Evaluators(settings.evaluators, lambda _: None, Metrics())
    findings = [finding for scope, model in models.items() for finding in _stages(scope, model)]
    with tempfile.TemporaryDirectory() as folder:
        for one in settings.exporters:
            exporter = make_exporter(one, Path(folder) / one.name)
            findings.append(Finding(f"exporter {one.name}", one.endpoint, exporter.probe()))
            exporter.stop(0)
    return findings


def _stages(scope: str, model: LoadedModel) -> Iterator[Finding]:
    where = f"projects.{scope}." if scope else ""
    yield _asked(f"{where}scorer", model.first)
    if model.second is not None:
        yield _asked(f"{where}scorer.cascade.second", model.second)
    for name, stage in model.shadow.items():
        yield _asked(f"{where}scorer.shadow.{name}", stage)


def _asked(part: str, stage: Stage) -> Finding:
    """A model that scores one invented trace."""
    scorer = stage.scorer
    try:
        scorer.score(golden_traces()[:1])
    except ObserverError as error:
        return Finding(part, f"{scorer.model} {scorer.model_version}", str(error))
    return Finding(part, f"{scorer.model} {scorer.model_version}")
