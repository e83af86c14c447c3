"""Tasks on which independent findings agree."""

import math

import numpy as np

from observer_core.rollouts.findings.base import Search
from observer_core.rollouts.findings.stats import log_fisher_tail

_ROW_KINDS = ("parse_failures", "truncation", "habit", "optimiser_gap", "degenerate_groups", "duplicates", "collapse")
"""Findings whose evidence is single completions; those about a whole run say nothing of a task."""


def find_convergent_tasks(search: Search) -> None:
    """Tasks that stand out in at least two findings and take part in three."""
    features = search.features
    flags: dict[str, np.ndarray] = {}
    among: dict[str, np.ndarray] = {}
    for finding in search.findings:
        if finding.kind in _ROW_KINDS:
            flag = flags.setdefault(finding.kind, np.zeros(len(features), bool))
            flag |= np.isin(features.row, finding.rows, assume_unique=True)
            base = among.setdefault(finding.kind, np.zeros(len(features), bool))
            base |= (features.step >= finding.steps[0]) & (features.step <= finding.steps[1])
    names = features.task_names
    if len(flags) < 2 or len(names) < 2:
        return
    outstanding = np.zeros(len(names), int)
    present = np.zeros(len(names), int)
    reasons: list[list[str]] = [[] for _ in names]
    tried = len(names) * len(flags)
    for kind, flag in flags.items():
        hits = np.bincount(features.task[flag], minlength=len(names))
        # Only steps in which the finding was at work: a short window shows few tasks and says nothing of the others.
        size = np.bincount(features.task[among[kind]], minlength=len(names))
        log_p = log_fisher_tail(hits, size, hits.sum(), size.sum())
        high = (hits >= 3) & (log_p + math.log(tried) < search.log_alpha)
        outstanding += high
        present += hits >= 2
        for task in np.flatnonzero(high):
            reasons[task].append(kind)
    chosen = np.flatnonzero((outstanding >= 2) & (present >= min(3, len(flags))))
    if not len(chosen):
        search.reject("findings meet in the same tasks: most findings in which one task stands out", outstanding.max())
        return
    chosen = chosen[np.argsort(-outstanding[chosen])]
    flag = np.isin(features.task, chosen) & np.logical_or.reduce(list(flags.values()))
    words = "; ".join(f"{names[t]} ({', '.join(reasons[t])})" for t in chosen[:5])
    sentence = f"{len(chosen)} tasks stand out in several findings at once: {words}."
    kinds = sorted({kind for t in chosen for kind in reasons[t]})
    share = flag.sum() / max(np.isin(features.task, chosen).sum(), 1)
    series = {kind: features.step_means(flags[kind].astype(float)) for kind in kinds}
    search.add("convergent_tasks", flag, sentence, share=share, tasks=search.names(chosen.tolist(), 50), series=series)
