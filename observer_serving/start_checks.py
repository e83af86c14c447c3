"""What spares a start some of the checks' time, and none of the checks.

The files of a start's runs are hashed beside what else it does. And a run whose whole golden replay has passed on this
machine need not compute all of it again: the replay asks whether these weights, these libraries and this processor give
what was evaluated, so when the files' hashes, the libraries' versions and the processor are those of a replay that
passed, the answer is known, and one trace shows that it still holds.
"""

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import observer_core
from observer_core.files import sha256_file, write_whole
from observer_core.rundir import MANIFEST, RunDirectory

if TYPE_CHECKING:
    from observer_core.decision.scorer import RunScorer

log = logging.getLogger(__name__)

Backend = Literal["auto", "onnx", "torch"]

_KEPT = 32
_LIBRARIES = ("observer-pipeline", "numpy", "tokenizers", "onnxruntime", "torch", "transformers")
_CPUINFO = Path("/proc/cpuinfo")

Conditions = dict[str, str]
"""All that a score depends on besides the trace."""


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

        proven = bool(self._passed) and conditions(run, backend) in self._passed
        graph_is_read, weights_are_read = self._verified(run)
        graph_is_read()
        if backend == "torch" or run.manifest.onnx.get("served") is None:
            weights_are_read()
        scorer = load_scorer(run, backend=backend, verified=True)
        replay_golden(scorer, run, proven=proven)
        weights_are_read()  # by nobody now, perhaps by another back end later
        if not proven:
            self._passed = [*self._passed, conditions(run, backend)][-_KEPT:]
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


def conditions(run: RunDirectory, backend: str) -> Conditions:
    """The run (its manifest has the sha256 of every other file), our code, the libraries' versions, the processor."""
    return {
        "manifest": sha256_file(run.path / MANIFEST),
        "backend": backend,
        "code": _code(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _LIBRARIES},
        "processor": _processor(),
    }


def _read(file: Path) -> list[Conditions]:
    if not file.exists():
        return []
    try:
        stored = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s): all golden traces are replayed", file, error)
        return []
    return stored if isinstance(stored, list) else []


def _code() -> str:
    """What tells the models' code, since a checkout changes under one version: names, sizes, times of its files."""
    folder = Path(observer_core.__file__).parent
    files = [(file.relative_to(folder).as_posix(), file.stat()) for file in sorted(folder.rglob("*.py"))]
    told = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # or installed under another name, as onnxruntime-gpu is
        return getattr(sys.modules.get(library), "__version__", "absent")


def _processor() -> str:
    """Model and instruction sets of the first core."""
    if not _CPUINFO.exists():
        return f"{platform.machine()} {platform.processor()}"
    told: dict[str, str] = {}
    with _CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, found, value = line.partition(":")
            if not found:
                break
            told[name.strip()] = value.strip()
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # of x86, then of ARM
    return " ".join((platform.machine(), *(told[name] for name in wanted if name in told)))
