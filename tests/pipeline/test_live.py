"""Drift is told from chance."""

import numpy as np
import pytest

from observer_pipeline.live import score_drift


def test_the_distance_is_the_largest_gap_of_the_distributions():
    drift = score_drift([0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.5, 0.6])
    assert drift.distance == pytest.approx(0.5)
    assert (drift.live, drift.reference) == (4, 4)
    assert not drift.drifted  # four traces say nothing


def test_equal_traffic_rarely_counts_as_drift_and_shifted_traffic_does():
    rng = np.random.default_rng(0)
    reference = rng.beta(2, 5, 400)
    equal = [
        score_drift(rng.beta(2, 5, 300), reference_again).drifted for reference_again in rng.beta(2, 5, (300, 400))
    ]
    assert sum(equal) <= 10  # 1 % of 300 expected; ten or fewer in all but a few of a thousand seeds
    assert score_drift(rng.beta(3, 4, 300), reference).drifted
