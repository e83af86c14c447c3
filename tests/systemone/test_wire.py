"""What is accepted, what is refused and with which body, over a real socket and a real model."""

import gzip
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import zstandard
from systemone.harness import CHOICE, NOUL, SCORE, Served, body, serving

from observer_core.decision.confidence import choice_confidence, score_confidence
from observer_core.decision.load import open_model
from observer_core.decision.protocol import read
from observer_core.questions import Question
from observer_core.rundir import RunDirectory
from observer_serving.receive.compression import decompress
from observer_serving.systemone.card import ModelCard

ALL = {"angry": NOUL, "team": CHOICE, "urgency": SCORE}
JSON = {"content-type": "application/json"}


def problems(answer: httpx.Response) -> list[tuple[list[Any], str]]:
    assert answer.status_code == 422, answer.text
    return [(each["loc"], each["type"]) for each in answer.json()["detail"]]


def error_type(answer: httpx.Response) -> tuple[int, str]:
    detail = answer.json()["detail"]
    assert detail["message"]
    return answer.status_code, detail["error_type"]


def test_an_answer_is_the_models_reading_in_the_contracts_words(served: Served, long_laya: RunDirectory):
    state = {"ticket": "Where is my refund?", "n": [1, None, True]}
    answer = served.post(body(ALL, state))
    said = answer.json()
    model = open_model(long_laya)
    reading = read(model, [state], {name: Question(**asked) for name, asked in ALL.items()})[0]
    team = reading.answers["team"].probabilities
    urgency = reading.answers["urgency"].probabilities
    assert list(said["answers"]) == list(ALL)
    assert said["answers"]["angry"] == {"type": "noul", "noul": reading.answers["angry"].noul}
    assert said["answers"]["team"] == {
        "type": "choice",
        "choice": max(team, key=team.__getitem__),
        "probabilities": team,
        "confidence": choice_confidence(list(team.values())),
    }
    assert said["answers"]["urgency"] == {
        "type": "score",
        "score": pytest.approx(urgency["1"] + 2 * urgency["2"]),
        "probabilities": urgency,
        "legend": {"0": "calm", "1": {"label": "tense"}, "2": "3"},
        "confidence": score_confidence(list(urgency.values())),
    }
    plan = model.plan(state, {name: Question(**asked) for name, asked in ALL.items()})
    assert said["usage"] == {"input_tokens": plan.input_tokens, "output_tokens": 8}
    assert said["model"] == f"laya-long@{long_laya.version}"
    assert said["x_state_truncated"] is False
    assert len(answer.headers["x-typesafe-request-id"]) == 32


def test_many_clients_get_what_one_client_gets(served: Served):
    requests = [body(ALL, f"ticket {i} " * (1 + i % 7)) for i in range(48)]
    alone = [served.post(request).json() for request in requests]
    batches = served.metric("batch_requests_count")
    with ThreadPoolExecutor(16) as clients:
        together = list(clients.map(lambda request: served.post(request).json(), requests))
    assert together == alone
    assert served.metric("batch_requests_count") - batches < len(requests), "nothing was computed together"


def test_every_name_the_server_lists_may_be_asked_for(served: Served, long_laya: RunDirectory):
    models = served.client.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == [
        f"laya-long@{long_laya.version}", "laya-long", "laya-latest", "jev-latest",
    ]  # fmt: skip
    for model in models:
        assert model["release_date"] == long_laya.manifest.created_at[:10]
        assert served.post(body() | {"model": model["name"]}).status_code == 200
    assert error_type(served.post(body() | {"model": "jev-0"})) == (400, "unknown_model")


