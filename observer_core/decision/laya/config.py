"""What a Laya checkpoint says of itself: `rl_agent_config.json`, and configurations that must not ask for code."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from observer_core.decision.checkpoint_files import TOKENIZER_FILES
from observer_core.errors import InputError
from observer_core.tokenizer import TOKENIZER_CONFIG

CONFIG_FILE = "rl_agent_config.json"
WEIGHTS_FILE = "model.safetensors"
ENCODER_DIR = "encoder"
TOKENIZER_DIR = "tokenizer"
ENCODER_CONFIG = "config.json"
FILES = (
    *(CONFIG_FILE, WEIGHTS_FILE, f"{ENCODER_DIR}/{ENCODER_CONFIG}"),
    *("questions.json", "train_report.json"),  # records of the laya package's trainer, read by nothing here
    *(f"{TOKENIZER_DIR}/{name}" for name in TOKENIZER_FILES),
)
"""Everything that may lie in a checkpoint, and what is fetched of one on the hub: nothing that could hold code."""
SEQUENTIAL = "sequential"
TYPES = ("choice", "score", "noul")
"""Question types in the order of `temperature` and of the type embedding."""
TEMPERATURES = (0.5, 5.0)
"""Fitted temperatures outside are applied as the nearer end, as the `laya` package does: a released bucket of 0.1 would
publish a coin flip as a certainty."""

CODE_SUFFIXES = frozenset((".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".py", ".so"))
"""Of files that are code, or may be pickled, which runs code when it is read."""
CODE_FIELDS = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
"""Fields that make transformers fetch or run code, or read weights in another way."""

Temperature = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]


class LayaConfig(BaseModel):
    """The keys this project reads; every other key of a released checkpoint is kept.

    Args:
        max_len: the whole row in tokens.
        head_max_len: what question and options may take of it.
        temperature: divides the logits, by type in the order of `TYPES`.
        temperature_by_options: the same for some numbers of options, such as `choice:3-5`; it goes before.
        act_costs: only fixes the width of the action head.
        option_layout: how options stand in the row; only `sequential` is read here, as in every released checkpoint.
    """

    model_config = ConfigDict(extra="allow")

    encoder: str
    head_layers: int = Field(2, ge=0)
    act_costs: dict[str, float] = Field(default_factory=dict)
    max_len: int = Field(512, ge=32)
    head_max_len: int = Field(192, ge=16)
    temperature: tuple[Temperature, Temperature, Temperature] = (1.0, 1.0, 1.0)
    temperature_by_options: dict[str, Temperature] = Field(default_factory=dict)
    option_layout: str = SEQUENTIAL

    @property
    def actions(self) -> int:
        """Outputs of the action head: one per cost, and answering."""
        return len(self.act_costs) + 1

    def temperature_of(self, type_id: int, options: int) -> float:
        """What divides the logits of a question of that type (its place in `TYPES`) with so many options."""
        size = next(name for limit, name in ((2, "2"), (5, "3-5"), (10, "6-10"), (options, "11+")) if options <= limit)
        fitted = self.temperature_by_options.get(f"{TYPES[type_id]}:{size}", self.temperature[type_id])
        low, high = TEMPERATURES
        return min(high, max(low, fitted))

    def save(self, checkpoint: Path) -> None:
        """Write `rl_agent_config.json` into the checkpoint folder."""
        body: dict[str, Any] = self.model_dump(mode="json")
        (checkpoint / CONFIG_FILE).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, checkpoint: Path) -> "LayaConfig":
        """Read `rl_agent_config.json` of a checkpoint folder.

        Raises:
            InputError: missing, or a field is unusable; names file and field.
        """
        file = checkpoint / CONFIG_FILE
        try:
            config = cls.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            raise InputError(f"{file} is missing; copy the run again or train anew") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "(whole file)"
            raise InputError(f"{file}: field '{where}': {first['msg']}; copy the run again or train anew") from None
        if config.option_layout != SEQUENTIAL:
            raise InputError(
                f"{file}: option_layout '{config.option_layout}' is not read by this version, whose rows are "
                f"{SEQUENTIAL}; take a {SEQUENTIAL} checkpoint or load this one with the laya package"
            )
        return config


def read_config(file: Path) -> dict[str, Any]:
    """A JSON configuration that asks for no code.

    Raises:
        InputError: missing, not a JSON object, or it has one of `CODE_FIELDS`.
    """
    try:
        body = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{file} is missing; copy the run again or train anew") from None
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}); copy the run again or train anew") from error
    if not isinstance(body, dict):
        raise InputError(f"{file} is not a JSON object; copy the run again or train anew")
    for name in CODE_FIELDS:
        if body.get(name) is not None:
            raise InputError(f"{file}: field '{name}' asks for code or kernels of its own; remove it")
    return body


def refuse_code(folder: Path) -> None:
    """Refuse a checkpoint or encoder folder that could run code when somebody reads it.

    Raises:
        InputError: a file may be pickled or is code, or a configuration asks for code; names it.
    """
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in CODE_SUFFIXES:
            raise InputError(
                f"{file} may hold code, which no checkpoint needs; remove it, and give weights as safetensors"
            )
        if file.name in (ENCODER_CONFIG, TOKENIZER_CONFIG):
            read_config(file)
