"""Reward functions with TRL's signature, as a user would bring them; found by name in the grading processes."""

import time

LENGTH_WANTED = 40


def shortness(completions, **kwargs):
    return [1.0 if len(c) < LENGTH_WANTED else None for c in completions]


def from_messages(prompts, completions, solution, **kwargs):
    return [float(c[-1]["content"] == s) for c, s in zip(completions, solution, strict=True)]


def raises_on_some(completions, **kwargs):
    if any("boom" in c for c in completions):
        raise KeyError("boom")
    return [1.0] * len(completions)


def hangs_on_some(completions, **kwargs):
    if any("hang" in c for c in completions):
        time.sleep(3600)
    return [1.0] * len(completions)


def odd_values(completions, **kwargs):
    return [float("inf") if "inf" in c else "text" if "text" in c else True for c in completions]


async def asynchronous(completions, **kwargs):
    return [0.5] * len(completions)


def without_kwargs(completions, reference):
    return [float(c == r) for c, r in zip(completions, reference, strict=True)]