@pytest.mark.parametrize(
    ("change", "loc", "kind"),
    [
        ({"model": None}, ["model"], "string_type"),
        ({"state": None}, ["state"], "missing_value"),
        ({"questions": []}, ["questions"], "dict_type"),
        ({"questions": {}}, ["questions"], "too_short"),
        ({"questions": {"": NOUL}}, ["questions", "", "[key]"], "string_too_short"),
        ({"questions": {"q": {"instructions": "?"}}}, ["questions", "q"], "union_tag_not_found"),
        ({"questions": {"q": {"type": "box"}}}, ["questions", "q"], "union_tag_invalid"),
        ({"questions": {"q": {"type": "noul", "criteria": {"yes": "x"}}}}, ["questions", "q", "noul", "criteria", "yes"], "extra_forbidden"),
        ({"questions": {"q": {"type": "choice"}}}, ["questions", "q", "choice", "criteria"], "missing"),
        ({"questions": {"q": {"type": "choice", "criteria": ["a", "b"]}}}, ["questions", "q", "choice", "criteria"], "dict_type"),
        ({"questions": {"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))}}}, ["questions", "q", "choice", "criteria"], "too_long"),
        ({"questions": {"q": {"type": "score", "criteria": ["a"] * 11}}}, ["questions", "q", "score", "criteria"], "too_long"),
        ({"questions": {"q": {"type": "score", "criteria": ["a", None]}}}, ["questions", "q", "score", "criteria", 1], "missing_value"),
        ({"assets": {"a": "…"}}, ["assets"], "assets_unsupported"),
    ],
)  # fmt: skip
def test_what_is_not_a_request_is_told_field_by_field(served: Served, change: dict, loc: list, kind: str):
    assert problems(served.post(body() | change)) == [(["body", *loc], kind)]


def test_every_problem_is_told_up_to_a_limit(served: Served):
    wrong = {f"q{i}": {"type": "score", "criteria": []} for i in range(30)}
    told = problems(served.post(body(wrong)))
    assert told == [(["body", "questions", f"q{i}", "score", "criteria"], "too_short") for i in range(20)]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"a": NaN}', b'"\\ud800"', b"[" * 5000, b"null", b"[]", b"1e999"]
)
def test_what_is_no_json_object_is_a_422(served: Served, data: bytes):
    assert problems(served.post(content=data, headers=JSON))


@pytest.mark.parametrize("where", ["state", "instructions", "criteria"])
def test_nesting_is_followed_to_a_hundred_levels(served: Served, where: str):
    def nested(levels: int) -> dict[str, Any]:
        value: Any = "deep"
        for level in range(levels):
            value = [value] if level % 2 else {"in": value}
        if where == "state":
            return body(state=value)
        if where == "instructions":
            return body({"q": NOUL | {"instructions": value}})
        return body({"q": CHOICE | {"criteria": {"a": value, "b": None}}})

    assert served.post(nested(90)).status_code == 200
    assert problems(served.post(nested(101))) == [(["body"], "too_deep")]


def test_integers_of_any_size_stay_what_they_are(served: Served, long_laya: RunDirectory):
    state, levels = {"wei": 10**20 + 1}, [[-(2**63) - 1], 2**64 + 1]
    said = served.post(body({"q": SCORE | {"criteria": levels}}, state)).json()["answers"]["q"]
    reading = read(open_model(long_laya), [state], {"q": Question(**SCORE | {"criteria": levels})})[0]
    assert said["legend"] == {"0": levels[0], "1": str(levels[1])}
    assert said["probabilities"] == reading.answers["q"].probabilities


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_bodies_are_read_and_bombs_are_not_unpacked(served: Served, compress: Any):
    encoding = {"content-encoding": "gzip" if compress is gzip.compress else "zstd"}
    data = json.dumps(body()).encode()
    assert served.post(content=compress(data), headers=encoding).json() == served.post(body()).json()
    bomb = compress(b'{"state": "' + b" " * (64 << 20))
    assert len(bomb) < 100_000
    assert error_type(served.post(content=bomb, headers=encoding)) == (413, "request_too_large")
    assert error_type(served.post(content=compress(data)[:-4], headers=encoding)) == (400, "invalid_request")


def test_a_body_of_many_members_is_read_in_one_pass():
    started = time.process_time()
    assert decompress(gzip.compress(b"") * 200_000 + gzip.compress(b"end"), "gzip", 8 << 20) == b"end"
    assert time.process_time() - started < 3  # copying the rest after each member took half a minute


def test_other_misuse_is_told_by_status(served: Served):
    get = served.client.get
    assert error_type(get("/v1/decisions")) == (404, "not_found")
    assert error_type(get("/v1/systemone")) == (405, "method_not_allowed")
    assert get("/v1/systemone").headers["allow"] == "POST"
    assert error_type(served.post(content=b"{}", headers={"content-encoding": "br"})) == (415, "invalid_request")
    assert error_type(served.post(content=b"", headers={"content-type": "multipart/form-data"})) == (
        415,
        "invalid_request",
    )
    assert error_type(served.post(content=b" " * (5 << 20))) == (413, "request_too_large")
    assert get("/healthz").json() == {"status": "ok"}


def test_with_a_key_only_the_probe_is_open(long_laya: RunDirectory):
    with (
        serving(open_model(long_laya), ModelCard.of(long_laya), key="s3cret") as server,
        httpx.Client(base_url=server.url) as stranger,
    ):
        for path in ("/v1/models", "/metrics"):
            assert error_type(stranger.get(path)) == (403, "authentication_error")
        wrong = stranger.post("/v1/systemone", json=body(), headers={"authorization": "Bearer guess"})
        assert error_type(wrong) == (401, "authentication_error")
        assert wrong.headers["www-authenticate"] == "Bearer"
        assert stranger.get("/healthz").status_code == 200
        assert server.post(body()).status_code == 200


def test_a_state_that_does_not_fit_is_cut_only_where_that_was_allowed(long_laya: RunDirectory):
    long = body(state="word " * 9000)
    model = open_model(long_laya)
    with serving(model, ModelCard.of(long_laya)) as server:
        assert error_type(server.post(long)) == (413, "tokens_exceeded")
    with serving(model, ModelCard.of(long_laya), truncate=True) as server:
        answer = server.post(long)
        assert answer.status_code == 200
        assert answer.json()["x_state_truncated"] is True
        assert server.metric("states_truncated_total") == 1


def test_a_request_may_have_a_thousand_questions_and_no_more(served: Served):
    thousand = {f"q{i}": NOUL | {"instructions": f"Is it {i}?"} for i in range(1000)}
    answer = served.post(body(thousand, "short"))
    assert answer.status_code == 200
    assert all(math.isfinite(each["noul"]) for each in answer.json()["answers"].values())
    assert problems(served.post(body(thousand | {"one more": NOUL}))) == [(["body", "questions"], "too_long")]


def test_a_request_may_not_hold_the_model_for_long(long_laya: RunDirectory):
    with serving(open_model(long_laya), ModelCard.of(long_laya), request_tokens=1000) as server:
        many = {f"q{i}": NOUL for i in range(40)}
        assert error_type(server.post(body(many))) == (413, "tokens_exceeded")
        assert server.post(body()).status_code == 200
