"""The service's own traces: what they say, off by default, never into itself, and no loop through a detour."""

import pytest
from otlp_collector import Collector
from serving.harness import Service, make_request, new_trace, wait_until

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.config import Settings
from observer_serving.telemetry import SELF

TRACE = {"question": "q", "final_answer": "a"}


def test_one_trace_per_decision_that_says_where_the_time_went(service):
    with Collector() as back:
        live: Service = service(telemetry={"endpoint": back.endpoint})
        trace_id, span_ids = new_trace(3)
        live.export(make_request((trace_id, span_ids)))
        live.wait_for_decisions(1)
        assert live.terminate() == 0
        (received,) = back.requests
    (group,) = received.request.resource_spans
    root, assemble, score = group.scope_spans[0].spans
    assert [span.name for span in (root, assemble, score)] == ["decide trace", "assemble", "score"]
    assert {assemble.parent_span_id, score.parent_span_id} == {root.span_id}
    assert root.start_time_unix_nano == assemble.start_time_unix_nano
    assert root.end_time_unix_nano == score.end_time_unix_nano >= assemble.end_time_unix_nano
    said = {a.key: a.value.string_value for a in root.attributes}
    assert (said["observer.trace_id"], said["observer.project"]) == (trace_id.hex(), "agent")
    assert root.trace_id != trace_id


def test_it_is_off_by_default_and_a_back_end_that_is_down_costs_nothing(service):
    assert Settings().telemetry.endpoint is None
    live: Service = service(telemetry={"endpoint": "http://127.0.0.1:9/v1/traces"}, policy={"keep_threshold": 0.0})
    live.post_trace(TRACE)
    live.wait_for_decisions(1)
    wait_until(lambda: live.metrics().get('observer_own_traces_total{outcome="dropped"}') == 1)


def test_what_comes_back_by_a_detour_makes_no_further_trace(service):
    with Collector() as back:
        live: Service = service(telemetry={"endpoint": back.endpoint})
        request = make_request(new_trace(2))
        request.resource_spans[0].resource.attributes.add(key=SELF).value.bool_value = True
        live.export(request)
        live.wait_for_decisions(1)
        assert live.terminate() == 0
    assert back.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_its_own_listeners_are_refused(host: str):
    with pytest.raises(InputError, match=r"telemetry\.endpoint: is this service itself"):
        validated(Settings, {"telemetry": {"endpoint": f"http://{host}:4318/v1/traces"}})
    validated(Settings, {"telemetry": {"endpoint": f"http://{host}:6006/v1/traces"}})
