"""Collapse: several rewards fall together for some steps and recover; and why, tested step by step."""

import numpy as np

from observer_core.rewards.completion import JSON_KINDS
from observer_core.rollouts.features import Features
from observer_core.rollouts.findings.base import Search, percent, span_words
from observer_core.rollouts.findings.stats import Window, running_median, scan, sharpen, window_lengths

_MOST = 5
"""Windows looked for in one log."""
_SHORTEST = 12
"""Steps below which a log is too short for windows."""


def find_collapse(search: Search) -> None:
    features = search.features
    if len(features.steps) < _SHORTEST or len(features.rewards) < 2:
        return
    dead = dead_rows(features)
    trials = features.per_step(np.ones(len(features)))
    hits = features.per_step(dead)
    taken = np.zeros(len(features.steps), bool)
    for _ in range(_MOST):
        window = scan(np.where(taken, 0, hits), np.where(taken, 0, trials))
        if window is None or not search.significant(window.log_p):
            break
        first, last = sharpen(np.where(taken, 0, hits), np.where(taken, 0, trials), window)
        first, last = _edges_of_the_cause(features, dead, trials, first, last)
        inside, outside = _shares(hits, trials, first, last, ~taken)
        if last - first + 1 > len(features.steps) // 2 or inside < 0.3 or inside < 2 * outside:
            break
        taken[first : last + 1] = True
        _report(search, first, last, dead, outside)
    _falls_of_the_mean(search, taken)
    if not any(f.kind == "collapse" for f in search.findings):
        search.reject(
            "several rewards collapse together: share of completions with all of them at their lowest", dead.mean()
        )


