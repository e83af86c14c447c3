"""The System One client against the conformance suite's reference server, clean and with each of its faults."""

import json
import math
import sqlite3
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from jevcompat import mock

from observer_core.decision.calibration import logit, sigmoid
from observer_core.decision.golden import golden_traces
from observer_core.decision.jev.client import JevModel, Server
from observer_core.decision.jev.cost import Cost
from observer_core.decision.jev.limits import Limits, RateLimiter, retry_after
from observer_core.decision.jev.scorer import jev_scorer, systemone_scorer
from observer_core.decision.jev.wire import read_answers
from observer_core.decision.protocol import Answer, ContextOverflowError, NotRunError, Reading, read
from observer_core.errors import InputError, ObserverError
from observer_core.questions import Question, default_questions
from observer_core.rundir import Calibration, Manifest
from observer_core.slices import build_state, v2_spec

STATES: list[Any] = ["The Rhine is longer.", {"answer": "Rhône", "calls": [1, None]}, ["a", {"b": "c"}]]
PLAIN = default_questions()
EXACTING = {
    "is it right? ✓": Question(type="noul", criteria={"true": "the answer holds"}),
    "why": Question(
        type="choice",
        instructions={"ask": "main cause", "of": ["failure"]},
        criteria={"None": None, "Évidence": "claims without evidence", **{f"Option {i}": None for i in range(70)}},
    ),
    "how good": Question(
        type="score", instructions="quality", criteria=["bad", "so-so", "fair", "good", "great", {"a": 1}]
    ),
}
HARMLESS = {
    "plain-content-type", "text-errors", "models-404", "auth-x-api-key", "auth-plain", "auth-invalid-403-text", "no-usage",
    "float-usage", "extra-answer", "nan", "unprefixed-extra", "choice-no-confidence", "choice-second", "score-no-legend",
    "legend-1-based", "score-argmax", "confidence-over", "confidence-margin", "500-on-unknown-type", "accept-boolean",
    "validation-400", "error-flat", "accept-map-score", "forbid-extra",
}  # fmt: skip
"""Faults that touch nothing an answer is made of, or nothing this client sends."""


def right(state: Any, questions: Mapping[str, Question]) -> dict[str, Answer]:
    """What the reference server means to answer."""
    said = {
        name: mock.answer(mock.MockConfig(), state, name, question.model_dump(exclude_none=False), i, len(questions))
        for i, (name, question) in enumerate(questions.items())
    }
    return read_answers(questions, said)


def assert_right(readings: list[Reading], questions: Mapping[str, Question]) -> None:
    for state, reading in zip(STATES, readings, strict=True):
        for name, answer in right(state, questions).items():
            assert reading.answers[name].probabilities == pytest.approx(answer.probabilities, abs=1e-9)


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def reference(config: mock.MockConfig | None = None, *, fault: str | None = None) -> AbstractContextManager[str]:
    """The suite's reference server; its address."""
    return serving(mock.make_server(config or mock.MockConfig(faults=frozenset([fault] if fault else []))))


@contextmanager
def model(url: str, **options: Any) -> Iterator[JevModel]:
    asking = JevModel(Server(url, **options))
    try:
        yield asking
    finally:
        asking.close()


@pytest.mark.parametrize("questions", [PLAIN, EXACTING], ids=["plain", "exacting"])
def test_a_clean_server_is_read_right(questions: dict[str, Question]) -> None:
    with reference() as url, model(url) as asking:
        assert_right(read(asking, STATES, questions), questions)
        assert asking.spent.models == {"jevcompat-mock-0.1"}


@pytest.mark.parametrize("key", [None, "sesame"], ids=["open", "keyed"])
@pytest.mark.parametrize("questions", [PLAIN, EXACTING], ids=["plain", "exacting"])
@pytest.mark.parametrize("fault", mock.FAULTS)
def test_each_fault_ends_in_the_right_answer_or_an_error(
    fault: str, questions: dict[str, Question], key: str | None
) -> None:
    config = mock.MockConfig(key=key, faults=frozenset([fault]))
    with reference(config) as url, model(url, api_key=key, attempts=1) as asking:
        try:
            readings = read(asking, STATES, questions)
        except ObserverError:
            return
        assert_right(readings, questions)


@pytest.mark.parametrize("fault", sorted(HARMLESS))
def test_harmless_faults_do_not_disturb(fault: str) -> None:
    with reference(fault=fault) as url, model(url) as asking:
        assert_right(read(asking, STATES, EXACTING), EXACTING)


