"""Which model and which policy are in force: switched while running, kept over restarts, every switch recorded.

`serving/active.json` holds what was last accepted, until `scorer` or `policy` in `observer.yaml` change: then the file
speaks again. `serving/switches.jsonl` is the log of all switches. A model is in force only after its files' hashes
and its golden traces have been checked; on any doubt the old one stays.
"""

import json
import logging
import os
import shutil
import tarfile
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from observer_core.decision.builtin import BuiltinScorer
from observer_core.decision.protocol import Scorer
from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.policy import Policy, read_policy
from observer_core.rundir import MANIFEST, open_run
from observer_serving.clock import Clock, rfc3339
from observer_serving.config import LocalSettings, Settings
from observer_serving.decide import Decider
from observer_serving.metrics import Metrics
from observer_serving.score import ScoringThread

log = logging.getLogger(__name__)

ACTIVE_FILE = "active.json"
SWITCHES_FILE = "switches.jsonl"
MODELS_FOLDER = "models"
_MAX_UNPACKED = 8 << 30


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model serves: the built-in heuristic, or a run directory (`run`, absolute) under a version's name."""

    kind: str = "builtin"
    run: str | None = None
    version: str | None = None
    backend: str = "auto"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "run": self.run, "version": self.version, "backend": self.backend}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed its checks."""

    choice: ModelChoice
    scorer: Scorer
    validation_scores: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Active:
    """What `active.json` holds."""

    fingerprint: str
    model: ModelChoice
    previous: ModelChoice | None
    policy: Policy

    def to_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "model": self.model.to_json(),
            "previous": self.previous.to_json() if self.previous else None,
            "policy": self.policy.to_json(),
        }


def load_model(choice: ModelChoice) -> LoadedModel:
    """Load a model and prove it: hashes of all files, then the golden traces. (ONNX Runtime is imported only here.)

    Raises:
        InputError: no run directory, a file that differs, a golden trace that scores differently.
    """
    if choice.kind == "builtin":
        return LoadedModel(choice, BuiltinScorer())
    run = open_run(Path(choice.run or ""))
    from observer_core.decision.load import load_scorer, replay_golden

    scorer = load_scorer(run, backend=choice.backend)  # pyright: ignore[reportArgumentType]
    replay_golden(scorer, run)
    scorer.model_version = choice.version or run.version
    return LoadedModel(replace(choice, version=scorer.model_version), scorer, run.manifest.validation_scores)


def read_active(folder: Path, settings: Settings) -> Active:
    """What is in force at start: `active.json` while the settings still say what they said, else the settings.

    Raises:
        InputError: `active.json` cannot be read.
    """
    scorer = settings.scorer
    local = isinstance(scorer, LocalSettings)
    chosen = (
        ModelChoice("local", str(scorer.run.expanduser().resolve()), scorer.version, scorer.backend)
        if local
        else ModelChoice()
    )
    from_file = Active(settings.fingerprint(), chosen, None, settings.policy)
    file = folder / ACTIVE_FILE
    if not file.exists():
        return from_file
    try:
        kept = json.loads(file.read_bytes())
        if kept["fingerprint"] != from_file.fingerprint:
            return from_file
        previous = ModelChoice(**kept["previous"]) if kept["previous"] else None
        return Active(
            from_file.fingerprint, ModelChoice(**kept["model"]), previous, _with_key(kept["policy"], settings.policy)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove it to go back to observer.yaml") from None


def _with_key(data: Any, policy: Policy) -> Policy:
    """A policy from its JSON, with the hash key of the policy in force: the key is a secret and never travels."""
    return read_policy(data).model_copy(update={"hash_key": policy.hash_key})


class Switchboard:
    """Switches model and policy of a running service; calls come from any thread and wait for each other."""

    def __init__(
        self, folder: Path, active: Active, scoring: ScoringThread, decider: Decider, clock: Clock, metrics: Metrics
    ) -> None:
        self._folder = folder
        self._active = active
        self._scoring = scoring
        self._decider = decider
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self.since = rfc3339(clock.now_ns())
        self._save()

    @property
    def model(self) -> ModelChoice:
        return self._active.model

    @property
    def previous(self) -> ModelChoice | None:
        return self._active.previous

    def switch(self, choice: ModelChoice, *, reason: str | None = None, action: str = "switch") -> None:
        """Check the model, then serve it from the next batch on.

        Raises:
            InputError: it did not pass; the old one serves on, and the refusal is recorded.
        """
        with self._lock:
            try:
                loaded = load_model(choice)
            except InputError as error:
                self._metrics.model_switches.labels("refused").inc()
                self._note(action, choice, reason, refused=str(error))
                raise
            self._active = replace(self._active, model=loaded.choice, previous=self._active.model)
            self._save()
            self._scoring.use(loaded.scorer)
            if loaded.validation_scores:
                self._decider.start_over(loaded.validation_scores)
            self.since = rfc3339(self._clock.now_ns())
            self._metrics.model_switches.labels("done").inc()
            self._note(action, loaded.choice, reason)

    def rollback(self, *, reason: str | None = None) -> None:
        """Serve the model before the present one again.

        Raises:
            InputError: there is none, or it no longer passes its checks.
        """
        previous = self._active.previous
        if previous is None:
            raise InputError("no model was replaced yet; there is nothing to roll back to")
        self.switch(previous, reason=reason, action="rollback")

    def set_policy(self, data: Any) -> Policy:
        """Decide by another policy from the next trace on.

        Raises:
            InputError: a setting is unknown or unusable; the old policy stays in force.
        """
        if isinstance(data, dict) and data.get("hash_key") is not None:
            raise InputError("policy.hash_key: is set in observer.yaml only; leave it out")
        with self._lock:
            policy = _with_key(data, self._active.policy)
            self._active = replace(self._active, policy=policy)
            self._save()
            self._decider.use(policy)
            self._write_line({"action": "policy", "policy_version": policy.version, "policy": policy.to_json()})
            return policy

    def upload_file(self) -> Path:
        """Where an upload may be written while it comes in; the caller removes it."""
        folder = self._folder / MODELS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f".upload-{uuid.uuid4().hex[:8]}.tar"

    def unpack(self, archive: Path, digest: str) -> Path:
        """The run directory in an uploaded tar with this sha256, unpacked under `serving/models/`.

        Raises:
            InputError: it is no tar, or does not hold exactly one run directory.
        """
        target = self._folder / MODELS_FOLDER / digest[:16]
        if target.exists():
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
        except tarfile.TarError as error:
            raise InputError(f"the upload is not a tar archive of a run directory: {error}") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return target

    def _save(self) -> None:
        write_whole(self._folder / ACTIVE_FILE, json.dumps(self._active.to_json(), indent=2).encode())

    def _note(self, action: str, choice: ModelChoice, reason: str | None, *, refused: str | None = None) -> None:
        self._write_line({"action": action, **choice.to_json(), "reason": reason, "refused": refused})

    def _write_line(self, line: dict[str, Any]) -> None:
        log.info("switch: %s", json.dumps(line))
        with (self._folder / SWITCHES_FILE).open("ab") as stream:
            stream.write(json.dumps({"at": rfc3339(self._clock.now_ns()), **line}).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
