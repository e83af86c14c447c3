"""Malformed traces and questions at the JSON API over real HTTP: never a 5xx, the engine lives, counters balance."""

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving.harness import Service, wait_until
from serving.test_fuzz_receive import mutate
from serving.test_service import assert_balanced

from observer_core.decision.golden import golden_traces

FIELDS = [
    "question", "final_answer", "trace_id", "tool_calls", "evidence", "project", "latency_ms", "em", "steps", "name",
    "args", "status", "result_preview", "label", "keep_probability",
]  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["a", "0" * 32, "\ud800", "\x00", 10**30, 1e308, float("inf")]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)),
    max_leaves=8,
)
TRACES = st.fixed_dictionaries(
    {"question": st.one_of(st.text(max_size=8), VALUES), "final_answer": st.one_of(st.text(max_size=8), VALUES)},
    optional=dict.fromkeys(FIELDS[2:], VALUES),
)


def mutated(seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    named = [trace.to_json() for trace in golden_traces()]
    real = [json.dumps(trace).encode() for one in named for trace in (one, one | {"trace_id": None})]
    while True:
        body = rng.choice(real)
        yield mutate(body, rng) if rng.random() < 0.9 else body


def post(live: Service, path: str, body: bytes) -> httpx.Response:
    answer = live.client.post(live.api + path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code < 500, (path, answer.text, body[:300])
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert error
        assert "\n" not in error
    return answer


def test_malformed_traces_cost_only_themselves(service: Callable[..., Service]):
    live = service(policy={"keep_threshold": 0.0})
    doors = ["/v1/traces", "/v1/traces:score?dry_run=true", "/v1/traces:score"]
    seen: set[int] = set()
    for number, body in enumerate(islice(mutated(5), 500)):
        seen.add(post(live, doors[number % 2], body).status_code)

    @settings(
        max_examples=300, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(TRACES, st.sampled_from(doors))
    def made_up(trace: dict, path: str) -> None:
        seen.add(post(live, path, json.dumps(trace).encode()).status_code)

    made_up()
    assert {200, 202, 400} <= seen
    trace_id = live.post_trace({"question": "q", "final_answer": "a"})
    wait_until(lambda: live.client.get(f"{live.api}/v1/decisions/{trace_id}").status_code == 200)
    wait_until(lambda: live.get("/v1/stats")["open_traces"] == 0)
    assert live.client.get(live.api + "/readyz").status_code == 200
    assert live.metrics()["observer_faults_total"] == 0
    assert_balanced(live)


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/v1/traces", b'{"question": "q", 1', "the body is not JSON: Expecting property name"),
        ("POST", "/v1/traces", b'{"question": "q", 1', "at character 18"),
        ("POST", "/v1/traces", b"", "body: Field required"),
        ("PUT", "/v1/policy", b"{", "the body is not JSON: "),
        ("PUT", "/v1/policy", b'{"zzz": 1}', "zzz: no such setting"),
        ("GET", "/v1/decisions?since=2026-99-99T99:99", b"", "write 2026-01-31T12:00:00Z"),
        ("GET", "/v1/decisions?until=2026-02-30T00:00:00Z", b"", "write 2026-01-31T12:00:00Z"),
        ("GET", "/v1/decisions?since=yesterday", b"", "write 2026-01-31T12:00:00Z"),
    ],
)
def test_a_refusal_says_the_mend(shared_service: Service, method: str, path: str, body: bytes, says: str):
    headers = {"content-type": "application/json"}
    answer = httpx.request(method, shared_service.api + path, content=body, headers=headers, timeout=30)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize("since", ["2026-01-31T12:00", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456789Z"])
def test_times_are_taken_as_decisions_write_them(shared_service: Service, since: str):
    assert shared_service.get("/v1/decisions", since=since) is not None


def test_any_question_is_answered(shared_service: Service):
    names = ["decision", "reason", "project", "min_p_wrong", "since", "until", "limit", "cursor", "severity"]
    texts = st.one_of(st.text(alphabet=st.characters(codec="utf-8"), max_size=12), st.integers().map(str))

    @settings(
        max_examples=150, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(st.sampled_from(names), texts)
    def ask(name: str, text: str) -> None:
        for path in (f"/v1/decisions?{name}={quote(text, safe='')}", f"/v1/decisions/{quote(text, safe='')}"):
            answer = shared_service.client.get(shared_service.api + path)
            assert answer.status_code < 500, (path, answer.text)

    ask()
    assert shared_service.client.get(shared_service.api + "/readyz").status_code == 200
