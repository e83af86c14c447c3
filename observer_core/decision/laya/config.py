"""`rl_agent_config.json`, the file that says how a Laya checkpoint is built and read."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from observer_core.errors import InputError

CONFIG_FILE = "rl_agent_config.json"
WEIGHTS_FILE = "model.safetensors"
ENCODER_DIR = "encoder"
TOKENIZER_DIR = "tokenizer"


class LayaConfig(BaseModel):
    """The keys this project reads; every other key of a released checkpoint is kept.

    `max_len` is the whole row in tokens, `head_max_len` what question and options may take of it. `temperature` divides
    the logits, by type in the order choice, score, noul. `act_costs` only fixes the width of the action head.
    """

    model_config = ConfigDict(extra="allow")

    encoder: str
    head_layers: int = Field(2, ge=0)
    act_costs: dict[str, float] = Field(default_factory=dict)
    max_len: int = Field(512, ge=32)
    head_max_len: int = Field(192, ge=16)
    temperature: tuple[float, float, float] = (1.0, 1.0, 1.0)
    option_layout: Literal["sequential"] = "sequential"

    @property
    def actions(self) -> int:
        """Outputs of the action head: one per cost, and answering."""
        return len(self.act_costs) + 1

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
        if not all(0 < t < float("inf") for t in config.temperature):
            raise InputError(f"{file}: field 'temperature' must hold numbers above 0; copy the run again or train anew")
        return config
