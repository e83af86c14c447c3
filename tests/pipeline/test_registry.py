"""The promotion log agrees with MLflow's alias, whoever moved it, and every version can be fetched whole."""

import pytest
from typer.testing import CliRunner

from observer_core.errors import InputError
from observer_pipeline.cli import build_app
from observer_pipeline.registry import CHAMPION, MODEL


def test_promotions_have_one_record_each_and_can_be_undone(registry, versions):
    first, second = versions
    registry.promote(first, reason="the first", by="gate")
    latest = registry.promote(second, reason="better", by="person")
    assert str(registry.at_alias(CHAMPION).version) == second
    assert (latest.version, latest.previous_version) == (second, first)
    back = registry.rollback(reason="it was not better")
    assert (back.version, back.previous_version, back.by) == (first, second, "rollback")
    assert str(registry.at_alias(CHAMPION).version) == first
    assert [(p.version, p.reason) for p in registry.promotions()] == [
        (first, "the first"), (second, "better"), (first, "it was not better"),
    ]  # fmt: skip
    assert len({p.promotion_id for p in registry.promotions()}) == 3


def test_an_alias_moved_in_mlflow_enters_the_log_once(registry, versions):
    first, second = versions
    registry.promote(first, reason="the first", by="gate")
    registry.mlflow.client().set_registered_model_alias(MODEL, CHAMPION, second)
    adopted = registry.current()
    assert (adopted.version, adopted.previous_version, adopted.by) == (second, first, "mlflow")
    assert registry.current() == adopted
    assert len(registry.promotions()) == 2


def test_a_run_is_registered_once_and_comes_back_whole(registry, versions, baseline_runs, home):
    run = baseline_runs[0]
    with registry.mlflow.start_run("again") as tracked:
        assert registry.register(run, tracked, tags={"validation": "passed"}) == versions[0]
    assert registry.get(versions[0]).tags["validation"] == "passed"
    fetched = registry.fetch(versions[0], home)
    fetched.verify()
    assert fetched.version == run.version
    assert fetched.path != run.path


def test_what_cannot_be_promoted_is_refused_with_the_mend(registry, versions):
    with pytest.raises(InputError, match="needs a reason"):
        registry.promote(versions[0], reason=" ", by="person")
    with pytest.raises(InputError, match="has no version '99'"):
        registry.promote("99", reason="why not", by="person")
    with pytest.raises(InputError, match="no earlier champion"):
        registry.rollback(reason="nothing there")
    assert registry.current() is None
    assert registry.promotions() == []


def test_promote_and_rollback_from_the_command_line(registry, baseline_runs):
    """A run directory nobody registered is registered first; a second time it is the same version."""

    def observer(*arguments):
        return CliRunner().invoke(build_app(), arguments, catch_exceptions=False).output

    first, second = (str(run.path) for run in baseline_runs)
    assert "version 1 is champion (" in observer("promote", first, "--reason", "try it")
    assert "version 2 is champion in place of version 1" in observer("promote", second, "--reason", "try the other")
    assert "version 1 is champion in place of version 2" in observer("promote", "1", "--reason", "by its number")
    assert "version 2 is champion" in observer("rollback", "--reason", "the first was not better")
    assert "version 1 is champion" in observer("promote", first, "--reason", "by its folder")
    assert [p.by for p in registry.promotions()] == ["person", "person", "person", "rollback", "person"]
    run = registry.mlflow.client().get_run(registry.get("1").run_id)
    assert run.data.metrics["all/auroc"] == pytest.approx(baseline_runs[0].metrics()["all"]["auroc"]["value"])
