"""The exporter against a real HTTP back end that misbehaves as told."""

import os
import queue
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from export_items import make_item
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_collector import OK, Collector

from observer_core.errors import InputError
from observer_serving.config import read_settings
from observer_serving.export import ExportOptions
from observer_serving.export.make import make_exporter
from observer_serving.export.otlp_http import OtlpHttpExporter
from observer_serving.export.queue import dead_letters, replay

FAST = ExportOptions(timeout_s=5, retry_first_s=0.005, retry_max_s=0.02)


@pytest.fixture
def outcomes():
    return []


@pytest.fixture
def exporter_to(tmp_path, outcomes):
    """Starts exporters that are stopped at the end; items are put in before the start, so that batches are known."""
    running = []

    def start(endpoint, *items, options=FAST, **settings):
        settings.setdefault("on_outcome", outcomes.append)
        exporter = OtlpHttpExporter("back", endpoint, tmp_path / "export" / "back", options=options, **settings)
        running.append(exporter)
        for item in items:
            exporter.submit(item)
        exporter.start()
        return exporter

    yield start
    for exporter in running:
        exporter.stop(0)


def _script(*statuses, headers=None):
    """Answers with these statuses, then 200 for ever."""
    rest = list(statuses)
    return lambda _: (rest.pop(0), headers or {}, b"not now") if rest else OK


def test_traces_arrive_once_in_order_and_gzipped(exporter_to, outcomes):
    with Collector() as back:
        exporter = exporter_to(back.endpoint, make_item("a", spans=3), make_item("b"), make_item("b", late=True))
        exporter.stop(5)
        [received] = back.requests
    assert received.names == ["a", "a", "a", "b", "b"]
    assert received.headers["content-type"] == "application/x-protobuf"
    assert received.headers["content-encoding"] == "gzip"
    assert "x-project-name" not in received.headers
    want = ExportTraceServiceRequest()
    for item in (make_item("a", spans=3), make_item("b"), make_item("b", late=True)):
        want.resource_spans.extend(item.resource_spans)
    assert received.body == want.SerializeToString()
    assert [(o.outcome, o.spans) for o in outcomes] == [("exported", 3), ("exported", 1), ("late_spans", 1)]
    assert back.annotations == []
    stats = exporter.stats()
    assert (stats.exported_traces, stats.exported_spans, stats.queued_items, stats.last_error) == (2, 5, 0, "")


def test_langfuse_gets_its_key_at_its_path_as_the_example_has_it(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "langfuse.yaml"
    settings = read_settings(example, {"LANGFUSE_BASIC_AUTH": "cGs6c2s="})
    (langfuse,) = [one for one in settings.exporters if one.name == "langfuse"]
    with Collector() as back:
        here = langfuse.endpoint.replace("https://cloud.langfuse.com", f"http://127.0.0.1:{back.port}")
        exporter = make_exporter(langfuse.model_copy(update={"endpoint": here}), tmp_path)
        exporter.submit(make_item("a"))
        exporter.start()
        back.wait_for(lambda: back.accepted == ["a"])
        exporter.stop(5)
        [received] = back.requests
    assert received.path == "/api/public/otel/v1/traces"
    assert received.headers["authorization"] == "Basic cGs6c2s="


@pytest.mark.parametrize("statuses", [(503, 503, 429, 502, 504), (401, 404), (500, 500), (503, 500, 500)])
def test_what_passes_is_waited_for(exporter_to, outcomes, statuses):
    with Collector(answer=_script(*statuses)) as back:
        exporter_to(back.endpoint, make_item("a"), make_item("b")).stop(5)
        assert [r.status for r in back.requests] == [*statuses, 200]
        assert back.accepted == ["a", "b"]
    assert [o.outcome for o in outcomes] == ["exported", "exported"]


def test_retry_after_is_obeyed(exporter_to):
    later = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    with Collector(answer=_script(503, headers={"retry-after": later})) as back:
        exporter = exporter_to(back.endpoint, make_item("a"))
        back.wait_for(lambda: len(back.requests) == 1)
        exporter.stop(0.3)  # many times the longest back-off
        assert len(back.requests) == 1
        assert exporter.stats().queued_items == 1


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_the_one_bad_trace_is_found_and_the_others_get_through(exporter_to, outcomes, status, tmp_path):
    def answer(received):
        return (status, {}, b"cannot take bad") if "bad" in received.names else OK

    names = [f"t{n}" for n in range(7)]
    items = [make_item(name) for name in [*names[:3], "bad", *names[3:]]]
    with Collector(answer=answer) as back:
        exporter = exporter_to(back.endpoint, *items)
        exporter.stop(10)
        assert Counter(back.accepted) == Counter(names)
    [letter] = dead_letters(tmp_path)
    assert (letter.status, letter.response, letter.exporter) == (status, "cannot take bad", "back")
    assert letter.trace_id == make_item("bad").trace_id
    assert Counter(o.outcome for o in outcomes) == {"exported": 7, "dead_letter": 1}
    assert "cannot take bad" in next(o.detail for o in outcomes if o.outcome == "dead_letter")
    assert exporter.stats().dead_lettered == 1
    assert exporter.stats().queued_items == 0


def test_a_back_end_that_breaks_on_everything_is_down_not_poisoned(exporter_to, outcomes, tmp_path):
    broken = True
    with Collector(answer=lambda _: (500, {}, b"database") if broken else OK) as back:
        exporter = exporter_to(back.endpoint, make_item("a"))
        back.wait_for(lambda: len(back.requests) > 12)
        assert exporter.stats().queued_items == 1
        assert "database" in exporter.stats().last_error
        broken = False
        exporter.stop(5)
        assert back.accepted == ["a"]
    assert list(dead_letters(tmp_path)) == []
    assert [o.outcome for o in outcomes] == ["exported"]


def test_a_dead_letter_that_is_replayed_reaches_the_running_exporter(exporter_to, tmp_path):
    told = queue.Queue()
    refuse = True
    with Collector(answer=lambda _: (422, {}, b"no") if refuse else OK) as back:
        exporter_to(back.endpoint, make_item("a"), on_outcome=told.put)
        assert told.get(timeout=20).outcome == "dead_letter"
        refuse = False
        [letter] = dead_letters(tmp_path)
        replay(letter)
        assert told.get(timeout=20).outcome == "exported"
        assert back.accepted == ["a"]


def test_batches_are_bounded_by_bytes_and_spans(exporter_to):
    options = ExportOptions(timeout_s=5, max_batch_bytes=60_000, max_batch_spans=10)
    items = [make_item(f"t{n}", padding=20_000) for n in range(5)] + [make_item(f"s{n}", spans=4) for n in range(5)]
    with Collector() as back:
        exporter_to(back.endpoint, *items, options=options).stop(5)
        assert all(len(r.body) <= 60_000 and len(r.names) <= 10 for r in back.requests)
        assert 5 <= len(back.requests) <= 7
        assert len(back.accepted) == 25


def test_nothing_is_lost_when_nobody_answers_and_the_process_is_killed(tmp_path, exporter_to):
    with Collector() as gone:
        endpoint = gone.endpoint
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[3]); from export_items import make_item\n"
        "from observer_serving.export.otlp_http import OtlpHttpExporter\n"
        "exporter = OtlpHttpExporter('back', sys.argv[1], Path(sys.argv[2])); exporter.start()\n"
        "for n in range(20): exporter.submit(make_item(f't{n}'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = str(tmp_path / "export" / "back")
    here = os.path.dirname(__file__)  # noqa: PTH120
    killed = subprocess.run([sys.executable, "-c", code, endpoint, folder, here], check=False)
    assert killed.returncode == -signal.SIGKILL
    with Collector(port=gone.port) as back:
        exporter_to(endpoint).stop(5)
        assert back.accepted == [f"t{n}" for n in range(20)]


