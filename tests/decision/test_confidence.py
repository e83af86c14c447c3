"""The official confidence formulas, against the conformance suite's own and the values of the wire contract."""

import numpy as np
import pytest
from jevcompat import validate

from observer_core.decision.confidence import choice_confidence, score_confidence


def test_the_contracts_examples() -> None:
    assert choice_confidence([0.25, 0.6, 0.15]) == pytest.approx(0.4)
    assert score_confidence([0.6, 0.3, 0.1]) == pytest.approx(0.25)


@pytest.mark.parametrize("options", [1, 2, 3, 10, 255])
def test_agrees_with_the_conformance_suite_on_distributions(options: int) -> None:
    for p in np.random.default_rng(options).dirichlet(np.full(options, 0.3), size=50).tolist():
        assert choice_confidence(p) == pytest.approx(validate.choice_confidence(p), abs=1e-12)
        assert score_confidence(p) == pytest.approx(validate.score_confidence(p), abs=1e-12)


def test_normalises_first_and_takes_all_zero_for_uniform() -> None:
    assert choice_confidence([2, 6, 2]) == pytest.approx(choice_confidence([0.2, 0.6, 0.2]))
    assert score_confidence([2, 6, 2]) == pytest.approx(score_confidence([0.2, 0.6, 0.2]))
    assert choice_confidence([0, 0, 0, 0]) == 0.0


@pytest.mark.parametrize("p", [[], [0.5, float("nan")], [-0.1, 1.1]])
def test_what_is_no_distribution_has_no_confidence(p: list[float]) -> None:
    for confidence in (choice_confidence, score_confidence):
        with pytest.raises(ValueError, match="not a distribution"):
            confidence(p)
