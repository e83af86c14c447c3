"""Where traces come from: labeled JSONL, OTLP span files, folders of both, or a Phoenix project."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.errors import InputError
from observer_core.traces.jsonl import LineProblem, scan_jsonl
from observer_core.traces.normalise import normalise
from observer_core.traces.otlp import PROTOBUF_SUFFIXES, scan_otlp_file, split_by_trace
from observer_core.traces.to_spans import trace_to_spans
from observer_core.traces.trace import Trace

PHOENIX = "phoenix://"
JSON_SUFFIXES = frozenset({".jsonl", ".json", ".ndjson"})
_HEAD_BYTES = 4096


def load_traces(source: str, *, skip_invalid: bool = False) -> list[Trace]:
    """All traces of a source.

    Args:
        source: a JSONL file of (labeled) traces, an OTLP span file, a folder of such files (searched in depth), or
            `phoenix://host:port/project` (`phoenixs://` for https). Phoenix's traces carry the verdicts people gave.
        skip_invalid: leave out lines that cannot be read instead of refusing the source.

    Raises:
        InputError: nothing there, unreadable, or bad lines; names file, line and field, and how many rows were usable.
        ObserverError: Phoenix does not answer.
    """
    if source.startswith((PHOENIX, "phoenixs://")):
        from observer_pipeline.phoenix_traces import read_project

        return read_project(source)
    traces: list[Trace] = []
    groups: list[ResourceSpans] = []
    problems: list[LineProblem] = []
    for path in _files(Path(source)):
        if is_otlp_file(path):
            requests, bad = scan_otlp_file(path)
            groups += [group for request in requests for group in request.resource_spans]
        else:
            found, bad = scan_jsonl(path)
            traces += found
        problems += bad
    traces += traces_of(groups)
    if problems and not (skip_invalid and traces):
        more = f" (and {len(problems) - 1} more bad lines)" if len(problems) > 1 else ""
        mend = "mend the lines or pass --skip-invalid" if traces else "give a file of traces"
        raise InputError(f"{problems[0]}{more}; {len(traces)} traces were usable; {mend}")
    if not traces:
        raise InputError(f"{source} holds no traces; give JSONL with one trace a line, or an OTLP span file")
    return traces


def traces_of(groups: Iterable[ResourceSpans]) -> list[Trace]:
    """The traces in a heap of spans, in the order in which they first appear."""
    return [normalise(spans).trace for spans in split_by_trace(groups).values()]


def is_otlp_file(path: Path) -> bool:
    """Whether a file holds OTLP spans; told by its suffix or, for JSON, by its first bytes."""
    if path.suffix in PROTOBUF_SUFFIXES:
        return True
    try:
        with path.open("rb") as stream:
            # Inside a JSON string the quotes would be escaped, so a trace that speaks of OTLP does not look like it.
            return b'"resourceSpans"' in stream.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a file of traces") from error


def _files(source: Path) -> Iterator[Path]:
    if not source.is_dir():
        yield source
        return
    wanted = JSON_SUFFIXES | PROTOBUF_SUFFIXES
    found = sorted(path for path in source.rglob("*") if path.suffix in wanted and path.is_file())
    if not found:
        raise InputError(f"{source} holds no trace files ({', '.join(sorted(wanted))}); give another folder")
    yield from found


def requests_of(traces: Iterable[Trace], *, project: str | None, now_ns: int) -> list[ExportTraceServiceRequest]:
    """One export request per trace, as an OTLP file holds them; labels are not written."""
    return [
        ExportTraceServiceRequest(resource_spans=[trace_to_spans(trace, project=project, now_ns=now_ns)])
        for trace in traces
    ]
