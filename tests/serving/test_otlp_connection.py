"""One connection of the OTLP/HTTP port: what is unbounded, what comes together, and in which order it is answered."""

import contextlib
import http.client
import io
import socket
import time
from collections.abc import Iterable

import psutil
import pytest
from serving.harness import Service, make_request, new_trace, wait_until

from observer_serving.receive.protocol import MAX_HEAD_BYTES, MAX_TRAILER_BYTES

LINE = b"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"
CHUNKED = LINE + b"transfer-encoding: chunked\r\n\r\n"


def whole(body: bytes, more: bytes = b"") -> bytes:
    return LINE + more + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, trailers: bytes = b"") -> bytes:
    return CHUNKED + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


def spans() -> bytes:
    return make_request(new_trace(2)).SerializeToString()


def exchange(service: Service, parts: Iterable[bytes]) -> list[int]:
    """The status codes that the parts are answered with, each part sent in one write, until the service closes."""
    host, _, port = service.otlp_http.removeprefix("http://").partition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                time.sleep(0.05)  # so that the next part is a read of its own
        with contextlib.suppress(ConnectionError):
            while some := connection.recv(65536):
                received += some
    codes: list[int] = []
    stream = io.BytesIO(received)
    while line := stream.readline():
        codes.append(int(line.split()[1]))
        stream.read(int(http.client.parse_headers(stream)["content-length"]))
    return codes


def test_trailers_are_read_and_bounded(shared_service: Service):
    allowed = b"content-type: text/plain\r\n" + b"t: u\r\n" * (MAX_TRAILER_BYTES // 6 - 10)
    assert exchange(shared_service, [chunked(spans(), allowed) + whole(spans(), b"connection: close\r\n")]) == [200] * 2
    beyond = b"t: u\r\n" * (MAX_TRAILER_BYTES // 6 + 1)
    assert exchange(shared_service, [chunked(spans(), beyond)]) == [431]
    assert exchange(shared_service, [CHUNKED + b"0\r\n", b"t: u\r\n" * 100, beyond]) == [431]
    assert exchange(shared_service, [CHUNKED + b"0\r\nt: ", b"u" * (MAX_TRAILER_BYTES + 1)]) == [431]
    assert exchange(shared_service, [CHUNKED + b"5;x=", b"y" * (MAX_TRAILER_BYTES + 1)]) == [431]


def test_endless_trailers_are_not_kept(shared_service: Service):
    assert shared_service.process is not None
    process = psutil.Process(shared_service.process.pid)
    before = process.memory_info().rss
    host, _, port = shared_service.otlp_http.removeprefix("http://").partition(":")
    lines = b"".join(b"trailer-%d: %d\r\n" % (n, n) for n in range(50_000))
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(CHUNKED + b"0\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(100):
                connection.sendall(lines)
    assert process.memory_info().rss - before < 50 << 20


def test_what_is_no_http_is_answered_after_what_came_before_it(shared_service: Service):
    request = make_request(new_trace(2))
    trace_id = request.resource_spans[0].scope_spans[0].spans[0].trace_id.hex()
    body = request.SerializeToString()
    assert exchange(shared_service, [whole(body) + b"\x00garbage\r\n\r\n"]) == [200, 400]
    wait_until(lambda: shared_service.client.get(f"{shared_service.api}/v1/decisions/{trace_id}").status_code == 200)
    assert exchange(shared_service, [whole(spans()) + whole(spans()) + CHUNKED + b"nonsense\r\n"]) == [200, 200, 400]
    early = LINE.replace(b"/v1/traces", b"/nothing") + b"transfer-encoding: chunked\r\n\r\n"
    assert exchange(shared_service, [early, b"nonsense\r\n"]) == [404], "an answer is given once"


@pytest.mark.parametrize("size", [10, MAX_HEAD_BYTES - 1000])
def test_a_head_begun_behind_a_large_body_is_measured_by_itself(shared_service: Service, size: int):
    request = make_request(*(new_trace(4) for _ in range(200)))
    body = request.SerializeToString()
    assert len(body) > MAX_HEAD_BYTES
    second = whole(spans(), b"connection: close\r\nx: %b\r\n" % (b"y" * size))
    together = whole(body) + second
    half = len(together) - len(second) // 2
    assert exchange(shared_service, [together[:half], together[half:]]) == [200, 200]


@pytest.mark.parametrize("before", [0, 1, 20])
def test_a_head_beyond_the_limit_is_refused_although_it_comes_whole(shared_service: Service, before: int):
    large = whole(spans(), b"x: y\r\n" * (100_000 // 6))
    assert exchange(shared_service, [whole(spans()) * before + large]) == [200] * before + [431]


def test_thousands_of_refusals_in_one_read_are_answered_in_order(shared_service: Service):
    refused, accepted = whole(b"\xff"), whole(spans())
    pipelined = refused * 1500 + accepted + whole(b"\xff", b"connection: close\r\n")
    assert exchange(shared_service, [pipelined]) == [400] * 1500 + [200, 400]
