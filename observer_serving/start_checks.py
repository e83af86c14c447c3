"""What spares a start some of the checks' time, and none of the checks.

The files of a start's runs are hashed beside what else it does. And a run whose golden scores were made, or have all
been replayed, in this very environment need not compute all of them again: the replay asks whether these weights, this
code, these libraries and this processor give what was evaluated, so when all of these are the same, the answer is
known, and one trace shows that it still holds.
"""

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from observer_core.environment import environment
from observer_core.files import sha256_file, write_whole
from observer_core.rundir import MANIFEST, RunDirectory

if TYPE_CHECKING:
    from observer_core.decision.scorer import RunScorer

log = logging.getLogger(__name__)

Backend = Literal["auto", "onnx", "torch"]

_KEPT = 32
Conditions = dict[str, str]
"""All that a score depends on besides the trace: the run (its manifest has the sha256 of every other file), the back
end, and the environment."""


class StartChecks:
    """Of the runs that one start loads.

    Args:
        file: what has passed, a JSON array of conditions with the newest last. One that cannot be read counts as empty,
            since all it saves is time.
        runs: whose files are hashed from now on, one after the other on a thread.
    """

    def __init__(self, file: Path, runs: Sequence[RunDirectory] = ()) -> None:
        self._file = file
        self._passed = _read(file)
        self._prepared: dict[tuple[Path, Backend], RunScorer] = {}
        hashing = ThreadPoolExecutor(1, "observer-verify")
        self._under_way = [
            (run, [hashing.submit(run.verify, names) for names in (_read_by_graph(run), _weights(run))]) for run in runs
        ]
        hashing.shutdown(wait=False)

    def prepare(self, run: RunDirectory, backend: Backend) -> None:
        """Load a scorer ahead of the next call of `scorer`; raises as that."""
        self._prepared[run.path, backend] = self._load(run, backend)

    def scorer(self, run: RunDirectory, backend: Backend) -> "RunScorer":
        """A run's scorer, its files verified and its golden traces replayed: all of them or, where they have passed
        under these conditions, the shortest.

        Raises:
            InputError: see `load_scorer` and `replay_golden`.
            ObserverError: the disk refused to note that they have passed.
        """
        return self._prepared.pop((run.path, backend), None) or self._load(run, backend)

    def _load(self, run: RunDirectory, backend: Backend) -> "RunScorer":
        from observer_core.decision.load import load_scorer, replay_golden

        here = environment()
        made_here = backend == "auto" and run.manifest.golden_environment == here
        conditions = {"manifest": sha256_file(run.path / MANIFEST), "backend": backend, "environment": here}
        proven = made_here or conditions in self._passed
        graph_is_read, weights_are_read = self._verified(run)
        graph_is_read()
        if backend == "torch" or run.manifest.onnx.get("served") is None:
            weights_are_read()
        scorer = load_scorer(run, backend=backend, verified=True)
        replay_golden(scorer, run, proven=proven)
        weights_are_read()  # by nobody now, perhaps by another back end later
        if not proven:
            self._passed = [*self._passed, conditions][-_KEPT:]
            write_whole(self._file, json.dumps(self._passed, indent=2).encode())
        return scorer

    def _verified(self, run: RunDirectory) -> tuple[Callable[[], None], Callable[[], None]]:
        """`RunDirectory.verify`, perhaps under way, of what a graph needs and of the weights that only torch reads;
        each waits and raises."""
        for known, (graph, weights) in self._under_way:
            if known == run:
                return graph.result, weights.result
        return partial(run.verify, _read_by_graph(run)), partial(run.verify, _weights(run))


def _weights(run: RunDirectory) -> list[str]:
    return [name for name in run.manifest.files if name.endswith(".safetensors")]


def _read_by_graph(run: RunDirectory) -> list[str]:
    return [name for name in run.manifest.files if not name.endswith(".safetensors")]


def _read(file: Path) -> list[Conditions]:
    if not file.exists():
        return []
    try:
        stored = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): all golden traces are replayed", file, error)
        return []
    return stored if isinstance(stored, list) else []
