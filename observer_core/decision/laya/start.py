"""What a training begins with: a new head on a pretrained encoder, or all of an earlier run or released checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from observer_core.decision.laya.checkpoint import load_checkpoint
from observer_core.decision.laya.config import CONFIG_FILE, LayaConfig
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.presets import DEFAULT, Preset, find_preset
from observer_core.decision.laya.trainer import fresh_model
from observer_core.decision.training.options import TrainOptions
from observer_core.errors import InputError
from observer_core.rundir import open_run


@dataclass(frozen=True, slots=True)
class Start:
    """A model to train on.

    Args:
        tokenizer: the folder of its tokenizer.
        name: what the manifest calls the model.
        base, revision: the pretrained weights it all began with.
        init_from: the run or checkpoint it goes on from, `None` for a new head.
    """

    model: DecisionModel
    config: LayaConfig
    tokenizer: Path
    name: str
    base: str | None
    revision: str | None
    init_from: str | None


def find_start(options: TrainOptions) -> Start:
    """Load the starting point that the options name; `init_from` goes before `preset`.

    Raises:
        InputError: it cannot be found or loaded, is of another family, or reads fewer tokens than asked for.
    """
    if options.init_from is None:
        return _from_preset(find_preset(options.preset or DEFAULT), options.max_tokens)
    if (options.init_from / CONFIG_FILE).is_file():
        return _from_preset(find_preset(str(options.init_from)), options.max_tokens)
    run = open_run(options.init_from)
    manifest = run.manifest
    if manifest.family != "laya":
        raise InputError(f"--init-from {run.path} is a {manifest.family} run; name a laya run")
    run.verify()
    released = find_preset(str(run.checkpoint))
    model, config = _loaded(released, options.max_tokens)
    earlier = f"{run.path.name}@{run.version}"
    return Start(model, config, released.tokenizer, manifest.model, manifest.base, manifest.base_revision, earlier)


def _from_preset(preset: Preset, max_tokens: int) -> Start:
    if preset.released:
        model, config = _loaded(preset, max_tokens)
    else:
        model, config = fresh_model(preset, max_len=max_tokens)
    init_from = f"{preset.base}@{preset.revision[:12]}" if preset.released else None
    return Start(model, config, preset.tokenizer, preset.name, preset.base, preset.revision, init_from)


def _loaded(preset: Preset, max_tokens: int) -> tuple[DecisionModel, LayaConfig]:
    if max_tokens > preset.max_len:
        raise InputError(f"{preset.folder} reads at most {preset.max_len} tokens, not {max_tokens}; lower --max-tokens")
    model, config = load_checkpoint(preset.folder)
    # Its makers may have stopped short of what the encoder can read.
    return model, config.model_copy(update={"max_len": max(config.max_len, max_tokens)})
