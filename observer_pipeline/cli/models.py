"""`observer train`, `evaluate`, `compare`, `score`: decision models from the command line."""

import typer


def register(app: typer.Typer) -> None: ...
