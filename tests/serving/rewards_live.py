"""Evaluators as a user would write them: TRL's signature, good and bad ones."""

import os
import time
from typing import Any


def grounded(completions: list[Any], evidence: list[list[str]], **_: Any) -> list[float]:
    return [float(any(text in "".join(found) for found in [evidence[i]])) for i, text in enumerate(completions)]


def raises(completions: list[Any], **_: Any) -> list[float]:
    if any("poison" in text for text in completions):
        raise ValueError("cannot read this one")
    return [1.0] * len(completions)


def hangs(completions: list[Any], **_: Any) -> list[float]:
    if any("hang" in text for text in completions):
        time.sleep(600)
    return [0.5] * len(completions)


def crashes(completions: list[Any], **_: Any) -> list[float]:
    if any("crash" in text for text in completions):
        os._exit(7)
    return [0.5] * len(completions)
