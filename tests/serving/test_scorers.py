"""Which scorer scores what: cascades, shadows, projects, token budgets, and a System One server behind it all."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from jevcompat import mock
from serving.bench import DEADLINE, Bench, FixedScorer
from serving.harness import new_trace
from serving.test_switch import make_run

from observer_core.decision.golden import golden_traces
from observer_core.decision.protocol import Score
from observer_core.errors import InputError, ObserverError
from observer_core.policy import Bounds, read_policy
from observer_core.traces.trace import Trace
from observer_serving.config import Settings
from observer_serving.score import LoadedModel, ModelChoice, Stage, load_model
from observer_serving.score.lane import Lane
from observer_serving.score.shadow import MAX_WAITING


class ByQuestion(FixedScorer):
    """The score is what the question says."""

    model, model_version = "cheap", "c1"

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        if self.fails_on is not None and any(self.fails_on in trace.question for trace in traces):
            raise RuntimeError("cannot")
        return [Score(float(trace.question), float(trace.question)) for trace in traces]


class Strong(FixedScorer):
    model, model_version = "strong", "s1"

    def __init__(self) -> None:
        super().__init__(0.95)
        self.asked: list[str] = []
        self.down = False

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        if self.down:
            raise ObserverError("the server does not answer")
        self.asked += [trace.question for trace in traces]
        return super().score(traces)


@pytest.fixture
def cascade(tmp_path: Path) -> tuple[Bench, ByQuestion, Strong]:
    bench = Bench(tmp_path)
    cheap, strong = ByQuestion(), Strong()
    first, second = (Stage(scorer, deadline=DEADLINE, max_batch=4) for scorer in (cheap, strong))
    bench.models = {"": LoadedModel(ModelChoice("cascade"), first, second, Bounds(min=0.3, max=0.7))}
    bench.open()
    return bench, cheap, strong


def decided(bench: Bench, *questions: str) -> dict[str, tuple]:
    """Question → score, model and the note on the cascade."""
    ids = {}
    for question in questions:
        trace_id, span_ids = new_trace()
        ids[trace_id.hex()] = question
        bench.receive(trace_id, span_ids, question=question)
    for _ in range(4):
        bench.settle()
    return {
        ids[d.trace_id]: (d.p_wrong, d.model, d.answers.get("cascade")) for d in bench.decisions() if d.trace_id in ids
    }


def test_a_cascade_asks_the_strong_model_about_the_uncertain_only(cascade):
    bench, _, strong = cascade
    assert decided(bench, "0.1", "0.3", "0.5", "0.9") == {
        "0.1": (0.1, "cheap", {"stage": "first", "first_p_wrong": 0.1}),
        "0.3": (0.95, "strong", {"stage": "second", "first_p_wrong": 0.3}),
        "0.5": (0.95, "strong", {"stage": "second", "first_p_wrong": 0.5}),
        "0.9": (0.9, "cheap", {"stage": "first", "first_p_wrong": 0.9}),
    }
    assert sorted(strong.asked) == ["0.3", "0.5"]


def test_without_the_strong_model_the_cheap_score_stands_and_says_so(cascade):
    bench, cheap, strong = cascade
    strong.down = True
    note = {"stage": "first", "first_p_wrong": 0.5, "second_failed": "scorer_failed"}
    assert decided(bench, "0.5", "0.1")["0.5"] == (0.5, "cheap", note)
    strong.down, cheap.fails_on = False, "0.2"
    assert decided(bench, "0.2")["0.2"] == (0.95, "strong", {"stage": "second"})
    strong.down = True
    assert decided(bench, "0.2 ")["0.2 "][0] is None


def test_each_stage_has_its_own_deadline_and_the_certain_do_not_wait_for_the_strong(cascade):
    bench, _, _ = cascade
    for question in ("0.5", "0.9"):
        bench.receive(*new_trace(), question=question)
    bench.engine.step()
    bench.clock.advance(3)
    bench.engine.step()
    first, second = bench.scoring.route().lanes
    first.run_once()
    bench.engine.step()
    assert [d.p_wrong for d in bench.decisions()] == [0.9]
    assert second.waiting == 1
    bench.clock.advance(DEADLINE)
    bench.engine.step()
    late = bench.decisions()[0]
    assert (late.p_wrong, late.answers["cascade"]["second_failed"]) == (0.5, "overload")


def test_shadows_are_recorded_never_decide_and_are_never_waited_for(tmp_path: Path):
    bench = Bench(tmp_path)
    shadow = FixedScorer(0.01)
    shadow.model, shadow.model_version = "next", "n1"
    bench.models = {"": LoadedModel(ModelChoice(), Stage(bench.scorer), shadow={"next": Stage(shadow)})}
    bench.open()
    route = bench.scoring.route()
    bench.receive(*new_trace())
    bench.engine.step()
    bench.clock.advance(3)
    bench.engine.step()
    route.shadows[0].run_once()  # in time
    route.lanes[0].run_once()
    bench.engine.step()
    record = {"p_wrong": 0.01, "p_wrong_raw": 0.01, "model": "next", "model_version": "n1"}
    (first,) = bench.decisions()
    assert (first.p_wrong, first.decision, first.shadow) == (0.9, "keep", {"next": record})
    bench.receive(*new_trace())
    bench.engine.step()
    bench.clock.advance(3)
    bench.engine.step()
    route.lanes[0].run_once()
    bench.engine.step()
    assert bench.decisions()[0].shadow == {}
    route.shadows[0].run_once()  # late
    bench.engine.step()
    assert bench.decisions()[0].shadow == {"next": record}
    shadow.fails_on = "river"
    bench.receive(*new_trace())
    bench.settle()
    assert bench.decisions()[0].shadow == {}
    assert len(bench.decisions()) == 3


def test_a_shadow_that_hangs_skips_and_is_counted(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.models = {"": LoadedModel(ModelChoice(), Stage(bench.scorer), shadow={"slow": Stage(FixedScorer())})}
    bench.open()
    for _ in range(MAX_WAITING + 3):
        bench.receive(*new_trace(1))
    bench.engine.step()
    bench.clock.advance(3)
    bench.engine.step()
    counted = bench.metrics.registry.get_sample_value
    assert counted("observer_shadow_scores_total", {"name": "slow", "outcome": "skipped"}) == 3


def test_projects_have_scorers_and_policies_of_their_own(tmp_path: Path):
    bench = Bench(tmp_path)
    other = FixedScorer(0.2)
    other.model = "shop-model"
    bench.models = {"shop": LoadedModel(ModelChoice(), Stage(other))}
    bench.policies = {"shop": read_policy({"keep_threshold": 0.1})}
    bench.open()
    bench.receive(*new_trace(), service="shop")
    bench.receive(*new_trace(), service="agent")
    bench.settle()
    by_project = {d.project: d for d in bench.decisions()}
    shop, agent = by_project["shop"], by_project["agent"]
    assert (shop.model, shop.threshold, shop.decision) == ("shop-model", 0.1, "keep")
    assert (agent.model, agent.threshold) == ("fixed", 0.5)
    assert shop.policy_version == bench.policies["shop"].version != agent.policy_version


def test_batches_fill_up_to_their_tokens(tmp_path: Path):
    bench = Bench(tmp_path)
    sizes: list[int] = []

    class Counts(FixedScorer):
        def score(self, traces: Sequence[Trace]) -> list[Score]:
            sizes.append(len(traces))
            return super().score(traces)

    stage = Stage(Counts(), max_batch=8, max_batch_tokens=250)
    bench.models = {"": LoadedModel(ModelChoice(), stage)}
    bench.open()
    for words in (40, 40, 400, 4, 4, 4):
        bench.receive(*new_trace(), question="word " * words)
        bench.engine.step()
        bench.clock.advance(0.01)  # completed in this order
    bench.settle()
    assert sum(sizes) == 6
    assert sizes == [2, 1, 3]
    windowed = Stage(Counts(), window=20, max_batch_tokens=250)
    assert windowed.cost(Trace("x" * 4000, "")) == 20


def test_a_server_that_is_down_is_asked_once_per_batch(tmp_path: Path):
    bench = Bench(tmp_path)
    calls: list[int] = []

    class Down(FixedScorer):
        def score(self, traces: Sequence[Trace]) -> list[Score]:
            calls.append(len(traces))
            raise ObserverError("no answer")

    bench.models = {"": LoadedModel(ModelChoice(), Stage(Down(), max_batch=4))}
    bench.open()
    for _ in range(4):
        bench.receive(*new_trace())
    bench.settle()
    assert calls == [4]
    assert {d.reason for d in bench.decisions()} == {"scorer_failed"}
    assert isinstance(bench.scoring.route().lanes[0], Lane)


def test_a_system_one_server_scores(tmp_path: Path):
    server = mock.make_server(mock.MockConfig(key="sesame"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    run = make_run(tmp_path / "run", seed=1)
    asked = {"kind": "systemone", "endpoint": endpoint, "model": "jev-latest", "api_key": "sesame"}
    settings = Settings.model_validate({"scorer": asked | {"manifest": str(run.path / "manifest.json")}})
    loaded = load_model(ModelChoice.of(settings.scorer), settings.scorer)
    (score,) = loaded.first.scorer.score(golden_traces()[:1])
    assert 0 <= score.p_wrong <= 1
    assert loaded.model_version == run.version
    assert "sesame" not in repr(settings)
    server.shutdown()
    server.server_close()
    with pytest.raises(ObserverError, match=r"127\.0\.0\.1"):
        loaded.first.scorer.score(golden_traces()[1:2])
    builtin = Settings()
    with pytest.raises(InputError, match="nothing to go back to"):
        load_model(ModelChoice("systemone"), builtin.scorer)


def test_settings_of_a_cascade(tmp_path: Path):
    run = make_run(tmp_path / "run", seed=1)
    cheap = {"kind": "local", "run": str(run.path), "deadline": "1s"}
    stages = {"first": {"kind": "builtin"}, "second": cheap, "uncertain": {"min": 0.1, "max": 0.6}}
    settings = Settings.model_validate({"scorer": {"kind": "cascade", "cascade": stages, "shadow": {"next": cheap}}})
    loaded = load_model(ModelChoice.of(settings.scorer), settings.scorer)
    assert loaded.second is not None
    assert (loaded.second.deadline, loaded.uncertain.max, list(loaded.shadow)) == (1.0, 0.6, ["next"])
    assert loaded.model == "builtin → baseline"
