"""The run directory: the only unit in which models travel. This module is the one home of its format.

RUN/
  manifest.json       what the service needs (`Manifest`)
  checkpoint/         weights in the family's own layout
  onnx/               optional: exported graph, quantised variant
  metrics.json        {"all" | "natural" | "seeded": {metric: {"value", "lo", "hi", "n"}}}
  predictions.parquet one row per test trace and scorer
  report.md report.html
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from observer_core.errors import InputError
from observer_core.files import sha256_file, whole_dir
from observer_core.questions import DECISION_QUESTION, Question

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint"
TOKENIZER = "tokenizer"
ONNX = "onnx"
STACKED_BASE = "base"  # in a stacked run's checkpoint: the run of its model
METRICS = "metrics.json"
PREDICTIONS = "predictions.parquet"
REPORT_MD = "report.md"
REPORT_HTML = "report.html"

Family = Literal["kev", "laya", "baseline", "stacked"]


class Calibration(BaseModel):
    """How `p_wrong_raw` becomes `p_wrong`; the methods are in `observer_core.decision.calibration`."""

    model_config = ConfigDict(extra="forbid")

    method: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    fitted_on: str | None = None


class Golden(BaseModel):
    """A generated trace (the JSON of a trace) with the score this run gave it when it was made."""

    trace: dict[str, Any]
    p_wrong_raw: float


class Manifest(BaseModel):
    """`manifest.json`. Only `model` and `questions` are required, so that manifests of the seed system load."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    format_version: int = FORMAT_VERSION
    family: Family = "kev"
    model: str
    base: str | None = None
    base_revision: str | None = None
    init_from: str | None = None
    run_dir: str | None = None
    train_data_sha: str | None = None
    questions: dict[str, Question] = Field(min_length=1)
    decision_question: str = DECISION_QUESTION
    slice_spec: dict[str, Any] = Field(default_factory=lambda: {"format": "v1"}, alias="slice")
    calibration: Calibration | None = None
    temperatures: dict[str, float] = Field(default_factory=dict)
    heldout: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, Any] = Field(default_factory=dict)
    latency_ms: dict[str, float] = Field(default_factory=dict)
    validation_scores: list[float] = Field(
        default_factory=list
    )  # sorted p_wrong: the first threshold of a review budget
    onnx: dict[str, Any] = Field(default_factory=dict)  # see observer_core.decision.onnx.Exported
    golden: list[Golden] = Field(default_factory=list)
    golden_environment: str | None = None  # where what serves made them, see observer_core.environment
    files: dict[str, str] = Field(default_factory=dict)
    created_at: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)  # options, weights, replay, telemetry

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run directory that has been read: its manifest is valid; `verify` checks the files too."""

    path: Path
    manifest: Manifest

    @property
    def version(self) -> str:
        """The first 12 hex digits of the manifest's sha256: what decisions carry without a registry version."""
        return sha256_file(self.path / MANIFEST)[:12]

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def tokenizer(self) -> Path:
        """The folder of the model's tokenizer: Laya's layout has one for it, Kev's keeps it beside the weights.

        A stacked run's is that of the run inside.
        """
        checkpoint = self.checkpoint
        if self.manifest.family == "stacked":
            checkpoint = checkpoint / STACKED_BASE / CHECKPOINT
        own = checkpoint / TOKENIZER
        return own if own.is_dir() else checkpoint

    @property
    def onnx(self) -> Path:
        return self.path / ONNX

    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """`metrics.json`: slice (`all`, `natural`, `seeded`) → metric → `value`, `lo`, `hi`, `n`."""
        return json.loads((self.path / METRICS).read_text(encoding="utf-8"))

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Check that the files of these names, or every file the manifest lists, are there with their sha256.

        Raises:
            InputError: a file is missing or differs; names it.
        """
        for name in self.manifest.files if names is None else names:
            file = self.path / name
            if not file.is_file():
                raise InputError(f"run directory {self.path} lacks {name}; copy the run again")
            if sha256_file(file) != self.manifest.files[name]:
                raise InputError(f"{file} is not the file this run was saved with; copy the run again")


def open_run(path: Path) -> RunDirectory:
    """Read a run directory's manifest (not its weights).

    Raises:
        InputError: no such folder, no manifest, or the manifest is invalid; names the field.
    """
    if not path.is_dir():
        raise InputError(f"no run directory at {path}; train one with 'observer train --out {path}'")
    file = path / MANIFEST
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{path} is not a run directory: it has no {MANIFEST}; name the folder 'observer train --out' made"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise InputError(f"{file}: field '{where}': {first['msg']}; copy the run again or train anew") from None
    if manifest.format_version > FORMAT_VERSION:
        raise InputError(
            f"{file} has format {manifest.format_version}, this version reads up to {FORMAT_VERSION}; upgrade observer"
        )
    if manifest.decision_question not in manifest.questions:
        raise InputError(
            f"{file}: decision_question '{manifest.decision_question}' is not among its questions; train anew"
        )
    return RunDirectory(path, manifest)


def seal(folder: Path, manifest: Manifest) -> RunDirectory:
    """Fill in `files` and `created_at` and write `manifest.json` as the last file of `folder`."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    manifest.files = {name: sha256_file(folder / name) for name in names}
    manifest.created_at = manifest.created_at or datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return RunDirectory(folder, manifest)


@contextlib.contextmanager
def new_run(out: Path) -> Iterator[Path]:
    """A temporary folder to fill and `seal`; it becomes `out` on success and vanishes on failure.

    Raises:
        InputError: `out` exists already.
    """
    with whole_dir(out) as folder:
        yield folder
