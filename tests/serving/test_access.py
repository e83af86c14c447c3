"""Keys for sending, reading and administering, and TLS with and without client certificates."""

import contextlib
import select
import socket
import ssl
import subprocess
from pathlib import Path

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from serving.harness import Service, make_request, new_trace

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.config import Settings

TRACE = {"question": "q", "final_answer": "a"}
DENIED, NONE, OK = 403, 401, 200


def spans() -> ExportTraceServiceRequest:
    return make_request(new_trace(2))


def grpc_code(address: str, key: str | None, credentials: grpc.ChannelCredentials | None = None) -> grpc.StatusCode:
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    try:
        TraceServiceStub(channel).Export(spans(), metadata=metadata, timeout=20)
    except grpc.RpcError as error:
        return error.code()  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        channel.close()
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory):
    keys = {"ingest": ["in-old", "in-new"], "read": ["rd", "schlüssel"], "admin": "ad"}
    live = Service(tmp_path_factory.mktemp("keyed") / "home", {"keys": keys, "policy": {"keep_threshold": 0.0}}).start()
    yield live
    live.kill()


@pytest.mark.parametrize(
    ("method", "path", "body", "ingest", "read", "admin"),
    [
        ("POST", "/v1/traces", TRACE, 202, DENIED, 202),
        ("POST", "/v1/traces:score", TRACE, OK, DENIED, OK),
        ("GET", "/v1/decisions", None, DENIED, OK, OK),
        ("GET", "/v1/stats", None, DENIED, OK, OK),
        ("GET", "/metrics", None, DENIED, OK, OK),
        ("GET", "/v1/policy", None, DENIED, OK, OK),
        ("PUT", "/v1/policy", {"keep_threshold": 0.0}, DENIED, DENIED, OK),
        ("POST", "/v1/model", {"kind": "builtin"}, DENIED, DENIED, OK),
        ("POST", "/v1/model:rollback", None, DENIED, DENIED, OK),
        ("GET", "/healthz", None, OK, OK, OK),
    ],
)
def test_each_key_opens_its_own_doors(keyed: Service, method, path, body, ingest, read, admin):
    def code(key: str | None) -> int:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.request(method, keyed.api + path, json=body, headers=headers, timeout=60).status_code

    assert [code("in-old"), code("in-new"), code("rd"), code("ad")] == [ingest, ingest, read, admin]
    assert code(None) == code("wrong") == (OK if path == "/healthz" else NONE)


def test_a_key_need_not_be_ascii(keyed: Service):
    headers = {"authorization": "Bearer schlüssel".encode()}
    assert httpx.get(keyed.api + "/v1/stats", headers=headers).status_code == OK


def test_otlp_wants_the_ingest_key(keyed: Service):
    def code(key: str | None) -> int:
        headers = {"content-type": "application/x-protobuf"} | ({"authorization": f"Bearer {key}"} if key else {})
        return httpx.post(
            keyed.otlp_http + "/v1/traces", content=spans().SerializeToString(), headers=headers
        ).status_code

    assert [code(key) for key in ("in-old", "ad", "rd", "wrong", None)] == [OK, OK, DENIED, NONE, NONE]
    codes = [grpc_code(keyed.otlp_grpc, key) for key in ("in-new", "rd", None)]
    assert codes == [grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"listen": {"api": "0.0.0.0:1"}, "keys": {"ingest": "k"}}, "listen.api"),
        ({"listen": {"otlp_http": "0.0.0.0:1"}, "keys": {"read": "k"}}, "keys.ingest"),
        ({"keys": {"read": ""}}, "must not be empty"),
        ({"keys": {"read": ["a", ""]}}, "must not be empty"),
        ({"api_key": "", "listen": {"api": "0.0.0.0:1"}}, "api_key: .*must not be empty"),
        ({"policy": {"hash_key": ""}}, "policy.hash_key: .*must not be empty"),
        ({"tls": {"cert": "/nowhere.pem", "key": "/nowhere.pem"}}, "no file"),
    ],
)
def test_beyond_loopback_there_must_be_a_key_that_opens_it(settings: dict, says: str):
    with pytest.raises(InputError, match=says):
        validated(Settings, settings)
    validated(Settings, {"listen": {"api": "0.0.0.0:1", "otlp_grpc": "0.0.0.0:2"}, "keys": {"admin": "k"}})
    validated(Settings, {"listen": {"otlp_grpc": "0.0.0.0:2"}, "keys": {"ingest": "k"}})


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate for 127.0.0.1 and a client's."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test ca")
    for name in ("server", "client"):
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-extfile", "ext")  # fmt: skip
    return folder


