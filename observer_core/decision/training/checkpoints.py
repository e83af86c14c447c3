"""Checkpoints of a training in progress: a folder `<out>.partial` beside the run directory that will be.

    identity.json   what decides the result: options, fingerprints of the data and of the starting point
    <stage>.pt      where each `fit` stands, or what it came to; written whole or not at all
    lock            held by the process that trains

A training that was killed leaves the folder behind, and the same command goes on from it. It is removed when the run is
whole, and when the training failed in a way that would repeat itself.
"""

import contextlib
import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observer_core.decision.training.health import TrainingFailedError
from observer_core.errors import InputError
from observer_core.files import whole_file, write_whole

IDENTITY = "identity.json"
LOCK = "lock"
SUFFIX = ".pt"
WRITING_SHARE = 0.05
"""Writing checkpoints may take this share of the time; large models are saved less often than asked for."""


def partial_of(out: Path) -> Path:
    """Where a training to `out` keeps its checkpoints."""
    return out.with_name(f"{out.name}.partial")


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of one training.

    Args:
        folder: where they lie.
        seconds: a checkpoint is due this long after the last one.
        steps: and after this many steps.
    """

    folder: Path
    seconds: float = 60.0
    steps: int | None = None
    clock: Callable[[], float] = time.monotonic

    def stage(self, name: str) -> "StageCheckpoint":
        return StageCheckpoint(self, self.folder / f"{name}{SUFFIX}")

    def confirm(self, name: str, value: str) -> None:
        """Record more of what decides the result, such as the starting point's fingerprint, or compare with the record.

        Raises:
            InputError: the training in this folder began with something else; names it.
        """
        known = _read_identity(self.folder)
        _compare(self.folder, known, {name: value})
        write_whole(self.folder / IDENTITY, _encode({**known, name: value}))


class StageCheckpoint:
    """The checkpoint of one `fit`: a single file, replaced whole."""

    def __init__(self, of: Checkpoints, file: Path) -> None:
        self._of, self._file = of, file
        self._last, self._took = of.clock(), 0.0

    def load(self) -> dict[str, Any] | None:
        """What was saved last, on the CPU.

        Raises:
            InputError: the file is broken.
        """
        import torch

        if not self._file.is_file():
            return None
        try:
            return torch.load(self._file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever the pickle inside leads to
            raise InputError(f"{self._file} is broken ({type(error).__name__}); begin anew with --fresh") from error

    def due(self, step: int) -> bool:
        """Whether it is time for the next one."""
        if self._of.steps is not None and step % self._of.steps == 0:
            return True
        pause = max(self._of.seconds, self._took / WRITING_SHARE)
        return self._of.clock() - self._last >= pause

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        Raises:
            ObserverError: the disk refused.
        """
        import torch

        started = self._of.clock()
        with whole_file(self._file) as aside:
            torch.save(dict(state), aside)
        self._last = self._of.clock()
        self._took = self._last - started


@contextlib.contextmanager
def open_checkpoints(
    out: Path, identity: Mapping[str, Any], *, fresh: bool, seconds: float, steps: int | None
) -> Iterator[Checkpoints]:
    """The checkpoints for a training to `out`: those that an earlier process left, or none yet.

    Args:
        identity: what decides the result, JSON values by name.
        fresh: throw away what an earlier process left.

    Raises:
        InputError: another process is training to `out`, or what lies there was begun with other options, data or
            starting point; names the first difference.
    """
    folder = partial_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another process is training to {out}; wait for it or give another --out") from None
        if fresh or not any(folder.glob(f"*{SUFFIX}")):
            _empty(folder)
            write_whole(folder / IDENTITY, _encode(identity))
        else:
            _compare(folder, _read_identity(folder), identity)
        _remove_leftovers(out)
        try:
            yield Checkpoints(folder, seconds, steps)
        except TrainingFailedError:
            shutil.rmtree(folder)
            raise
        except BaseException:
            if not any(folder.glob(f"*{SUFFIX}")):
                shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def _encode(identity: Mapping[str, Any]) -> bytes:
    return json.dumps(identity, indent=2).encode()


def _read_identity(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / IDENTITY).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / IDENTITY} cannot be read ({error}); begin anew with --fresh") from error


def _compare(folder: Path, known: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, value in new.items():
        if name in known and known[name] != value:
            raise InputError(
                f"{folder} holds a training that began with {name} {known[name]}, not {value}; give what it began with "
                "to go on, or --fresh to begin anew"
            )


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name != LOCK:
            file.unlink()


def _remove_leftovers(out: Path) -> None:
    """Half-made files and folders of a process that was killed; under the lock no other process makes any."""
    half_made = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}\.tmp")
    for path in [*partial_of(out).glob(".*.tmp"), *(p for p in out.parent.iterdir() if half_made.fullmatch(p.name))]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
