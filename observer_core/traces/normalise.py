"""From the spans of one trace, in whatever convention, to what the decision model and the policy look at.

Rules, each with its fallback: the question is the root's input, else the last thing the user said to the first model
call; the answer is the root's output, else the last model output without tool calls; tool calls are TOOL spans in time
order, else those in model messages; evidence is retrieved documents, else what tools returned. Spans that only give
structure carry none of these and so drop out by themselves. Incomplete traces are normal and never an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from observer_core.traces.dialects import DIALECTS, adk
from observer_core.traces.dialects.message import Kind, Message, MessageCall, MessageResult, last_answer, last_user_text
from observer_core.traces.evidence import evidence_texts, is_error_result, result_text
from observer_core.traces.spans import SpanTree, SpanView, views
from observer_core.traces.to_spans import EVIDENCE, TOOL_STATUS
from observer_core.traces.trace import ABSENT, ToolCall, Trace

PROJECT_KEY = "openinference.project.name"
SERVICE_KEY = "service.name"
PREVIEW_CHARS = 1000
_SIDES = ("messages_in", "messages_out")
MAX_TEXT_CHARS = 100_000
"""Longest question, answer or evidence item kept; the state's budget cuts much earlier."""


class SpanAttributes(Mapping[str, list[Any]]):
    """Attribute key → the values it has on any span or resource of the trace, looked up when asked."""

    def __init__(self, spans: Sequence[SpanView]) -> None:
        self._spans = spans

    def __getitem__(self, key: str) -> list[Any]:
        holders = [view for view in self._spans if key in view or key in view.resource]
        if not holders:
            raise KeyError(key)
        values: dict[Any, Any] = {}  # a huge trace may have as many as it has spans
        for value in (value for view in holders for value in (view.get(key), view.resource_value(key))):
            if value is not None:
                values.setdefault((type(value), str(value)), value)
        return list(values.values())

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for view in self._spans for key in (*view.keys(), *view.resource)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class NormalisedTrace:
    """A trace read from spans, and the facts a policy rule may look at.

    Attributes:
        trace: question, tool calls, evidence and answer; never a label.
        root_span_id: the span that carries our attributes; `None` only when there are no spans.
        project: `openinference.project.name` of the root's resource, else its `service.name`, else `default`.
        complete: exactly one root, and every parent named is there.
        truncated: a JSON text that was read had been cut before it came here.
        statuses: span statuses, of `ok`, `error`, `unset`.
        kinds: OpenInference span kinds, upper case.
        tools: names of the tools called.
        attributes: attribute key → the values it has on any span.
        errors: `span name: message` of failed spans, in time order.
        spans: how many spans.
        duration_ms: from the first start to the last end.
        tokens: what all model calls read and wrote, as far as they say; each call counts once.
    """

    trace: Trace
    root_span_id: bytes | None
    project: str
    service: str
    complete: bool
    truncated: bool = False
    statuses: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    tools: tuple[str, ...] = ()
    attributes: Mapping[str, list[Any]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    spans: int = 0
    duration_ms: float = 0.0
    tokens: tuple[int, int] = (0, 0)


def normalise(resource_spans: Sequence[ResourceSpans]) -> NormalisedTrace:
    """Read all spans of one trace, given in any order."""
    every = views(resource_spans)
    tree = SpanTree(every)
    root = tree.root
    if root is None:
        return NormalisedTrace(Trace("", ""), None, "default", "", complete=False)
    return _Reader(tree, root).read()


class _Reader:
    """Reads one trace; holds the kinds of its spans and its model calls, which several fields need."""

    def __init__(self, tree: SpanTree, root: SpanView) -> None:
        self.tree = tree
        self.root = root
        self.spans = [view for view in tree.spans if not adk.is_merged_tools(view)]
        self.kinds: dict[int, Kind | None] = {id(view): _kind(view) for view in self.spans}
        self.model_calls = self._group_model_calls()

    def read(self) -> NormalisedTrace:
        calls, results = self._tool_calls()
        duration_ms = _duration_ms(self.tree.spans)
        trace = Trace(
            question=self._question()[:MAX_TEXT_CHARS],
            final_answer=self._answer()[:MAX_TEXT_CHARS],
            trace_id=self.root.span.trace_id.hex() or None,
            tool_calls=calls,
            evidence=[text[:MAX_TEXT_CHARS] for text in self._evidence(results)],
            model=self._model(),
            steps=len(self.model_calls) or None,
            latency_ms=duration_ms,
        )
        service = self.root.resource_value(SERVICE_KEY)
        project = self.root.resource_value(PROJECT_KEY)
        return NormalisedTrace(
            trace=trace,
            root_span_id=self.root.span.span_id,
            project=str(project or service or "default"),
            service=str(service or ""),
            complete=self.tree.complete,
            truncated=any(view.truncated for view in self.spans),
            statuses=frozenset(view.status for view in self.tree.spans),
            kinds=frozenset(kind for kind in self.kinds.values() if kind is not None),
            tools=tuple(dict.fromkeys(call.name for call in calls)),
            attributes=SpanAttributes(self.tree.spans),
            errors=tuple(_error(view) for view in self.tree.spans if view.status == "error"),
            spans=len(self.tree.spans),
            duration_ms=duration_ms,
            tokens=self._tokens(),
        )

    # -- question and answer

    def _outer(self, *kinds: Kind | None) -> list[SpanView]:
        """The spans of these kinds that may stand for the whole run, from the top down."""
        return sorted((view for view in self.spans if self.kinds[id(view)] in kinds), key=self.tree.depth)

    def _question(self) -> str:
        outer = [self.root, *self._outer("AGENT", "CHAIN"), *self._outer(None)]
        asked = _first_text(_said(view, "input_text") for view in outer)
        if asked is None and self.model_calls:
            first = self.model_calls[0]
            asked = last_user_text(_messages(first, "messages_in")) or _first_text(
                _said(view, "input_text") for view in first
            )
        return asked or _first(dialect.input_text(self.root) for dialect in DIALECTS) or ""

    def _answer(self) -> str:
        # Of agents that ran one after the other, the last speaks for the run.
        agents = sorted(self._outer("AGENT"), key=lambda view: (self.tree.depth(view), -view.span.end_time_unix_nano))
        said = _first_text(_said(view, "output_text") for view in [self.root, *agents])
        said = said or _first_text(_model_answer(call) for call in reversed(self.model_calls))
        said = said or _first_text(_said(view, "output_text") for view in self._outer("CHAIN", None))
        return said or _first(dialect.output_text(self.root) for dialect in DIALECTS) or ""

    # -- model calls

    def _group_model_calls(self) -> list[list[SpanView]]:
        """Model calls in time order, each with all spans that tell of it: instrumentations nest one in another."""
        groups: dict[int, list[SpanView]] = {}
        for view in self.spans:
            if self.kinds[id(view)] == "LLM":
                outermost = view
                for ancestor in self.tree.ancestors(view):
                    if self.kinds.get(id(ancestor)) != "LLM":
                        break
                    outermost = ancestor
                groups.setdefault(id(outermost), []).append(view)
        return [sorted(group, key=self.tree.depth) for group in groups.values()]

    def _model(self) -> str | None:
        candidates = [view for call in self.model_calls for view in call] or [self.root]
        return _first_text(_said(view, "model") for view in candidates)

    def _tokens(self) -> tuple[int, int]:
        counts = [
            next((found for view in call for dialect in DIALECTS if (found := dialect.tokens(view))), (0, 0))
            for call in self.model_calls
        ]
        return sum(read for read, _ in counts), sum(written for _, written in counts)

    # -- tools and evidence

    def _tool_calls(self) -> tuple[list[ToolCall], list[Any]]:
        """The calls, and the result of each (`ABSENT` where unknown)."""
        tool_spans = [view for view in self.spans if self.kinds[id(view)] == "TOOL" and not self._is_inner_copy(view)]
        if tool_spans:
            results = [_fact(view, "tool_result") for view in tool_spans]
            return [_call_of_span(view, result) for view, result in zip(tool_spans, results, strict=True)], results
        asked, found = self._calls_in_messages()
        return [
            _tool_call(call.name, call.args, "error" if is_error_result(result) else ABSENT, result)
            for call, result in zip(asked, found, strict=True)
        ], found

    def _is_inner_copy(self, view: SpanView) -> bool:
        """Whether another instrumentation's span around this one tells of the same call."""
        parent = self.tree.parent(view)
        return (
            parent is not None
            and self.kinds.get(id(parent)) == "TOOL"
            and _said(parent, "tool_name") == _said(view, "tool_name")
        )

    def _calls_in_messages(self) -> tuple[list[MessageCall], list[Any]]:
        """Tool calls of model outputs with their results, which later model inputs hold: by id, else in turn."""
        asked = [
            call for group in self.model_calls for message in _messages(group, "messages_out") for call in message.calls
        ]
        if not asked:
            return [], []
        history = max((_this_turn(_messages(group, "messages_in")) for group in self.model_calls), key=len)
        waiting = [result for message in history for result in message.results]
        return asked, [_take(waiting, call) for call in asked]

    def _evidence(self, results: Sequence[Any]) -> list[str]:
        written = self.root.json(EVIDENCE)
        if isinstance(written, list):
            return [str(text) for text in written]
        documents = [text for view in self.spans for text in _documents(view)]
        texts = documents or [text for result in results if result is not ABSENT for text in evidence_texts(result)]
        return list(dict.fromkeys(texts))


def _kind(view: SpanView) -> Kind | None:
    """The kind of step. Beyond its limit an SDK drops the oldest attributes, of a long chat the kind before all."""
    kind = _first(dialect.kind(view) for dialect in DIALECTS)
    if kind is None and view.span.dropped_attributes_count and any(_messages([view], s) for s in _SIDES):
        return "LLM"
    return kind


def _call_of_span(view: SpanView, result: Any) -> ToolCall:
    name = _first_text(dialect.tool_name(view) for dialect in DIALECTS) or view.span.name
    if view.word(TOOL_STATUS) is not None:
        status = view.json(TOOL_STATUS)
    elif view.status == "error" or is_error_result(result):
        status = "error"
    else:
        status = "ok" if view.status == "ok" else ABSENT
    return _tool_call(name, _fact(view, "tool_arguments"), status, result)


def _tool_call(name: str, args: Any, status: Any, result: Any) -> ToolCall:
    preview = None if result is ABSENT or result is None else result_text(result)[:PREVIEW_CHARS]
    return ToolCall(name, args, status, preview)


def _this_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages after the user last spoke: earlier ones belong to earlier turns, which have traces of their own."""
    spoken = [i for i, message in enumerate(messages) if message.role == "user" and message.text.strip()]
    return messages[spoken[-1] :] if spoken else messages


def _model_answer(call: Sequence[SpanView]) -> str | None:
    out = _messages(call, "messages_out")
    return last_answer(out) if out else _first_text(_said(view, "output_text") for view in call)


def _take(waiting: list[MessageResult], call: MessageCall) -> Any:
    for index, result in enumerate(waiting):
        if result.id == call.id if result.id and call.id else result.name in (None, call.name):
            return waiting.pop(index).value
    return ABSENT


def _documents(view: SpanView) -> list[str]:
    return next((found for dialect in DIALECTS if (found := dialect.documents(view))), [])


def _messages(views_of_call: Iterable[SpanView], side: str) -> list[Message]:
    """The messages of a model call, from the outermost span and the first dialect that has any."""
    found = (getattr(dialect, side)(view) for view in views_of_call for dialect in DIALECTS)
    return next((messages for messages in found if messages), [])


def _said(view: SpanView, what: str) -> str | None:
    return _first_text(getattr(dialect, what)(view) for dialect in DIALECTS)


def _fact(view: SpanView, what: str) -> Any:
    return next((fact for dialect in DIALECTS if (fact := getattr(dialect, what)(view)) is not ABSENT), ABSENT)


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _first_text(texts: Iterable[str | None]) -> str | None:
    return next((text for text in texts if text is not None and text.strip()), None)


def _error(view: SpanView) -> str:
    message = view.span.status.message or view.text("error.type") or ""
    for event in view.span.events:
        for attribute in event.attributes:
            if attribute.key == "exception.message" and attribute.value.string_value:
                message = attribute.value.string_value
    return f"{view.span.name}: {message[:PREVIEW_CHARS]}" if message else view.span.name


def _duration_ms(spans: Sequence[SpanView]) -> float:
    """From the first start to the last end; a time of 0 is one that was not set, not the year 1970."""
    starts = [view.span.start_time_unix_nano for view in spans if view.span.start_time_unix_nano]
    ends = [view.span.end_time_unix_nano for view in spans if view.span.end_time_unix_nano]
    return max(0.0, (max(ends) - min(starts)) / 1e6) if starts and ends else 0.0
