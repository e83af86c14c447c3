"""How the offline model does a run, its mistake included: drawn without regard to the question.

What it gets wrong on its own is competence noise. Whether a run has a mistake is drawn before the question is looked
at, so that no shape of question and no wording tells; which, and where, is drawn among those that real readers make:
the value of something else, a hop left out, the wrong side of a comparison, a fact overlooked.
"""

import random
from dataclasses import dataclass
from typing import Literal, get_args

Skill = Literal["strong", "weak"]
Mistake = Literal["misreads", "overlooks", "skips", "clips"]
"""Takes the value of something else; does not see what the page states; leaves out a hop; answers with part of a name.

Over a pair each is that it concludes the wrong way round, or calculates wrongly.
"""
_MISTAKES: dict[Mistake, int] = {"misreads": 55, "overlooks": 25, "skips": 15, "clips": 5}
_MISTAKE_RATE: dict[Skill, float] = {"strong": 0.3, "weak": 0.65}


@dataclass(frozen=True, slots=True)
class Temper:
    """How one run is done; drawn anew for every question, and without regard to it."""

    mistake: Mistake | None
    late: float  # where in the chain the mistake happens: 0 at its beginning, 1 at its end
    patience: int  # how often more it makes a call that broke down
    spare: int  # searches beyond the way to the answer
    lookups: float  # chance to open a page by title instead of searching
    whole: float  # chance to search for the whole question first
    admits: float  # chance to say that it found nothing instead of guessing

    @classmethod
    def draw(cls, rng: random.Random, skill: Skill) -> "Temper":
        """A strong model is mostly right; a weak one is often wrong, and opens fewer pages by title."""
        mistaken = rng.random() < _MISTAKE_RATE[skill]
        [mistake] = rng.choices(get_args(Mistake), weights=[_MISTAKES[m] for m in get_args(Mistake)])
        return cls(
            mistake=mistake if mistaken else None,
            late=max(rng.random() for _ in range(3)),
            patience=rng.choice((0, 1, 2) if skill == "strong" else (0, 0, 1)),
            spare=rng.choice((0, 0, 0, 0, 0, 0, 1, 1, 1, 2)),
            lookups=rng.choice((0.1, 0.5, 0.9) if skill == "strong" else (0.0, 0.3)),
            whole=0.5,
            admits=0.35,
        )
