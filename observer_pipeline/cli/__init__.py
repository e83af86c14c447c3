"""The command line `observer`. Each module here holds one group of commands; heavy imports stay inside them."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from observer_core.errors import ObserverError

if TYPE_CHECKING:
    import typer

SERVE = "serve"
GROUPS = (
    "demo", "stack", SERVE, "operate", "systemone", "agent", "traces", "slices", "models", "refine", "evaluation",
    "registry", "rollouts",
)  # fmt: skip


def build_app(groups: Sequence[str] = GROUPS) -> "typer.Typer":
    """The commands of these modules in one application."""
    import typer

    app = typer.Typer(
        name="observer",
        help="Decides which LLM-agent traces a person should look at.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def observer() -> None: ...  # keeps sub-commands even while there is only one

    for group in groups:
        importlib.import_module(f"{__name__}.{group}").register(app)
    return app


def main() -> None:
    """Run the command line: errors are one line on stderr, exit 2 for bad input, 1 for a failed run."""
    groups = GROUPS
    if sys.argv[1:2] == [SERVE]:  # the service starts twice as fast without the other commands
        from observer_serving.process import begin

        begin()
        groups = (SERVE,)
    try:
        match sys.argv[1:]:
            # What a unit file says needs no library to be read.
            case [command, *config] if command == SERVE and (not config or config[:-1] == ["--config"]):
                from observer_pipeline.cli.serve import run

                run(Path(config[1]) if config else None)
            case _:
                build_app(groups)()
    except ObserverError as error:
        print(f"observer: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
