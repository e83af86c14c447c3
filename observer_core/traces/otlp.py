"""OTLP trace requests: decoding what clients send, and files of them as the OpenTelemetry file exporter writes.

A file is either JSON lines (one `ExportTraceServiceRequest` a line; `.json`, `.jsonl`) or protobuf (`.pb`, `.binpb`,
`.proto`): messages that each follow a 4-byte big-endian length, or one bare message.
"""

import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.traces.jsonl import LineProblem
from observer_core.traces.otlp_json import DecodeError, dump_json_message

if TYPE_CHECKING:
    from observer_core.traces.otlp_json_read import WireResource

__all__ = [
    "DecodeError", "decode_request", "parse_request", "protobuf_from_json", "read_otlp_file",
    "resources_from_json", "scan_otlp_file", "split_by_trace", "write_otlp_file",
]  # fmt: skip

ContentType = Literal["protobuf", "json"]

PROTOBUF_SUFFIXES = frozenset({".pb", ".binpb", ".proto"})
_LENGTH = struct.Struct(">I")


def decode_request(body: bytes, content_type: ContentType) -> ExportTraceServiceRequest:
    """One export request from the bytes of its body; an empty body is an empty request.

    Ids keep whatever length they came with: which spans to reject is the receiver's decision, not the decoder's.

    Raises:
        DecodeError: the body is not OTLP; for JSON it names the field's path.
    """
    return parse_request(protobuf_from_json(body) if content_type == "json" else body)


def parse_request(body: bytes) -> ExportTraceServiceRequest:
    """One export request from its protobuf form.

    Raises:
        DecodeError: that is not what it is.
    """
    try:
        return ExportTraceServiceRequest.FromString(body)
    except ProtobufDecodeError as error:
        raise DecodeError(f"not a protobuf ExportTraceServiceRequest: {error}; send OTLP traces") from None


def protobuf_from_json(body: bytes, most: int = sys.maxsize) -> bytes:
    """The protobuf form of an export request in JSON; raises as `resources_from_json`."""
    if not body:
        return b""
    # Not with the module: a start need not wait for msgspec.
    from observer_core.traces.otlp_json_read import json_to_wire

    return json_to_wire(body, most)


def resources_from_json(body: bytes, most: int = sys.maxsize) -> "list[WireResource]":
    """The resources of an export request in JSON, in their protobuf form; an empty body is an empty request.

    Raises:
        DecodeError: not OTLP/JSON; names the field's path.
        TooManySpansError: there are more than `most` resources, scopes and spans.
    """
    if not body:
        return []
    from observer_core.traces.otlp_json_read import json_to_resources

    return json_to_resources(body, most)


def scan_otlp_file(path: Path) -> tuple[list[ExportTraceServiceRequest], list[LineProblem]]:
    """Read all usable requests of a file and the problem of every other line (protobuf: message), counted from 1.

    Raises:
        InputError: the file cannot be read at all.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give an OTLP span file") from error
    if path.suffix in PROTOBUF_SUFFIXES:
        bodies, content_type = _frames(data), "protobuf"
    else:
        bodies, content_type = _lines(data), "json"
    requests: list[ExportTraceServiceRequest] = []
    problems: list[LineProblem] = []
    for number, body in enumerate(bodies, 1):
        if content_type == "json" and not body.strip():
            continue
        try:
            requests.append(decode_request(body, content_type))
        except DecodeError as error:
            problems.append(LineProblem(path, number, str(error)))
    return requests, problems


def read_otlp_file(path: Path) -> list[ExportTraceServiceRequest]:
    """All requests of an OTLP file.

    Raises:
        InputError: unreadable, or a line or message is not OTLP; names file, line and field.
    """
    requests, problems = scan_otlp_file(path)
    if problems:
        raise InputError(f"{problems[0]} ({len(requests)} requests were usable)")
    return requests


def write_otlp_file(path: Path, requests: Iterable[ExportTraceServiceRequest]) -> None:
    """Write requests to `path`, whole or not at all; the suffix chooses protobuf or JSON lines."""
    if path.suffix in PROTOBUF_SUFFIXES:
        bodies = [request.SerializeToString() for request in requests]
        write_whole(path, b"".join(_LENGTH.pack(len(body)) + body for body in bodies))
    else:
        write_whole(path, b"".join(dump_json_message(request) + b"\n" for request in requests))


def split_by_trace(resource_spans: Iterable[ResourceSpans]) -> dict[bytes, list[ResourceSpans]]:
    """The spans of each trace, resources and scopes kept; what holds one trace only is handed on as it is."""
    out: dict[bytes, list[ResourceSpans]] = {}
    for group in resource_spans:
        ids = {span.trace_id for scope in group.scope_spans for span in scope.spans}
        if len(ids) == 1:
            out.setdefault(ids.pop(), []).append(group)
            continue
        parts: dict[bytes, ResourceSpans] = {}
        for scope in group.scope_spans:
            scopes: dict[bytes, ScopeSpans] = {}
            for span in scope.spans:
                if span.trace_id not in parts:
                    parts[span.trace_id] = ResourceSpans(resource=group.resource, schema_url=group.schema_url)
                if span.trace_id not in scopes:
                    scopes[span.trace_id] = parts[span.trace_id].scope_spans.add(
                        scope=scope.scope, schema_url=scope.schema_url
                    )
                scopes[span.trace_id].spans.append(span)
        for trace_id, part in parts.items():
            out.setdefault(trace_id, []).append(part)
    return out


def _lines(data: bytes) -> Sequence[bytes]:
    """The lines, or the whole when it is one JSON value written over several lines."""
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:  # of several lines this says so after the first
        return data.split(b"\n")
    return [data]


def _frames(data: bytes) -> Sequence[bytes]:
    """The messages of a length-prefixed file, or the whole of one that holds a single bare message."""
    frames: list[bytes] = []
    offset = 0
    while offset + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        frames.append(data[offset : offset + size])
        offset += size
    # A bare request starts with its field tag 0x0A: as a length that is over 160 MB, so the frames do not add up.
    return frames if offset == len(data) else [data]
