"""`observer serve`: the service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from observer_core.errors import ObserverError

if TYPE_CHECKING:
    import typer

    from observer_serving.app import App
    from observer_serving.config import Settings


def register(app: "typer.Typer") -> None:
    import typer

    @app.command("serve")
    def serve(
        config: Annotated[Path | None, typer.Option(help="observer.yaml; without it the defaults")] = None,
        check: Annotated[
            bool, typer.Option(help="Validate settings, load models, try the back ends, then exit")
        ] = False,
    ) -> None:
        """Receive traces, score them, keep the suspicious ones. SIGHUP reads the settings again."""
        if check:
            from observer_serving.config import read_settings

            _check(read_settings(config), str(config or "defaults"))
        else:
            run(config)


def run(config: Path | None) -> None:
    """Serve until a signal."""
    from observer_core.home import Home
    from observer_serving import logs
    from observer_serving.config import read_settings
    from observer_serving.loading import Loading
    from observer_serving.process import serve

    settings = read_settings(config)
    logs.configure()
    home = Home.from_env()
    # Loading is mostly native code's work, importing the web servers Python's: both at once take half as long.
    loading = Loading(home.ensure(home.serving), settings)
    from observer_serving.app import create_app

    service = create_app(settings, home, loading=loading)
    serve(service.run(on_ready=_announce, read_again=lambda: read_settings(config)))


def _check(settings: "Settings", where: str) -> None:
    """Say what is right; what cannot be reached is a failed run (exit 1), what is wrong bad input (exit 2)."""
    from observer_core.home import Home
    from observer_serving.check import check

    findings = check(settings, Home.from_env())
    print(f"{where}: configuration is valid; policy {settings.policy.version}")
    for finding in findings:
        print(f"  {finding.part}: {finding.what}: {finding.problem or 'ok'}")
    failed = [finding.part for finding in findings if finding.problem is not None]
    if failed:
        raise ObserverError(f"{where} is valid, but cannot be reached: {', '.join(failed)}; start or mend them")


def _announce(service: "App") -> None:
    """One line for people and scripts: what listens where."""
    print("observer listens: " + " ".join(f"{name}={url}" for name, url in service.urls().items()), flush=True)
