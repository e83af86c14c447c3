"""Malformed payloads over real HTTP: never a 5xx, never a crash, memory bounded, counters in balance.

Real requests (recorded agent runs, protobuf and JSON, plain and compressed) with bytes flipped, cut out, doubled or
replaced, and payloads that hypothesis makes up.
"""

import gzip
import http.client
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving.harness import Service, make_request, new_trace, summed, wait_until

from observer_core.traces.otlp import read_otlp_file
from observer_core.traces.otlp_json import dump_json_message

FIXTURES = Path(__file__).parents[1] / "traces" / "fixtures"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
MEMORY = 400 << 20
"""Far below what the payloads add up to; a service that kept them, or unpacked a bomb, would be above it."""


class Client:
    """Posts over one kept-alive connection."""

    def __init__(self, service: Service) -> None:
        self.connection = http.client.HTTPConnection(service.otlp_http.removeprefix("http://"), timeout=60)

    def post(self, body: bytes, content_type: str, encoding: str = "") -> int:
        headers = {"content-type": content_type} | ({"content-encoding": encoding} if encoding else {})
        try:
            self.connection.request("POST", "/v1/traces", body, headers)
            answer = self.connection.getresponse()
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):  # idle for too long
            self.connection.close()
            self.connection.request("POST", "/v1/traces", body, headers)
            answer = self.connection.getresponse()
        told = answer.read()
        assert answer.getheader("content-type") == content_type
        assert answer.status == 200 or told, "a refusal says why"
        return answer.status


def seeds() -> list[tuple[bytes, str]]:
    out: list[tuple[bytes, str]] = []
    for file in sorted(FIXTURES.glob("*.json")):
        for request in read_otlp_file(file):
            out += [(request.SerializeToString(), PROTOBUF), (dump_json_message(request), JSON)]
    return out


def mutate(body: bytes, rng: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 1, 3, 10, 100))):
        place = rng.randrange(len(data) + 1)
        length = rng.choice((1, 1, 2, 8, 200))
        match rng.randrange(6):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                if place < len(data):
                    data[place] ^= 1 << rng.randrange(8)
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[place : place + length] * rng.choice((1, 2, 50))
            case 4:
                data[place : place + length] = rng.randbytes(length)
            case 5:
                data[place:place] = rng.choice(
                    (b"\xff" * 10, b"\x80" * 12, b"[" * 500, b'{"a":' * 300, b"\x00", b"1e999", b"\\ud800")
                )
    return bytes(data)


def payloads(seed: int) -> Iterator[tuple[bytes, str, str]]:
    rng = random.Random(seed)
    real = seeds()
    while True:
        body, content_type = rng.choice(real)
        encoding = rng.choice(("", "", "", "gzip", "zstd", "deflate"))
        if encoding == "gzip":
            body = gzip.compress(body, 1)
        elif encoding == "zstd":
            sized = rng.random() < 0.5  # as encoders of streams write it, nothing says how long the content is
            body = zstandard.ZstdCompressor(write_content_size=sized).compress(body)
        if rng.random() < 0.2:
            content_type = JSON if content_type == PROTOBUF else PROTOBUF
        yield mutate(body, rng), content_type, encoding


def survive(service: Service, client: Client, some: Iterator[tuple[bytes, str, str]]) -> None:
    assert service.process is not None
    process = psutil.Process(service.process.pid)
    before = process.memory_info().rss
    seen: dict[int, int] = {}
    for body, content_type, encoding in some:
        status = client.post(body, content_type, encoding)
        assert status < 500, (status, content_type, encoding, body[:200])
        seen[status] = seen.get(status, 0) + 1
    assert {200, 400} <= seen.keys(), seen
    bombs = {
        "gzip": gzip.compress(bytes(256 << 20), 1),
        "zstd": zstandard.ZstdCompressor().compress(bytes(256 << 20)),
        "zstd streamed": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 << 20)),
    }
    for encoding, bomb in bombs.items():
        assert client.post(bomb, PROTOBUF, encoding.split()[0]) == 413
    assert process.memory_info().rss - before < MEMORY
    trace_id, span_ids = new_trace(3)
    assert client.post(make_request((trace_id, span_ids)).SerializeToString(), PROTOBUF) == 200
    wait_until(
        lambda: service.client.get(f"{service.api}/v1/decisions/{trace_id.hex()}").status_code == 200, seconds=120
    )
    wait_until(lambda: service.get("/v1/stats")["open_traces"] == 0, seconds=120)
    figures = service.metrics()
    ends = ("kept_total", "dropped_total", "rejected_total", "duplicate_total", "open")
    wanted = summed(figures, "observer_spans_received_total")
    assert wanted == sum(summed(figures, f"observer_spans_{end}") for end in ends)


def test_mutated_requests(service: Callable[..., Service]):
    live = service(receive={"max_request": "16MiB"})
    survive(live, Client(live), islice(payloads(1), 600))


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_twelve_thousand_malformed_payloads(service: Callable[..., Service]):
    live = service(receive={"max_request": "16MiB"})
    client = Client(live)
    survive(live, client, islice(payloads(2), 9000))
    count = 0

    @settings(max_examples=3000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(
        st.one_of(st.binary(max_size=400), JSON_LIKE),
        st.sampled_from([PROTOBUF, JSON]),
        st.sampled_from(["", "gzip", "zstd"]),
    )
    def made_up(body: bytes, content_type: str, encoding: str) -> None:
        nonlocal count
        count += 1
        assert client.post(body, content_type, encoding) < 500

    made_up()
    assert count >= 3000
    survive(live, client, islice(payloads(3), 100))


KEYS = st.sampled_from(
    ["resourceSpans", "scopeSpans", "spans", "traceId", "spanId", "parentSpanId", "attributes", "key", "value", "links",
     "stringValue", "intValue", "arrayValue", "kvlistValue", "values", "startTimeUnixNano", "kind", "status", "events"]
)  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("ab" * 16), st.just("ab" * 8)
)
JSON_LIKE = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=15,
).map(lambda value: json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [value]}]}]}).encode())
