"""The promotion gate: may the challenger replace the champion? One function for command, check and report.

The answer is a recorded verdict with its reasons, never a failure: 'the champion stays' is a successful night.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from observer_core.errors import InputError
from observer_core.metrics.predictions import Sample, pair, sample_of, scorers_of
from observer_core.metrics.probability import paired_mean, squared_error
from observer_core.metrics.ranking import paired_auroc


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What the gate asks for.

    Attributes:
        min_test_questions: user questions of the test split. 200 give about 80 % power for AUROC 0.85 against 0.75;
            40 give 24 %.
        alpha: the chance, over all nights on one test set, of promoting a challenger that ranks no better.
        max_brier_increase: how much worse the Brier score may be.
    """

    min_test_questions: int = 200
    alpha: float = 0.05
    max_brier_increase: float = 0.0

    def __post_init__(self) -> None:
        if self.min_test_questions < 2:
            raise InputError(f"min_test_questions must be at least 2, not {self.min_test_questions}")
        if not 0 < self.alpha < 0.5:
            raise InputError(f"alpha must be above 0 and below 0.5, not {self.alpha}")
        if not self.max_brier_increase >= 0:
            raise InputError(f"max_brier_increase must be at least 0, not {self.max_brier_increase}")


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether to promote, and why or why not in plain sentences; `numbers` is what they rest on."""

    promote: bool
    reasons: list[str]
    challenger: str
    champion: str | None
    baseline: str | None
    numbers: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        """The verdict as one line."""
        if self.promote:
            return f"{self.challenger} may be promoted."
        return f"{self.champion} stays." if self.champion else f"{self.challenger} is not promoted."


def alpha_of_night(alpha: float, nights_before: int) -> float:
    """The error spent tonight: alpha · 6 / (π² k²) on night k, which sums to alpha over any number of nights.

    A union bound over the Basel series (alpha spending, in the sense of Foster & Stine, J. R. Stat. Soc. B 70, 2008):
    valid whatever the dependence between nights, as long as each night's challenger meets the test split once.
    """
    return alpha * 6 / (math.pi**2 * (nights_before + 1) ** 2)


def gate(
    predictions: pa.Table,
    *,
    challenger: str,
    champion: str | None,
    baseline: str | None,
    settings: GateSettings | None = None,
    nights_before: int = 0,
) -> GateVerdict:
    """Judge the challenger on the labeled traces of the split `test`.

    It must rank better (AUROC) than the champion and than the baseline, each with the lower bound of the paired
    difference, clustered by user question, above 0 at tonight's share of the error; on at least the stated number of
    user questions; and its Brier score must not be worse. Both comparisons have to succeed, so they need no correction
    between them.

    Args:
        champion: `None` when nothing serves yet.
        nights_before: how many verdicts this test set has already given.
    """
    settings = settings or GateSettings()
    alpha = alpha_of_night(settings.alpha, nights_before)
    numbers: dict[str, Any] = {
        "alpha": alpha,
        "night": nights_before + 1,
        "min_test_questions": settings.min_test_questions,
    }
    rivals = {
        role: name
        for role, name in (("champion", champion), ("baseline", baseline))
        if name is not None and not (role == "baseline" and name in (challenger, champion))
    }
    findings = _obstacles(scorers_of(predictions), challenger, rivals)
    if not findings:
        mine = sample_of(predictions, challenger, split="test")
        numbers["test_questions"] = mine.groups
        findings.append(
            Finding(
                mine.groups >= settings.min_test_questions,
                f"There are {mine.groups} test questions; the gate asks for {settings.min_test_questions}.",
            )
        )
        if champion is None:
            findings.append(Finding(True, "There is no champion to beat."))
        for role, name in rivals.items():
            found = _against(mine, sample_of(predictions, name, split="test"), _title(role, name), alpha, settings)
            numbers[role] = {"scorer": name, **found.numbers}
            findings += found.findings
    findings.sort(key=lambda finding: finding.met)  # what stands in the way comes first
    return GateVerdict(
        promote=all(finding.met for finding in findings),
        reasons=[finding.sentence for finding in findings],
        challenger=challenger,
        champion=champion,
        baseline=baseline,
        numbers=numbers,
    )


class Finding(NamedTuple):
    """One condition of the gate: whether it is met, and the sentence that says so."""

    met: bool
    sentence: str


class _Comparison(NamedTuple):
    findings: list[Finding]
    numbers: dict[str, Any]


def _title(role: str, name: str) -> str:
    return f"the {role}" if name == role else f"the {role} {name}"


def _obstacles(known: list[str], challenger: str, rivals: dict[str, str]) -> list[Finding]:
    """Why there is nothing to compare."""
    if challenger in rivals.values():
        return [Finding(False, f"{challenger} is the champion already.")]
    if not rivals:
        return [Finding(False, "There is neither a champion nor a baseline to compare with.")]
    return [
        Finding(False, f"{name} has no predictions on these traces.")
        for name in dict.fromkeys([challenger, *rivals.values()])
        if name not in known
    ]


def _against(mine: Sample, theirs: Sample, rival: str, alpha: float, settings: GateSettings) -> _Comparison:
    """The conditions towards one rival."""
    a, b = pair(mine, theirs)
    level = 1 - 2 * alpha  # two-sided, so that each bound errs with probability alpha
    auroc = paired_auroc(a, b, level=level)
    brier = paired_mean(squared_error(a), squared_error(b), a, level=level)
    numbers = {"n": a.n, "questions": a.groups, "auroc": auroc.to_json(), "brier": brier.to_json()}
    if a.n < max(mine.n, theirs.n):
        sentence = (
            f"It was not scored on the same test traces as {rival} ({mine.n} and {theirs.n} traces, {a.n} in common)."
        )
        return _Comparison([Finding(False, sentence)], numbers)
    if auroc.lo is None or brier.value is None:
        reason = auroc.reason or brier.reason
        return _Comparison([Finding(False, f"It cannot be compared with {rival}: {reason}.")], numbers)
    better = auroc.lo > 0
    no_worse = brier.value <= settings.max_brier_increase
    return _Comparison(
        [
            Finding(
                better,
                f"It {'ranks' if better else 'is not shown to rank'} better than {rival}: AUROC {auroc.value:+.3f}, "
                f"at least {auroc.lo:+.3f} with {100 * (1 - alpha):.4g} % confidence.",
            ),
            Finding(
                no_worse,
                f"Its probabilities are {'no worse' if no_worse else 'worse'} than those of {rival}: "
                f"Brier score {brier.value:+.4f} (less is better).",
            ),
        ],
        numbers,
    )