def test_phoenix_gets_its_project_sane_times_and_annotations(exporter_to):
    with Collector() as back:
        items = [make_item("a", ends_early=True, spans=2), make_item("b"), make_item("b", late=True)]
        exporter = exporter_to(back.endpoint, *items, project="kept")
        exporter.stop(5)
    [received] = back.requests
    assert received.headers["x-project-name"] == "kept"
    spans = [s for g in received.request.resource_spans for scope in g.scope_spans for s in scope.spans]
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
    assert exporter.stats().repaired_spans == 2
    assert exporter.stats().annotations == 2
    assert [row["trace_id"] for row in back.annotations] == [items[0].trace_id, items[1].trace_id]
    row = back.annotations[0]
    assert (row["name"], row["annotator_kind"], row["identifier"]) == ("observer.p_wrong", "CODE", "observer:7")
    assert row["result"] == {"score": 0.75, "label": "score"}


def test_a_phoenix_is_recognised_by_its_answers(exporter_to):
    with Collector(phoenix=True) as back:
        exporter_to(back.endpoint, make_item("a")).stop(5)
        assert len(back.annotations) == 1


def test_annotations_that_fail_are_posted_later_without_sending_spans_again(exporter_to, tmp_path):
    statuses = [503, 500]
    with Collector(annotate=lambda _: (statuses.pop(0), {}, b"") if statuses else (200, {}, b"{}")) as back:
        exporter = exporter_to(back.endpoint, make_item("a"), project="p")
        back.wait_for(lambda: bool(back.annotations))
        exporter.stop(5)
        assert back.accepted == ["a"]
        assert exporter.stats().queued_items == 0


def test_annotations_that_are_refused_hold_nothing_up(exporter_to):
    with Collector(annotate=lambda _: (422, {}, b"bad")) as back:
        exporter = exporter_to(back.endpoint, make_item("a"), project="p")
        exporter.stop(5)
        assert (exporter.stats().annotations_refused, exporter.stats().queued_items) == (1, 0)


def test_an_outcome_that_cannot_be_recorded_is_told_again(exporter_to, tmp_path):
    calls = []

    def record(outcome):
        calls.append(outcome.outcome)
        if len(calls) == 1:
            raise OSError("disk full")

    with Collector() as back:
        exporter = OtlpHttpExporter("x", back.endpoint, tmp_path / "x", options=FAST, on_outcome=record)
        exporter.submit(make_item("a"))
        exporter.start()
        exporter.stop(5)
        assert calls == ["exported", "exported"]
        assert exporter.stats().queued_items == 0


def test_endpoints(tmp_path):
    with Collector() as back:
        exporter = OtlpHttpExporter("x", f"http://127.0.0.1:{back.port}", tmp_path / "x", options=FAST)
        exporter.submit(make_item("a"))
        exporter.start()
        exporter.stop(5)
        assert back.accepted == ["a"]
    with pytest.raises(InputError, match="is no http"):
        OtlpHttpExporter("y", "127.0.0.1:6006", tmp_path / "y")


def test_the_pace_can_be_bounded(exporter_to):
    options = replace(FAST, traces_per_second=1)
    with Collector() as back:
        exporter = exporter_to(back.endpoint, *(make_item(f"t{n}") for n in range(5)), options=options)
        back.wait_for(lambda: len(back.requests) == 1)
        exporter.stop(0)
        assert [r.names for r in back.requests] == [["t0"]]
        assert exporter.stats().queued_items == 4
