"""Starting points for training a Kev model: a preset, a released or earlier checkpoint, or a base's folder."""

from dataclasses import dataclass
from pathlib import Path

from observer_core.decision.hub import HUB_ID, fetch
from observer_core.decision.kev import smollm2
from observer_core.decision.kev.base import folder_base
from observer_core.decision.kev.checkpoint import Loaded, load_backbone, load_checkpoint
from observer_core.decision.kev.config import (
    ADAPTER_FILE,
    FILES,
    HEAD_FILE,
    MAX_BRANCH,
    MAX_STATE,
    QWEN_DELIMITERS,
    Delimiters,
    KevConfig,
)
from observer_core.decision.kev.model import KevNetwork
from observer_core.errors import InputError
from observer_core.files import sha256_file
from observer_core.home import Home
from observer_core.rundir import MANIFEST, open_run
from observer_core.tokenizer import load_tokenizer

DEFAULT = "kev-mini"
RELEASED = {"kev-0.8b": "jaredpalmer/kev-0.8b", "kev-4b": "jaredpalmer/kev-4b"}
PRESETS = (DEFAULT, *RELEASED)
HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class Start:
    """What training starts from.

    Args:
        model: what a run made from it calls its model.
        loaded: network, configuration, base and tokenizer; LoRA not merged.
        init_from: the checkpoint gone on from, `None` for a new head and new LoRA.
    """

    model: str
    loaded: Loaded
    init_from: str | None


def find_checkpoint(name: str) -> Path:
    """The checkpoint folder of a preset, a hub id (`owner/name@revision`), a run directory or a checkpoint folder.

    Raises:
        InputError: it is none of these, or the hub cannot be reached.
    """
    folder = Path(name)
    if (folder / MANIFEST).is_file():
        run = open_run(folder)
        if run.manifest.family != "kev":
            raise InputError(f"{folder} is a {run.manifest.family} run; name a kev run")
        run.verify()
        return run.checkpoint
    if (folder / HEAD_FILE).is_file():
        return folder
    if folder.is_dir():
        raise InputError(f"{folder} is neither a run directory nor a Kev checkpoint ({HEAD_FILE}); name another")
    return fetch(RELEASED.get(name, name), FILES)


def find_start(preset: str | None, init_from: Path | None, base: Path | None, *, rank: int) -> Start:
    """What to train on.

    Args:
        preset: one of `PRESETS`, or a base's folder; `kev-mini` when neither this nor `init_from` is given.
        init_from: an earlier run, a checkpoint's folder or a hub id.
        base: the backbone's folder, for checkpoints whose base is not found by its name.
        rank: of new LoRA.

    Raises:
        InputError: it is not there, or cannot be used.
    """
    if init_from is not None:
        return _go_on(str(init_from), base)
    name = preset or DEFAULT
    if name in RELEASED or (Path(name) / HEAD_FILE).is_file():
        return _go_on(name, base)
    if base is not None:
        raise InputError(f"--base belongs to a checkpoint, and preset {name} is none; leave it out")
    if name == DEFAULT:
        return _fresh(name, smollm2.prepare(Home.from_env()), smollm2.BASE, rank)
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"no preset or base folder '{name}'; presets of family kev: {', '.join(PRESETS)}")
    return _fresh(f"kev-{folder.name}", folder, folder.name, rank)


def _go_on(name: str, base: Path | None) -> Start:
    checkpoint = find_checkpoint(name)
    loaded = load_checkpoint(checkpoint, base=base, merge=False)
    if (Path(name) / MANIFEST).is_file():
        run = open_run(Path(name))
        return Start(run.manifest.model, loaded, f"{run.path.resolve().name}@{run.version}")
    found = HUB_ID.fullmatch(RELEASED.get(name, name))
    model = found["repo"].rsplit("/", 1)[-1] if found and not Path(name).is_dir() else Path(name).resolve().name
    public = RELEASED.get(name, name) if found and not Path(name).is_dir() else model
    return Start(model, loaded, f"{public}#{sha256_file(checkpoint / ADAPTER_FILE)[:12]}")


def _fresh(model: str, folder: Path, base_name: str, rank: int) -> Start:
    base = folder_base(folder, base_name)
    backbone = load_backbone(folder)
    positions = int(backbone.config.max_position_embeddings)  # pyright: ignore
    # The larger part: 255 options with a line of text each, which the contract allows, take over 4,200 tokens.
    max_branch = min(MAX_BRANCH, positions * 5 // 8)
    config = KevConfig(
        base=base.name,
        base_revision=base.revision,
        lora=rank,
        head_dim=HEAD_DIM,
        delimiters=choose_delimiters(folder),
        max_state=min(MAX_STATE, positions - max_branch),
        max_branch=max_branch,
    )
    return Start(model, Loaded(KevNetwork(backbone, head_dim=HEAD_DIM), config, base, folder), None)


def choose_delimiters(folder: Path) -> Delimiters:
    """Five special tokens that a base's vocabulary has: Qwen's, else SmolLM2's.

    Raises:
        InputError: it has neither set, or its tokenizer is missing or broken.
    """
    tokenizer = load_tokenizer(folder)
    for names in (QWEN_DELIMITERS, smollm2.DELIMITERS):
        if all(tokenizer.token_to_id(name) is not None for name in names):
            return names
    raise InputError(
        f"{folder / 'tokenizer.json'} has neither Qwen's nor SmolLM2's special tokens; choose another base"
    )
