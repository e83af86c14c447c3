"""Settings come from the environment, typed, and a bad one is named."""

from pathlib import Path

import pytest

from observer_core.errors import InputError
from observer_pipeline.resources.settings import Settings


def test_defaults_lie_under_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path))
    settings = Settings.from_env({})
    assert settings.mlflow_uri == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert settings.spools == (str(tmp_path / "spool"),)
    assert settings.services == ("http://127.0.0.1:8080",)


def test_lists_and_urls_are_read(monkeypatch, tmp_path):
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path))
    settings = Settings.from_env(
        {
            "OBSERVER_SERVICES": "http://a:1/, http://b:2",
            "OBSERVER_SPOOLS": "/x,s3://bucket/spool",
            "OBSERVER_TIMEZONE": "",
        }
    )
    assert settings.services == ("http://a:1", "http://b:2")
    assert settings.spools == ("/x", "s3://bucket/spool")
    assert settings.timezone == "UTC"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OBSERVER_PHOENIX_URL", "localhost:6006"),
        ("OBSERVER_SERVICES", "http://a,b"),
        ("OBSERVER_PHOENIX_PROJECT", "a/b"),
    ],
)
def test_a_bad_setting_is_named(name, value):
    with pytest.raises(InputError, match=rf"{name} is unusable: .*; mend or unset it"):
        Settings.from_env({name: value})


def test_no_dagster_module_postpones_annotations():
    """`from __future__ import annotations` breaks assets with config and context at import."""
    root = Path(__file__).parents[2] / "observer_pipeline"
    offenders = [str(f) for f in root.rglob("*.py") if "from __future__ import annotations" in f.read_text("utf-8")]
    assert not offenders
