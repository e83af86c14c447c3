"""How well something can be guessed: cross-validated scores, and an AUROC that holds known things equal.

Needs scikit-learn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDS = 5
PERMUTATIONS = 400
CHANCE_LEVEL = 0.99
"""How much of what happens by chance counts as chance; a report makes a dozen such comparisons."""


@dataclass(frozen=True, slots=True)
class Guess:
    """How well a target was guessed.

    Attributes:
        auroc: over pairs of rows that are alike in what is held equal; None when there are none.
        low, high: the range of this AUROC under chance, from the mean and spread over permutations within what is held
            equal.
        n: rows.
    """

    auroc: float | None
    low: float
    high: float
    n: int

    @property
    def beats_chance(self) -> bool:
        """Whether the guess is better than chance explains."""
        return self.auroc is not None and self.auroc > self.high

    def __str__(self) -> str:
        if self.auroc is None:
            return "– (nothing to compare)"
        return f"{self.auroc:.3f} (chance: {self.low:.3f} to {self.high:.3f})"


def guess(
    features: Any,
    target: NDArray[np.bool_],
    groups: Sequence[str],
    *,
    equal: Sequence[Any] | None = None,
    trees: bool = False,
    comparisons: int = 1,
    seed: int = 0,
) -> Guess:
    """Train on four fifths of the questions, guess the fifth, and see how well that ranks.

    Args:
        features: shape (rows, features), dense or sparse.
        target: shape (rows,), what is guessed.
        groups: the user question of each row; no question is in two folds.
        equal: what is held equal: only rows with the same value are compared with each other.
        trees: add boosted trees to the logistic regression (dense features only); their scores are averaged.
        comparisons: how many such guesses are made together; the range of chance is as wide as all need (Bonferroni).
        seed: of the permutations.
    """
    strata = _codes(equal if equal is not None else [0] * len(target))
    if min(int(target.sum()), int((~target).sum())) < FOLDS:
        return Guess(None, 0.0, 1.0, len(target))
    scores = _out_of_fold(features, target, groups, trees=trees)
    found = stratified_auroc(scores, target, strata)
    if found is None:
        return Guess(None, 0.0, 1.0, len(target))
    rng = np.random.default_rng(seed)
    chance = []
    for _ in range(PERMUTATIONS):
        shuffled = target.copy()
        for stratum in np.unique(strata):
            rows = np.flatnonzero(strata == stratum)
            shuffled[rows] = target[rng.permutation(rows)]
        chance.append(stratified_auroc(scores, shuffled, strata))
    reach = NormalDist().inv_cdf(1 - (1 - CHANCE_LEVEL) / 2 / comparisons) * float(
        np.std(np.array(chance, dtype=float))
    )
    middle = float(np.mean(np.array(chance, dtype=float)))
    return Guess(found, max(0.0, middle - reach), min(1.0, middle + reach), len(target))


def stratified_auroc(scores: NDArray[np.float64], target: NDArray[np.bool_], strata: NDArray[np.int64]) -> float | None:
    """The share of right-ranked pairs among all pairs of a positive and a negative row of one stratum; ties half."""
    right, pairs = 0.0, 0
    for stratum in np.unique(strata):
        rows = strata == stratum
        positive, negative = scores[rows & target], np.sort(scores[rows & ~target])
        if len(positive) and len(negative):
            below = np.searchsorted(negative, positive, "left")
            upto = np.searchsorted(negative, positive, "right")
            right += float((below + upto).sum()) / 2
            pairs += len(positive) * len(negative)
    return right / pairs if pairs else None


def _out_of_fold(
    features: Any, target: NDArray[np.bool_], groups: Sequence[str], *, trees: bool
) -> NDArray[np.float64]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler
    from threadpoolctl import threadpool_limits

    scores = np.zeros(len(target))
    if isinstance(features, np.ndarray):
        features = features[:, (features != features[0]).any(axis=0)]  # what never varies costs time and tells nothing
        if not features.shape[1]:
            return scores
    # Sparse features keep their zeros.
    scaler = StandardScaler if isinstance(features, np.ndarray) else MaxAbsScaler
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    for train, test in folds.split(features, target, _codes(groups)):
        models: list[Any] = [make_pipeline(scaler(), LogisticRegression(C=0.3, max_iter=2000))]
        if trees:
            models.append(HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=0))
        with threadpool_limits(1):  # on so few rows threads wait for each other, for minutes where the cores are busy
            for model in models:
                scores[test] += model.fit(features[train], target[train]).predict_proba(features[test])[:, 1]
    return scores


def _codes(values: Sequence[Any]) -> NDArray[np.int64]:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