@pytest.mark.parametrize("fault", sorted(set(mock.FAULTS) - HARMLESS))
def test_every_other_fault_is_noticed(fault: str) -> None:
    """Where the server would give another number, or none, the client says so instead."""
    with reference(fault=fault) as url, model(url) as asking, pytest.raises(ObserverError) as raised:
        read(asking, STATES, EXACTING)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fault", ["auth-plain", "auth-invalid-403-text"])
def test_a_wrong_key_is_named(fault: str) -> None:
    config = mock.MockConfig(key="sesame", faults=frozenset([fault]))
    with (
        reference(config) as url,
        model(url, api_key="wrong") as asking,
        pytest.raises(InputError, match="check the key"),
    ):
        read(asking, STATES, PLAIN)


def test_the_systemone_scorer_asks_and_calibrates_as_its_manifest_says() -> None:
    manifest = Manifest(
        model="ours", questions=PLAIN, calibration=Calibration(method="platt", parameters={"slope": 0.5, "bias": -1.0})
    )
    traces = golden_traces()
    with reference() as url:
        plain = systemone_scorer(f"{url}/v1/systemone", "jev-latest")
        ours = systemone_scorer(url, "jev-latest", manifest, model_version="0123456789ab")
        raw, scores = plain.score(traces), ours.score(traces)
    for trace, one, other in zip(traces, raw, scores, strict=True):
        p = np.array(right(build_state(trace).text, PLAIN)["answer_wrong"].noul)
        assert one.p_wrong == one.p_wrong_raw == other.p_wrong_raw == pytest.approx(float(p))
        assert other.p_wrong == pytest.approx(float(sigmoid(0.5 * logit(p) - 1.0)))
        assert other.answers["answers_question"]["confidence"] is not None
    assert (ours.model, ours.model_version) == ("ours", "0123456789ab")
    assert (plain.model, plain.model_version) == ("jev-latest", "jevcompat-mock-0.1")


def test_states_that_count_tokens_are_built_with_the_runs_tokenizer(tiny_encoder: Path) -> None:
    spec = v2_spec(tiny_encoder, 120)
    manifest = Manifest(model="ours", questions=PLAIN, slice=spec)
    trace = golden_traces()[0]
    with reference() as url:
        [score] = systemone_scorer(url, "jev-latest", manifest, tokenizer=tiny_encoder).score([trace])
        with pytest.raises(InputError, match="counts with a model's tokenizer"):
            systemone_scorer(url, "jev-latest", manifest)
    text = build_state(trace, spec, tiny_encoder).text
    assert text != build_state(trace).text
    assert score.p_wrong_raw == pytest.approx(right(text, PLAIN)["answer_wrong"].noul)


def test_without_a_key_jev_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    with pytest.raises(NotRunError, match="no key in TYPESAFE_API_KEY"):
        jev_scorer()


def test_jev_is_the_server_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with reference(mock.MockConfig(key="sesame")) as url:
        monkeypatch.setenv("TYPESAFE_API_KEY", " sesame ")
        monkeypatch.setenv("TYPESAFE_BASE_URL", url)
        monkeypatch.setenv("TYPESAFE_DEFAULT_MODEL", "jev-1.13.0")
        scorer = jev_scorer()
        assert len(scorer.score(golden_traces())) == len(golden_traces())
    assert scorer.model == "jev-1.13.0"


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    cache, config, traces = tmp_path / "jev" / "answers.sqlite", mock.MockConfig(), golden_traces()
    with reference(config) as url:
        scorer = systemone_scorer(url, "jev-latest", cache=cache)
        before = scorer.cost(traces)
        assert (before.requests, before.cached) == (len(traces) + 1, 0), "the server is checked first"
        assert before.tokens > 0
        assert before.usd == pytest.approx(before.tokens * 0.042e-6)
        first = scorer.score(traces)
        asked = config.requests
        assert asked == before.requests
        again = systemone_scorer(url, "jev-latest", cache=cache)
        assert (again.cost(traces).requests, again.cost(traces).usd) == (0, 0.0)
        assert again.score(traces) == first
        assert config.requests == asked
        assert again.model_version == "jevcompat-mock-0.1", "the concrete model is kept"
        systemone_scorer(url, "mock", cache=cache).score(traces[:1])
        assert config.requests > asked, "another model is another answer"
    assert build_state(traces[0]).text not in cache.read_bytes().decode("latin-1"), "states are not stored"


def test_a_cache_that_holds_nonsense_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "answers.sqlite"
    cache.write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(ObserverError, match=r"answers\.sqlite cannot be used .* remove the file"):
        systemone_scorer("http://127.0.0.1:9", "m", cache=cache)


