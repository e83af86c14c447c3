"""The sensors: each looks, asks for at most a few runs, and says why when it asks for none."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import httpx
import pyarrow.parquet as pq

from observer_core.alerts import AlertBook, Webhook, WebhookError
from observer_core.errors import ObserverError
from observer_core.rollouts.monitor import DEFAULT_RULES
from observer_pipeline import annotations
from observer_pipeline.assets.live import RolloutConfig
from observer_pipeline.jobs import ingest, pull_annotations, rollout
from observer_pipeline.registry import Registry, now
from observer_pipeline.resources.build import HomeResource
from observer_pipeline.resources.phoenix import PhoenixResource
from observer_pipeline.resources.services import ServiceResource
from observer_pipeline.resources.tracking import MlflowResource
from observer_pipeline.resources.warehouse import Warehouse
from observer_pipeline.rollout import noticed_rollbacks
from observer_pipeline.spool import pending

_LOOKBACK = timedelta(days=30)
RUNNING = dg.DefaultSensorStatus.RUNNING


@dg.sensor(job=pull_annotations, minimum_interval_seconds=60, default_status=RUNNING)
def new_annotations(context: dg.SensorEvaluationContext, phoenix: PhoenixResource) -> dg.RunRequest | dg.SkipReason:
    """Asks for `pull_annotations` when a verdict in Phoenix is new or was changed since the last look."""
    try:
        rows = annotations.pull(phoenix, since=datetime.now(UTC) - _LOOKBACK).to_pylist()
    except ObserverError as error:
        return dg.SkipReason(str(error))
    seen = hashlib.sha256(json.dumps(sorted((r["id"], r["updated_at"]) for r in rows)).encode()).hexdigest()[:16]
    if not rows:
        return dg.SkipReason("no verdicts in Phoenix yet")
    if seen == context.cursor:
        return dg.SkipReason(f"no new verdict among {len(rows)}")
    context.update_cursor(seen)
    return dg.RunRequest(run_key=f"annotations-{seen}")


@dg.sensor(job=ingest, minimum_interval_seconds=30, default_status=RUNNING)
def ingest_spool(home: HomeResource, warehouse: Warehouse) -> dg.RunRequest | dg.SkipReason:
    """Asks for `ingest` when a service sealed a spool file.

    The run key is the set of waiting files: a set that failed is not tried again until a file joins or leaves it.
    """
    waiting = pending(home.spools, warehouse)
    if not waiting:
        return dg.SkipReason("no sealed spool file waits")
    names = "\n".join(f"{file.table}/{file.part}" for file in waiting)
    return dg.RunRequest(run_key=f"spool-{hashlib.sha256(names.encode()).hexdigest()[:16]}")


@dg.sensor(job=rollout, minimum_interval_seconds=30, default_status=RUNNING)
def rollout_champion(
    warehouse: Warehouse, mlflow: MlflowResource, services: ServiceResource
) -> dg.SensorResult | dg.SkipReason:
    """Asks for a rollout of the promotion in force onto every service that answers and has not been offered it.

    The run key is service + promotion: a promotion meets a service once, whatever comes of it. A service that does not
    answer keeps its turn.
    """
    registry = Registry(mlflow, warehouse)
    noticed_rollbacks(registry, services)
    promotion = registry.current()
    if promotion is None:
        return dg.SkipReason("no version has the alias champion yet")
    offered = {r.service for r in registry.rollouts() if r.promotion_id == promotion.promotion_id}
    requests: list[dg.RunRequest] = []
    reasons: list[str] = []
    for url in services.urls:
        if url in offered:
            reasons.append(f"{url} was offered version {promotion.version} already")
            continue
        try:
            services.model(url)
        except ObserverError as error:
            reasons.append(str(error))
            continue
        config = RolloutConfig(service=url, promotion_id=promotion.promotion_id)
        requests.append(
            dg.RunRequest(
                run_key=f"{url} {promotion.promotion_id}",
                run_config=dg.RunConfig(ops={"served_model": config}),
                tags={"observer/service": url, "observer/promotion": promotion.promotion_id},
            )
        )
    if not requests:
        return dg.SkipReason("; ".join(reasons) or "OBSERVER_SERVICES names no service")
    return dg.SensorResult(run_requests=requests)


def reward_alerts(webhook: str | None) -> dg.SensorDefinition:
    """A sensor that evaluates the alert rules over every training run whose metrics are new, and tells a webhook.

    What the webhook does not take stays in the cursor and is sent at the next look.
    """

    @dg.sensor(name="reward_alerts", minimum_interval_seconds=60, default_status=RUNNING)
    def look(context: dg.SensorEvaluationContext, warehouse: Warehouse) -> dg.SkipReason:
        state = json.loads(context.cursor) if context.cursor else {"seen": {}, "book": None}
        waiting = AlertBook((), state["book"])
        folder, told = warehouse.folder("rollout_metrics"), 0
        for part in warehouse.parts("rollout_metrics"):
            changed = (folder / f"{part}.parquet").stat().st_mtime_ns
            if state["seen"].get(part) == changed:
                continue
            steps: dict[int, dict[str, float]] = {}
            for row in pq.read_table(folder / f"{part}.parquet").to_pylist():
                steps.setdefault(row["step"], {})[row["metric"]] = row["value"]
            book = AlertBook(DEFAULT_RULES)
            for step, metrics in sorted(steps.items()):
                waiting.undelivered += [
                    replace(event, message=f"run {part}, step {step}: {event.message}")
                    for event in book.observe(metrics, step)
                ]
            state["seen"][part] = changed
        problem = None
        try:
            told = waiting.deliver(Webhook(webhook) if webhook else lambda event: context.log.warning(event.text()))
        except WebhookError as error:
            problem = str(error)
        context.update_cursor(json.dumps({"seen": state["seen"], "book": waiting.to_json()}))
        return dg.SkipReason(problem or (f"{told} alerts told" if told else "no training run with news"))

    return look


def failure_alert(alerts: Path, webhook: str | None) -> dg.SensorDefinition:
    """A sensor that tells people of a failed run: a line in `alerts`, and a message to a Slack-compatible webhook."""

    @dg.run_failure_sensor(name="run_failure_alert", default_status=RUNNING)
    def run_failure_alert(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        text = f"Observer: run {run.run_id[:8]} of {run.job_name} failed: {context.failure_event.message}"
        alerts.parent.mkdir(parents=True, exist_ok=True)
        with alerts.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"at": now(), "run_id": run.run_id, "job": run.job_name, "text": text}) + "\n")
        if webhook:
            httpx.post(webhook, json={"text": text}, timeout=10).raise_for_status()

    return run_failure_alert
