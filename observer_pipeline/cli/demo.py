"""`observer demo`: the whole loop on the embedded default."""

import time
from typing import Annotated

import typer

from observer_core.home import Home

SECONDS_BEFORE, SECONDS_PER_QUESTION = 120, 0.3
"""Measured on two cores: what the demo takes whatever its size, and what each question adds."""


def register(app: typer.Typer) -> None:
    @app.command("demo")
    def demo(
        questions: Annotated[int | None, typer.Option(help="Agent runs that train the first model")] = None,
        minutes: Annotated[
            float | None, typer.Option(help="About how long it may take; sets the number of runs")
        ] = None,
        no_phoenix: Annotated[
            bool, typer.Option("--no-phoenix", help="Leave Phoenix, and so the verdicts, out")
        ] = False,
        seed: Annotated[int, typer.Option(help="Of the questions and of training")] = 0,
    ) -> None:
        """Agent runs → labels → train → compare → promote → serve → live traces → Phoenix → verdicts → retrain."""
        from observer_pipeline.demo.board import Board
        from observer_pipeline.demo.loop import (
            DEFAULT_QUESTIONS,
            MIN_QUESTIONS,
            STEPS,
            STEPS_OF_PHOENIX,
            DemoOptions,
            run_demo,
        )
        from observer_pipeline.supervise import Interrupted, stop_signals_raise

        size = questions or DEFAULT_QUESTIONS
        if questions is None and minutes is not None:
            size = max(MIN_QUESTIONS, int((minutes * 60 - SECONDS_BEFORE) / SECONDS_PER_QUESTION))
        options = DemoOptions(size, seed, with_phoenix=not no_phoenix)
        home = Home.from_env()
        started = time.monotonic()
        board = Board(STEPS if options.with_phoenix else STEPS - STEPS_OF_PHOENIX)
        try:
            with stop_signals_raise(), board:
                run_demo(options, home, board)
        except Interrupted:
            raise typer.Exit(1) from None
        finally:
            if board.steps:
                board.print(f"observer demo: {(time.monotonic() - started) / 60:.1f} minutes, state in {home.root}")
        if board.failed:
            raise typer.Exit(1)
        print("everything the demo promises was kept; 'observer up' shows all of it")
