"""What a tool's result says, as texts a person would read: the evidence of a trace."""

import json
from typing import Any

_WRAPPERS = (
    "results", "documents", "hits", "items", "passages", "paragraphs", "pages", "data", "structuredContent", "result",
    "output", "response",
)  # fmt: skip
_TEXTS = ("text", "content", "page_content", "snippet", "body", "passage", "summary", "extract")
_TITLES = ("title", "name", "heading")


def is_error_result(result: Any) -> bool:
    """Whether a tool says it failed: a true-like key `error`, or MCP's `isError`."""
    return isinstance(result, dict) and bool(result.get("error") or result.get("isError"))


def result_text(result: Any) -> str:
    """A tool result as one text: strings as they are, anything else as compact JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, separators=(", ", ": "))


def evidence_texts(result: Any) -> list[str]:
    """The texts of a tool result, one per paragraph, `title: text` where there is a title.

    Understands lists of paragraphs under the usual keys (`results`, `documents`, …), single paragraphs, MCP content
    parts and plain strings; any other shape gives one compact JSON text. A result that says it failed gives none.
    """
    if result is None or result == "" or is_error_result(result):
        return []
    if isinstance(result, str):
        return [result]
    if isinstance(result, list):
        return [text for item in result for text in evidence_texts(item)]
    if isinstance(result, dict):
        paragraph = _paragraph(result)
        if paragraph is not None:
            return paragraph
        for key in _WRAPPERS:
            if isinstance(result.get(key), list | dict | str):
                return evidence_texts(result[key])
    return [result_text(result)] if result else []


def _paragraph(result: dict[str, Any]) -> list[str] | None:
    """The text of one paragraph, of MCP's content parts, or of OpenInference's wrapped `document`; else `None`."""
    if isinstance(result.get("document"), dict):
        return evidence_texts(result["document"])
    for key in _TEXTS:
        text = result.get(key)
        if isinstance(text, list) and key == "content":
            return evidence_texts(text)
        if isinstance(text, str):
            title = next((result[name] for name in _TITLES if isinstance(result.get(name), str)), None)
            return [f"{title}: {text}" if title else text] if text else []
    return None
