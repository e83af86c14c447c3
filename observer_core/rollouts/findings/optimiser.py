"""What the optimiser was given: bad completions rewarded, groups without a gradient, rewards that are always zero."""

import numpy as np

from observer_core.rollouts.findings.base import Search, percent, span_words
from observer_core.rollouts.findings.stats import log_binomial_tail, scan, sharpen


def find_optimiser_gap(search: Search) -> None:
    """Advantage above 1 with poor quality: the best of a bad group is rewarded as if it were good."""
    features, settings = search.features, search.settings
    quality = features.score(search.quality)
    strong = features.advantage > settings.gap_advantage
    if quality is None or not strong.any():
        return
    gap = strong & (quality < settings.poor)
    share = gap.sum() / strong.sum()
    overall = float(log_binomial_tail(gap.sum(), strong.sum(), settings.tolerated_gap))
    tasks = search.outstanding_tasks(gap, strong)
    tasks = [t for t in tasks if gap[features.task == t].sum() >= 0.5 * strong[features.task == t].sum()]
    if gap.sum() < 3 or not (search.significant(overall) or tasks):
        search.reject("bad completions are strongly rewarded: share of advantages above 1 with poor quality", share)
        return
    best = np.full(int(features.group.max()) + 1, -np.inf)
    np.maximum.at(best, features.group, np.nan_to_num(quality, nan=-np.inf))
    least_bad = int((best[features.group[gap]] < settings.poor).sum())
    sentence = (
        f"{int(gap.sum())} of {int(strong.sum())} completions with an advantage above {settings.gap_advantage:g} have "
        f"a {search.quality} below {settings.poor:g} ({percent(share)}); {least_bad} of them are the least bad "
        "of a group in which none is good"
    )
    if tasks:
        sentence += f"; most often in {', '.join(search.names(tasks)[:3])}"
    rewards = (search.quality,) if search.quality else ()
    series = {"advantage above 1 with poor quality": features.step_means(gap.astype(float))}
    search.add(
        "optimiser_gap", gap, sentence + ".", share=share, rewards=rewards, tasks=search.names(tasks), series=series
    )


def find_degenerate_groups(search: Search) -> None:
    """Groups whose completions all have the same total reward: no advantage, no gradient."""
    features = search.features
    if not features.rewards or not len(features):
        return
    total = np.nansum(features.scores.astype(np.float64), axis=1)
    size = np.bincount(features.group)
    mean = np.bincount(features.group, weights=total) / size
    spread = np.bincount(features.group, weights=np.abs(total - mean[features.group]))
    flat = (spread <= 1e-6 * np.maximum(np.abs(mean), 1) * size) & (size >= 2)
    share = flat.sum() / max((size >= 2).sum(), 1)
    first_row = np.unique(features.group, return_index=True)[1]
    step_of = features.step_index[first_row]
    hits = np.bincount(step_of, weights=flat, minlength=len(features.steps))
    trials = np.bincount(step_of, weights=size >= 2, minlength=len(features.steps))
    overall = float(log_binomial_tail(flat.sum(), (size >= 2).sum(), search.settings.tolerated_degenerate))
    window = scan(hits, trials, max(share, search.settings.tolerated_degenerate)) if len(features.steps) >= 12 else None
    burst = window is not None and search.significant(window.log_p)
    if not (search.significant(overall) or burst):
        search.reject("groups without variance, hence without gradient: share of groups", share)
        return
    flag = flat[features.group]
    steps = None
    if burst and window is not None:
        first, last = sharpen(hits, trials, window)
        inside = flag & (features.step_index >= first) & (features.step_index <= last)
        if inside.sum() >= 0.9 * flag.sum():
            steps = (int(features.step[inside].min()), int(features.step[inside].max()))
    sentence = (
        f"{int(flat.sum())} of {int((size >= 2).sum())} groups ({percent(share)}) have no variance in their reward"
        f"{f', nearly all in {span_words(steps)}' if steps else ''}: the optimiser learns nothing from them."
    )
    series = {"groups without variance": features.step_means(flag.astype(float))}
    search.add("degenerate_groups", flag, sentence, share=share, steps=steps, series=series)


def find_persistent_zero(search: Search) -> None:
    """A reward that is zero for every completion, from some step to the end of the log."""
    features = search.features
    for index, name in enumerate(features.rewards):
        scores = features.scores[:, index]
        live = np.flatnonzero((scores != 0) & ~np.isnan(scores))
        since = int(features.step_index[live].max()) + 1 if len(live) else 0
        flag = (features.step_index >= since) & (scores == 0)
        rows, steps = int(flag.sum()), len(features.steps) - since
        if rows < 24 or steps < max(5, len(features.steps) // 50):
            search.reject(f"{name} stays zero: steps at the end with nothing but zero", steps)
            continue
        before = features.step_index < since
        alive = float(np.mean(scores[before] != 0)) if before.any() else 1.0
        if not search.significant(rows * float(np.log1p(-min(alive, 1 - 1e-9))), len(features.steps)):
            search.reject(f"{name} stays zero: steps at the end with nothing but zero", steps)
            continue
        span = (int(features.steps[since]), int(features.steps[-1]))
        never = "in the whole log" if since == 0 else f"from step {span[0]} on; before, {percent(alive)} were not"
        sentence = f"{name} is zero for all {rows} completions {never}."
        series = {name: features.step_means(scores.astype(float))}
        search.add(
            "persistent_zero", flag, sentence, share=rows / len(features), rewards=(name,), steps=span, series=series
        )
