"""MLflow as a Dagster resource: runs without a global active run, tagged with the Dagster run that made them."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dagster as dg

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

_LOG_BATCH = 100  # MLflow refuses more params in one request
_METRIC_BATCH = 1000  # and more metrics
_QUEUED_METRICS = 100_000
_FLUSH_SECONDS = 2.0
_CLOSE_SECONDS = 30.0


class MlflowRun:
    """An open or finished MLflow run: what is logged goes to this run and no other."""

    def __init__(self, client: "MlflowClient", run_id: str) -> None:
        self.client = client
        self.run_id = run_id

    def log_params(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(name, str(value)) for name, value in params.items()]
        for start in range(0, len(entries), _LOG_BATCH):
            self.client.log_batch(self.run_id, params=entries[start : start + _LOG_BATCH])

    def log_metric(self, name: str, value: float, step: int = 0) -> None:
        self.client.log_metric(self.run_id, name, value, step=step)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        for name, value in tags.items():
            self.client.set_tag(self.run_id, name, value)

    @contextlib.contextmanager
    def metric_queue(self) -> Iterator["MetricQueue"]:
        """A queue for a training's metrics, written when the block ends at the latest."""
        metrics = MetricQueue(self)
        try:
            yield metrics
        finally:
            metrics.close()

    def log_folder(self, folder: Path, name: str) -> None:
        """Store all files of `folder` as artifacts under `name/`."""
        self.client.log_artifacts(self.run_id, str(folder), name)

    def log_bytes(self, data: bytes, name: str) -> None:
        """Store one artifact from memory; `name` is its path, such as `plots/roc.png`."""
        import tempfile

        target = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / target.name
            file.write_bytes(data)
            self.client.log_artifact(self.run_id, str(file), str(target.parent) if target.parent.name else None)


class MetricQueue:
    """Metrics on their way to MLflow: a training waits neither for the store nor for a server that has gone.

    What could not be written is counted; `lost` says so.
    """

    def __init__(self, run: MlflowRun) -> None:
        self._run = run
        self._queue: queue.Queue[Metric] = queue.Queue(_QUEUED_METRICS)
        self._put = self._written = 0
        self._problem: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow-metrics", daemon=True)
        self._thread.start()

    def put(self, name: str, value: float, step: int = 0) -> None:
        """Add a metric, timed now; returns at once (a `MetricSink`)."""
        from mlflow.entities import Metric

        self._put += 1
        with contextlib.suppress(queue.Full):  # counted: put and not written
            self._queue.put_nowait(Metric(name, value, time.time_ns() // 1_000_000, step))

    def close(self) -> None:
        """Wait for what is queued, though not for ever."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    @property
    def lost(self) -> str | None:
        """After `close`: what was not written and why, in a sentence; `None` if all was."""
        if self._written == self._put:
            return None
        why = self._problem or f"it took longer than {_CLOSE_SECONDS:g} s"
        return f"MLflow did not take {self._put - self._written} of {self._put} metrics: {why}"

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._run.client.log_batch(self._run.run_id, metrics=batch)
                self._written += len(batch)
            except Exception as error:  # whatever store or transport raise, training goes on; `lost` tells
                self._problem = self._problem or " ".join(f"{type(error).__name__}: {error}".split())[:200]

    def _next(self) -> "list[Metric] | None":
        """Up to a request's worth of metrics; `None` when the queue has ended."""
        batch: list[Metric] = []
        until = time.monotonic() + _FLUSH_SECONDS
        while len(batch) < _METRIC_BATCH:
            try:
                batch.append(self._queue.get(timeout=0.05 if self._closing.is_set() else 0.2))
            except queue.Empty:
                if self._closing.is_set():
                    return batch or None
            if batch and time.monotonic() > until:
                break
        return batch


class MlflowResource(dg.ConfigurableResource):
    """Experiment and registry of one MLflow store. With a SQLite store the artifacts lie in a folder beside it."""

    tracking_uri: str
    ui_url: str
    experiment: str = "observer"

    def client(self) -> "MlflowClient":
        """A client of the store; the first use of a new SQLite file creates its tables (some 15 s)."""
        import os

        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow.tracking import MlflowClient

        if database := self._database():
            database.parent.mkdir(parents=True, exist_ok=True)
        return MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri)

    def _database(self) -> Path | None:
        parts = urlsplit(self.tracking_uri)
        return Path(parts.path.removeprefix("/")) if parts.scheme == "sqlite" else None

    def experiment_id(self, client: "MlflowClient") -> str:
        """The experiment's id; the experiment is made on first use."""
        found = client.get_experiment_by_name(self.experiment)
        if found is not None:
            return found.experiment_id
        database = self._database()
        location = (database.parent / "artifacts").as_uri() if database else None
        return client.create_experiment(self.experiment, artifact_location=location)

    @contextlib.contextmanager
    def start_run(
        self, name: str, *, context: dg.AssetExecutionContext | None = None, tags: Mapping[str, str] | None = None
    ) -> Iterator[MlflowRun]:
        """A run that ends `FINISHED`, or `FAILED` when the block raises."""
        client = self.client()
        all_tags = dict(tags or {})
        if context is not None:
            all_tags |= {
                "dagster/run_id": context.run.run_id,
                "dagster/job": context.run.job_name,
                "dagster/asset_key": context.asset_key.to_user_string(),
            }
        run_id = client.create_run(self.experiment_id(client), run_name=name, tags=all_tags).info.run_id
        try:
            yield MlflowRun(client, run_id)
        except BaseException:
            client.set_terminated(run_id, "FAILED")
            raise
        client.set_terminated(run_id, "FINISHED")

    def resume(self, run_id: str) -> MlflowRun:
        """A run that was made before, to add to it."""
        return MlflowRun(self.client(), run_id)

    def run_url(self, run_id: str) -> str:
        """Where people see the run."""
        client = self.client()
        experiment = client.get_run(run_id).info.experiment_id
        return f"{self.ui_url}/#/experiments/{experiment}/runs/{run_id}"

    def model_url(self, name: str, version: str) -> str:
        """Where people see a version of a registered model."""
        return f"{self.ui_url}/#/models/{name}/versions/{version}"
