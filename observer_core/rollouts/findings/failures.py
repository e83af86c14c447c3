"""Completions that cannot be read: by class of error and exact bytes; cut off told apart from malformed."""

import numpy as np

from observer_core.rewards.completion import KINDS
from observer_core.rollouts.features import ERROR_CODE, Features
from observer_core.rollouts.findings.base import Search, percent, span_words
from observer_core.rollouts.findings.stats import log_binomial_tail, scan, sharpen


def find_parse_failures(search: Search) -> None:
    """One finding per class of error (but truncation) that is more frequent than tolerated, in all, in some steps or
    in some tasks.
    """
    features = search.features
    if features.plain:
        return
    for kind in KINDS:
        flag = features.error == ERROR_CODE[kind]
        if kind == "truncated" or not flag.any():
            continue
        counts = np.bincount(features.error_at[flag], minlength=len(features.at_names))
        at = features.at_names[int(counts.argmax())]
        what = f"fail as {kind}" + (f" ({at} in {percent(counts.max() / flag.sum())} of them)" if at else "")
        _find(search, "parse_failures", flag, what, f"completions fail as {kind}")


def find_truncation(search: Search) -> None:
    features = search.features
    flag = features.failed("truncated") | (features.truncated == 1)
    malformed = (features.error > 0) & ~flag
    if not flag.any():
        search.reject("completions are cut off: share", 0.0)
        return
    words = (
        f"are cut off: a second way to fail beside the {int(malformed.sum())} malformed ones"
        if malformed.any()
        else "are cut off"
    )
    _find(search, "truncation", flag, words, "completions are cut off")


def _find(search: Search, kind: str, flag: np.ndarray, what: str, hypothesis: str) -> None:
    features = search.features
    total, share = int(flag.sum()), float(flag.mean())
    trials, hits = features.per_step(np.ones(len(features))), features.per_step(flag)
    everywhere = float(log_binomial_tail(total, len(features), search.settings.tolerated_failures))
    window = scan(hits, trials, shortest=1) if len(features.steps) >= 12 else None
    burst = window is not None and search.significant(window.log_p) and total >= 4
    tasks = search.outstanding_tasks(flag)
    if not (search.significant(everywhere) or burst or tasks):
        search.reject(f"{hypothesis}: share", share)
        return
    steps, inside = None, flag
    if burst and window is not None:
        first, last = sharpen(hits, trials, window)
        within = flag & (features.step_index >= first) & (features.step_index <= last)
        if within.sum() >= 0.9 * total and last - first + 1 <= len(features.steps) // 2:
            steps = (int(features.step[within].min()), int(features.step[within].max()))
            inside = within
            # A short window shows few tasks: only within it can one of them stand out.
            tasks = search.outstanding_tasks(flag, (features.step_index >= first) & (features.step_index <= last))
    sentence = f"{total} completions ({percent(share)}) {what}"
    if steps:
        among = (features.step >= steps[0]) & (features.step <= steps[1])
        there = percent(inside[among].mean())
        sentence += f"; {int(inside.sum())} of them in {span_words(steps)}, {there} of the completions there"
    if tasks:
        names = search.names(tasks)
        sentence += (
            f"; most often in {', '.join(names[:3])} ({percent(_share_in(features, flag, tasks))} of their completions)"
        )
    series = {what.split(" (")[0]: features.step_means(flag.astype(float))}
    tasks_named = search.names(tasks)
    search.add(kind, flag, sentence + ".", share=share, tasks=tasks_named, steps=steps, series=series)


def _share_in(features: Features, flag: np.ndarray, tasks: list[int]) -> float:
    among = np.isin(features.task, tasks)
    return float(flag[among].mean())
