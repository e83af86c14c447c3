"""The declarative plan: which share of runs gets which fault."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from observer_core.errors import InputError
from observer_pipeline.agent.faults.injection import Injection
from observer_pipeline.agent.faults.registry import AS_OFTEN, FAULTS, HARMLESS, TOSSED
from observer_pipeline.agent.faults.values import kind_of, other_side
from observer_pipeline.agent.questions import AgentQuestion

SEED4_RATES = {"contradiction": 0.09, "missing_evidence": 0.085, "early_stop": 0.08, "weak_model": 0.08}
"""About the shares of the seed system's 4,499 labeled runs (398, 372, 368 and 353)."""
ALL_SHARE = 0.4
"""Share of seeded runs under the plan `all`."""

_SPARED = 0.6
"""Share of the faults of `TOSSED` that questions with two possible answers exchange for others."""
_OF_TWO = 1 / 3
"""Share of such questions: yes or no, and which of two."""

NAMED = ("natural", "seed4", "all")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which share of runs gets which fault. The same plan and question always give the same fault.

    Args:
        rates: kind → share of all runs. Where a question offers no place for the fault drawn, another of the plan is
            drawn in its stead, so that every sort of question has the same share of seeded runs and none tells.
        seed: another seed, other runs.
        harmless: whether natural runs get the harmless look-alikes of the plan's faults, so often that the mark says
            nothing (`AS_OFTEN`); without them a failing tool or a cut text would give the fault away.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    harmless: bool = True

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if kind not in FAULTS:
                raise InputError(f"unknown fault {kind!r}; this version knows {', '.join(FAULTS)}")
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise InputError(f"the rate of fault {kind} must be between 0 and 1, not {rate!r}; mend the plan")
        if sum(self.rates.values()) > 1 + 1e-9:
            raise InputError(f"the fault rates add up to {sum(self.rates.values()):g}; they may not exceed 1")

    def inject(self, question: AgentQuestion) -> Injection | None:
        """What is done to this question's run: nothing to most natural ones."""
        rng = random.Random(f"fault:{self.seed}:{question.qid}:{question.question}")
        left = self._rates_for(question)
        kind = _draw(left, rng.random())
        while kind:
            injection = FAULTS[kind](question, rng)
            if injection is not None:
                return injection
            del left[kind]
            kind = _draw(left, rng.random() * sum(left.values()))
        if not self.harmless:
            return None
        natural = 1 - sum(self.rates.values())
        looks = {kind: AS_OFTEN[kind] * rate for kind, rate in self.rates.items() if kind in HARMLESS}
        look = _draw(looks, rng.random() * max(natural, sum(looks.values())))
        return HARMLESS[look](question, rng) if look else None

    def _rates_for(self, question: AgentQuestion) -> dict[str, float]:
        """The rates at a question: of two possible answers a fault of `TOSSED` leaves half right, so these get fewer.

        The others of the plan get more there, and at all other questions it is the other way round: each kind keeps
        its rate, and every sort of question its share of wrong runs.
        """
        tossed = sum(rate for kind, rate in self.rates.items() if kind in TOSSED)
        others = sum(self.rates.values()) - tossed
        if not tossed or not others:
            return dict(self.rates)
        of_two = kind_of(question.answer) == "closed" or other_side(question) is not None
        more = -_SPARED if of_two else min(_SPARED * _OF_TWO / (1 - _OF_TWO), others / tossed)
        return {
            kind: rate * (1 + more if kind in TOSSED else 1 - more * tossed / others)
            for kind, rate in self.rates.items()
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as its YAML holds it."""
        faults = [{"kind": kind, "rate": rate} for kind, rate in self.rates.items()]
        return {"seed": self.seed, "harmless": self.harmless, "faults": faults}

    @classmethod
    def parse(cls, name: str, *, seed: int = 0) -> "FaultPlan":
        """A plan by name (`natural`; `seed4`; `all`: every fault alike) or from a YAML file.

        The file: `faults: [{kind: early_stop, rate: 0.1}]`, and optionally `seed: 7`, `harmless: false`.

        Raises:
            InputError: neither, or the file cannot be used.
        """
        if name == "natural":
            return cls(seed=seed)
        if name == "seed4":
            return cls(SEED4_RATES, seed)
        if name == "all":
            return cls(dict.fromkeys(FAULTS, ALL_SHARE / len(FAULTS)), seed)
        path = Path(name)
        try:
            plan = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"no fault plan {name!r} ({error.strerror}); give {', '.join(NAMED)} or a YAML file"
            ) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}; mend the plan") from error
        return cls._from_yaml(path, plan, seed)

    @classmethod
    def _from_yaml(cls, path: Path, plan: Any, seed: int) -> "FaultPlan":
        mend = "a plan is `faults: [{kind: early_stop, rate: 0.1}]` with an optional `seed` and `harmless`"
        known = {"faults", "seed", "harmless"}
        if not isinstance(plan, dict) or not isinstance(plan.get("faults"), list) or plan.keys() - known:
            raise InputError(f"{path} is not a fault plan; {mend}")
        rates: dict[str, float] = {}
        for number, entry in enumerate(plan["faults"]):
            named = isinstance(entry, dict) and entry.keys() == {"kind", "rate"} and isinstance(entry["kind"], str)
            if not named or entry["kind"] in rates:
                raise InputError(f"{path}: faults[{number}] needs exactly a new kind and its rate; {mend}")
            rates[entry["kind"]] = entry["rate"]
        own, harmless = plan.get("seed", seed), plan.get("harmless", True)
        if isinstance(own, bool) or not isinstance(own, int):
            raise InputError(f"{path}: seed must be a whole number, not {own!r}; mend the plan")
        if not isinstance(harmless, bool):
            raise InputError(f"{path}: harmless must be true or false, not {harmless!r}; mend the plan")
        return cls(rates, own, harmless)


def _draw(shares: Mapping[str, float], roll: float) -> str | None:
    """The kind that a number in [0, 1) falls on; None beyond them all."""
    for kind in sorted(shares):
        roll -= shares[kind]
        if roll < 0:
            return kind
    return None
