"""The answer inside a model's reply."""

import json
import re

_LEAD_IN = re.compile(r"^.*?\b(?:final answer|answer)(?: is)?\s*[:=]?\s+(?=\S)", re.IGNORECASE | re.DOTALL)
_CALL_TAG = re.compile(r"<(?:tool_call|function_call|\|?python_tag\|?)>|\[TOOL_CALLS\]")


def clean_answer(text: str) -> str:
    """The answer inside a reply: without lead-in (`The answer is …`, `Answer: …`), markup, quotes and final stop."""
    stripped = re.sub(r"[*_`]{1,3}", "", text).strip()
    if re.search(r"\b(?:answer:|answer is)\s*\S", stripped, re.IGNORECASE):
        stripped = _LEAD_IN.sub("", stripped)
    first = next((line for line in stripped.splitlines() if line.strip()), "")
    return first.strip().strip("\"'“”").rstrip(".").strip()


def is_call_as_text(text: str, tools: set[str]) -> bool:
    """Whether a reply is a tool call that the model wrote out instead of making it.

    Known forms: a tag of a chat template (`<tool_call>`, `[TOOL_CALLS]`), JSON with the tool's name, `search("…")`, and
    ReAct's `Action: search[…]`.
    """
    bare = re.sub(r"^```\w*|```$", "", text.strip()).strip()
    if _CALL_TAG.search(bare):
        return True
    names = "|".join(map(re.escape, sorted(tools)))
    written = rf"^(?:Action(?: \d+)?:\s*(?:{names})\b|(?:functions\.)?(?:{names})[\[(])"
    if re.search(written, bare, re.IGNORECASE | re.MULTILINE):
        return True
    try:
        value = json.loads(bare)
    except ValueError:
        return False
    value = value[0] if isinstance(value, list) and value else value
    if not isinstance(value, dict):
        return False
    function = value.get("function", value)
    named = function.get("name", value.get("tool", value.get("action"))) if isinstance(function, dict) else function
    return named in tools
