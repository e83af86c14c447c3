"""Run directories that came by upload, under `serving/models/`: unpacked by their hash, the oldest removed again."""

import logging
import os
import shutil
import tarfile
import uuid
from collections.abc import Iterable
from pathlib import Path

from observer_core.errors import InputError
from observer_core.rundir import MANIFEST

log = logging.getLogger(__name__)

MODELS_FOLDER = "models"
_MAX_UNPACKED = 8 << 30


class Uploads:
    """The uploads of one service; `keep` are left besides those in use."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder / MODELS_FOLDER
        self._keep = keep
        for left in self._folder.glob(".*"):  # by a process that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def new_file(self) -> Path:
        """Where an upload may be written while it comes in; the caller removes it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f".upload-{uuid.uuid4().hex[:8]}.tar"

    def unpack(self, archive: Path, digest: str) -> Path:
        """The run directory in an uploaded tar with this sha256, unpacked.

        Raises:
            InputError: it is no tar, or does not hold exactly one run directory.
        """
        target = self._folder / digest[:16]
        if target.exists():
            os.utime(target)
            return target
        aside = target.with_name(f".{digest[:16]}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            with tarfile.open(archive) as tar:
                if sum(member.size for member in tar.getmembers()) > _MAX_UNPACKED:
                    raise InputError("the upload unpacks to more than 8 GiB; that is no run directory")
                aside.mkdir()
                tar.extractall(aside, filter="data")
            manifests = [*aside.glob(MANIFEST), *aside.glob(f"*/{MANIFEST}")]
            if len(manifests) != 1:
                raise InputError(f"the upload holds {len(manifests)} {MANIFEST}; pack exactly one run directory")
            manifests[0].parent.rename(target)
            os.utime(target)  # by which the oldest is told; the archive has times of its own
        except tarfile.TarError as error:
            raise InputError(f"the upload is not a tar archive of a run directory: {error}") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return target

    def prune(self, in_use: Iterable[str]) -> None:
        """Remove the oldest uploads that nothing uses, but for the last `keep`."""
        used = {Path(run) for run in in_use}
        unused = [folder for folder in self._folder.glob("[!.]*") if folder.is_dir() and folder.resolve() not in used]
        unused.sort(key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in unused[self._keep :]:
            shutil.rmtree(folder)
            log.info("removed the uploaded model %s", folder.name)
