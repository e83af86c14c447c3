"""What a fault changes in one run: the pages its tools find, what they hand back, or how its model behaves."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from observer_pipeline.agent.questions import AgentQuestion, Paragraph

if TYPE_CHECKING:
    from google.adk.models import BaseLlm

ResultFault = Callable[[int, str, dict[str, Any]], dict[str, Any]]
"""(number of the call from 0, tool, its true result) → what the agent gets instead."""
ModelFault = Callable[["BaseLlm"], "BaseLlm"]
"""The model → the model that behaves badly; what the inner model is made to believe shows in no span."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What is done to one run; never seen by its spans, always in the ledger.

    Attributes:
        kind: the fault's name; for a harmless disturbance the name of the fault that it looks like.
        details: what exactly was done, for the ledger.
        harmless: the disturbance alone, from which a sound agent recovers; such a run counts as natural.
        pages: title → the paragraph found instead, or None where none is found.
        late: the title of a paragraph that is not found the first time it should be.
        results: acts on what the tools return.
        model: acts on the model.
        weak: a weaker model does the run.
        history: earlier (user, agent) turns of the same chat.
    """

    kind: str
    details: dict[str, Any]
    harmless: bool = False
    pages: Mapping[str, Paragraph | None] = field(default_factory=dict)
    late: str | None = None
    results: ResultFault | None = None
    model: ModelFault | None = None
    weak: bool = False
    history: tuple[tuple[str, str], ...] = ()


Fault = Callable[[AgentQuestion, random.Random], Injection | None]
"""Finds the place for a fault in a question's run; None where it offers none."""
