"""Habits and drift: one stated confidence again and again, duplicates in a group, lengths and variety that move."""

import numpy as np

from observer_core.rollouts.findings.base import Search, percent, span_words
from observer_core.rollouts.findings.stats import Window, log_binomial_tail, scan, sharpen, trend

_END = 3
"""A window that ends so few steps before the log does lasts to its end."""


def find_habit(search: Search) -> None:
    """A stated confidence that stands out: much more frequent than tolerated and than any other value."""
    features = search.features
    stated = ~np.isnan(features.confidence)
    if stated.sum() < 50:
        return
    values, counts = np.unique(np.round(features.confidence[stated], 6), return_counts=True)
    order = np.argsort(-counts)[:3]
    found = False
    for candidate in order:
        found = _habit(search, float(values[candidate]), stated) or found
    if not found:
        search.reject(
            "one confidence is stated again and again: share of the most frequent value", counts.max() / counts.sum()
        )


def _habit(search: Search, value: float, stated: np.ndarray) -> bool:
    features = search.features
    flag = stated & (np.abs(features.confidence - value) < 1e-6)
    hits, trials = features.per_step(flag), features.per_step(stated)
    first, last = 0, len(features.steps) - 1
    shortest = max(3, len(features.steps) // 10)
    window = None
    if len(features.steps) >= 12:
        window = scan(hits, trials, shortest=shortest)
    if window is not None and search.significant(window.log_p):
        first, last = sharpen(hits, trials, window)
        if last - first + 1 < shortest:
            first, last = window.first, window.last
        if len(features.steps) - 1 - last <= _END:
            last = len(features.steps) - 1
    inside = (features.step_index >= first) & (features.step_index <= last)
    chosen, among = flag & inside, stated & inside
    others = np.unique(np.round(features.confidence[among & ~flag], 6), return_counts=True)[1]
    second = int(others.max()) if len(others) else 0
    share = chosen.sum() / max(among.sum(), 1)
    stands_out = float(log_binomial_tail(chosen.sum(), among.sum(), search.settings.habit_share))
    against = float(log_binomial_tail(chosen.sum(), chosen.sum() + second, 0.5))
    if not (search.significant(stands_out, 3) and search.significant(against, 3) and chosen.sum() >= 2 * second):
        return False
    steps = (int(features.step[chosen].min()), int(features.step[chosen].max()))
    count, total = int(chosen.sum()), int(among.sum())
    words = f"{count} of {total} stated confidences in {span_words(steps)} are {value:g} ({percent(share)})"
    if (quality := features.score(search.quality)) is not None and (~np.isnan(quality[chosen])).any():
        low = float(np.mean(quality[chosen] < search.settings.poor))
        words += f", whatever the answer: mean {search.quality} {np.nanmean(quality[chosen]):.2f}, {percent(low)} poor"
    series = {f"confidence {value:g}": features.step_means(np.where(stated, flag, np.nan).astype(float))}
    search.add("habit", chosen, words + ".", share=share, steps=steps, series=series)
    return True


def find_duplicates(search: Search) -> None:
    """Completions that repeat another one of their group to the letter."""
    features = search.features
    order = np.lexsort((features.text_digest, features.group))
    group, text = features.group[order], features.text_digest[order]
    same = np.zeros(len(features), bool)
    same[1:] = (group[1:] == group[:-1]) & (text[1:] == text[:-1])
    flag = np.zeros(len(features), bool)
    flag[order] = same
    share = float(flag.mean()) if len(flag) else 0.0
    tolerated = search.settings.tolerated_duplicates
    hits, trials = features.per_step(flag), features.per_step(np.ones(len(features)))
    window: Window | None = scan(hits, trials, max(share, tolerated)) if len(features.steps) >= 12 else None
    overall = float(log_binomial_tail(flag.sum(), len(features), tolerated))
    burst = window is not None and search.significant(window.log_p)
    if not (search.significant(overall) or burst):
        search.reject("completions of a group repeat each other: share that repeats another", share)
        return
    steps = None
    if burst and window is not None:
        first, last = sharpen(hits, trials, window)
        steps = (int(features.steps[first]), int(features.steps[last]))
    sentence = (
        f"{int(flag.sum())} completions ({percent(share)}) repeat another one of their group to the letter"
        f"{f', most in {span_words(steps)}' if steps else ''}: a group of copies explores nothing."
    )
    series = {"repeats another": features.step_means(flag.astype(float))}
    search.add("duplicates", flag, sentence, share=share, steps=steps, series=series)


def find_drift(search: Search) -> None:
    """Length, or the variety of answers within a group, that moves by half or more over the run."""
    features = search.features
    if len(features.steps) < 24:
        return
    everything = np.ones(len(features), bool)
    _drift(search, "mean length", features.length.astype(float), everything)
    order = np.lexsort((features.answer_digest, features.group))
    group, answer = features.group[order], features.answer_digest[order]
    fresh = np.ones(len(features), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (answer[1:] != answer[:-1])
    distinct = np.zeros(len(features))
    distinct[order] = fresh
    read = features.error == 0
    _drift(search, "share of distinct answers in a group", np.where(read, distinct, np.nan), read)


def _drift(search: Search, what: str, values: np.ndarray, among: np.ndarray) -> None:
    features = search.features
    means = features.step_means(values)
    quarter = max(6, len(means) // 4)
    before, after = np.nanmean(means[:quarter]), np.nanmean(means[-quarter:])
    change = after / before - 1 if before > 0 else 0.0
    rho, log_p = trend(means)
    if (
        abs(change) < search.settings.drift_change
        or not search.significant(log_p)
        or rho * change < 0
        or abs(rho) < 0.3
    ):
        search.reject(f"{what} drifts: change from the first to the last quarter of the run", change)
        return
    flag = among & (features.step_index >= len(means) - quarter)
    sentence = f"{what.capitalize()} goes from {before:.3g} to {after:.3g} over the run ({change:+.0%})."
    span = (int(features.steps[0]), int(features.steps[-1]))
    search.add("drift", flag, sentence, share=abs(change), steps=span, series={what: means})
