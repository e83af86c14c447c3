"""The group `rollouts` materialized over the seed run's story, and its alerts at a local webhook."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest

from observer_core.rollouts.story import story_log
from observer_pipeline.definitions import build_definitions
from observer_pipeline.resources.build import HomeResource, build_warehouse
from observer_pipeline.sensors import reward_alerts


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "seed-run.parquet"
    pq.write_table(story_log(7, steps=60).table, path)
    return path


def test_a_run_is_taken_in_gated_and_searched_and_its_alerts_reach_a_webhook(settings, log):
    resources = {
        "home": HomeResource(root=str(settings.home.root), spools=[]),
        "warehouse": build_warehouse(settings.home),
    }
    job = build_definitions(settings).resolve_job_def("training_telemetry")
    config = {"ops": {"rollout_log": {"config": {"path": str(log)}}}}
    config["ops"] |= {
        name: {"config": {"workers": 1}} for name in ("regraded_rollouts", "rollout_spans", "reward_findings")
    }
    result = job.execute_in_process(run_config=config, resources=resources, raise_on_error=False)
    checks = {c.check_name: c.passed for c in result.get_asset_check_evaluations()}
    assert checks == {"fidelity": False}, "the seed run's parsimony is the wrong way round"
    done = {key.to_user_string() for event in result.get_asset_materialization_events() if (key := event.asset_key)}
    assert done == {"rollout_log", "regraded_rollouts", "reward_findings"}, "the gate stops the spans, not the findings"
    warehouse = build_warehouse(settings.home)
    assert len(warehouse.read("rollout_log")) == 480
    kinds = set(warehouse.read("reward_findings").column("kind").to_pylist())
    assert {"collapse", "parse_failures", "reward_hacking"} <= kinds

    taken: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sensor = reward_alerts(f"http://127.0.0.1:{server.server_address[1]}/hook")
    with dg.build_sensor_context(resources={"warehouse": warehouse}) as context:
        sensor(context)
        sensor(context)
    server.shutdown()
    assert [text.split("]")[0] for text in taken] == ["[FIRING", "[RESOLVED"]
    assert "run seed-run, step" in taken[0]
