"""The baseline and the built-in heuristic."""

import re
from pathlib import Path

import numpy as np
import pytest

from observer_core.decision.baseline import FEATURES, BaselineModel, featurise
from observer_core.decision.builtin import BuiltinScorer
from observer_core.errors import InputError
from observer_core.traces.trace import ToolCall, Trace

ODD = [
    Trace("", ""),
    Trace(
        "How many?", "No idea, not found", tool_calls=[ToolCall("s", {"q": 1}, None), ToolCall("s", {"q": 1}, "error")]
    ),
    Trace("Is it?", "yes", evidence=[""]),
    Trace("Wer?", "𝄞 123,45", evidence=["x" * 100_000]),
]


def test_features_are_finite_for_every_trace():
    assert np.isfinite(featurise(ODD)).all()
    assert featurise([]).shape == (0, len(FEATURES))
    values = dict(zip(FEATURES, featurise(ODD)[1], strict=True))
    assert values["refusal"] == values["quantity_without_number"] == values["last_call_failed"] == 1
    assert values["repeated_calls"] > 0


def test_baseline_learns_saves_and_loads(tmp_path: Path):
    rng = np.random.default_rng(1)
    traces = [Trace("Who?", "Ann" if ok else "Bob, not found", evidence=["Ann did it"]) for ok in rng.random(80) < 0.5]
    wrong = np.array([t.final_answer != "Ann" for t in traces])
    model = BaselineModel.fit(traces, wrong, np.ones(80))
    p = model.p_wrong_raw(traces)
    assert p[wrong].min() > p[~wrong].max()
    model.save(tmp_path)
    assert (BaselineModel.load(tmp_path).p_wrong_raw(traces) == p).all()
    with pytest.raises(InputError, match="one class"):
        BaselineModel.fit(traces, np.ones(80, bool), np.ones(80))


@pytest.mark.parametrize("damage", [None, "{", "{}", "nan", "feature"])
def test_broken_baselines_name_their_file(tmp_path: Path, damage: str | None):
    zero = dict.fromkeys(FEATURES, 0.0)
    BaselineModel(zero, dict.fromkeys(FEATURES, 1.0), zero, 0.5).save(tmp_path)
    file = tmp_path / "baseline.json"
    if damage is None:
        file.unlink()
    elif damage == "nan":
        file.write_text(file.read_text().replace("0.5", "NaN"))
    elif damage == "feature":
        file.write_text(file.read_text().replace("refusal", "refused"))
    else:
        file.write_text(damage)
    with pytest.raises(InputError, match=r"baseline\.json"):
        BaselineModel.load(tmp_path)


def test_builtin_ranks_a_refusal_above_a_supported_answer():
    good = Trace("Who?", "Ann", evidence=["Ann did it"])
    bad = Trace("Who?", "I could not find it", evidence=["Ann did it"])
    low, high = BuiltinScorer().score([good, bad])
    assert low.p_wrong < high.p_wrong
    assert BuiltinScorer().model == "builtin"


def test_every_feature_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "baseline.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", page, flags=re.MULTILINE) == list(FEATURES)
