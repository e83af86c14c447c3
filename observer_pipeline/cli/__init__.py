"""The command line `observer`. Each module here holds one group of commands; heavy imports stay inside them."""

import sys

import typer

from observer_core.errors import ObserverError
from observer_pipeline.cli import (
    agent,
    demo,
    evaluation,
    models,
    operate,
    refine,
    registry,
    rollouts,
    serve,
    slices,
    stack,
    systemone,
    traces,
)

GROUPS = (demo, stack, serve, operate, systemone, agent, traces, slices, models, refine, evaluation, registry, rollouts)


def build_app() -> typer.Typer:
    """All commands in one application."""
    app = typer.Typer(
        name="observer",
        help="Decides which LLM-agent traces a person should look at.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def observer() -> None: ...  # keeps sub-commands even while there is only one

    for group in GROUPS:
        group.register(app)
    return app


def main() -> None:
    """Run the command line: errors are one line on stderr, exit 2 for bad input, 1 for a failed run."""
    try:
        build_app()()
    except ObserverError as error:
        print(f"observer: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
