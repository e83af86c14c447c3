"""Seeded faults: what is made to go wrong in a run, and the declarative plan that says how often.

A fault acts through the tools (what they return) or the model (how it behaves), so that the trace looks as it would in
life. What was done is kept beside the trace, in the ledger. A new fault is one function and one line in `FAULTS`.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from observer_core.errors import InputError
from observer_pipeline.agent.questions import AgentQuestion, Fact


@dataclass(frozen=True, slots=True)
class Injection:
    """What one fault changes in a run; `details` go into the ledger."""

    kind: str
    details: dict[str, Any]
    withheld: frozenset[str] = frozenset()
    altered: Mapping[str, str] = field(default_factory=dict)
    stop_after: int | None = None
    weak: bool = False


def contradiction(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """One supporting paragraph states something else than the truth, wherever it is shown."""
    texts = {p.title: p.text for p in question.paragraphs}
    usable = [fact for fact in question.facts or _facts_of(question, rng) if fact.alternatives]
    rng.shuffle(usable)
    for fact in usable:
        false = rng.choice(fact.alternatives)
        altered = _replace(texts[fact.title], fact.value, false)
        if altered != texts[fact.title]:
            details = {"title": fact.title, "true": fact.value, "false": false}
            return Injection("contradiction", details, altered={fact.title: altered})
    return None


def missing_evidence(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """One supporting paragraph cannot be found."""
    if not question.supporting_titles:
        return None
    title = rng.choice(question.supporting_titles)
    return Injection("missing_evidence", {"title": title}, withheld=frozenset({title}))


def early_stop(question: AgentQuestion, rng: random.Random) -> Injection | None:
    """The agent answers after fewer tool results than there are supporting paragraphs."""
    after = rng.choice((0, 1, 1, 1))
    if len(question.supporting_titles) <= after:
        return None
    return Injection("early_stop", {"after": after}, stop_after=after)


def weak_model(_question: AgentQuestion, _rng: random.Random) -> Injection:
    """A weaker model does the run."""
    return Injection("weak_model", {}, weak=True)


Fault = Callable[[AgentQuestion, random.Random], Injection | None]
FAULTS: dict[str, Fault] = {
    "contradiction": contradiction,
    "missing_evidence": missing_evidence,
    "early_stop": early_stop,
    "weak_model": weak_model,
}

SEED4_RATES = {"contradiction": 0.09, "missing_evidence": 0.085, "early_stop": 0.08, "weak_model": 0.08}
"""About the shares of the seed system's 4,499 labeled runs (398, 372, 368 and 353)."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which share of runs gets which fault. The same plan and question always give the same fault."""

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if kind not in FAULTS:
                raise InputError(f"unknown fault {kind!r}; this version knows {', '.join(FAULTS)}")
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise InputError(f"the rate of fault {kind} must be between 0 and 1, not {rate!r}; mend the plan")
        if sum(self.rates.values()) > 1 + 1e-9:
            raise InputError(f"the fault rates add up to {sum(self.rates.values()):g}; they may not exceed 1")

    def inject(self, question: AgentQuestion) -> Injection | None:
        """The fault for this question's run: none for a natural run, or where the question offers no place for it."""
        rng = random.Random(f"fault:{self.seed}:{question.qid}:{question.question}")
        roll = rng.random()
        for kind in sorted(self.rates):
            roll -= self.rates[kind]
            if roll < 0:
                return FAULTS[kind](question, rng)
        return None

    @classmethod
    def parse(cls, name: str, *, seed: int = 0) -> "FaultPlan":
        """A plan by name (`natural`, `seed4`) or from YAML: `seed: 7`, `faults: [{kind: early_stop, rate: 0.1}]`.

        Raises:
            InputError: neither, or the file cannot be used.
        """
        if name == "natural":
            return cls(seed=seed)
        if name == "seed4":
            return cls(SEED4_RATES, seed)
        path = Path(name)
        try:
            plan = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"no fault plan {name!r} ({error.strerror}); give natural, seed4 or a YAML file"
            ) from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}; mend the plan") from error
        return cls._from_yaml(path, plan, seed)

    @classmethod
    def _from_yaml(cls, path: Path, plan: Any, seed: int) -> "FaultPlan":
        mend = "a plan is `faults: [{kind: early_stop, rate: 0.1}]` with an optional `seed`"
        if not isinstance(plan, dict) or not isinstance(plan.get("faults"), list) or plan.keys() - {"faults", "seed"}:
            raise InputError(f"{path} is not a fault plan; {mend}")
        rates: dict[str, float] = {}
        for number, entry in enumerate(plan["faults"]):
            if not isinstance(entry, dict) or entry.keys() != {"kind", "rate"} or entry["kind"] in rates:
                raise InputError(f"{path}: faults[{number}] needs exactly a new kind and its rate; {mend}")
            rates[entry["kind"]] = entry["rate"]
        own = plan.get("seed", seed)
        if isinstance(own, bool) or not isinstance(own, int):
            raise InputError(f"{path}: seed must be a whole number, not {own!r}; mend the plan")
        return cls(rates, own)


def _replace(text: str, value: str, other: str) -> str:
    """Put `other` where `value` stands as a whole word."""
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: other, text)


def _facts_of(question: AgentQuestion, rng: random.Random) -> list[Fact]:
    """For a data set that does not say what the answer hangs on: the answer where it is supported, else years."""
    texts = {p.title: p.text for p in question.paragraphs}
    facts = []
    for title in question.supporting_titles:
        text = texts.get(title, "")
        if re.search(rf"(?<!\w){re.escape(question.answer)}(?!\w)", text) and title != question.answer:
            facts.append(Fact(title, question.answer, _others(question, question.answer, rng)))
        elif question.type == "comparison":
            facts += [
                Fact(title, year, (_shift(year, rng),)) for year in re.findall(r"\b1\d{3}\b|\b20\d\d\b", text)[:1]
            ]
    return facts


def _others(question: AgentQuestion, answer: str, rng: random.Random) -> tuple[str, ...]:
    """What could stand in the answer's place: the same with other numbers, else titles of unrelated paragraphs."""
    if re.search(r"\d", answer):
        return (re.sub(r"\d+", lambda match: _shift(match[0], rng), answer),)
    supporting = set(question.supporting_titles)
    return tuple(p.title for p in question.paragraphs if p.title not in supporting and p.title != answer)


def _shift(number: str, rng: random.Random) -> str:
    return str(max(1, int(number) + rng.choice((-1, 1)) * rng.randint(3, 40)))
