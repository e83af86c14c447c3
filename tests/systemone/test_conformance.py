"""Conformance to the wire contract, by the suite that published servers are measured with."""

from pathlib import Path

import httpx
import jevbench
import pytest
from jevcompat.runner import run
from systemone.harness import CHOICE, NOUL, Served, body, serving

from observer_core.decision.load import open_model
from observer_core.rundir import RunDirectory
from observer_serving.systemone.card import ModelCard

ONLY_WITH_KEY = {"auth.bearer", "auth.missing", "auth.invalid"}
ONLY_WITHOUT = {"auth.ignored-when-off"}
RUNS = ["long_laya", "kev"]


@pytest.mark.parametrize("key", [None, "s3cret"])
@pytest.mark.parametrize("name", RUNS)
def test_every_requirement_that_applies_is_met(name: str, key: str | None, request: pytest.FixtureRequest):
    run_directory: RunDirectory = request.getfixturevalue(name)
    with serving(open_model(run_directory), ModelCard.of(run_directory), key=key) as server:
        report = run(server.url, key=key)
    unmet = {
        result.id: [finding.message for finding in result.findings] for result in report.results if result.findings
    }
    untested = {result.id for result in report.results if result.status == "skip"}
    assert (report.verdict, unmet) == ("conformant", {})
    assert untested == (ONLY_WITHOUT if key else ONLY_WITH_KEY)


def test_what_does_not_fit_a_short_window_is_refused_as_the_contract_says(laya_mini: RunDirectory):
    many = CHOICE | {"criteria": {f"queue {i}": f"tickets of queue {i}" for i in range(255)}}
    with serving(open_model(laya_mini), ModelCard.of(laya_mini)) as server:
        for asked in (body({"queue": many}), body({"q": NOUL}, state="a long story " * 1000)):
            answer = server.post(asked)
            assert answer.status_code == 413
            assert answer.json()["detail"]["error_type"] == "tokens_exceeded"
            assert "tokens" in answer.json()["detail"]["message"]
        assert server.post(body()).status_code == 200


def test_the_official_client_reads_every_answer(served: Served):
    from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

    state = {"ticket": "Where is my refund? " * 200}  # large enough for the client to compress
    with TypeSafeClient(api_key="any", base_url=served.url) as client:
        listed = [model.name for model in client.models.list().models]
        response = client.system_one(
            state=state,
            questions={
                "angry": Noul(instructions="Is the customer angry?"),
                "team": Choice(instructions="Which team?", criteria={"billing": "money", "sales": None}),
                "urgency": Score(instructions="How urgent?", criteria=["low", "high"]),
            },
        )
    assert response.model in listed
    assert response.choices["team"].probabilities.keys() == {"billing", "sales"}
    assert response.scores["urgency"].legend == {0: "low", 1: "high"}
    again = httpx.post(
        f"{served.url}/v1/systemone",
        json=body({"angry": {"type": "noul", "instructions": "Is the customer angry?"}}, state),
    )
    assert again.json()["answers"]["angry"]["noul"] == response.nouls["angry"].noul


@pytest.mark.parametrize("name", RUNS)
def test_questions_do_not_influence_each_other(name: str, request: pytest.FixtureRequest, tmp_path: Path):
    """jevbench's group BAT: asked alone, reordered, twice, beside other questions, in batches of other sizes."""
    run_directory: RunDirectory = request.getfixturevalue(name)
    with serving(open_model(run_directory), ModelCard.of(run_directory)) as server:
        model = jevbench.systemone(f"{server.url}/v1/systemone", model="jev-latest", per_replica=4)
        report = jevbench.evaluate(
            model, domains=["agent_logs"], dimensions=["BAT"], concurrency=4, cache=tmp_path, bootstrap=0, min_n=1
        )
    assert report.result["errors"] == []
    assert len(report.scores["relations"]) == 5
    assert report.scores["groups"]["BAT.isolation"] == 1.0
    assert report.scores["graded"]["groups"]["BAT.isolation"] == 1.0
    answered = [
        p for base in report.result["bases"].values() for question in base["base"].values() for p in question.values()
    ]
    assert max(answered) - min(answered) > 0.3, "a model that always says the same proves nothing"


def test_the_example_is_answered(served: Served):
    example = Path(__file__).parents[2] / "examples" / "systemone" / "request.json"
    answer = served.post(content=example.read_bytes())
    assert answer.status_code == 200
    assert [each["type"] for each in answer.json()["answers"].values()] == ["noul", "choice", "score"]
