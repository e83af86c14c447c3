"""The registered model, its aliases, and the promotion log that MLflow's aliases lack.

The alias `champion` is the truth about what should serve; the log says how it came there. Every promotion, by the gate,
by a person, back to an earlier version, or by moving the alias in MLflow itself, has one record and one `promotion_id`.
"""

import hashlib
import json
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa

from observer_core.errors import InputError
from observer_core.files import whole_dir
from observer_core.home import Home
from observer_core.rundir import RunDirectory, open_run
from observer_pipeline.resources.tracking import MlflowResource, MlflowRun
from observer_pipeline.resources.warehouse import Warehouse

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

MODEL = "observer-decision-model"
CHAMPION = "champion"
CHALLENGER = "challenger"
RUN_ARTIFACT = "run"
RUN_VERSION = "observer.run_version"
VALIDATION = "validation"

By = Literal["gate", "person", "rollback", "failed_rollout", "mlflow"]


def now() -> str:
    """The time as RFC 3339 UTC with microseconds, so that records sort by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Promotion:
    """One record of the promotion log. `run_version` is the first 12 hex digits of the manifest's sha256."""

    promotion_id: str
    at: str
    version: str
    previous_version: str | None
    by: By
    reason: str
    run_version: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt to bring a promotion onto a service; nothing tries it a second time by itself."""

    service: str
    promotion_id: str
    version: str
    outcome: Literal["accepted", "failed", "rolled_back"]
    message: str
    at: str


def _schema(record: type) -> pa.Schema:
    return pa.schema([(f.name, pa.string()) for f in fields(record)])


PROMOTIONS = _schema(Promotion)
ROLLOUTS = _schema(Rollout)


@dataclass(frozen=True, slots=True)
class Registry:
    """The registered model `observer-decision-model` of one MLflow store, with its log in the warehouse."""

    mlflow: MlflowResource
    warehouse: Warehouse

    def register(self, run: RunDirectory, into: MlflowRun, *, tags: Mapping[str, str]) -> str:
        """Store the run directory in an MLflow run and make it a version; returns the version.

        A run directory that is registered already keeps its version; its tags are brought up to date.
        """
        client = self.mlflow.client()
        self._ensure_model()
        version = self.version_of(run.version)
        if version is None:
            into.log_folder(run.path, RUN_ARTIFACT)
            source = f"{client.get_run(into.run_id).info.artifact_uri}/{RUN_ARTIFACT}"
            made = client.create_model_version(MODEL, source=source, run_id=into.run_id)
            version = str(made.version)
        all_tags = {RUN_VERSION: run.version, "family": run.manifest.family, **tags}
        for name, value in all_tags.items():
            client.set_model_version_tag(MODEL, version, name, value)
        return version

    def _ensure_model(self) -> None:
        from mlflow.exceptions import MlflowException

        client = self.mlflow.client()
        try:
            client.get_registered_model(MODEL)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            client.create_registered_model(MODEL, description="Decision models: p(wrong) of an agent's trace")

    def version_of(self, run_version: str) -> str | None:
        """The registry version of a run directory, by its manifest's fingerprint."""
        found = self.mlflow.client().search_model_versions(
            f"name = '{MODEL}' AND tag.`{RUN_VERSION}` = '{run_version}'"
        )
        return str(found[0].version) if found else None

    def get(self, version: str) -> "ModelVersion":
        """A version.

        Raises:
            InputError: there is no such version.
        """
        from mlflow.exceptions import MlflowException

        try:
            return cast("ModelVersion", self.mlflow.client().get_model_version(MODEL, version))
        except MlflowException as error:
            raise InputError(
                f"{MODEL} has no version '{version}'; give a version that MLflow lists, or a run directory"
            ) from error

    def at_alias(self, alias: str) -> "ModelVersion | None":
        """The version an alias points at, if it points anywhere."""
        from mlflow.exceptions import MlflowException

        client = self.mlflow.client()
        try:
            model = client.get_registered_model(MODEL)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        version = model.aliases.get(alias)
        return None if version is None else cast("ModelVersion", client.get_model_version(MODEL, str(version)))

    def set_challenger(self, version: str) -> None:
        self.mlflow.client().set_registered_model_alias(MODEL, CHALLENGER, version)

    def fetch(self, version: str, home: Home) -> RunDirectory:
        """A version's run directory, downloaded from MLflow once and kept under OBSERVER_HOME/models.

        Raises:
            InputError: no such version, or it holds no run directory.
        """
        found = self.get(version)
        kept = home.ensure(home.models) / "registry" / (found.tags.get(RUN_VERSION) or f"version-{version}")
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=home.models) as folder, whole_dir(kept) as target:
                path = self.mlflow.client().download_artifacts(str(found.run_id), RUN_ARTIFACT, folder)
                shutil.copytree(path, target, dirs_exist_ok=True)
        return open_run(kept)

    def promotions(self) -> list[Promotion]:
        """The log, oldest first."""
        rows = self.warehouse.read_or("promotions", PROMOTIONS).sort_by("at").to_pylist()
        return [Promotion(**row) for row in rows]

    def current(self) -> Promotion | None:
        """The promotion in force. When the alias was moved in MLflow itself, that is entered into the log first."""
        champion = self.at_alias(CHAMPION)
        if champion is None:
            return None
        log = self.promotions()
        if log and log[-1].version == str(champion.version):
            return log[-1]
        previous = log[-1].version if log else None
        return self._record(str(champion.version), previous, "mlflow", "the alias was moved in MLflow")

    def promote(self, version: str, *, reason: str, by: By) -> Promotion:
        """Move the alias `champion` to `version` and enter it into the log.

        Raises:
            InputError: no such version, or no reason.
        """
        if not reason.strip():
            raise InputError("a promotion needs a reason for the log; pass --reason '…'")
        self.get(version)
        current = self.current()
        self.mlflow.client().set_registered_model_alias(MODEL, CHAMPION, version)
        return self._record(version, current.version if current else None, by, reason)

    def rollback(self, *, reason: str, by: By = "rollback") -> Promotion:
        """Promote what was champion before the current one.

        Raises:
            InputError: there was none.
        """
        current = self.current()
        if current is None or current.previous_version is None:
            raise InputError("there is no earlier champion to go back to; promote a version by 'observer promote'")
        return self.promote(current.previous_version, reason=reason, by=by)

    def _record(self, version: str, previous: str | None, by: By, reason: str) -> Promotion:
        run_version = self.get(version).tags.get(RUN_VERSION, "")
        record = Promotion(uuid.uuid4().hex, now(), version, previous, by, reason, run_version)
        self.warehouse.write(
            "promotions", pa.Table.from_pylist([asdict(record)], schema=PROMOTIONS), part=record.promotion_id
        )
        self.mlflow.client().set_model_version_tag(MODEL, version, "observer.promotion", json.dumps(asdict(record)))
        return record

    def rollouts(self) -> list[Rollout]:
        """All attempts, oldest first."""
        rows = self.warehouse.read_or("rollouts", ROLLOUTS).sort_by("at").to_pylist()
        return [Rollout(**row) for row in rows]

    def record_rollout(self, rollout: Rollout) -> None:
        """Enter an attempt, or its later fate, into the log."""
        service = hashlib.sha256(rollout.service.encode()).hexdigest()[:12]
        table = pa.Table.from_pylist([asdict(rollout)], schema=ROLLOUTS)
        self.warehouse.write("rollouts", table, part=f"{rollout.promotion_id}-{service}")
