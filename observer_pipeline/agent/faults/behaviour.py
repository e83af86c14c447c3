"""How a faulty model behaves, as plain values; the wrappers around a model are in `agent.models.faulty`.

ADK is imported when a wrapper is made, not when a plan is read.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.adk.models import BaseLlm


@dataclass(frozen=True, slots=True)
class StopsEarly:
    """Must answer once `after` tool results have come back."""

    after: int

    def __call__(self, model: "BaseLlm") -> "BaseLlm":
        from observer_pipeline.agent.models.faulty import EarlyStop

        return EarlyStop(model=model.model, inner=model, after=self.after)


@dataclass(frozen=True, slots=True)
class ReadsInstead:
    """Takes the user's question for another one."""

    question: str

    def __call__(self, model: "BaseLlm") -> "BaseLlm":
        from observer_pipeline.agent.models.faulty import Misreading

        return Misreading(model=model.model, inner=model, question=self.question)


@dataclass(frozen=True, slots=True)
class AnswersInstead:
    """Does everything as it should, and then says `answer`; `whole` replaces the reply with all its wording."""

    answer: str
    whole: bool = False

    def __call__(self, model: "BaseLlm") -> "BaseLlm":
        from observer_pipeline.agent.models.faulty import OtherAnswer

        return OtherAnswer(model=model.model, inner=model, answer=self.answer, whole=self.whole)


@dataclass(frozen=True, slots=True)
class Talks:
    """Says `talk` before its answer."""

    talk: str

    def __call__(self, model: "BaseLlm") -> "BaseLlm":
        from observer_pipeline.agent.models.faulty import Talkative

        return Talkative(model=model.model, inner=model, talk=self.talk)


@dataclass(frozen=True, slots=True)
class Obeys:
    """Says `answer` once it has read `order` in a tool's result."""

    order: str
    answer: str

    def __call__(self, model: "BaseLlm") -> "BaseLlm":
        from observer_pipeline.agent.models.faulty import OtherAnswer

        return OtherAnswer(model=model.model, inner=model, answer=self.answer, once_read=self.order)


@dataclass(frozen=True, slots=True)
class Forgets:
    """Sees only the last `keep` tool results of its run, and nothing from before the question."""

    keep: int

    def __call__(self, model: "BaseLlm") -> "BaseLlm":
        from observer_pipeline.agent.models.faulty import Forgetful

        return Forgetful(model=model.model, inner=model, keep=self.keep)
