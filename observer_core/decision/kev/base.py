"""The frozen backbone a Kev checkpoint is an adapter of: where it comes from, and whether it is the right one.

A base has a name and a revision: for a hub id its commit, for a folder the sha256 of its weights. A checkpoint records
both; its base is looked for, in this order, in the folder the caller gives, in `base/` inside the checkpoint (small
bases travel with it), under the name of a preset, in `OBSERVER_HOME/models/<last part of the name>`, and on the hub.
"""

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from observer_core.decision.hub import fetch, is_hub_id
from observer_core.decision.kev import smollm2
from observer_core.decision.kev.config import BASE_DIR, KevConfig
from observer_core.errors import InputError
from observer_core.files import sha256_file
from observer_core.home import Home

BASE_FILES = ("*.json", "*.safetensors", "*.txt")
"""What is fetched of a base on the hub: nothing that could hold code."""
CARRIED_BYTES = 64 * 2**20
"""A base whose weights are at most this large is copied into the runs made from it."""
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Base:
    """A backbone with its tokenizer.

    Args:
        name: its public name, or its folder's name.
        revision: its commit on the hub, else the sha256 of its weights.
        folder: where it lies: `config.json`, weights as safetensors, tokenizer files.
    """

    name: str
    revision: str | None
    folder: Path


def folder_base(folder: Path, name: str | None = None) -> Base:
    """The base in a folder as saved by transformers.

    Raises:
        InputError: it lacks a file.
    """
    for file in ("config.json", "tokenizer.json"):
        if not (folder / file).is_file():
            raise InputError(f"base folder {folder} lacks {file}; give a folder saved by transformers")
    return Base(name or folder.name, fingerprint(folder), folder)


def find_base(config: KevConfig, checkpoint: Path, given: Path | None) -> Base:
    """The base a checkpoint belongs to (the order is the module's).

    Raises:
        InputError: it is nowhere, or what is there is another one; names what differs.
    """
    base = _find(config, checkpoint, given)
    # A commit cannot be told from the files alone, so a folder that stands in for it is taken at its word.
    if SHA256.fullmatch(config.base_revision or "") and base.revision != config.base_revision:
        raise InputError(
            f"{checkpoint} belongs to base {config.base} with base_revision {config.base_revision}, the one in "
            f"{base.folder} is {base.revision}; give the right folder with --base"
        )
    return base


def _find(config: KevConfig, checkpoint: Path, given: Path | None) -> Base:
    if given is not None:
        return folder_base(given, config.base)
    if (checkpoint / BASE_DIR).is_dir():
        return folder_base(checkpoint / BASE_DIR, config.base)
    home = Home.from_env()
    if config.base == smollm2.BASE:
        return folder_base(smollm2.prepare(home), config.base)
    local = home.models / config.base.rsplit("/", 1)[-1]
    if local.is_dir():
        return folder_base(local, config.base)
    if is_hub_id(config.base):
        revision = "" if config.base_revision is None else f"@{config.base_revision}"
        return Base(config.base, config.base_revision, fetch(config.base + revision, BASE_FILES))
    raise InputError(f"{checkpoint} needs its base {config.base}; put its folder at {local}, or give it with --base")


def carry_base(base: Base, checkpoint: Path) -> None:
    """Copy a base that is small into a checkpoint, unless it can be had by its name."""
    weights = sorted(base.folder.glob("*.safetensors"))
    if base.name == smollm2.BASE or sum(file.stat().st_size for file in weights) > CARRIED_BYTES:
        return
    target = checkpoint / BASE_DIR
    target.mkdir()
    for file in (*weights, *(base.folder / name for name in ("config.json", "tokenizer.json"))):
        shutil.copyfile(file, target / file.name)


def remember_base(base: Base, checkpoint: Path) -> None:
    """Link a base that neither travels with a checkpoint nor can be fetched into `OBSERVER_HOME/models`, where the runs
    made from it look for it; something of that name that is there already stays."""
    home = Home.from_env()
    known = home.models / base.name.rsplit("/", 1)[-1]
    if (checkpoint / BASE_DIR).is_dir() or base.name == smollm2.BASE or known.exists():
        return
    home.ensure(home.models)
    known.symlink_to(base.folder.resolve(), target_is_directory=True)


def fingerprint(folder: Path) -> str:
    """The sha256 of a folder's weights: of `model.safetensors`, or of the names and sha256s of its parts.

    Raises:
        InputError: the folder has no weights.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"base folder {folder} lacks model.safetensors; give a folder saved by transformers")
    if len(files) == 1:
        return sha256_file(files[0])
    parts = "".join(f"{file.name} {sha256_file(file)}\n" for file in files)
    return hashlib.sha256(parts.encode()).hexdigest()
