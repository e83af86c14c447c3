"""What spares a start some of the checks' time, and none of the checks.

The files of a start's runs are hashed beside what else it does. And a run whose whole golden replay has passed on this
machine need not compute all of it again: the replay asks whether these weights, these libraries and this processor give
what was evaluated, so when the files' hashes, the libraries' versions and the processor are those of a replay that
passed, the answer is known, and one trace shows that it still holds.
"""

import json
import logging
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from observer_core.files import sha256_file, write_whole
from observer_core.rundir import MANIFEST, RunDirectory

log = logging.getLogger(__name__)

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
        hashing = ThreadPoolExecutor(1, "observer-verify")
        self._under_way = [(run, hashing.submit(run.verify)) for run in runs]
        hashing.shutdown(wait=False)

    def verify(self, run: RunDirectory) -> None:
        """As `RunDirectory.verify`, which may be under way."""
        for known, verified in self._under_way:
            if known == run:
                return verified.result()
        return run.verify()

    def passed(self, run: RunDirectory, backend: str) -> bool:
        """Whether this very run has passed its golden replay here, under what is installed now."""
        return bool(self._passed) and conditions(run, backend) in self._passed

    def note_passed(self, run: RunDirectory, backend: str) -> None:
        """
        Raises:
            ObserverError: the disk refused.
        """
        self._passed = [*self._passed, conditions(run, backend)][-_KEPT:]
        write_whole(self._file, json.dumps(self._passed, indent=2).encode())


def conditions(run: RunDirectory, backend: str) -> Conditions:
    """The run (its manifest has the sha256 of every other file), the libraries' versions and the processor."""
    return {
        "manifest": sha256_file(run.path / MANIFEST),
        "backend": backend,
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


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


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
