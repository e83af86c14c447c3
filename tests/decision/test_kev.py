"""The Kev network: one answer in every form of computing it, checkpoints, and files that are refused."""

import json
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import answers
from decision.tiny_kev import KINDS, write_base, write_checkpoint
from safetensors.torch import load_file, save_file

from observer_core.decision.kev.checkpoint import copy_tokenizer, load_checkpoint, read_head, save_checkpoint
from observer_core.decision.kev.config import KevConfig
from observer_core.decision.kev.examples import collate
from observer_core.decision.kev.prefixes import ByteLru
from observer_core.decision.kev.presets import find_checkpoint
from observer_core.decision.kev.runtime import KevModel
from observer_core.decision.kev.torch_backend import TorchBackend
from observer_core.errors import InputError
from observer_core.questions import Question, default_questions

QUESTIONS = default_questions() | {
    "failure": Question(type="choice", instructions="why", criteria={"none": None, "tool": "red", "other": "blue"})
}
STATES: list[Any] = ["red", "blue green " * 20, "", {"question": "red", "calls": [{"name": "a"}, None]}, "x" * 63]


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_base(tmp_path_factory.mktemp("bases") / kind, kind) for kind in KINDS}


@pytest.fixture(scope="session")
def checkpoints(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each kind; never written to."""
    made = {kind: tmp_path_factory.mktemp("checkpoints") / kind for kind in KINDS}
    for kind, folder in made.items():
        write_checkpoint(bases[kind], folder, max_state=400)
    return made


@pytest.fixture
def checkpoint(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """One to spoil."""
    shutil.copytree(checkpoints["qwen3"], tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def model_of(checkpoint: Path, *, merge: bool = True, kept_bytes: int = 2**20, **how: Any) -> KevModel:
    loaded = load_checkpoint(checkpoint, merge=merge)
    backend = TorchBackend(loaded.network, **how)
    return KevModel(KevModel.open(checkpoint).layout, backend, loaded.config, kept_bytes=kept_bytes)


def numbers(given: Sequence[dict]) -> np.ndarray:
    return np.array([p for of_state in given for a in of_state.values() for p in a.probabilities.values()])


def as_rows(checkpoint: Path) -> np.ndarray:
    """The probabilities from whole rows, state and branch, one at a time: what every other form must equal."""
    network, layout = load_checkpoint(checkpoint).network, KevModel.open(checkpoint).layout
    found = []
    for state in STATES:
        for name, question in QUESTIONS.items():
            batch = collate([(layout.state(state).ids, [layout.branch(name, question)])])
            with torch.inference_mode():
                logits = network(**{key: torch.from_numpy(array) for key, array in batch.items()})
            found += torch.softmax(logits[0, 0].double(), -1).tolist()
    return np.array(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_computing_gives_the_same_answer(checkpoints: dict[str, Path], kind: str) -> None:
    rows = as_rows(checkpoints[kind])
    assert np.ptp(rows) > 0.1  # the answers differ from each other
    ways = {
        "one by one": model_of(checkpoints[kind], kept_bytes=0, tokens_at_once=0),
        "questions together": model_of(checkpoints[kind]),
        "all together": model_of(checkpoints[kind], tokens_at_once=100_000, states_together=True),
        "in small batches": model_of(checkpoints[kind], tokens_at_once=900, states_together=True),
        "not merged": model_of(checkpoints[kind], merge=False),
    }
    for name, model in ways.items():
        for _ in range(2):  # the second time from kept states
            assert np.abs(numbers(answers(model, STATES, QUESTIONS)) - rows).max() < 1e-5, name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "qwen3_5"])
def test_questions_that_share_a_row_do_not_see_each_other(checkpoints: dict[str, Path], kind: str) -> None:
    network, layout = load_checkpoint(checkpoints[kind]).network, KevModel.open(checkpoints[kind]).layout
    branches = [layout.branch(name, question) for name, question in QUESTIONS.items()]
    packed = [(layout.state(state).ids, branches[i:] if i % 2 else branches) for i, state in enumerate(STATES)]
    batch = collate(packed)
    with torch.inference_mode():
        logits = network(**{key: torch.from_numpy(array) for key, array in batch.items()})
    found, expected = [], iter(as_rows(checkpoints[kind]).tolist())
    for i, _ in enumerate(STATES):
        for j, branch in enumerate(branches):
            alone = [next(expected) for _ in branch.options]
            if i % 2 and j < i:
                continue
            together = torch.softmax(logits[i, j - i if i % 2 else j, : len(branch.options)].double(), -1).tolist()
            found += [abs(a - b) for a, b in zip(alone, together, strict=True)]
    assert max(found) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_depends_on_nothing_but_state_and_question(checkpoints: dict[str, Path], kind: str) -> None:
    model = KevModel.open(checkpoints[kind], device="cpu")
    together = answers(model, STATES, QUESTIONS)
    turned = answers(model, STATES[::-1], dict(reversed(QUESTIONS.items())))[::-1]
    for state, both, other in zip(STATES, together, turned, strict=True):
        for name, question in QUESTIONS.items():
            (alone,) = answers(KevModel.open(checkpoints[kind], device="cpu"), [state], {"renamed": question})
            given = numbers([{"": both[name]}])
            for changed in (other[name], alone["renamed"]):
                assert np.abs(numbers([{"": changed}]) - given).max() < 1e-6


class Counting(TorchBackend):
    """Counts the states it reads."""

    states = 0

    def read(self, states: Sequence[Sequence[int]]) -> list[Any]:
        self.states += len(states)
        return super().read(states)


def test_a_state_is_read_once(checkpoints: dict[str, Path]) -> None:
    loaded = load_checkpoint(checkpoints["qwen3_5"])
    backend = Counting(loaded.network)
    model = KevModel(KevModel.open(checkpoints["qwen3_5"]).layout, backend, loaded.config)
    first = answers(model, [STATES[1], STATES[0], STATES[1]], QUESTIONS)
    assert backend.states == 2
    again = answers(model, [STATES[1]], {"failure": QUESTIONS["failure"]})
    assert numbers(again) == pytest.approx(numbers([{"failure": first[0]["failure"]}]), abs=1e-6)
    assert backend.states == 2


def test_kept_states_are_bounded_in_bytes() -> None:
    class Value:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

    kept: ByteLru[Value] = ByteLru(100)
    first, second = Value(40), Value(50)
    kept.put("first", first)
    kept.put("second", second)
    assert kept.get("first") is first
    kept.put("third", Value(30))
    assert kept.get("second") is None  # unused for longest
    assert (kept.get("first"), kept.nbytes, len(kept)) == (first, 70, 2)
    kept.put("huge", Value(101))
    assert (kept.get("huge"), kept.nbytes) == (None, 70)


@pytest.mark.parametrize("kind", KINDS)
def test_large_questions_and_states(checkpoints: dict[str, Path], kind: str) -> None:
    model = KevModel.open(checkpoints[kind])
    asked = {
        "many": Question(type="choice", instructions="?", criteria={f"o{i}": None for i in range(255)}),
        "levels": Question(type="score", instructions="?", criteria=[f"l{i}" for i in range(10)]),
    }
    planes = "".join(chr(plane * 0x10000 + 0x41) for plane in range(17))
    for state, given in zip(
        ["", "y" * 100_000, planes], answers(model, ["", "y" * 100_000, planes], asked), strict=True
    ):
        assert len(given["many"].probabilities) == 255
        for answer in given.values():
            assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-9), state[:5]
    assert model.plan("y" * 100_000, asked).truncated
    assert not model.plan(planes, asked).truncated


def test_a_plan_counts_the_state_once(checkpoints: dict[str, Path]) -> None:
    model = KevModel.open(checkpoints["qwen3"])
    one, two = (model.plan("four", dict(list(QUESTIONS.items())[:n])) for n in (1, 2))
    second = len(model.layout.branch("", QUESTIONS["answers_question"]).ids)
    assert one.input_tokens == 5 + len(model.layout.branch("", QUESTIONS["answer_wrong"]).ids)
    assert two.input_tokens - one.input_tokens == second


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_survives_load_save_load(checkpoints: dict[str, Path], kind: str, tmp_path: Path) -> None:
    loaded = load_checkpoint(checkpoints[kind], merge=False)
    copy_tokenizer(loaded.tokenizer, tmp_path)
    save_checkpoint(loaded.network, loaded.config, loaded.base, tmp_path)
    for name in ("adapter_model.safetensors", "base/model.safetensors"):
        before, after = load_file(checkpoints[kind] / name), load_file(tmp_path / name)
        assert before.keys() == after.keys()
        assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    (config, head), (again, head_again) = read_head(checkpoints[kind]), read_head(tmp_path)
    assert config == again
    assert all(torch.equal(tensor, head_again[key]) for key, tensor in head.items())
    assert answers(KevModel.open(tmp_path), STATES, QUESTIONS) == answers(
        KevModel.open(checkpoints[kind]), STATES, QUESTIONS
    )


@pytest.mark.parametrize("kind", KINDS)
def test_peft_reads_our_adapter_and_agrees(checkpoints: dict[str, Path], bases: dict[str, Path], kind: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    backbone = AutoModelForCausalLM.from_pretrained(bases[kind]).model
    theirs = PeftModel.from_pretrained(backbone, str(checkpoints[kind])).merge_and_unload()
    ours = load_checkpoint(checkpoints[kind]).network.backbone.state_dict()
    assert all(torch.allclose(tensor, ours[name], atol=1e-7) for name, tensor in theirs.state_dict().items())


def test_names_are_the_released_ones(checkpoints: dict[str, Path]) -> None:
    hybrid = set(load_file(checkpoints["qwen3_5"] / "adapter_model.safetensors"))
    assert "base_model.model.layers.0.linear_attn.in_proj_qkv.lora_A.weight" in hybrid
    assert "base_model.model.layers.3.self_attn.q_proj.lora_B.weight" in hybrid
    assert len(hybrid) == 2 * (3 * 5 + 4 + 4 * 3)
    head = torch.load(checkpoints["qwen3_5"] / "head.pt", weights_only=True)
    assert set(head["head"]) == {"q.weight", "q.bias", "k.weight", "k.bias"}
    assert head.keys() >= {
        "base", "base_revision", "lora", "head_dim", "option_isolation", "special_embeddings", "weights_dtype",
        "temperature", "holdout",
    }  # fmt: skip


def released(checkpoint: Path, **changes: object) -> None:
    """Makes of a checkpoint of ours one as Kev writes it."""
    (checkpoint / "kev.json").unlink()
    body = torch.load(checkpoint / "head.pt", weights_only=True)
    for ours in ("delimiters", "max_state", "max_branch"):
        del body[ours]
    torch.save(body | changes, checkpoint / "head.pt")


def test_a_released_checkpoint_loads_with_its_temperature(checkpoint: Path) -> None:
    (cold,) = answers(KevModel.open(checkpoint), ["red"], QUESTIONS)
    released(checkpoint, temperature=2.0, args={"lr": 1e-4})
    model = KevModel.open(checkpoint)
    (warm,) = answers(model, ["red"], QUESTIONS)

    def logit(p: float) -> float:
        return float(np.log(p / (1 - p)))

    assert logit(warm["answer_wrong"].noul) == pytest.approx(logit(cold["answer_wrong"].noul) / 2, abs=1e-9)
    assert (model.layout.max_state, find_checkpoint(str(checkpoint))) == (8192, checkpoint)


def test_missing_fields_take_the_released_defaults(checkpoint: Path, bases: dict[str, Path]) -> None:
    released(checkpoint)
    body = torch.load(checkpoint / "head.pt", weights_only=True)
    kept = {name: body[name] for name in ("base", "lora", "head_dim", "head")}
    torch.save(kept, checkpoint / "head.pt")
    config, _ = read_head(checkpoint)
    assert (config.base_revision, config.temperature, config.weights_dtype) == (None, 1.0, "fp32")
    shutil.rmtree(checkpoint / "base")
    load_checkpoint(checkpoint, base=bases["qwen3"])


# Files that are refused.


def edit(file: Path, change: Callable[[dict], None]) -> None:
    """Rewrites the tensors of the adapter or of the head."""
    if file.name == "head.pt":
        body = torch.load(file, weights_only=True)
        change(body["head"])
        torch.save(body, file)
    else:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)


def rename(tensors: dict) -> None:
    tensors["other"] = tensors.pop(min(tensors))


def add(tensors: dict) -> None:
    tensors["other"] = tensors[min(tensors)].clone()


def spoil(tensors: dict) -> None:
    tensors[min(tensors)][..., 0] = float("nan")


def count(tensors: dict) -> None:
    tensors[min(tensors)] = tensors[min(tensors)].to(torch.int8)


def narrow(tensors: dict) -> None:
    tensors[min(tensors)] = tensors[min(tensors)].to(torch.float8_e4m3fn)


def shrink(tensors: dict) -> None:
    tensors[min(tensors)] = tensors[min(tensors)][..., :-1].clone()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "head.pt"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop(min(tensors)), "lacks tensor {first}"),
        (rename, "lacks tensor {first}"),
        (add, "has an unknown tensor other"),
        (shrink, "tensor {first} has shape"),
        (spoil, "tensor {first} holds a number that is not finite"),
        (count, "tensor {first} holds torch.int8"),
        (narrow, "tensor {first} holds torch.float8_e4m3fn"),
    ],
)
def test_wrong_tensors_are_named(checkpoint: Path, name: str, change, says: str) -> None:
    first = "k.bias" if name == "head.pt" else min(load_file(checkpoint / name))
    edit(checkpoint / name, change)
    with pytest.raises(InputError) as error:
        KevModel.open(checkpoint)
    assert f"{name}" in str(error.value)
    assert says.format(first=first) in str(error.value)


FILES = ("adapter_model.safetensors", "adapter_config.json", "head.pt", "base/model.safetensors", "base/config.json")


@pytest.mark.parametrize("name", [*FILES, "base/tokenizer.json", "kev.json", "tokenizer.json"])
@pytest.mark.parametrize("how", ["missing", "cut", "rubbish"])
def test_broken_files_are_named(checkpoint: Path, name: str, how: str) -> None:
    file = checkpoint / name
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:40] if how == "cut" else b"\x00rubbish")
    # Without them a checkpoint is still whole: `head.pt` says what `kev.json` says, and one tokenizer is enough.
    spare = {
        ("kev.json", "missing"),
        ("tokenizer.json", "missing"),
        *(("base/tokenizer.json", h) for h in ("cut", "rubbish")),
    }
    if (name, how) in spare:
        KevModel.open(checkpoint)
        return
    with pytest.raises(InputError) as error:
        KevModel.open(checkpoint)
    assert "\n" not in str(error.value)
    assert file.name in str(error.value) or str(file.parent) in str(error.value)


@pytest.mark.parametrize("name", ["more.safetensors", "modeling.py", "base/notes.txt"])
def test_files_the_layout_does_not_know_are_refused(checkpoint: Path, name: str) -> None:
    for beside in ("README.md", "training_config.json", "training_metrics.json"):
        (checkpoint / beside).write_text("read by nobody")
    KevModel.open(checkpoint)
    (checkpoint / name).parent.mkdir(exist_ok=True)
    (checkpoint / name).write_text("x")
    with pytest.raises(InputError, match=re.escape(f"{checkpoint / name} is no file of this kind of checkpoint")):
        KevModel.open(checkpoint)


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("how", ["field", "plain"])
def test_code_in_head_pt_is_refused_and_not_run(checkpoint: Path, tmp_path: Path, how: str) -> None:
    marker, file = tmp_path / "ran", checkpoint / "head.pt"
    if how == "field":
        torch.save(torch.load(file, weights_only=True) | {"args": Bomb(marker)}, file)
    else:
        file.write_bytes(pickle.dumps(Bomb(marker)))
    with pytest.raises(InputError, match=r"head\.pt is broken or holds code, which is not run"):
        KevModel.open(checkpoint)
    assert not marker.exists()


def test_no_code_of_a_checkpoint_or_base_runs(checkpoint: Path, tmp_path: Path) -> None:
    marker, code = tmp_path / "ran", tmp_path / "evil.py"
    code.write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()")
    config = json.loads((checkpoint / "adapter_config.json").read_text())
    config["auto_mapping"] = {"base_model_class": "Evil", "parent_library": "evil"}
    (checkpoint / "adapter_config.json").write_text(json.dumps(config))
    KevModel.open(checkpoint)  # what names code is ignored
    for planted in (checkpoint / "evil.py", checkpoint / "adapter_model.bin", checkpoint / "base" / "evil.py"):
        planted.write_bytes(code.read_bytes() if planted.suffix == ".py" else pickle.dumps(Bomb(marker)))
        with pytest.raises(InputError, match=re.escape(f"{planted} is no file of this kind of checkpoint")):
            KevModel.open(checkpoint)
        planted.unlink()
    base = Path(shutil.move(checkpoint / "base", tmp_path / "base"))
    shutil.copyfile(code, base / "evil.py")
    own = json.loads((base / "config.json").read_text())
    auto = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (base / "config.json").write_text(json.dumps(own | {"model_type": "evil", "auto_map": auto}))
    with pytest.raises(InputError, match="cannot load the base"):
        KevModel.open(checkpoint, base=base)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_dora", True),
        ("modules_to_save", ["embed_tokens"]),
        ("rank_pattern", {"q_proj": 2}),
        ("trainable_token_indices", {"embed_tokens": [1]}),
        ("bias", "all"),
        ("peft_type", "IA3"),
        ("target_modules", ".*"),
        ("lora_alpha", "8"),
        ("r", 8),
        ("r", 4.0),
        ("lora_dropout", 5),
    ],
)
def test_adapters_that_ask_for_more_are_refused(checkpoint: Path, field: str, value) -> None:
    file = checkpoint / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(InputError, match=rf"adapter_config\.json.*\b{field}\b"):
        KevModel.open(checkpoint)


def test_adapters_that_do_not_fit_the_base_are_refused(checkpoint: Path) -> None:
    file = checkpoint / "adapter_config.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"target_modules": ["nothing"]}))
    with pytest.raises(InputError, match=r"adapter_config\.json does not fit the base"):
        KevModel.open(checkpoint)
    released(checkpoint, lora=0)
    file.write_text(json.dumps(whole | {"r": 0}))
    with pytest.raises(InputError, match=r"adapter_config\.json: field 'r' is 0"):
        KevModel.open(checkpoint)
    file.write_text(json.dumps(whole))
    torch.save(torch.load(checkpoint / "head.pt", weights_only=True) | {"head_dim": 10**14}, checkpoint / "head.pt")
    with pytest.raises(InputError, match=r"head\.pt: field 'head_dim'"):
        KevModel.open(checkpoint)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base", "another"),
        ("base_revision", "1" * 64),
        ("lora", 8),
        ("head_dim", 32),
        ("weights_dtype", "bf16"),
        ("temperature", 2.0),
        ("delimiters", ["a", "b", "c", "d", "e"]),
        ("max_state", 99),
        ("max_branch", 99),
    ],
)
def test_two_descriptions_of_one_model_must_agree(checkpoint: Path, field: str, value) -> None:
    config = KevConfig.load(checkpoint)
    assert config is not None
    (checkpoint / "kev.json").write_text(json.dumps(config.model_dump(mode="json") | {field: value}))
    with pytest.raises(InputError, match=rf"head\.pt says {field} .*, kev\.json says"):
        KevModel.open(checkpoint)


@pytest.mark.parametrize("field", ["option_isolation", "special_embeddings"])
def test_what_this_version_cannot_load_is_said(checkpoint: Path, field: str) -> None:
    released(checkpoint, **{field: True})
    with pytest.raises(InputError, match=f"cannot load checkpoints with {field}"):
        KevModel.open(checkpoint)


def test_the_base_must_be_the_right_one(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_base(tmp_path / "other", "qwen3", seed=1)
    with pytest.raises(InputError, match="belongs to base qwen3 with base_revision"):
        KevModel.open(checkpoint, base=other)
    monkeypatch.setenv("OBSERVER_HOME", str(tmp_path / "home"))
    shutil.move(checkpoint / "base", tmp_path / "base")
    with pytest.raises(InputError, match=r"needs its base qwen3; put its folder at .*home/models/qwen3"):
        KevModel.open(checkpoint)
    shutil.copytree(tmp_path / "base", tmp_path / "home" / "models" / "qwen3")
    KevModel.open(checkpoint)
    edit(tmp_path / "base" / "model.safetensors", lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))
    released(checkpoint, base_revision=None)
    with pytest.raises(InputError, match=r"lacks tensor model\.layers\.0\.mlp\.up_proj\.weight"):
        KevModel.open(checkpoint, base=tmp_path / "base")


def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("kev-0.8b", "jaredpalmer/kev-4b@v1"):
        with pytest.raises(InputError, match=r"cannot get jaredpalmer/kev-.* from the model hub .*; connect to it"):
            find_checkpoint(name)
    with pytest.raises(InputError, match="no folder 'nothing', and it is not a hub id"):
        find_checkpoint("nothing")
    with pytest.raises(InputError, match="neither a run directory nor a Kev checkpoint"):
        find_checkpoint(str(tmp_path))
