"""What a batch of runs is made of, and the questions it asks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from observer_core.errors import InputError
from observer_pipeline.agent.faults import FaultPlan
from observer_pipeline.agent.models.choose import check_model
from observer_pipeline.agent.questions import AgentQuestion
from observer_pipeline.agent.sources import read_questions
from observer_pipeline.agent.world import generate_world

OFFLINE, OFFLINE_WEAK = "offline", "offline-weak"


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What to generate.

    Args:
        questions: how many runs, one per question.
        seed: of the world and of the offline model's manners.
        faults: the plan of seeded faults.
        workers: processes that run the agent.
        endpoint: where the spans are exported by OTLP/HTTP as well (`http://host:4318`).
        service_name: `service.name` of the spans.
        project: `openinference.project.name` of the spans.
        source: where the questions come from, in order (see `read_questions`); the generated world when None.
        first: index of the first question, so that later calls go on where earlier ones stopped.
        tool_calls, steps: the budget of a run.
        whole_corpus: let the tools search all paragraphs of the source instead of the question's own.
        model, weak_model: what runs the agent, and its weak runs (see `models.choose.build_model`).
        reproducible: make ids and times from the seed too; else they are random and real.
    """

    questions: int
    seed: int = 0
    faults: FaultPlan = field(default_factory=FaultPlan)
    workers: int = 1
    endpoint: str | None = None
    service_name: str = "observer-agent"
    project: str = "observer"
    source: str | None = None
    first: int = 0
    tool_calls: int = 6
    steps: int = 10
    whole_corpus: bool = False
    model: str = OFFLINE
    weak_model: str = OFFLINE_WEAK
    reproducible: bool = False

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InputError: says which option.
        """
        if self.questions < 1 or self.workers < 1:
            raise InputError("the numbers of questions and workers must be at least 1; give larger ones")
        if self.whole_corpus and self.source is None:
            raise InputError("the generated world has no common corpus; give a question file to search whole")
        for spec in (self.model, self.weak_model):
            check_model(spec)

    def to_json(self) -> dict[str, Any]:
        """Everything that the traces depend on: a batch can only be resumed with the same."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("workers", "faults")}
        return values | {"faults": self.faults.to_json()}


def questions_of(options: GenerateOptions) -> Iterator[AgentQuestion]:
    """The questions of these options, in order.

    Raises:
        InputError: the source cannot be used or has too few questions.
    """
    last = options.first + options.questions
    if options.source is None:
        yield from generate_world(last, options.seed, first=options.first)
        return
    questions = read_questions(options.source)
    if len(questions) < last:
        raise InputError(f"{options.source} has {len(questions)} questions, not {last}; ask for fewer")
    yield from questions[options.first : last]
