"""The decision written on the root span, before the trace leaves: Phoenix never updates a span it has."""

import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import count

from openinference.semconv.trace import EvaluationAttributes, OpenInferenceAnnotatorKindValues, SpanAttributes
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from observer_core.decisions import Decision

EVALUATION_NAME = "answer_wrong"
_FIELDS = frozenset(f"observer.{field.name}" for field in fields(Decision))
_EVALUATORS = "observer.evaluators."


def decorate_root(
    resource_spans: Sequence[ResourceSpans], root_span_id: bytes | None, decision: Decision
) -> list[ResourceSpans]:
    """The same spans with `observer.<field>` and OpenInference's trace evaluation on the root.

    Nothing else changes, and nothing given is changed: groups without the root are handed back as they are, the root's
    group is copied with its unknown fields. On the root, only decision fields an earlier Observer wrote are replaced.
    With several spans of that id the first carries the attributes.
    """
    out = list(resource_spans)
    for index, group in enumerate(out):
        for scope_index, scope_spans in enumerate(group.scope_spans):
            for span_index, span in enumerate(scope_spans.spans):
                if span.span_id == root_span_id:
                    copy = ResourceSpans()
                    copy.CopyFrom(group)
                    _decorate(copy.scope_spans[scope_index].spans[span_index], decision)
                    out[index] = copy
                    return out
    return out


def _decorate(root: Span, decision: Decision) -> None:
    for index in reversed(range(len(root.attributes))):
        key = root.attributes[index].key
        if key in _FIELDS or key.startswith(_EVALUATORS):
            del root.attributes[index]
    # Evaluations that are there already, a user's or another Observer's, keep their places.
    taken = {attribute.key for attribute in root.attributes}
    place = next(i for i in count() if not any(key.startswith(_evaluation(i)) for key in taken))
    for key, value in (decision.span_attributes() | _evaluation_attributes(decision, _evaluation(place))).items():
        _put(root, key, value)


def _evaluation(index: int) -> str:
    return f"{SpanAttributes.TRACE_EVALUATIONS}.{index}."


def _evaluation_attributes(decision: Decision, prefix: str) -> dict[str, str | float]:
    metadata = {
        "decision": decision.decision,
        "threshold": decision.threshold,
        "keep_probability": decision.keep_probability,
        "policy_version": decision.policy_version,
    }
    out: dict[str, str | float] = {
        prefix + EvaluationAttributes.EVALUATION_NAME: EVALUATION_NAME,
        prefix + EvaluationAttributes.EVALUATION_LABEL: decision.reason,
        prefix + EvaluationAttributes.EVALUATION_ANNOTATOR_KIND: OpenInferenceAnnotatorKindValues.CODE.value,
        prefix + EvaluationAttributes.EVALUATION_IDENTIFIER: f"{decision.model}@{decision.model_version}",
        prefix + EvaluationAttributes.EVALUATION_METADATA: json.dumps(metadata, separators=(",", ":")),
    }
    if decision.p_wrong is not None:
        out[prefix + EvaluationAttributes.EVALUATION_SCORE] = decision.p_wrong
    return out


def _put(span: Span, key: str, value: str | bool | int | float) -> None:
    target: AnyValue = span.attributes.add(key=key).value
    match value:
        case bool():
            target.bool_value = value
        case int():
            target.int_value = value
        case float():
            target.double_value = value
        case str():
            target.string_value = value
