"""Which generated faults carry over to real mistakes: trained on the generated world, scored on real agents' traces.

    python benchmarks/agent_transfer.py traces.jsonl ../shared/data/agent_traces/hotpotqa_react.jsonl [--laya]

The first file comes from `observer agent generate --questions 3000 --seed 100 --faults benchmarks/agent_transfer.yaml`.
Printed are AUROCs on the second, clustered by user question, of a model that is trained on everything, on natural runs
alone, and with each kind of fault added to natural runs or left out of everything: a logistic regression over the
baseline's features, or with `--laya` the head of `laya-mini` on its frozen encoder, the first of the two stages
in which `observer train` trains it (the encoder's outputs are the same for every model here and are computed once).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from observer_core.decision.baseline import featurise
from observer_core.metrics.predictions import Sample, group_of
from observer_core.metrics.ranking import auroc, auroc_within_agent, paired_auroc
from observer_core.traces.jsonl import read_jsonl
from observer_core.traces.trace import Trace

Learner = Callable[[np.ndarray], np.ndarray]
"""Given which of the generated traces to learn from, bool (generated,): p_wrong of the real ones, float (real,)."""


def features(made: Sequence[Trace], real: Sequence[Trace]) -> Learner:
    """Logistic regression over the baseline's features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, target = featurise(made), featurise(real)
    wrong = np.array([trace.is_wrong for trace in made])

    def learn(rows: np.ndarray) -> np.ndarray:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=3000))
        return model.fit(x[rows], wrong[rows]).predict_proba(target)[:, 1]

    return learn


def laya_head(made: Sequence[Trace], real: Sequence[Trace]) -> Learner:
    """The head of `laya-mini` on its frozen encoder, with the settings of `observer train`; stops early on the split
    `validation` of the traces it may learn from.
    """
    import copy

    import torch

    from observer_core.decision.laya.layout import Layout
    from observer_core.decision.laya.presets import find_preset
    from observer_core.decision.laya.trainer import (
        HEAD_BATCH,
        EncodedExamples,
        fresh_model,
        logits,
        make_examples,
        parameter_groups,
        switch_off_dropout,
    )
    from observer_core.decision.training.determinism import reproducible
    from observer_core.decision.training.examples import by_length
    from observer_core.decision.training.loop import LoopOptions, fit
    from observer_core.decision.training.options import TrainOptions
    from observer_core.questions import DECISION_QUESTION, default_questions, label_index
    from observer_core.slices import StateBuilder, v2_spec
    from observer_core.traces.splits import split_of

    class Some:
        """Some of the encoded rows, as `fit` wants them."""

        def __init__(self, of: EncodedExamples, rows: Sequence[int]) -> None:
            self._of, self._rows = of, rows
            self.lengths = [of.lengths[row] for row in rows]

        def batch(self, rows: Sequence[int], shuffle: Any = None) -> Any:
            return self._of.batch([self._rows[row] for row in rows], shuffle)

        def about(self, row: int) -> Any:
            return self._of.about(self._rows[row])

    options = TrainOptions(family="laya")
    preset = find_preset("laya-mini")
    questions = {DECISION_QUESTION: default_questions()[DECISION_QUESTION]}
    with reproducible(options.seed):
        start, config = fresh_model(preset, max_len=options.max_tokens)
    switch_off_dropout(start)
    start.encoder.requires_grad_(False)
    layout = Layout(preset.tokenizer, max_len=options.max_tokens, head_max_len=config.head_max_len)
    spec = {"max_tokens": options.max_tokens} | v2_spec(preset.tokenizer, layout.state_room(questions))
    states = StateBuilder(spec, preset.tokenizer)
    tokens = HEAD_BATCH * options.tokens_per_batch

    def encoded(traces: Sequence[Trace]) -> EncodedExamples:
        texts = [states.build(trace).text for trace in traces]
        examples = make_examples(layout, texts, traces, [1.0] * len(traces), questions)
        return EncodedExamples(start.encoder, examples, tokens, _say)

    known, asked = encoded(made), encoded(real)
    held_out = np.array([split_of(trace) == "validation" for trace in made])
    is_wrong = label_index(DECISION_QUESTION, questions[DECISION_QUESTION], "wrong", None)

    def learn(rows: np.ndarray) -> np.ndarray:
        model = copy.deepcopy(start)
        loop = replace(LoopOptions.of(options), epochs=options.head_epochs, tokens_per_batch=tokens)
        with reproducible(options.seed):
            fit(
                model,
                parameter_groups(model, 0.0, options.head_learning_rate, 0.01)[1:],
                Some(known, np.flatnonzero(rows & ~held_out).tolist()),
                Some(known, np.flatnonzero(rows & held_out).tolist()),
                logits=logits,
                options=loop,
            )
        p = np.empty(len(real))
        with torch.inference_mode():
            for batch in by_length(asked.lengths, tokens):
                p[batch] = torch.softmax(logits(model.eval(), asked.batch(batch)), dim=-1)[:, is_wrong].numpy()
        return p

    return learn


def _say(what: str, share: float) -> None:
    print(f"\r{what}: {share:4.0%}", end="\n" if share == 1 else "", flush=True)


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
    parser.add_argument("--laya", action="store_true", help="learn with laya-mini's head instead of the features")
    given = parser.parse_args()
    made, real = read_jsonl(given.generated), read_jsonl(given.real)
    learn = (laya_head if given.laya else features)(made, real)
    wrong = np.array([trace.is_wrong for trace in made])
    kinds = np.array([trace.failure_type or "natural" for trace in made])
    clear = np.array([trace.label != "partial" for trace in real])

    def scored(rows: np.ndarray) -> Sample:
        return sample_of(real, learn(rows))

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
