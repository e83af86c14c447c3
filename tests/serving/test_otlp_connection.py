"""One connection of the OTLP/HTTP port: what is unbounded, what comes together, and in which order it is answered."""

import asyncio
import contextlib
import http.client
import io
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import grpc.aio
import psutil
import pytest
from serving.harness import Service, make_request, new_trace, wait_until

from observer_serving.access import Keys
from observer_serving.config import Settings, TlsSettings
from observer_serving.connections import Doorkeeper
from observer_serving.listen import HttpListener, bind
from observer_serving.receive.grpc import SERVICE, build_server
from observer_serving.receive.http import OtlpHttp
from observer_serving.receive.protocol import MAX_HEAD_BYTES, MAX_TRAILER_BYTES, OtlpProtocol
from observer_serving.receive.receiver import Accepted

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


def connected(service: Service) -> socket.socket:
    host, _, port = service.otlp_http.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def all_of(connection: socket.socket) -> bytes:
    received = b""
    while some := connection.recv(65536):
        received += some
    return received


def test_who_has_said_everything_still_gets_the_answers(shared_service: Service):
    with connected(shared_service) as connection:
        connection.sendall(whole(spans()) + whole(spans()))
        connection.shutdown(socket.SHUT_WR)
        assert all_of(connection).count(b"HTTP/1.1 200") == 2


