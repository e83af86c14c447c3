"""The spans on the wire, read back with the official protobuf classes by a real HTTP receiver."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from observer_core.errors import ObserverError
from observer_core.rollouts import wire
from observer_core.rollouts.columns import Columns
from observer_core.rollouts.emit import EmitOptions, emit
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, rewards_for
from observer_core.rollouts.story import Story

ONE = GradeOptions(workers=1)


class Receiver(ThreadingHTTPServer):
    """Keeps every span; answers with the statuses in `script` first, then 200."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict] = []
        self.script: list[tuple[int, dict[str, str]]] = []
        self.requests = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/traces"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests += 1
        status, headers = self.server.script.pop(0) if self.server.script else (200, {})
        if status == 200:
            assert self.headers["content-type"] == "application/x-protobuf"
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
            for resource in request.resource_spans:
                self.server.resources.append(values(resource.resource.attributes))
                for scope in resource.scope_spans:
                    self.server.spans += scope.spans
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def values(attributes) -> dict:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
        max_size=6,
    ),
    st.none() | st.text(max_size=20),
)
def test_the_encoder_writes_what_the_official_classes_read(attributes: dict, error: str | None):
    encoded = wire.span(b"t" * 16, b"s" * 8, b"p" * 8, "näme", 10**18, 10**18 + 7, wire.attributes(attributes), error)
    span = Span.FromString(encoded)
    assert (span.trace_id, span.span_id, span.parent_span_id) == (b"t" * 16, b"s" * 8, b"p" * 8)
    assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == ("näme", 10**18, 10**18 + 7)
    assert values(span.attributes) == attributes
    assert span.status == (Status() if error is None else Status(message=error, code=Status.STATUS_CODE_ERROR))
    assert not MessageToDict(span).keys() - {
        *("traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"),
        *("attributes", "status"),
    }


def test_a_step_is_57_spans_with_the_agreed_attributes(receiver: Receiver, story: Story, story_path: Path):
    log = RolloutLog(story_path)
    result = emit(log, rewards_for(log), EmitOptions(receiver.url, project="my-project"), ONE)
    assert (result.steps, result.completions, result.spans) == (200, 1600, 200 * 57)
    assert len(receiver.spans) == len({s.span_id for s in receiver.spans}) == 200 * 57
    assert receiver.resources[0] == {"service.name": "observer-rollouts", "openinference.project.name": "my-project"}
    traces: dict[bytes, list[Span]] = {}
    for span in receiver.spans:
        traces.setdefault(span.trace_id, []).append(span)
    assert {len(spans) for spans in traces.values()} == {57}
    step = next(s for s in traces.values() if values(s[0].attributes)["training.step"] == 20)
    roots = [s for s in step if not s.parent_span_id]
    completions = [s for s in step if s.parent_span_id == roots[0].span_id]
    assert (len(roots), len(completions)) == (1, 8)
    rows = story.table.slice(19 * 8, 8).to_pylist()
    for completion, row in zip(completions, rows, strict=True):
        shown = values(completion.attributes)
        assert shown["input.value"] == row["prompt"]
        assert shown["output.value"] == row["completion"], "the exact text"
        assert shown["training.step"] == 20
        assert shown["task.id"] == row["task_id"]
        assert shown["grpo.advantage"] == row["advantage"]
        for name in ("format", "quality", "citation", "calibration", "repetition"):
            assert shown[f"reward.{name}.score"] == pytest.approx(row[name], abs=1e-6)
        broken = 19 * 8 + rows.index(row) in story.newline
        assert shown.get("completion.parse_error") == ("raw_newline" if broken else None)
        assert (completion.status.code == Status.STATUS_CODE_ERROR) == broken
        assert ("completion.confidence" in shown) != broken
        children = [values(s.attributes) for s in step if s.parent_span_id == completion.span_id]
        assert [c["reward.name"] for c in children] == [r.name for r in rewards_for(log)]
        quality = next(c for c in children if c["reward.name"] == "quality")
        assert quality["reward.score"] == quality["gen_ai.evaluation.score.value"] == shown["reward.quality.score"]
        assert quality["reward.weight"] == 1.0
        assert quality["gen_ai.evaluation.name"] == "quality"
        assert len(quality["observer.reward.revision"]) == 12
        assert quality["reward.logged_score"] == pytest.approx(row["quality"])
    begins, ends = roots[0].start_time_unix_nano, roots[0].end_time_unix_nano
    assert all(begins <= s.start_time_unix_nano <= s.end_time_unix_nano <= ends for s in step)


