import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from observer_core.errors import InputError
from observer_core.rewards import find_reward, find_rewards, read_completion, rouge_l
from observer_core.rewards.builtin import BUILTIN, builtin_name
from observer_core.rewards.completion import KINDS

GOOD = {"answer": "a b", "cited_artifacts": ["d1"], "confidence": 0.5}
ORACLE = RougeScorer(["rougeL"])


@given(
    st.lists(st.sampled_from(["a", "b", "c", "The", "x1", "é", "-", "…", "\n"]), max_size=40).map(" ".join),
    st.lists(st.sampled_from(["a", "b", "c", "the", "X1", "y", ",", "İ"]), max_size=40).map(" ".join),
)
def test_rouge_l_equals_the_oracle(reference: str, prediction: str):
    assert rouge_l(reference, prediction) == pytest.approx(
        ORACLE.score(reference, prediction)["rougeL"].fmeasure, abs=1e-9
    )


def test_rouge_l_equals_the_oracle_on_long_texts():
    rng = random.Random(0)
    for _ in range(20):
        a = " ".join(rng.choice("abcdefgh") for _ in range(rng.randint(1, 300)))
        b = " ".join(rng.choice("abcdefgh") for _ in range(rng.randint(1, 300)))
        assert rouge_l(a, b) == pytest.approx(ORACLE.score(a, b)["rougeL"].fmeasure, abs=1e-9)


TEXT = json.dumps(GOOD)


@pytest.mark.parametrize(
    ("text", "kind", "at"),
    [
        ("", "empty", ""),
        ("   ", "empty", ""),
        ("no idea", "not_json", "0x6E"),
        ("Sure: " + TEXT, "text_before", "0x53"),
        (TEXT + " Hope this helps", "text_after", "0x48"),
        ("[1]", "not_an_object", "list"),
        ('[{"a": 1}]', "not_an_object", "list"),
        (TEXT[:20], "truncated", "end of text"),
        (TEXT[:-1], "truncated", "end of text"),
        (TEXT[:12], "truncated", "end of text"),
        ('{"answer": "a\\', "truncated", "end of text"),
        (TEXT.replace("a b", "a\nb"), "raw_newline", "0x0A"),
        (TEXT.replace("a b", "a\rb"), "raw_newline", "0x0D"),
        (TEXT.replace("a b", "a\tb"), "raw_tab", "0x09"),
        (TEXT.replace("a b", "a\x01b"), "raw_control", "0x01"),
        (TEXT.replace("a b", "a\\xb"), "bad_escape", "0x78"),
        (TEXT.replace('"', "'"), "bad_quotes", "0x27"),
        (TEXT.replace("}", ",}"), "trailing_comma", None),
        (TEXT.replace('["d1"]', '["d1",]'), "trailing_comma", None),
        (TEXT.replace('", "cited', '" "cited'), "missing_comma", "0x22"),
        (TEXT.replace("a b", 'a "b" c'), "missing_comma", "0x62"),
        (TEXT.replace("0.5", "NaN"), "non_finite", "NaN"),
        ("[" * 5000 + "{" + "]" * 5000, "too_deep", ""),
        (TEXT.replace("a b", "a \ud800"), "not_unicode", ""),
        (json.dumps({"answer": "x", "cited_artifacts": []}), "missing_field", "confidence"),
        (json.dumps({**GOOD, "answer": 3}), "wrong_type", "answer"),
        (json.dumps({**GOOD, "cited_artifacts": "d1"}), "wrong_type", "cited_artifacts"),
        (json.dumps({**GOOD, "confidence": True}), "wrong_type", "confidence"),
        (json.dumps({**GOOD, "confidence": 1.5}), "out_of_range", "confidence=1.5"),
    ],
)
def test_a_parse_failure_names_its_class_and_bytes(text: str, kind: str, at: str | None):
    error = read_completion(text).error
    assert error is not None
    assert error.kind == kind
    assert kind in KINDS
    assert at is None or error.at == at


@pytest.mark.parametrize("wrap", ["{}", "```json\n{}\n```", "```\n{}\n```", "  {}\n", "```json\n{}", "```JSON {}```"])
def test_a_fence_is_taken_off(wrap: str):
    completion = read_completion(wrap.replace("{}", TEXT))
    assert completion.error is None
    assert (completion.answer, completion.cited, completion.confidence) == ("a b", ("d1",), 0.5)


@given(st.text())
def test_reading_never_raises(text: str):
    read_completion(text)
    read_completion("{" + text)


def test_rewards_of_a_good_and_an_unreadable_completion():
    row = {"reference": "a b c d", "citations": ["d1", "d2"]}
    good = read_completion(json.dumps({**GOOD, "cited_artifacts": ["d1", "dx", "dy", "dz"]}))
    quality = 2 * 1 * 0.5 / 1.5
    expected = {
        "format": 1.0,
        "quality": quality,
        "citation": 0.25,
        "calibration": 1 - (0.5 - quality) ** 2,
        "parsimony": 0.5,
        "repetition": 1.0,
    }
    assert {name: reward(good, row) for name, reward in BUILTIN.items()} == pytest.approx(expected)
    broken = read_completion(TEXT[:-1])
    assert {reward(broken, row) for reward in BUILTIN.values()} == {0.0}
    assert BUILTIN["quality"](good, {}) is None, "without a reference quality does not apply"
    assert BUILTIN["citation"](good, {}) is None


def test_repetition_falls_with_repeating():
    row: dict = {}
    texts = ["one two three four five six", "one two three " * 4]
    scores = [BUILTIN["repetition"](read_completion(json.dumps({**GOOD, "answer": t})), row) for t in texts]
    assert scores == [1.0, 0.3]


def test_rewards_are_found_by_column_name_and_by_module():
    assert [builtin_name(n) for n in ("quality_reward", "reward_format", "ROUGE_L", "citation_grounding", "other")] == [
        "quality",
        "format",
        "quality",
        "citation",
        None,
    ]
    found = find_reward("brief=tests.rollouts.rewards_for_tests:shortness")
    assert (found.name, found.style) == ("brief", "trl")
    with pytest.raises(InputError, match="no reward is named 'nonsense'"):
        find_reward("nonsense")
    with pytest.raises(InputError, match="named twice"):
        find_rewards(["quality", "quality=format"])


def test_the_revision_follows_the_code_and_what_it_uses(tmp_path):
    def revision(code: str, name: str) -> str:
        file = tmp_path / name
        file.write_text(code)
        return find_reward(f"{file}:reward").revision()

    code = "LIMIT = 3\ndef helper(x):\n    return x * LIMIT\ndef reward(completions, **k):\n    return [helper(1) for c in completions]\n"
    same = revision(code, "a.py")
    assert revision("# moved\n" + code + "\nOTHER = 4\n", "b.py") == same
    assert revision(code.replace("LIMIT = 3", "LIMIT = 4"), "c.py") != same
    assert revision(code.replace("x * LIMIT", "x + LIMIT"), "d.py") != same
