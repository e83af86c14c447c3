"""Where traces come from: labeled JSONL, ReAct logs, OTLP span files, folders of these, or a Phoenix project."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.traces.jsonl import LineProblem, parse_json
from observer_core.traces.normalise import PROJECT_KEY, normalise
from observer_core.traces.otlp import PROTOBUF_SUFFIXES, read_otlp_file, scan_otlp_file, split_by_trace, write_otlp_file
from observer_core.traces.to_spans import trace_to_spans
from observer_core.traces.trace import Trace
from observer_pipeline.react_logs import FORMATS, react_text, trace_of_json

PHOENIX = "phoenix://"
JSON_SUFFIXES = frozenset({".jsonl", ".json", ".ndjson"})
_HEAD_BYTES = 4096


def load_traces(source: str, *, skip_invalid: bool = False) -> list[Trace]:
    """All traces of a source.

    Args:
        source: a file of (labeled) traces as JSONL, of ReAct logs (LangChain's intermediate steps, OpenAI's messages,
            or text), or of OTLP spans; a folder of such files (searched in depth); or `phoenix://host:port/project`
            (`phoenixs://` for https), whose traces carry the verdicts people gave.
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
            found, bad = scan_log(path)
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


def scan_log(path: Path) -> tuple[list[Trace], list[LineProblem]]:
    """Read all usable traces of a file of labeled traces or ReAct logs, and the problem of every other line.

    A file is JSON lines, one JSON value (an object, or a list of them) over any number of lines, or text.

    Raises:
        InputError: the file cannot be read at all.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; give a file of traces") from error
    if path.suffix in react_text.SUFFIXES:
        return _attempt(path, 1, lambda: list(react_text.read(data.decode("utf-8"))))
    traces: list[Trace] = []
    problems: list[LineProblem] = []
    for number, raw in enumerate(_values(data), 1):
        if raw.strip():
            found, bad = _attempt(path, number, lambda raw=raw: [trace_of_json(_json(raw))])
            traces += found
            problems += bad
    return traces, problems


def _values(data: bytes) -> list[bytes]:
    """The JSON values of a file: its lines, or the items of one list, or one object written over several lines."""
    lines = data.split(b"\n")
    if data.lstrip()[:1] != b"[" and lines[0].strip() != b"{":
        return lines
    try:
        value = json.loads(data)
    except ValueError:
        return lines
    return [json.dumps(item).encode() for item in (value if isinstance(value, list) else [value])]


def _json(raw: bytes) -> object:
    try:
        return parse_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start} of the line") from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from error


def _attempt(path: Path, number: int, read: Callable[[], list[Trace]]) -> tuple[list[Trace], list[LineProblem]]:
    try:
        return read(), []
    except InputError as error:
        return [], [LineProblem(path, number, str(error))]


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
    wanted = JSON_SUFFIXES | PROTOBUF_SUFFIXES  # a text in a folder may be anything
    found = sorted(path for path in source.rglob("*") if path.suffix in wanted and path.is_file())
    if not found:
        raise InputError(f"{source} holds no trace files ({', '.join(sorted(wanted))}); give another folder")
    yield from found


def spans_of(source: str, *, project: str | None = None) -> list[ExportTraceServiceRequest] | None:
    """The spans of a source as they are, when it is one of OTLP files only; None for any other.

    Args:
        project: put on the spans' resources as Phoenix's project.

    Raises:
        InputError: a file cannot be read.
    """
    if "://" in source:
        return None
    files = list(_files(Path(source)))
    if not all(is_otlp_file(path) for path in files):
        return None
    requests = [request for path in files for request in read_otlp_file(path)]
    for resource in (group.resource for request in requests for group in request.resource_spans if project):
        kept = [attribute for attribute in resource.attributes if attribute.key != PROJECT_KEY]
        del resource.attributes[:]
        resource.attributes.extend(kept)
        resource.attributes.add(key=PROJECT_KEY).value.string_value = str(project)
    return requests


def requests_of(traces: Iterable[Trace], *, project: str | None, now_ns: int) -> list[ExportTraceServiceRequest]:
    """One export request per trace, as an OTLP file holds them; labels are not written."""
    return [
        ExportTraceServiceRequest(resource_spans=[trace_to_spans(trace, project=project, now_ns=now_ns)])
        for trace in traces
    ]


Format = Literal["jsonl", "otlp", "langchain", "openai", "react"]
_NAMES = {
    "jsonl": "JSONL",
    "otlp": "OTLP",
    "langchain": "LangChain steps",
    "openai": "OpenAI messages",
    "react": "ReAct text",
    "phoenix": "Phoenix",
}
_WITHOUT_LABELS = ("otlp", "react", "phoenix")


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote."""

    traces: int
    format: str
    labels_left_out: int


def convert(
    source: str, dest: str, *, to: Format | None = None, project: str | None = None, skip_invalid: bool = False
) -> Converted:
    """Read traces from a source (see `load_traces`) and write them in another format.

    Args:
        dest: a file, or `phoenix://host:port/project` to send to.
        to: the format; told by the file's suffix when None.
        project: Phoenix's project on the spans.
        skip_invalid: leave out lines that cannot be read.

    Raises:
        InputError: the source cannot be used, or the destination cannot be written to.
        ObserverError: Phoenix does not answer.
    """
    phoenix = dest.startswith((PHOENIX, "phoenixs://"))
    if ("://" in dest and not phoenix) or (dest.startswith("phoenix:") and not phoenix):
        raise InputError(f"cannot write to {dest}; give a file or phoenix://host:port/project")
    if phoenix and to not in (None, "otlp"):
        raise InputError(f"Phoenix takes spans, not {to}; leave --to out")
    form = "phoenix" if phoenix else to or _format_of(Path(dest))
    spans = spans_of(source, project=project) if form in ("otlp", "phoenix") else None
    found = load_traces(source, skip_invalid=skip_invalid)
    if form in ("otlp", "phoenix"):
        requests = spans if spans is not None else requests_of(found, project=project, now_ns=time.time_ns())
        if phoenix:
            from observer_pipeline.phoenix_traces import send_to_project

            send_to_project(dest, requests)
        else:
            write_otlp_file(Path(dest), requests)
    elif form == "react":
        write_whole(Path(dest), "".join(react_text.write(trace) for trace in found).encode())
    else:
        lines = [json.dumps(FORMATS[form].write(trace), ensure_ascii=False) + "\n" for trace in found]
        write_whole(Path(dest), "".join(lines).encode())
    lost = sum(trace.label is not None for trace in found) if form in _WITHOUT_LABELS else 0
    return Converted(len(found), _NAMES[form], lost)


def _format_of(path: Path) -> Format:
    if path.suffix == ".json" or path.suffix in PROTOBUF_SUFFIXES:
        return "otlp"
    return "react" if path.suffix in react_text.SUFFIXES else "jsonl"