def test_a_step_counts_its_groups_and_those_without_variance(receiver: Receiver, tmp_path: Path):
    path = tmp_path / "log.jsonl"
    rows = [
        *[{"prompt": "all the same", "r": 0.1, "s": 0.7}] * 3,
        *[{"prompt": "the same in total", "r": r, "s": 1 - r} for r in (0.25, 0.75)],
        *[{"prompt": "they differ", "r": r, "s": 0.7} for r in (0.1, 0.1, 0.2)],
        {"prompt": "alone", "r": 0.1, "s": 0.7},
        *[{"prompt": "they differ", "r": 0.5, "s": 0.7, "group_id": "told apart"}] * 2,
    ]
    for known in (False, True):
        lines = [{"step": 1, "completion": "text", "group_id": row["prompt"]} | row for row in rows]
        path.write_text("".join(json.dumps(line if known else {**line, "group_id": None}) + "\n" for line in lines))
        receiver.spans.clear()
        log = RolloutLog(path, Columns(rewards=("r", "s")))
        emit(log, [], EmitOptions(receiver.url), ONE)
        root = values(receiver.spans[0].attributes)
        found = (root["training.prompts"], root["training.groups"], root["training.flat_groups"])
        assert found == ((4, 4, 3) if known else (4, 3, 2))


def test_ids_are_stable_per_run_and_step(receiver: Receiver, story_path: Path):
    ids = []
    for run in ("one", "one", "two"):
        log = RolloutLog(story_path, run=run)
        receiver.spans.clear()
        emit(log, [], EmitOptions(receiver.url), ONE)
        ids.append([(s.trace_id, s.span_id) for s in receiver.spans])
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])


def test_an_interrupted_run_goes_on_where_it_stopped(receiver: Receiver, story_path: Path, tmp_path: Path):
    log = RolloutLog(story_path)
    rewards = rewards_for(log)
    options = EmitOptions(receiver.url, state=tmp_path / "state.json")
    receiver.script = [(200, {}), (200, {}), (503, {}), (200, {}), (403, {})]
    slept: list[float] = []
    with pytest.raises(ObserverError, match="refused spans: HTTP 403"):
        emit(log, rewards, options, ONE, sleep=slept.append)
    assert slept == [0.25], "one 503 was waited out"
    sent = len(receiver.spans)
    assert 0 < sent < 200 * 57
    result = emit(log, rewards, options, ONE)
    assert result.resumed_steps > 0
    unique = {s.span_id for s in receiver.spans}
    assert len(unique) == 200 * 57, "nothing is missing"
    assert len(receiver.spans) - len(unique) < 1000, "at most the request in flight is sent again"
    assert emit(log, rewards, options, ONE).spans == 0, "nothing is left to send"


def test_retry_after_is_honoured_and_patience_ends(receiver: Receiver, story_path: Path):
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    told: list[str] = []
    receiver.script = [(503, {"retry-after": "7"}), (503, {"retry-after": "0"})]
    emit(
        RolloutLog(story_path), [], EmitOptions(receiver.url), ONE, sleep=sleep, clock=lambda: now[0],
        waiting=lambda why: told.append(f"{why} at {now[0]:g}"),
    )  # fmt: skip
    assert now[0] == 7.0
    assert told == [f"{receiver.url} takes no spans (HTTP 503 ''); trying again for 120 s at 0"], "before it waits"
    receiver.script = [(503, {})] * 100
    with pytest.raises(ObserverError, match=r"took no spans for 20 s.*goes on where it stopped"):
        emit(RolloutLog(story_path), [], EmitOptions(receiver.url, patience=20), ONE, sleep=sleep, clock=lambda: now[0])


def test_pacing_keeps_to_the_rate(receiver: Receiver, story_path: Path):
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    emit(RolloutLog(story_path), [], EmitOptions(receiver.url, rate=80), ONE, sleep=sleep, clock=lambda: now[0])
    assert now[0] == pytest.approx(200 * 57 / 80)
