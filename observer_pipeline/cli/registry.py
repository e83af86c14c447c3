"""`observer promote` and `rollback`: by hand what the gate does, with a reason for the log."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from observer_pipeline.registry import Promotion, Registry

Reason = Annotated[str, typer.Option(help="Why, for the promotion log")]


def register(app: typer.Typer) -> None:
    @app.command("promote")
    def promote(
        model: Annotated[str, typer.Argument(metavar="RUN|VERSION", help="A run directory, or a registry version")],
        reason: Reason,
    ) -> None:
        """Make a version the champion; the sensor rollout_champion brings it onto the services."""
        registry = _registry()
        version = model if model.isdecimal() else _version_of_run(registry, Path(model))
        _say(registry.promote(version, reason=reason, by="person"))

    @app.command("rollback")
    def rollback(reason: Reason) -> None:
        """Make the champion before the present one champion again."""
        _say(_registry().rollback(reason=reason))


def _registry() -> "Registry":
    from observer_pipeline.registry import Registry
    from observer_pipeline.resources.build import build_mlflow, build_warehouse
    from observer_pipeline.resources.settings import Settings

    settings = Settings.from_env()
    settings.home.ensure(settings.home.root)
    return Registry(build_mlflow(settings), build_warehouse(settings.home))


def _version_of_run(registry: "Registry", path: Path) -> str:
    """The version of a run directory; one that is not registered yet is registered first."""
    from observer_core.rundir import open_run
    from observer_pipeline.training import flat_metrics

    run = open_run(path)
    run.verify()
    if (version := registry.version_of(run.version)) is not None:
        return version
    with registry.mlflow.start_run(path.resolve().name, tags={"family": run.manifest.family}) as tracked:
        for name, value in flat_metrics(run.metrics()).items():
            tracked.log_metric(name, value)
        return registry.register(run, tracked, tags={})


def _say(promotion: "Promotion") -> None:
    before = f" in place of version {promotion.previous_version}" if promotion.previous_version else ""
    print(f"version {promotion.version} is champion{before} (promotion {promotion.promotion_id})")
