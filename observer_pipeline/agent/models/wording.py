"""How the offline model words what it says: before a call, and around its answer."""

import random
from typing import Any

_WRAPPINGS = (
    "Answer: {x}", "**{x}**", "{x}.", "The answer is {x}.", "From what I found, the answer is {x}.",
    "I searched for it and read what came up. The answer is {x}.", "Yes, I found it. Answer: {x}",
)  # fmt: skip


def said_before(name: str, args: dict[str, Any], rng: random.Random) -> str:
    """What it says before a tool call; mostly nothing."""
    if rng.random() < 0.5:
        return ""
    subject = next(iter(args.values()), "")
    if name == "lookup":
        return rng.choice((f"Let me open the page on {subject}.", f"I will look up {subject}."))
    return rng.choice((f"I need to search for {subject}.", f"Next: {subject}.", "Let me search for that."))


def worded(value: str, rng: random.Random) -> str:
    """Mostly the bare answer as instructed, sometimes with the usual wrapping or some talk."""
    if not value or value.startswith("I ") or rng.random() < 0.7:
        return value
    return rng.choice(_WRAPPINGS).format(x=value)
