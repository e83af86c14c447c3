"""Cut and broken JSON."""

import json

import pytest

from observer_core.traces.tolerant import MAX_CHARS, parse_tolerant

EVENT = {
    "content": {"parts": [{"text": 'a\\b"c€😀\n, {', "thought": True}, {"text": "The Rhine.", "n": [1, 2.5, None]}]},
    "actions": {},
}


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_text_cut_anywhere_gives_what_is_there(ascii_only):
    text = json.dumps(EVENT, ensure_ascii=ascii_only)
    assert parse_tolerant(text) == (EVENT, False)
    seen = ""
    for end in range(len('{"content": {'), len(text)):
        value, truncated = parse_tolerant(text[:end])
        assert truncated
        assert isinstance(value, dict) or value == text[:end]
        json.dumps(value, ensure_ascii=False).encode()  # no half surrogate pair is left
        parts = value["content"].get("parts", []) if isinstance(value, dict) else []
        answer = parts[1].get("text", "") if len(parts) > 1 else ""
        assert "The Rhine.".startswith(answer)
        assert len(answer) >= len(seen)
        seen = answer
    assert seen == "The Rhine."


@pytest.mark.parametrize(
    "text", ["", "plain words", "[Rhine] is longer", "[Rhine is", "{not json}", '{"a": 1} and more']
)
def test_what_is_no_json_stays_text(text):
    assert parse_tolerant(text) == (text, False)


def test_huge_and_deep_texts():
    value, truncated = parse_tolerant(json.dumps({"text": "x" * (MAX_CHARS + 5)}))
    assert truncated
    assert value["text"].startswith("xxx")
    deep = "[" * 100_000 + "]" * 100_000
    assert parse_tolerant(deep) == (deep, False)
