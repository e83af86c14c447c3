"""A promotion meets a running service once: accepted, refused, unreachable, or taken back there."""

import json
import shutil

import httpx
import pytest
from pipeline.conftest import NOWHERE

from observer_core.rundir import MANIFEST
from observer_pipeline.registry import CHAMPION
from observer_pipeline.resources.services import ServiceResource
from observer_pipeline.rollout import noticed_rollbacks, roll_out


def champion(registry) -> str:
    return str(registry.at_alias(CHAMPION).version)


def test_accepted_then_taken_back_by_an_operator(registry, versions, home, running_service):
    """The service's own rollback marks the rollout and returns the alias; the version before is then offered."""
    services = ServiceResource(urls=[running_service.api])
    first, second = versions
    for version in (first, second):
        promotion = registry.promote(version, reason="better", by="person")
        rollout = roll_out(registry, services, running_service.api, promotion, home)
        assert rollout.outcome == "accepted", rollout.message
        assert services.version(running_service.api) == version
    assert noticed_rollbacks(registry, services) == []

    httpx.post(f"{running_service.api}/v1/model:rollback", json={"reason": "answers got worse"}).raise_for_status()
    (marked,) = noticed_rollbacks(registry, services)
    assert (marked.outcome, marked.version) == ("rolled_back", second)
    assert champion(registry) == first
    returned = registry.promotions()[-1]
    assert (returned.by, returned.version) == ("failed_rollout", first)
    assert noticed_rollbacks(registry, services) == []  # nothing happens a second time
    assert len(registry.promotions()) == 3


def test_a_run_that_scores_differently_there_is_refused_and_the_alias_returns(
    registry, versions, baseline_runs, home, running_service, tmp_path
):
    spoiled = tmp_path / "spoiled"
    shutil.copytree(baseline_runs[0].path, spoiled)
    manifest = json.loads((spoiled / MANIFEST).read_text("utf-8"))
    manifest["golden"][0]["p_wrong_raw"] = 1 - manifest["golden"][0]["p_wrong_raw"]
    (spoiled / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    from observer_core.rundir import open_run

    with registry.mlflow.start_run("spoiled") as tracked:
        bad = registry.register(open_run(spoiled), tracked, tags={})
    registry.promote(versions[1], reason="good", by="person")
    promotion = registry.promote(bad, reason="looks good", by="gate")
    services = ServiceResource(urls=[running_service.api])
    rollout = roll_out(registry, services, running_service.api, promotion, home)
    assert rollout.outcome == "failed"
    assert "golden" in rollout.message
    assert champion(registry) == versions[1]
    assert services.version(running_service.api) != bad

    # The return is a promotion of its own; when that fails too, nothing swings back and forth.
    returned = registry.current()
    spoil = ServiceResource(urls=[running_service.api], api_key=None)
    registry.record_rollout(rollout)
    assert roll_out(registry, spoil, running_service.api, returned, home).outcome == "accepted"


def test_a_service_that_does_not_answer_says_nothing_against_the_model(registry, versions, home):
    registry.promote(versions[0], reason="the first", by="person")
    promotion = registry.promote(versions[1], reason="better", by="person")
    rollout = roll_out(registry, ServiceResource(urls=[NOWHERE]), NOWHERE, promotion, home)
    assert rollout.outcome == "failed"
    assert "does not answer" in rollout.message
    assert champion(registry) == versions[1]
    assert [r.outcome for r in registry.rollouts()] == ["failed"]


@pytest.mark.parametrize("by", ["failed_rollout"])
def test_a_return_is_never_returned(registry, versions, home, running_service, monkeypatch, by):
    """A failing return would otherwise swing between two versions for ever."""
    from observer_pipeline.resources.services import ServiceRefused

    registry.promote(versions[0], reason="the first", by="person")
    promotion = registry.promote(versions[1], reason="return", by=by)

    def refuse(self, url, run, **_):
        raise ServiceRefused("no")

    monkeypatch.setattr(ServiceResource, "push", refuse)
    assert roll_out(registry, ServiceResource(urls=[NOWHERE]), NOWHERE, promotion, home).outcome == "failed"
    assert champion(registry) == versions[1]
