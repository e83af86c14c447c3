"""What a Kev checkpoint says of itself: how it is built, and how text becomes its tokens.

Released checkpoints say it in `head.pt`, which takes torch to read; ours say it in `kev.json` too, so that an exported
graph is served without torch.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from observer_core.decision.checkpoint_files import TOKENIZER_FILES
from observer_core.errors import InputError

CONFIG_FILE = "kev.json"
HEAD_FILE = "head.pt"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
BASE_DIR = "base"
FILES = (
    *(CONFIG_FILE, HEAD_FILE, ADAPTER_FILE, ADAPTER_CONFIG, *TOKENIZER_FILES),
    *("training_config.json", "training_metrics.json"),  # records of the released trainer, read by nothing here
    *(f"{BASE_DIR}/{name}" for name in ("config.json", "*.safetensors", *TOKENIZER_FILES)),
)
"""Everything that may lie in a checkpoint, and what is fetched of one on the hub."""

Delimiters = tuple[str, str, str, str, str]
"""The names of five tokens of the base's vocabulary: begin of state, of question, of option, end of option, decide."""

QWEN_DELIMITERS: Delimiters = (
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|fim_suffix|>",
)

MAX_STATE = 8192
MAX_BRANCH = 8192

COMPARED = (
    "base",
    "base_revision",
    "lora",
    "head_dim",
    "option_isolation",
    "special_embeddings",
    "weights_dtype",
    "temperature",
    "delimiters",
    "max_state",
    "max_branch",
)
"""The fields in which two descriptions of one model must agree before its weights are loaded."""


class KevConfig(BaseModel):
    """The fields of `head.pt` besides its weights, with the defaults of released checkpoints; unknown fields are kept.

    Args:
        base: the backbone's public name, or the name of its folder.
        base_revision: its commit, or the sha256 of its weights when it has none.
        lora: rank of the adapter.
        head_dim: width of the pointer head.
        option_isolation: options that do not see each other (not supported).
        special_embeddings: trained embeddings of the delimiters (not supported).
        weights_dtype: of the backbone while it was trained; here arithmetic is always float32.
        temperature: divides the logits.
        max_state: tokens of a state, its delimiter included; what is longer is cut or refused.
        max_branch: tokens of one question with its options. Separate limits, so that neither a question nor its
            company changes what is read of the state.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    base: str = Field(min_length=1)
    base_revision: str | None = None
    lora: int = Field(0, ge=0)
    head_dim: int = Field(256, ge=1, le=65536)
    option_isolation: bool = False
    special_embeddings: bool = False
    weights_dtype: Literal["fp32", "bf16"] = "fp32"
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    delimiters: Delimiters = QWEN_DELIMITERS
    max_state: int = Field(MAX_STATE, ge=2)
    max_branch: int = Field(MAX_BRANCH, ge=8)

    @field_validator("delimiters")
    @classmethod
    def _different(cls, names: Delimiters) -> Delimiters:
        if len(set(names)) < len(names) or not all(names):
            raise ValueError("the five delimiters must be five different tokens")
        return names

    def require_equal(self, other: "KevConfig", mine: str, theirs: str) -> None:
        """Compare two descriptions of one model.

        Args:
            mine: what this description is of, for the error.
            theirs: what the other one is of.

        Raises:
            InputError: names the first field in which they differ, and both values.
        """
        for field in COMPARED:
            ours, found = getattr(self, field), getattr(other, field)
            if ours != found:
                raise InputError(
                    f"{mine} says {field} {_shown(ours)}, {theirs} says {_shown(found)}; these do not belong together"
                )

    def save(self, checkpoint: Path) -> None:
        """Write `kev.json` into the checkpoint folder."""
        body: dict[str, Any] = self.model_dump(mode="json")
        (checkpoint / CONFIG_FILE).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def parse(cls, body: Any, source: Path) -> "KevConfig":
        """Check the fields that were read from `source`.

        Raises:
            InputError: a field is unusable, or needs what this version cannot do; names file and field.
        """
        try:
            config = cls.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "(whole file)"
            raise InputError(f"{source}: field '{where}': {first['msg']}; copy the run again or train anew") from None
        for field in ("option_isolation", "special_embeddings"):
            if getattr(config, field):
                raise InputError(f"{source}: this version cannot load checkpoints with {field}; use another checkpoint")
        return config

    @classmethod
    def load(cls, checkpoint: Path) -> "KevConfig | None":
        """Read `kev.json` of a checkpoint folder, `None` when it has none (released checkpoints).

        Raises:
            InputError: it is not JSON, or a field is unusable; names file and field.
        """
        file = checkpoint / CONFIG_FILE
        if not file.is_file():
            return None
        try:
            body = json.loads(file.read_bytes())
        except ValueError as error:
            raise InputError(f"{file} is not JSON ({error}); copy the run again or train anew") from error
        return cls.parse(body, file)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
