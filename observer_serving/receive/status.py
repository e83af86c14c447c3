"""Refusals of the OTLP endpoints as `google.rpc.Status`, in whichever encoding the request used.

One small table says what is retryable: only overload is, and it is 503 / UNAVAILABLE. Never 429 (released Python
exporters drop the batch), never RESOURCE_EXHAUSTED with a retry hint.
"""

import math
from dataclasses import dataclass
from typing import Literal

import orjson
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from observer_core.errors import ObserverError

Encoding = Literal["protobuf", "json"]
CONTENT_TYPES: dict[Encoding, str] = {"protobuf": "application/x-protobuf", "json": "application/json"}
_ENCODINGS: dict[str, Encoding] = {content_type: encoding for encoding, content_type in CONTENT_TYPES.items()}
_ENCODINGS["application/protobuf"] = "protobuf"
_AS_SENT: dict[bytes, Encoding] = {content_type.encode(): encoding for content_type, encoding in _ENCODINGS.items()}
_MAX_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class Kind:
    """How one sort of refusal is told over both transports."""

    http: int
    grpc: int


BAD_DATA = Kind(400, Code.INVALID_ARGUMENT)
UNAUTHENTICATED = Kind(401, Code.UNAUTHENTICATED)
DENIED = Kind(403, Code.PERMISSION_DENIED)
NOT_FOUND = Kind(404, Code.UNIMPLEMENTED)
WRONG_METHOD = Kind(405, Code.UNIMPLEMENTED)
TOO_LARGE = Kind(413, Code.RESOURCE_EXHAUSTED)
UNSUPPORTED = Kind(415, Code.INVALID_ARGUMENT)
HEAD_TOO_LARGE = Kind(431, Code.INVALID_ARGUMENT)
INTERNAL = Kind(500, Code.INTERNAL)
OVERLOADED = Kind(503, Code.UNAVAILABLE)


def encoding_of(content_type: bytes) -> Encoding | None:
    """The encoding a `Content-Type` names; its case and its parameters do not matter."""
    return _AS_SENT.get(content_type) or _ENCODINGS.get(content_type.decode("latin-1").split(";", 1)[0].strip().lower())


class RefusedError(ObserverError):
    """A request that is not accepted; `retry_after` (seconds) is set when coming back helps."""

    def __init__(self, kind: Kind, message: str, *, field: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message[:_MAX_MESSAGE]
        self.field = field
        self.retry_after = retry_after

    def status(self) -> Status:
        """The `Status` with its details: `BadRequest` for bad data, `RetryInfo` for overload."""
        status = Status(code=self.kind.grpc, message=self.message)
        if self.kind is BAD_DATA:
            violation = BadRequest.FieldViolation(field=self.field or "body", description=self.message)
            status.details.add().Pack(BadRequest(field_violations=[violation]))
        if self.retry_after is not None:
            nanos, seconds = math.modf(self.retry_after)
            delay = Duration(seconds=int(seconds), nanos=int(nanos * 1e9))
            status.details.add().Pack(RetryInfo(retry_delay=delay))
        return status

    def body(self, encoding: Encoding) -> bytes:
        """The `Status` as an HTTP body."""
        if encoding == "protobuf":
            return self.status().SerializeToString()
        details: list[dict] = []
        if self.kind is BAD_DATA:
            violation = {"field": self.field or "body", "description": self.message}
            details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
        if self.retry_after is not None:
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{self.retry_after}s"})
        return orjson.dumps({"code": self.kind.grpc, "message": self.message, "details": details})


def headers_of(refusal: RefusedError) -> dict[str, str]:
    """What HTTP wants beside the body: when to come back, how to say who one is."""
    headers: dict[str, str] = {}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refusal.retry_after)))
    if refusal.kind is UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return headers


def other_signal(signal: str) -> RefusedError:
    """The refusal of metrics, logs or profiles; not retryable."""
    return RefusedError(NOT_FOUND, f"observer takes traces only, not {signal}; set OTEL_{signal.upper()}_EXPORTER=none")
