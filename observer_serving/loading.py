"""The models of a start, loaded on a thread beside all that needs none of them."""

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from observer_core.errors import InputError
from observer_core.rundir import RunDirectory, open_run
from observer_serving.active import Active, read_active
from observer_serving.config import SERVICE, Settings
from observer_serving.start_checks import Backend, StartChecks

if TYPE_CHECKING:
    from observer_serving.score import LoadedModel

PROVEN_FILE = "proven.json"


def load_models(
    active: Mapping[str, Active], settings: Settings, checks: StartChecks | None = None
) -> "dict[str, LoadedModel]":
    """The models in force, by scope.

    Args:
        checks: see `load_model`.

    Raises:
        InputError: one does not pass its checks; names the project.
    """
    from observer_serving.score import load_model

    models: dict[str, LoadedModel] = {}
    for scope, one in active.items():
        scorer = settings.scorer_of(scope)
        if one.model is not None and scorer is not None:
            try:
                models[scope] = load_model(one.model, scorer, checks=checks)
            except InputError as error:
                if scope == SERVICE:
                    raise
                raise InputError(f"projects.{scope}.scorer: {error}") from None
    return models


class Loading:
    """What is in force at start, its models being loaded on a thread: what needs none of them can go on meanwhile.

    Raises:
        InputError: `active.json` cannot be read.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.active = read_active(folder, settings)
        runs = _runs(self.active)
        checks = StartChecks(folder / PROVEN_FILE, [run for run, _ in runs])
        # While files are hashed, and before a thread: two that import take turns, and what loads would come last.
        if runs:
            import observer_core.decision.load  # noqa: F401  # pyright: ignore[reportUnusedImport]
        if any(run.manifest.onnx.get("served") is not None for run, _ in runs):
            import onnxruntime  # noqa: F401  # pyright: ignore[reportUnusedImport]
        self._models: Future[dict[str, LoadedModel]] = Future()
        self._models.set_running_or_notify_cancel()  # a model cannot be interrupted
        self._thread = threading.Thread(
            target=self._load, args=(settings, checks, runs), name="observer-load", daemon=True
        )
        self._thread.start()

    def models(self) -> "dict[str, LoadedModel]":
        """The models, once they are loaded.

        Raises:
            InputError: one does not pass its checks.
        """
        return self._models.result()

    @property
    def done(self) -> bool:
        """Whether `models` returns at once, or raises."""
        return self._models.done()

    async def wait(self) -> None:
        """Return when the models are loaded; raises as `models`."""
        await asyncio.wrap_future(self._models)

    def join(self, seconds: float) -> None:
        """Wait for the thread: a process that ends while native code works on one of its threads may crash."""
        self._thread.join(seconds)

    def _load(self, settings: Settings, checks: StartChecks, runs: "Sequence[tuple[RunDirectory, Backend]]") -> None:
        # Before the rest of what serves a model is imported, which it would take turns with.
        for run, backend in runs:
            with contextlib.suppress(Exception):  # said below, with the project it is for
                checks.prepare(run, backend)
        try:
            self._models.set_result(load_models(self.active, settings, checks))
        except BaseException as error:
            self._models.set_exception(error)


def _runs(active: Mapping[str, Active]) -> "list[tuple[RunDirectory, Backend]]":
    """The run directories in force and what computes them; what is wrong with one is said by who loads it."""
    chosen = {(one.model.run, one.model.backend) for one in active.values() if one.model and one.model.run is not None}
    runs: list[tuple[RunDirectory, Any]] = []
    for path, backend in sorted(chosen):
        with contextlib.suppress(InputError):
            runs.append((open_run(Path(path)), backend))
    return runs
