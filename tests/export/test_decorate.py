"""The decision on the root span: everything else keeps its bytes."""

from dataclasses import replace

from export_items import DECISION
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from observer_core.traces.spans import SpanView
from observer_serving.export import decorate_root

U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
KEYS = st.one_of(
    TEXT, st.sampled_from(["observer.decision", "observer.evidence", "trace.evaluations.0.evaluation.name"])
)
ATTRIBUTES = st.lists(st.builds(KeyValue, key=KEYS, value=TEXT.map(lambda v: AnyValue(string_value=v))), max_size=4)
# Fields no schema of today has: number 2000, a varint and a length-delimited one.
UNKNOWN = st.sampled_from([b"", b"\x80\x7d\x05", b"\x82\x7d\x03abc"])


@st.composite
def spans(draw):
    span = Span(
        trace_id=b"t" * 16, span_id=draw(st.sampled_from([b"root----", b"a" * 8, b"b" * 8])), name=draw(TEXT),
        flags=draw(U32), trace_state=draw(TEXT), dropped_attributes_count=draw(U32), dropped_links_count=draw(U32),
        attributes=draw(ATTRIBUTES), events=draw(st.lists(st.builds(Span.Event, name=TEXT), max_size=2)),
        links=draw(st.lists(st.builds(Span.Link, span_id=st.binary(max_size=8), flags=U32), max_size=2)),
    )  # fmt: skip
    return Span.FromString(span.SerializeToString() + draw(UNKNOWN))


@st.composite
def groups(draw):
    group = ResourceSpans(schema_url=draw(TEXT))
    group.resource.attributes.extend(draw(ATTRIBUTES))
    for _ in range(draw(st.integers(0, 2))):
        scope = ScopeSpans(spans=draw(st.lists(spans(), max_size=3)), schema_url=draw(TEXT))
        group.scope_spans.append(ScopeSpans.FromString(scope.SerializeToString() + draw(UNKNOWN)))
    return ResourceSpans.FromString(group.SerializeToString() + draw(UNKNOWN))


def _ours(key: str) -> bool:
    return key.startswith("observer.") and key != "observer.evidence"


@given(st.lists(groups(), max_size=3))
@settings(max_examples=150, deadline=None)
def test_only_the_root_changes(given_groups):
    before = [group.SerializeToString() for group in given_groups]
    decorated = decorate_root(given_groups, b"root----", DECISION)
    assert [group.SerializeToString() for group in given_groups] == before
    done = False
    for old_group, new_group in zip(given_groups, decorated, strict=True):
        for old_scope, new_scope in zip(old_group.scope_spans, new_group.scope_spans, strict=True):
            for old, new in zip(old_scope.spans, new_scope.spans, strict=True):
                if old.span_id != b"root----" or done:
                    assert new.SerializeToString() == old.SerializeToString()
                    continue
                done = True
                # With our attributes taken off again, the root is byte for byte what it was without an earlier decision.
                kept = [a for a in old.attributes if not _ours(a.key)]
                assert list(new.attributes[: len(kept)]) == kept
                assert len(new.attributes) == len(kept) + len(DECISION.span_attributes()) + 6
                rest, want = Span.FromString(new.SerializeToString()), Span.FromString(old.SerializeToString())
                del rest.attributes[:], want.attributes[:]
                assert rest.SerializeToString() == want.SerializeToString()
            new_scope.ClearField("spans")
            old_scope.ClearField("spans")
        assert new_group.SerializeToString() == old_group.SerializeToString()
    if not done:
        assert all(old is new for old, new in zip(given_groups, decorated, strict=True))


def _root(decision, **attributes):
    group = ResourceSpans()
    span = group.scope_spans.add().spans.add(span_id=b"root----")
    for key, value in attributes.items():
        span.attributes.add(key=key).value.string_value = value
    [decorated] = decorate_root([group], b"root----", decision)
    return SpanView(decorated.scope_spans[0].spans[0], {})


def test_every_field_of_the_decision_is_there_with_its_type():
    root = _root(DECISION)
    for name, value in DECISION.to_json().items():
        if name == "answers":
            assert root.get("observer.answers") == '{"failure":{"type":"choice"}}'
        elif value in ({}, None):
            assert f"observer.{name}" not in root
        else:
            assert root.get(f"observer.{name}") == value
            assert type(root.get(f"observer.{name}")) is type(value)
    prefix = "trace.evaluations.0.evaluation."
    assert root.get(prefix + "name") == "answer_wrong"
    assert root.get(prefix + "score") == 0.75
    assert root.get(prefix + "label") == "score"
    assert root.get(prefix + "annotator_kind") == "CODE"
    assert root.get(prefix + "identifier") == "laya-mini@7"
    assert root.json(prefix + "metadata")["keep_probability"] == 1.0
    assert len(list(root.keys())) < 64  # well below the 128 that SDKs allow


def test_an_unscored_decision_leaves_no_old_score_behind():
    root = _root(replace(DECISION, p_wrong=None, reason="scorer_failed"), **{"observer.p_wrong": "0.1"})
    assert "observer.p_wrong" not in root
    assert "trace.evaluations.0.evaluation.score" not in root


def test_evaluations_of_others_keep_their_place():
    theirs = {"trace.evaluations.0.evaluation.name": "mine", "trace.evaluations.2.evaluation.name": "mine too"}
    root = _root(DECISION, **theirs)
    assert [root.get(f"trace.evaluations.{i}.evaluation.name") for i in range(3)] == [
        "mine",
        "answer_wrong",
        "mine too",
    ]