def test_a_target_without_a_path_is_not_found(shared_service: Service):
    with connected(shared_service) as connection:
        connection.sendall(b"POST http://host HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        assert all_of(connection).startswith(b"HTTP/1.1 404")


def test_a_connection_ends_with_a_wish_to_upgrade_it(shared_service: Service):
    """What follows would be another protocol's; a client that goes on in HTTP sends it again."""
    with connected(shared_service) as connection:
        connection.sendall(whole(spans(), b"connection: Upgrade\r\nupgrade: h2c\r\n") + whole(spans()))
        answers = all_of(connection)
        assert answers.startswith(b"HTTP/1.1 200")
        assert answers.count(b"HTTP/1.1") == 1
        assert b"connection: close" in answers


def test_a_pipelined_request_is_told_to_continue_in_its_turn(shared_service: Service):
    head, _, body = whole(spans(), b"expect: 100-continue\r\nconnection: close\r\n").partition(b"\r\n\r\n")
    with connected(shared_service) as connection:
        connection.sendall(whole(spans()) + head + b"\r\n\r\n")
        received = b""
        while b"100 Continue" not in received:
            received += connection.recv(65536)
        assert received.index(b"HTTP/1.1 200") < received.index(b"100 Continue")
        connection.sendall(body)
        assert b"HTTP/1.1 200" in all_of(connection)


def test_bodies_that_come_in_are_counted_together(service):
    """Over all connections; what was refused, cut off or taken makes room again."""
    small: Service = service(receive={"max_request": "1MiB", "max_waiting": "2MiB"})
    begun = LINE + b"content-length: 1000000\r\n\r\n" + bytes(700_000)
    taken = whole(make_request(new_trace(1), question="q" * 700_000).SerializeToString(), b"connection: close\r\n")

    def is_taken() -> bool:
        with connected(small) as connection:
            connection.sendall(taken)
            return all_of(connection).startswith(b"HTTP/1.1 200")

    for _ in range(5):
        with connected(small) as first, connected(small) as second:
            first.sendall(begun)
            second.sendall(begun)
            with connected(small) as third:
                third.sendall(begun)
                (last,), _, _ = select.select([first, second, third], [], [], 30)  # whichever was read last
                assert last.recv(4096).startswith(b"HTTP/1.1 503")
                assert not is_taken()
        wait_until(is_taken)
    for _ in range(5):
        assert is_taken()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_bytes((folder / "cert").read_bytes() + (folder / "key").read_bytes())
    return both


def _done(accepted: Accepted) -> asyncio.Future[Accepted]:
    future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
    future.set_result(accepted)
    return future


@pytest.fixture
def impatient(certificate: Path):
    """Ports of an OTLP listener, of an ASGI one, and of an OTLP one under TLS that wait half a second, each for at most
    three connections."""
    doorkeeper = Doorkeeper(most=3, patience=0.5)
    receiver = SimpleNamespace(accept_spans=lambda body, encoding: _done(Accepted(0, "")))
    otlp = OtlpHttp(receiver, Keys(Settings()), max_request=1 << 20)  # pyright: ignore[reportArgumentType]

    async def application(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    tls = TlsSettings(cert=certificate, key=certificate)
    ports: list[int] = []
    started, stopping = threading.Event(), threading.Event()

    async def serve() -> None:
        listeners = [
            HttpListener(bind("x", "127.0.0.1:0"), otlp, protocol=OtlpProtocol, doorkeeper=doorkeeper),
            HttpListener(bind("x", "127.0.0.1:0"), application, doorkeeper=doorkeeper),
            HttpListener(bind("x", "127.0.0.1:0"), otlp, tls, protocol=OtlpProtocol, doorkeeper=doorkeeper),
        ]
        for listener in listeners:
            await listener.start()
            ports.append(listener.port)
        started.set()
        await asyncio.to_thread(stopping.wait)
        for listener in listeners:
            await listener.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(30)
    yield ports
    stopping.set()
    thread.join()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("sent", [b"", b"POST /v1/tr", LINE + b"content-length: 100\r\n\r\n" + b"x" * 50])
def test_who_does_not_go_on_is_not_waited_for(impatient: list[int], place: int, sent: bytes):
    with socket.create_connection(("127.0.0.1", impatient[place]), timeout=30) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""


@pytest.mark.parametrize("place", [0, 1])
def test_who_goes_on_slowly_is_waited_for(impatient: list[int], place: int):
    with socket.create_connection(("127.0.0.1", impatient[place]), timeout=30) as connection:
        for _ in range(2):
            connection.sendall(LINE + b"content-length: 10\r\n\r\n")
            for _ in range(10):
                time.sleep(0.1)
                connection.sendall(b"x")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("place", [0, 1])
def test_a_head_has_to_come_whole(impatient: list[int], place: int):
    with (
        socket.create_connection(("127.0.0.1", impatient[place]), timeout=30) as connection,
        pytest.raises(OSError, match=r"reset|pipe"),
    ):
        for _ in range(300):
            connection.sendall(b"P" if place else b"\r\n")
            time.sleep(0.05)


def is_served(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        connection.sendall(LINE + b"content-length: 0\r\n\r\n")
        return connection.recv(1000).startswith(b"HTTP/1.1 200")
    return False


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("begun", [b"", LINE + b"content-length: 100\r\n\r\nx"])
def test_of_too_many_connections_the_one_that_waits_longest_goes(impatient: list[int], place: int, begun: bytes):
    """Who takes all there are keeps nobody else out."""
    address = ("127.0.0.1", impatient[place])
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(3)]
        for connection in held:
            assert is_served(connection)
            connection.sendall(begun)
            time.sleep(0.02)
        with socket.create_connection(address, timeout=30) as one_more:
            assert is_served(one_more)
        with contextlib.suppress(ConnectionResetError):
            assert held[0].recv(100) == b""
        assert all(select.select([connection], [], [], 0)[0] == [] for connection in held[1:])


@pytest.mark.parametrize("place", [0, 1])
def test_a_connection_may_rest_between_two_requests(impatient: list[int], place: int):
    """As long as the listener says, not as long as it waits for a client in the middle of something."""
    with socket.create_connection(("127.0.0.1", impatient[place]), timeout=30) as connection:
        assert is_served(connection)
        time.sleep(1.2)
        connection.sendall(LINE)
        time.sleep(0.2)
        connection.sendall(b"content-length: 0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        time.sleep(0.2)
        connection.sendall(LINE)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_who_does_not_agree_on_encryption_is_not_waited_for(impatient: list[int], certificate: Path):
    address = ("127.0.0.1", impatient[2])
    trusting = ssl.create_default_context(cafile=certificate)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(6)]
        silent[-1].sendall(b"\x16\x03\x01\x02\x00")
        with trusting.wrap_socket(socket.create_connection(address, timeout=30), server_hostname="localhost") as honest:
            assert is_served(honest), "six of three"
        for connection in silent:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        with trusting.wrap_socket(socket.create_connection(address, timeout=30), server_hostname="localhost") as honest:
            assert is_served(honest)


def test_grpc_has_only_so_many_connections_and_waits_for_none():
    async def ended() -> list[bytes]:
        receiver = SimpleNamespace(accept_spans=lambda body, encoding: _done(Accepted(0, "")))
        server = build_server(
            receiver, Keys(Settings()), max_request=1 << 20, doorkeeper=Doorkeeper(most=3, patience=0.5)
        )  # pyright: ignore[reportArgumentType]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with asyncio.timeout(30):
                silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
                said = [await reader.read() for reader, _ in silent]
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    await channel.unary_unary(f"/{SERVICE}/Export")(b"")
                return said
        finally:
            await server.stop(None)

    assert len(asyncio.run(ended())) == 5
