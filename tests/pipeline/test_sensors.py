"""Each sensor as a function of what it finds: what it asks for, and why it asks for nothing."""

import dagster as dg
import pyarrow as pa
import pytest
from pipeline.conftest import NOWHERE
from pipeline.spool_files import decision_rows, seal

from observer_pipeline.definitions import build_definitions
from observer_pipeline.registry import Rollout, now
from observer_pipeline.resources.phoenix import PhoenixResource
from observer_pipeline.resources.services import ServiceResource
from observer_pipeline.sensors import failure_alert, ingest_spool, new_annotations, rollout_champion


def tick(sensor, settings, cursor=None, **resources):
    """Evaluate a sensor as the daemon does, with the definitions' resources but for those given."""
    definitions = build_definitions(settings)
    with (
        dg.instance_for_test() as instance,
        dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={**definitions.resources, **resources}
        ) as context,
    ):
        return sensor.evaluate_tick(context)


def test_ingest_asks_once_per_set_of_files(settings, home):
    assert "no sealed spool file" in tick(ingest_spool, settings).skip_message
    seal(home.spool, "decisions", "0001", decision_rows(2))
    (request,) = tick(ingest_spool, settings).run_requests
    (again,) = tick(ingest_spool, settings).run_requests
    assert request.run_key == again.run_key  # the daemon starts no second run for it
    seal(home.spool, "decisions", "0002", decision_rows(2))
    (more,) = tick(ingest_spool, settings).run_requests
    assert more.run_key != request.run_key


def test_rollout_waits_for_a_champion_then_for_the_service(settings, registry, versions):
    assert "no version has the alias champion" in tick(rollout_champion, settings).skip_message
    registry.promote(versions[0], reason="good", by="person")
    down = tick(rollout_champion, settings)
    assert not down.run_requests
    assert "does not answer" in down.skip_message


def test_rollout_offers_a_promotion_to_each_service_once(settings, registry, versions, running_service):
    services = ServiceResource(urls=[running_service.api, NOWHERE])
    promotion = registry.promote(versions[0], reason="good", by="person")
    (request,) = tick(rollout_champion, settings, services=services).run_requests
    assert request.run_key == f"{running_service.api} {promotion.promotion_id}"
    assert request.run_config["ops"]["served_model"]["config"] == {
        "service": running_service.api,
        "promotion_id": promotion.promotion_id,
    }
    failed = Rollout(running_service.api, promotion.promotion_id, promotion.version, "failed", "no", now())
    registry.record_rollout(failed)
    assert "was offered version" in tick(rollout_champion, settings, services=services).skip_message
    newer = registry.promote(versions[1], reason="better", by="person")
    (request,) = tick(rollout_champion, settings, services=services).run_requests
    assert request.tags["observer/promotion"] == newer.promotion_id


def test_new_annotations_skips_while_phoenix_is_down(settings):
    assert "does not answer" in tick(new_annotations, settings).skip_message


def test_new_annotations_asks_when_a_verdict_is_new_or_changed(settings, monkeypatch):
    found = []

    def annotations(self, target, ids, *, name="correctness"):
        return found if target == "span" else []

    spans = [{"context": {"span_id": "s", "trace_id": "t"}}]
    monkeypatch.setattr(PhoenixResource, "root_spans", lambda self, **_: spans)
    monkeypatch.setattr(PhoenixResource, "annotations", annotations)
    assert "no verdicts" in tick(new_annotations, settings).skip_message
    row = {
        "id": "a1", "span_id": "s", "name": "correctness", "annotator_kind": "HUMAN", "identifier": "",
        "result": {"label": "wrong"}, "source": "APP", "user_id": None, "created_at": "1", "updated_at": "1",
    }  # fmt: skip
    found.append(row)
    first = tick(new_annotations, settings)
    assert len(first.run_requests) == 1
    assert "no new verdict among 1" in tick(new_annotations, settings, first.cursor).skip_message
    found[0] = row | {"updated_at": "2", "result": {"label": "correct"}}
    changed = tick(new_annotations, settings, first.cursor)
    assert changed.run_requests[0].run_key != first.run_requests[0].run_key


def test_a_failed_run_is_told(tmp_path):
    @dg.op
    def breaks() -> None:
        raise ValueError("the disk is full")

    @dg.job
    def nightly() -> None:
        breaks()

    alerts = tmp_path / "logs" / "alerts.jsonl"
    with dg.instance_for_test() as instance:
        result = nightly.execute_in_process(instance=instance, raise_on_error=False)
        context = dg.build_run_status_sensor_context(
            sensor_name="run_failure_alert",
            dagster_event=result.get_run_failure_event(),
            dagster_instance=instance,
            dagster_run=result.dagster_run,
        ).for_run_failure()
        failure_alert(alerts, None)(context)
    assert "nightly failed" in alerts.read_text("utf-8")


@pytest.mark.parametrize("labels", [False, True])
def test_the_nightly_schedule_waits_for_labels(settings, warehouse, labels):
    (schedule,) = build_definitions(settings).schedules
    if labels:
        warehouse.write("gold_labels", pa.table({"trace_id": ["t"]}))
    with (
        dg.instance_for_test() as instance,
        dg.build_schedule_context(instance=instance, resources={"warehouse": warehouse}) as context,
    ):
        result = schedule.evaluate_tick(context)
    assert len(result.run_requests) == int(labels)
