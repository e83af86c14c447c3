"""Run directories and whole files: they appear whole or not at all, and a broken one is refused with its file's name."""

import json
from pathlib import Path

import pytest

from observer_core.errors import InputError, ObserverError
from observer_core.files import whole_dir, whole_file, write_whole
from observer_core.home import Home
from observer_core.questions import default_questions
from observer_core.rundir import Manifest, new_run, open_run, seal


def make_run(out: Path) -> None:
    with new_run(out) as folder:
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "w.bin").write_bytes(b"weights")
        seal(folder, Manifest(family="baseline", model="baseline", questions=default_questions()))


def test_a_sealed_run_opens_and_verifies(tmp_path: Path):
    make_run(tmp_path / "run")
    run = open_run(tmp_path / "run")
    run.verify()
    assert len(run.version) == 12
    assert list(run.manifest.questions) == ["answer_wrong", "answers_question"]
    assert json.loads((run.path / "manifest.json").read_text())["slice"] == {"format": "v1"}


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_verify_names_the_file(tmp_path: Path, damage: str):
    make_run(tmp_path / "run")
    file = tmp_path / "run/checkpoint/w.bin"
    file.unlink() if damage == "missing" else file.write_bytes(b"other")
    with pytest.raises(InputError, match=r"w\.bin"):
        open_run(tmp_path / "run").verify()


def test_manifest_of_the_seed_system_loads(tmp_path: Path):
    old = {
        "model": "kev-latest",
        "questions": {"answer_wrong": {"type": "noul", "instructions": "Wrong?"}},
        "temperatures": {"answer_wrong": 0.86},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(old))
    manifest = open_run(tmp_path).manifest
    assert (manifest.decision_question, manifest.slice_spec) == ("answer_wrong", {"format": "v1"})


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no manifest.json"), ("{", "manifest.json"), ('{"model": "m"}', "questions"), ('{"model": "m", "questions": {}}', "questions"),
     ('{"model": "m", "questions": {"q": {"type": "noul"}}}', "decision_question"),
     ('{"model": "m", "format_version": 99, "questions": {"answer_wrong": {"type": "noul"}}}', "upgrade")],
)  # fmt: skip
def test_broken_manifests_are_refused(tmp_path: Path, content: str | None, message: str):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=message):
        open_run(tmp_path)
    with pytest.raises(InputError, match="no run directory"):
        open_run(tmp_path / "absent")


def test_nothing_half_written_stays(tmp_path: Path):
    with pytest.raises(RuntimeError), whole_dir(tmp_path / "d") as folder:
        (folder / "a").write_text("x")
        raise RuntimeError
    write_whole(tmp_path / "f", b"old")
    with pytest.raises(RuntimeError), whole_file(tmp_path / "f") as aside:
        aside.write_bytes(b"new")
        raise RuntimeError
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"f": b"old"}
    make_run(tmp_path / "run")
    with pytest.raises(InputError, match="exists already"):
        make_run(tmp_path / "run")
    with whole_dir(tmp_path / "run", replace=True) as folder:
        (folder / "only").touch()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["only"]


def test_a_full_disk_is_one_clear_error():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(ObserverError, match="No space left"), whole_file(Path("/dev/shm/observer-test-full")) as aside:
        aside.symlink_to("/dev/full")
        aside.write_bytes(b"x" * 10_000)
    assert not Path("/dev/shm/observer-test-full").exists()


def test_home_says_what_to_do_when_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "file" / "home"))
    (tmp_path / "file").touch()
    home = Home.from_env()
    with pytest.raises(InputError, match="OBSERVER_HOME"):
        home.ensure(home.spool)
    monkeypatch.delenv("OBSERVER_HOME")
    assert Home.from_env().root == Path.cwd() / ".observer"
