"""What alerts watch in a run: a few metrics per step, and the rules that are on by default."""

from collections.abc import Iterator

import numpy as np

from observer_core.alerts import AlertRule
from observer_core.rollouts.features import Features

DEFAULT_RULES = (
    AlertRule(
        "completions cannot be read", "parse_failure_share", 0.25, window=3, min_samples=3, severity="critical",
        message="see which error and bytes: observer rollouts analyze",
    ),
    AlertRule(
        "groups without gradient", "flat_group_share", 0.5, window=5, min_samples=5,
        message="all completions of a prompt score the same",
    ),
    AlertRule("rewards missing", "missing_score_share", 0.0, window=1, message="a reward raised or hung"),
)  # fmt: skip
"""Windows are in steps."""


def step_metrics(features: Features) -> Iterator[tuple[int, dict[str, float]]]:
    """Step and its metrics, in order: shares of unread completions, of groups without variance and of missing scores,
    the mean
    and spread of each reward (`reward.<name>.mean`, `.std`), mean length.
    """
    total = np.nansum(features.scores.astype(np.float64), axis=1)
    size = np.bincount(features.group)
    mean = np.bincount(features.group, weights=total) / np.maximum(size, 1)
    spread = np.bincount(features.group, weights=np.abs(total - mean[features.group]))
    flat = ((spread <= 1e-6 * np.maximum(np.abs(mean), 1) * size) & (size > 1))[features.group]
    series: dict[str, np.ndarray] = {
        "parse_failure_share": features.step_means((features.error > 0).astype(float)),
        "flat_group_share": features.step_means(flat.astype(float)),
        "missing_score_share": features.step_means(np.isnan(features.scores).mean(axis=1)),
        "mean_length": features.step_means(features.length.astype(float)),
    }
    for index, name in enumerate(features.rewards):
        scores = features.scores[:, index].astype(float)
        series[f"reward.{name}.mean"] = features.step_means(scores)
        second = features.step_means(scores**2)
        series[f"reward.{name}.std"] = np.sqrt(np.maximum(second - series[f"reward.{name}.mean"] ** 2, 0))
    for place, step in enumerate(features.steps.tolist()):
        yield step, {name: float(v) for name, values in series.items() if not np.isnan(v := values[place])}