@pytest.mark.parametrize("mutual", [False, True])
def test_tls_on_all_listeners(service, pki: Path, mutual: bool):
    tls = {"cert": str(pki / "server.pem"), "key": str(pki / "server.key")}
    live: Service = service(tls=tls | ({"ca": str(pki / "ca.pem")} if mutual else {}))
    assert live.api.startswith("https://127.0.0.1")
    context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
    anonymous = httpx.Client(verify=context)
    known = ssl.create_default_context(cafile=str(pki / "ca.pem"))
    known.load_cert_chain(pki / "client.pem", pki / "client.key")
    client = httpx.Client(verify=known)
    assert client.post(live.api + "/v1/traces", json=TRACE).status_code == 202
    headers = {"content-type": "application/x-protobuf"}
    answer = client.post(live.otlp_http + "/v1/traces", content=spans().SerializeToString(), headers=headers)
    assert answer.status_code == 200
    ca, key, cert = ((pki / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
    address = live.otlp_grpc.removeprefix("https://")
    assert grpc_code(address, None, grpc.ssl_channel_credentials(ca, key, cert)) == grpc.StatusCode.OK
    without = grpc_code(address, None, grpc.ssl_channel_credentials(ca))
    if mutual:
        with pytest.raises(httpx.HTTPError):
            anonymous.get(live.api + "/healthz")
        assert without == grpc.StatusCode.UNAVAILABLE
    else:
        assert anonymous.get(live.api + "/healthz").status_code == 200
        assert without == grpc.StatusCode.OK
    with pytest.raises(httpx.HTTPError):
        httpx.get(live.api.replace("https", "http") + "/healthz")
    with pytest.raises(httpx.ConnectError):
        httpx.get(live.api + "/healthz")  # signed by nobody this client knows


# --- what is settled before a body is read


def endless(url: str, head: bytes) -> int:
    """The status code of a request whose body never ends, once the connection has."""
    host, port = url.removeprefix("http://").split(":")
    chunk = b"10000\r\n" + b"[" * 65536 + b"\r\n"
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head)
        for _ in range(2000):  # 125 MiB
            readable, _, _ = select.select([connection], [], [], 0 if answer else 0.02)
            if readable:
                received = connection.recv(65536)
                if not received:
                    break
                answer += received
            connection.sendall(chunk)
        else:
            raise AssertionError("it takes in all that comes")
    return int(answer.split()[1])


def test_a_body_is_neither_read_without_a_key_nor_beyond_the_limit(service):
    """The framework parses a body before any dependency runs; a stranger must not get that far."""
    live: Service = service(keys={"ingest": "in", "admin": "ad"}, receive={"max_request": "1MiB"})
    head = "{} {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {}\r\n"
    doors = [(live.api, path) for path in ("/v1/traces", "/v1/traces:score", "/v1/policy", "/nothing")]
    for url, path in (*doors, (live.api, "/v1/model")):
        method = "PUT" if path == "/v1/policy" else "POST"
        for key, code in (("", 401), ("wrong", 401), ("in", 413)):
            request = head.format(method, path, key) + "transfer-encoding: chunked\r\n\r\n"
            answered = endless(url, request.encode())
            assert answered == code, (url, path, key)
    large = httpx.post(
        live.api + "/v1/traces", content=b"[" * (2 << 20), timeout=30,
        headers={"content-type": "application/json", "authorization": "bearer in"},
    )  # fmt: skip
    assert large.status_code == 413
    assert "receive.max_request" in large.json()["error"]
    refused = httpx.post(live.api + "/v1/traces", json=TRACE, timeout=30)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_web_page_of_another_origin_changes_nothing(shared_service: Service, origin: str):
    for method, path in (("POST", "/v1/model:rollback"), ("POST", "/v1/traces"), ("DELETE", "/v1/traces/x")):
        answer = httpx.request(method, shared_service.api + path, headers={"origin": origin}, timeout=30)
        assert (answer.status_code, "origin" in answer.json()["error"]) == (403, True)
    own = httpx.post(shared_service.api + "/v1/traces", json=TRACE, headers={"origin": shared_service.api}, timeout=30)
    assert own.status_code == 202


@pytest.mark.parametrize(("host", "code"), [("evil.example", 403), ("localhost:8080", 200), ("[::1]:8080", 200)])
def test_without_a_key_no_foreign_name_leads_here(shared_service: Service, host: str, code: int):
    """A page may point its own name at 127.0.0.1 (DNS rebinding); its browser then takes our answers for that page's."""
    answer = httpx.get(shared_service.api + "/v1/decisions", headers={"host": host}, timeout=30)
    assert answer.status_code == code


def test_a_page_of_ours_is_in_no_frame_and_loads_nothing_from_elsewhere(shared_service: Service):
    for path in ("/", "/docs"):
        policy = httpx.get(shared_service.api + path, timeout=30).headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
