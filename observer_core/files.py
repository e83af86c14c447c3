"""Files and folders that appear whole or not at all, and their fingerprints."""

import contextlib
import hashlib
import mmap
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from observer_core.errors import InputError, ObserverError

_PIECE_BYTES = 8 << 20
_UNFINISHED = ".tmp"


def sha256_file(path: Path) -> str:
    """The file's sha256 as 64 hex digits.

    Read in large pieces: after each one the interpreter is asked for again, and another thread may just have it. Their
    memory comes from the system, which clears it while it reads; Python would keep the other threads waiting for that.
    """
    digest = hashlib.sha256()
    with (
        path.open("rb", buffering=0) as stream,
        mmap.mmap(-1, min(_PIECE_BYTES, path.stat().st_size + 1)) as memory,
        memoryview(memory) as piece,
    ):
        while count := stream.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()


def fsync_dir(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_UNFINISHED}")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write to the yielded temporary path; on success it is synced and renamed to `path`.

    On an exception nothing is left behind and `path` keeps what it had.

    Raises:
        ObserverError: the disk refused (full, read-only); names the file.
    """
    aside = _aside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        aside.replace(path)
        fsync_dir(path.parent)
    except OSError as error:
        raise ObserverError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another place"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # what could not be written cannot always be removed
            aside.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step (see `whole_file`)."""
    with whole_file(path) as aside:
        aside.write_bytes(data)


def remove_unfinished(folder: Path) -> None:
    """Remove what a crash left in `folder` of files that were being written; for who alone writes there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as files:
        for file in files:
            if file.name.startswith(".") and file.name.endswith(_UNFINISHED) and file.is_file():
                Path(file).unlink()


@contextlib.contextmanager
def whole_dir(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill the yielded temporary folder; on success it is renamed to `path`.

    Args:
        path: the final folder.
        replace: whether an existing `path` may be replaced.

    Raises:
        InputError: `path` exists and may not be replaced.
        ObserverError: the disk refused (full, read-only); names the folder.
    """
    if path.exists() and not replace:
        raise InputError(f"{path} exists already; choose another folder or remove it first")
    aside = _aside(path)
    try:
        aside.mkdir(parents=True)
        yield aside
        if path.exists():
            old = _aside(path)
            path.rename(old)
            aside.rename(path)
            shutil.rmtree(old)
        else:
            aside.rename(path)
        fsync_dir(path.parent)
    except OSError as error:
        raise ObserverError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another place"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
