"""`observer deadletter`."""

import json

import pytest
from typer.testing import CliRunner

from observer_core.errors import InputError
from observer_pipeline.cli import build_app
from observer_serving.export.queue import EXPORT_FOLDER, DiskQueue


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path))
    queue = DiskQueue(tmp_path / "serving" / EXPORT_FOLDER / "phoenix", max_bytes=1 << 20)
    for n in range(3):
        queue.put({"trace_id": f"{n:032x}", "decision": None}, b"spans", spans=n + 1)
    for entry in queue.oldest(max_bytes=1 << 20, max_spans=100, max_items=100):
        queue.bury(entry, {"at": "2026-11-30T00:00:00Z", "status": 422, "response": "no such kind"})
    return queue


def _run(*args):
    return CliRunner().invoke(build_app(), ["deadletter", *args], catch_exceptions=False)


def test_list_shows_the_answer(queue):
    lines = [json.loads(line) for line in _run("list", "--json").output.splitlines()]
    assert [(line["trace_id"], line["spans"]) for line in lines] == [(f"{n:032x}", n + 1) for n in range(3)]
    assert lines[0]["response"] == "no such kind"
    assert "422  no such kind" in _run("list").output


def test_a_damaged_one_does_not_hide_the_others(queue, tmp_path, caplog):
    first, second, _ = sorted((tmp_path / "serving" / EXPORT_FOLDER / "phoenix" / "dead").iterdir())
    first.write_bytes(b"{")
    second.write_bytes(b'{"trace_id": "a"}\nspans')
    assert [json.loads(line)["trace_id"] for line in _run("list", "--json").stdout.splitlines()] == [f"{2:032x}"]
    assert [record.getMessage().split()[0] for record in caplog.records] == [str(first), str(second)]
    assert _run("replay", "--all").stdout == "1 dead letters queued again\n"


def test_replay_queues_again(queue):
    assert _run("replay", f"{1:032x}").output == "1 dead letters queued again\n"
    queue.rescan()
    assert queue.depth()[0] == 1
    assert _run("replay", "--all", "--exporter", "other").output == "0 dead letters queued again\n"
    assert _run("replay", "--all").output == "2 dead letters queued again\n"
    assert _run("list").output == ""
    queue.rescan()
    assert queue.depth()[0] == 3


def test_replay_wants_to_know_which(queue):
    for args in ([], ["--all", f"{1:032x}"], ["ff"]):
        with pytest.raises(InputError, match="deadletter list"):
            _run("replay", *args)


def test_a_folder_in_which_no_service_ran_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "nowhere"))
    for args in (["list"], ["replay", "--all"]):
        with pytest.raises(InputError, match=r"no service has run in .*nowhere; set OBSERVER_HOME"):
            _run(*args)