def test_an_altered_cache_entry_is_not_believed(tmp_path: Path) -> None:
    cache, traces = tmp_path / "answers.sqlite", golden_traces()[:1]
    with reference() as url:
        systemone_scorer(url, "jev-latest", cache=cache).score(traces)
        with sqlite3.connect(cache) as db:
            db.execute("update answers set answers = replace(answers, '\"noul\": 0.', '\"noul\": 7.')")
        with pytest.raises(ObserverError, match="the server's probability"):
            systemone_scorer(url, "jev-latest", cache=cache).score(traces)


class Scripted(BaseHTTPRequestHandler):
    """Answers each request with the next (status, headers, body) of a list, then as the reference server."""

    script: list[tuple[int, dict[str, str], Any]]
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers.get("Content-Encoding") is None
        self.bodies.append(json.loads(raw))
        status, headers, body = (
            self.script.pop(0) if self.script else (200, {}, mock.respond(mock.MockConfig(), self.bodies[-1]))
        )
        payload = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(payload)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def scripted(script: list[tuple[int, dict[str, str], Any]]) -> Iterator[tuple[str, type[Scripted]]]:
    handler = type("Handler", (Scripted,), {"script": script, "bodies": []})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
        yield url, handler


class SteppingClock:
    """Sleeping moves it; nothing waits."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


OVERLOADED = {"detail": {"error_type": "rate_limit_error", "message": "slow down"}}


@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after-ms": "1500", "Retry-After": "7"}, 1.5),
        ({}, 0.5),
    ],
)
@pytest.mark.parametrize("status", [429, 503, 529])
def test_an_overloaded_server_is_given_the_time_it_asks_for(status: int, headers: dict[str, str], waits: float) -> None:
    clock = SteppingClock()
    with scripted([(status, headers, OVERLOADED)]) as (url, handler):
        [reading] = read(JevModel(Server(url), clock=clock), STATES[:1], {"answer_wrong": PLAIN["answer_wrong"]})
        assert len(handler.bodies) == 3, "the request, again, and the check"
    assert reading.answers["answer_wrong"].noul == pytest.approx(right(STATES[0], PLAIN)["answer_wrong"].noul)
    assert sum(clock.slept) == pytest.approx(waits, rel=0.26)


def test_a_state_that_the_server_cut_is_marked_also_from_the_cache(tmp_path: Path) -> None:
    asked = {"model": "m", "state": STATES[0], "questions": {"answer_wrong": PLAIN["answer_wrong"].model_dump()}}
    cut = mock.respond(mock.MockConfig(), asked) | {"x_state_truncated": True}
    with scripted([(200, {}, cut)]) as (url, handler):
        for _ in range(2):
            asking = JevModel(Server(url, limits=Limits(concurrency=1)), cache=tmp_path / "answers.sqlite")
            first, second = read(asking, STATES[:2], {"answer_wrong": PLAIN["answer_wrong"]})
            assert (first.truncated, second.truncated) == (True, False)
            assert first.answers["answer_wrong"].noul == pytest.approx(right(STATES[0], PLAIN)["answer_wrong"].noul)
            asking.close()
        assert len(handler.bodies) == 3, "two states and the check"


def test_a_server_that_stays_overloaded_is_given_up() -> None:
    with scripted([(503, {"Retry-After": "0"}, OVERLOADED)] * 3) as (url, _):
        asking = JevModel(Server(url, attempts=3, limits=Limits(concurrency=1)), clock=SteppingClock())
        with pytest.raises(ObserverError, match=r"slow down.*gave up after 3 attempts"):
            read(asking, STATES[:1], PLAIN)


def test_a_pause_that_is_too_long_is_not_waited_for() -> None:
    clock = SteppingClock()
    with (
        scripted([(429, {"Retry-After": "3600"}, OVERLOADED)] * 9) as (url, _),
        pytest.raises(ObserverError, match="asks to wait 3600 s"),
    ):
        read(JevModel(Server(url), clock=clock), STATES[:1], PLAIN)
    assert clock.slept == []


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ObserverError, match=r"http://127\.0\.0\.1:9: .*gave up after 2 attempts"):
        read(JevModel(Server("http://127.0.0.1:9", attempts=2), clock=SteppingClock()), STATES[:1], PLAIN)


def test_too_long_is_an_overflow() -> None:
    body = {"detail": {"error_type": "tokens_exceeded", "message": "90000 tokens, the limit is 64000"}}
    with scripted([(413, {}, body)] * 2) as (url, _), pytest.raises(ContextOverflowError, match=r"64000.*shorten"):
        read(JevModel(Server(url)), STATES[:1], PLAIN)


@pytest.mark.parametrize(
    "question",
    [
        Question(type="choice", instructions="?", criteria={}),
        Question(type="choice", instructions="?", criteria={str(i): None for i in range(256)}),
        Question(type="score", instructions="?", criteria={"0": "a"}),
        Question(type="score", instructions="?", criteria=["level"] * 11),
        Question(type="noul", instructions="?", criteria={"yes": "a"}),
    ],
)
def test_a_question_outside_the_contract_is_refused_before_it_is_sent(question: Question) -> None:
    with pytest.raises(InputError, match="question 'q'"):
        JevModel(Server("http://127.0.0.1:9")).plan("state", {"q": question})


CHOICE = {"q": Question(type="choice", instructions="?", criteria={"a": None, "b": None, "é": None})}


@pytest.mark.parametrize(
    ("probabilities", "problem"),
    [
        ({"a": 0.5, "b": 0.5}, "not over the options asked"),
        ({"a": 0.5, "b": 0.3, "é": 0.2, "d": 0.0}, "not over the options asked"),
        ({"a": 0.5, "b": 0.3, unicodedata.normalize("NFD", "é"): 0.2}, "not over the options asked"),
        ({"a": 0.5, "b": 0.3, "é": math.nan}, "probability of 'é'"),
        ({"a": 1.2, "b": -0.1, "é": -0.1}, "probability of 'a'"),
        ({"a": "0.5", "b": 0.3, "é": 0.2}, "probability of 'a'"),
        ({"a": True, "b": 0.0, "é": 0.0}, "probability of 'a'"),
        ({"a": 0.5, "b": 0.3, "é": 0.1}, "sum to 0.900"),
        (None, "not over the options asked"),
    ],
)
def test_what_is_no_distribution_is_refused(probabilities: Any, problem: str) -> None:
    with pytest.raises(ObserverError, match=problem):
        read_answers(CHOICE, {"q": {"type": "choice", "choice": "a", "probabilities": probabilities}})


def test_rounding_is_made_up_for() -> None:
    answer = read_answers(CHOICE, {"q": {"type": "choice", "probabilities": {"a": 0.33, "b": 0.33, "é": 0.33}}})["q"]
    assert answer.probabilities == pytest.approx({"a": 1 / 3, "b": 1 / 3, "é": 1 / 3})
    many = {"q": Question(type="choice", instructions="?", criteria={str(i): None for i in range(255)})}
    rounded = {str(i): 0.0 for i in range(254)} | {"254": 0.5}  # 254 options of 0.002 each, printed with two decimals
    assert read_answers(many, {"q": {"type": "choice", "probabilities": rounded}})["q"].confidence is not None


def test_rates_are_kept() -> None:
    clock = SteppingClock()
    limiter = RateLimiter(Limits(requests_per_minute=120, tokens_per_second=1000), clock)
    for _ in range(42):  # two at once, then two a second
        limiter.acquire(1)
    assert clock.now == pytest.approx(20.0)
    clock = SteppingClock()
    limiter = RateLimiter(Limits(requests_per_minute=6e6, tokens_per_second=1000), clock)
    for tokens in (800, 800, 5000, 100):  # more than a bucket holds passes too, and is made up for
        limiter.acquire(tokens)
    assert clock.now == pytest.approx((800 + 800 + 5000 + 100 - 1000) / 1000)


def test_a_pause_holds_everybody_back() -> None:
    clock = SteppingClock()
    limiter = RateLimiter(Limits(), clock)
    limiter.pause(3.0)
    limiter.pause(1.0)
    limiter.acquire(1)
    assert clock.now == 3.0


@pytest.mark.parametrize(("said", "seconds"), [("-1", 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None)])
def test_retry_after_in_all_its_forms(said: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": said}) == seconds


def test_the_cost_is_stated_as_an_estimate_and_limited() -> None:
    cost = Cost.of("jev-latest", requests=1224, cached=10, tokens=1_000_000)
    assert str(cost) == (
        "jev-latest: 1,224 requests (10 more are cached), about 1,000,000 tokens, about USD 0.0420 (an estimate)"
    )
    cost.check()
    with pytest.raises(InputError, match=r"more than USD 0\.04 needs your agreement"):
        cost.check(0.04)
    unknown = Cost.of("kev-latest", requests=20_000, cached=0, tokens=1)
    assert unknown.usd is None
    with pytest.raises(InputError, match=r"more than 10,000 requests"):
        unknown.check()


def test_noise_is_not_taken_for_a_leak_and_busy_servers_are_asked_again() -> None:
    with reference(mock.MockConfig(noise=0.01, busy_every=3)) as url, model(url) as asking:
        readings = read(asking, STATES, PLAIN)
    for state, reading in zip(STATES, readings, strict=True):
        assert reading.answers["answer_wrong"].noul == pytest.approx(right(state, PLAIN)["answer_wrong"].noul, abs=0.05)
