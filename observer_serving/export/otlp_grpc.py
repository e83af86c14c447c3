"""Kept traces to any OTLP/gRPC back end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from observer_core.errors import InputError
from observer_serving.export.answer import Answer, Verdict
from observer_serving.export.item import OnOutcome
from observer_serving.export.queued import ExportOptions, QueuedExporter

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_CODE = grpc.StatusCode
# OTLP's retryable codes; the others here tell of the address, the key or the service: every trace would meet the same.
_WAIT = frozenset({
    _CODE.CANCELLED, _CODE.DEADLINE_EXCEEDED, _CODE.ABORTED, _CODE.OUT_OF_RANGE, _CODE.UNAVAILABLE, _CODE.DATA_LOSS,
    _CODE.UNAUTHENTICATED, _CODE.PERMISSION_DENIED, _CODE.UNIMPLEMENTED,
})  # fmt: skip
_BROKE = frozenset({_CODE.INTERNAL, _CODE.UNKNOWN})
_MAX_RETRY_AFTER_S = 600.0


class OtlpGrpcExporter(QueuedExporter):
    """One back end (see `QueuedExporter`).

    Args:
        endpoint: `host:port`, or an `http://` (plain) or `https://` (TLS) URL.
        headers: sent as metadata; keys in lower case.
        ca: the authority that signed the back end's certificate, where the system does not know it.

    Raises:
        InputError: the endpoint is none, or the authority's file cannot be read.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        folder: Path,
        *,
        headers: Mapping[str, str] | None = None,
        ca: Path | None = None,
        options: ExportOptions = ExportOptions(),
        on_outcome: OnOutcome | None = None,
    ) -> None:
        super().__init__(name, folder, options=options, on_outcome=on_outcome)
        self._endpoint = endpoint
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port is None:
            raise InputError(f"the endpoint {endpoint!r} is no host:port; give that of an OTLP/gRPC server")
        limits = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        if parts.scheme == "https":
            try:
                trusted = ca.read_bytes() if ca is not None else None
            except OSError as error:
                raise InputError(f"cannot read {ca}: {error.strerror}; give the authority's certificate") from None
            credentials = grpc.ssl_channel_credentials(trusted)
            self._channel = grpc.secure_channel(parts.netloc, credentials, limits, grpc.Compression.Gzip)
        else:
            self._channel = grpc.insecure_channel(parts.netloc, limits, grpc.Compression.Gzip)
        self._export = self._channel.unary_unary(_METHOD)  # bytes in, bytes out
        self._metadata = tuple((key.lower(), value) for key, value in (headers or {}).items())

    def _prepare(self, body: bytes) -> bytes:
        return body

    def _post(self, prepared: bytes) -> Answer:
        try:
            body = self._export(prepared, timeout=self._options.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            return judge(error, self._endpoint)
        return Answer(Verdict.ACCEPTED, 0, "", body=body)

    def _post_nothing(self) -> Answer:
        return self._post(b"")

    def _close(self) -> None:
        self._channel.close()


def judge(error: grpc.RpcError, endpoint: str) -> Answer:
    """What a gRPC error means (see `observer_serving.export.answer`); RESOURCE_EXHAUSTED without RetryInfo is too much
    at once, and the batch is split."""
    code: grpc.StatusCode = error.code()  # pyright: ignore[reportAttributeAccessIssue]
    text = f"{code.name}: {error.details()}"  # pyright: ignore[reportAttributeAccessIssue]
    retry_after = _retry_after(error)
    if code in _WAIT or retry_after is not None:
        verdict = Verdict.WAIT
    elif code in _BROKE:
        verdict = Verdict.BROKE
    else:
        verdict = Verdict.REFUSED
    status = None if code is _CODE.UNAVAILABLE else code.value[0]
    return Answer(verdict, status, f"{endpoint}: {text}"[:2000], retry_after, protocol="gRPC")


def _retry_after(error: grpc.RpcError) -> float | None:
    """Seconds to wait, from `RetryInfo` in the trailing metadata."""
    trailing: dict[str, Any] = dict(error.trailing_metadata() or ())  # pyright: ignore
    details = trailing.get("grpc-status-details-bin")
    if details is None:
        return None
    try:
        for detail in Status.FromString(details).details:
            info = RetryInfo()
            if detail.Unpack(info):
                return min(max(0.0, info.retry_delay.ToNanoseconds() / 1e9), _MAX_RETRY_AFTER_S)
    except DecodeError:
        pass  # no detail of Google's; the code says enough
    return None