def dead_rows(features: Features) -> np.ndarray:
    """Completions for which at least half of the rewards (two or more) are at their lowest; rewards that mostly are
    do not count.
    """
    scores = features.scores
    with np.errstate(invalid="ignore"):
        lowest = np.nanmin(np.where(np.isnan(scores), np.inf, scores), axis=0)
        floored = scores == lowest
    moving = (floored.mean(axis=0) < 0.5) & (np.nanmax(np.where(np.isnan(scores), -np.inf, scores), axis=0) > lowest)
    needed = max(2, -(-int(moving.sum()) // 2))
    return floored[:, moving].sum(axis=1) >= needed


def _edges_of_the_cause(
    features: Features, dead: np.ndarray, trials: np.ndarray, first: int, last: int
) -> tuple[int, int]:
    """The window's edges again, from the one class of error behind most of its zeros: others go on beside it."""
    zeros = dead & (features.step_index >= first) & (features.step_index <= last)
    classes = np.bincount(features.error[zeros])
    code = int(classes.argmax())
    if code == 0 or classes[code] < 0.5 * zeros.sum():
        return first, last
    hits = features.per_step(dead & (features.error == code))
    return sharpen(hits, trials, Window(first, last, 0.0))


def _shares(hits: np.ndarray, trials: np.ndarray, first: int, last: int, free: np.ndarray) -> tuple[float, float]:
    inside = np.zeros(len(hits), bool)
    inside[first : last + 1] = True
    rest = free & ~inside
    return hits[inside].sum() / max(trials[inside].sum(), 1), hits[rest].sum() / max(trials[rest].sum(), 1)


def _report(search: Search, first: int, last: int, dead: np.ndarray, outside: float) -> None:
    features = search.features
    steps = (int(features.steps[first]), int(features.steps[last]))
    inside = (features.step_index >= first) & (features.step_index <= last)
    zeros = dead & inside
    recovers = last < len(features.steps) - 1
    rewards, fall = _falling(features, inside)
    share = zeros.sum() / max(inside.sum(), 1)
    sentence = (
        f"{span_words(steps).capitalize()}: {len(rewards)} rewards fall together by {percent(fall)}"
        f"{' and recover' if recovers else ' and have not recovered when the log ends'}; {int(zeros.sum())} of "
        f"{int(inside.sum())} completions are at the bottom of them all ({percent(outside)} elsewhere). "
        + _cause(search, inside, zeros)
    )
    series = {name: features.step_means(features.scores[:, features.rewards.index(name)]) for name in rewards}
    search.add("collapse", zeros, sentence, share=share, rewards=rewards, steps=steps, series=series)


def _falling(features: Features, inside: np.ndarray) -> tuple[tuple[str, ...], float]:
    """Rewards whose mean in the window is lower by a quarter of their range or of their level, and the mean relative
    fall.
    """
    names, falls = [], []
    for index, name in enumerate(features.rewards):
        scores = features.scores[:, index].astype(float)
        within, beyond = np.nanmean(scores[inside]), np.nanmean(scores[~inside])
        base = beyond - np.nanmin(scores)
        if base > 0 and (beyond - within) / base >= 0.25:
            names.append(name)
            falls.append((beyond - within) / base)
    return tuple(names), float(np.mean(falls)) if falls else 0.0


def _cause(search: Search, inside: np.ndarray, zeros: np.ndarray) -> str:
    """Zero scores against parse failures: which class of error explains the zeros, and what does not."""
    features = search.features
    total = int(zeros.sum())
    unread = features.failed(*JSON_KINDS)
    where = "in the window"
    read_zeros = int((zeros & ~unread).sum())
    if read_zeros < 0.05 * total:
        search.reject(
            f"bad answers explain the collapse: share of its zeros {where} that could be read",
            read_zeros / max(total, 1),
        )
    truncated = features.failed("truncated") | (features.truncated == 1)
    cut = (zeros & truncated).sum() / max(total, 1)
    if cut < 0.05:
        search.reject(f"truncation explains the collapse: share of its zeros {where} that are cut off", cut)
    longer = features.length[inside].mean() / max(features.length[~inside].mean(), 1)
    if 0.8 < longer < 1.25:
        search.reject(f"longer completions explain the collapse: mean length {where} over that elsewhere", longer)
    by_task = np.bincount(features.task[zeros], minlength=len(features.task_names))
    most = by_task.max() / max(total, 1)
    if most < 0.5 and len(features.task_names) > 1:
        search.reject("one task explains the collapse: largest share of its zeros from one task", most)
    classes = np.bincount(features.error[zeros & unread], minlength=len(JSON_KINDS) + 1)
    code = int(classes.argmax())
    if read_zeros >= 0.5 * total or not classes.any():
        return f"{read_zeros} of the {total} could be read: these are bad answers, not parse failures."
    kind = JSON_KINDS[code - 1]
    of_class = features.error == code
    at = _bytes(features, zeros & of_class)
    hit, alive = int((zeros & of_class).sum()), int((inside & of_class & ~zeros).sum())
    exact = hit == total and alive == 0
    return (
        f"Its zeros are {'exactly the' if exact else f'{hit} of {total} times'} completions with {kind}{at}; "
        f"{alive} completions with that fault kept a score, {read_zeros} zeros could be read."
    )


def _bytes(features: Features, flag: np.ndarray) -> str:
    counts = np.bincount(features.error_at[flag], minlength=len(features.at_names))
    top = features.at_names[int(counts.argmax())] if counts.any() else ""
    return f" ({top})" if top else ""


def _falls_of_the_mean(search: Search, taken: np.ndarray) -> None:
    """Collapses that are no zeros: at least two rewards whose step means fall far below their running median
    together.
    """
    features = search.features
    steps = len(features.steps)
    drops, bases = [], []
    of_task = np.bincount(features.task)
    for index in range(len(features.rewards)):
        scores = features.scores[:, index].astype(float)
        filled = np.where(np.isnan(scores), np.nanmean(scores), scores)
        # A step shows a few tasks, and some are harder: what is left after the task's own mean is comparable.
        task_means = np.bincount(features.task, weights=filled) / np.maximum(of_task, 1)
        means = features.step_means(scores - task_means[features.task] + filled.mean())
        base = running_median(means, steps // 2)
        noise = 1.4826 * float(np.nanmedian(np.abs(means - base)))
        low = float(np.nanmin(features.scores[:, index]))
        if noise <= 0 or not np.isfinite(noise):
            continue
        drops.append(np.nan_to_num((means - base) / noise))
        bases.append(np.nan_to_num((base - means) / np.maximum(base - low, 1e-9)))
    if len(drops) < 2:
        return
    z, fall = np.stack(drops), np.stack(bases)
    z[:, taken], fall[:, taken] = 0.0, 0.0
    best: tuple[float, int, int] | None = None
    critical = np.sqrt(-2 * search.log_alpha + 2 * np.log(max(steps, 2)))
    for length in window_lengths(steps, 3):
        if length > steps // 2:
            break
        sums = np.cumsum(np.pad(z, ((0, 0), (1, 0))), axis=1)
        falls = np.cumsum(np.pad(fall, ((0, 0), (1, 0))), axis=1)
        level = (sums[:, length:] - sums[:, :-length]) / np.sqrt(length)
        share = (falls[:, length:] - falls[:, :-length]) / length
        together = ((level < -critical) & (share >= search.settings.collapse_drop)).sum(axis=0)
        strength = np.where(together >= 2, level.sum(axis=0), 0.0)
        at = int(strength.argmin())
        if strength[at] < 0 and (best is None or strength[at] < best[0]):
            best = (float(strength[at]), at, at + length - 1)
    if best is None:
        return
    window = Window(best[1], best[2], 0.0)
    steps_words = (int(features.steps[window.first]), int(features.steps[window.last]))
    inside = (features.step_index >= window.first) & (features.step_index <= window.last)
    rewards, mean_fall = _falling(features, inside)
    if len(rewards) < 2:
        return
    sentence = (
        f"{span_words(steps_words).capitalize()}: {', '.join(rewards)} fall together by {percent(mean_fall)} "
        "without reaching zero; "
        f"{int((features.error[inside] > 0).sum())} of the {int(inside.sum())} completions could not be read."
    )
    series = {name: features.step_means(features.scores[:, features.rewards.index(name)]) for name in rewards}
    search.add("collapse", inside, sentence, share=mean_fall, rewards=rewards, steps=steps_words, series=series)
