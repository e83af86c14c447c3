"""`observer serve`: the service."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from observer_serving.app import App


def register(app: typer.Typer) -> None:
    @app.command("serve")
    def serve(
        config: Annotated[Path | None, typer.Option(help="observer.yaml; without it the defaults")] = None,
        check: Annotated[bool, typer.Option(help="Validate settings and model, then exit")] = False,
    ) -> None:
        """Receive traces, score them, keep the suspicious ones."""
        from observer_core.home import Home
        from observer_serving import logs
        from observer_serving.active import load_models, read_active
        from observer_serving.app import create_app
        from observer_serving.config import read_settings

        settings = read_settings(config)
        if check:
            model = load_models(read_active(Home.from_env().serving, settings), settings)[""]
            print(f"{config or 'defaults'}: ok; model {model.model} {model.model_version}")
            return
        logs.configure()
        service = create_app(settings)
        asyncio.run(service.run(on_ready=_announce))


def _announce(service: "App") -> None:
    """One line for people and scripts: what listens where."""
    print("observer listens: " + " ".join(f"{name}={url}" for name, url in service.urls().items()), flush=True)
