"""Real Dagster runs against the persistent instance: jobs, and ticks of the sensors that would start them."""

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg

from observer_core.errors import ObserverError
from observer_pipeline.demo.board import Board

_POLL_S = 0.5
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}  # everything is in the instance's event log


@dataclass(frozen=True, slots=True)
class Runs:
    """Starts runs of the definitions in this process, recorded in the instance that `observer up` shows later."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    board: Board

    def job(
        self,
        name: str,
        *,
        config: Mapping[str, Any] | None = None,
        leave_out: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Run a job, or all of it but some assets.

        Raises:
            ObserverError: the run failed; names the step and what it said.
        """
        job = self.definitions.resolve_job_def(name)
        keys = [key for key in job.asset_layer.selected_asset_keys if key.to_user_string() not in leave_out]
        run_id = str(uuid.uuid4())
        with self._narrated(run_id):
            result = job.execute_in_process(
                run_config=dict(config or {}) | _QUIET,
                instance=self.instance,
                asset_selection=keys if leave_out else None,
                tags={"observer/demo": "true", **(tags or {})},
                raise_on_error=False,
                run_id=run_id,
            )
        if not result.success:
            raise ObserverError(f"the Dagster run {result.run_id} of {name} failed: {_why(result)}")
        return result

    def tick(self, sensor: dg.SensorDefinition) -> Sequence[dg.RunRequest]:
        """What the sensor asks for now, as the daemon would hear it.

        Raises:
            ObserverError: it asks for nothing; says its reason.
        """
        resources = self.definitions.resources
        with dg.build_sensor_context(instance=self.instance, resources=resources) as context:
            said = sensor.evaluate_tick(context)
        if not said.run_requests:
            raise ObserverError(f"the sensor {sensor.name} asked for no run: {said.skip_message}")
        return said.run_requests

    def requested(self, sensor: dg.SensorDefinition, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Run what a sensor asked for."""
        tags = {"dagster/sensor_name": sensor.name, **request.tags}
        if request.run_key:
            tags["dagster/run_key"] = request.run_key
        return self.job(str(sensor.job_name), config=request.run_config, tags=tags)

    @contextmanager
    def _narrated(self, run_id: str) -> Iterator[None]:
        """While the run works in this thread, another reads its event log and tells the board."""
        stop = threading.Event()

        def narrate() -> None:
            cursor = None
            while not stop.wait(_POLL_S):
                connection = self.instance.get_records_for_run(run_id, cursor=cursor)
                cursor = connection.cursor
                for record in connection.records:
                    entry = record.event_log_entry
                    if entry.dagster_event is None:
                        self.board.doing(entry.user_message)
                    elif entry.dagster_event.is_step_start:
                        self.board.doing(str(entry.step_key))

        thread = threading.Thread(target=narrate, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _why(result: dg.ExecuteInProcessResult) -> str:
    for event in result.all_events:
        if event.is_step_failure:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            said = " ".join((error.message if error else event.message or "").split())
            return f"{event.step_key}: {said[:400]}"
    return "see the run in Dagster"


def step_seconds(result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance) -> dict[str, float]:
    """Step → seconds it took."""
    return {
        stats.step_key: stats.end_time - stats.start_time
        for stats in instance.get_run_step_stats(result.run_id)
        if stats.start_time and stats.end_time
    }
