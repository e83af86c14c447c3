"""Answers questions with a Kev model: the state is read once, each question is a branch after it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.checkpoint_files import refuse_unknown
from observer_core.decision.cut import Cut
from observer_core.decision.kev.config import FILES, KevConfig
from observer_core.decision.kev.layout import Branch, Layout
from observer_core.decision.kev.prefixes import KEPT_BYTES, ByteLru, Sized
from observer_core.decision.protocol import Answer, Plan, Reading
from observer_core.errors import InputError, ObserverError
from observer_core.questions import Question, option_names


class Backend(Protocol):
    """Computes logits.

    `tokens_at_once` is how many padded tokens, a branch's state included, it likes to get together;
    `states_together` whether it takes several states at once: if not, the branches of one `answer` all follow one.
    """

    tokens_at_once: int
    states_together: bool

    def read(self, states: Sequence[Sequence[int]]) -> list[Any]:
        """What has to be kept of each state to answer questions about it (`Sized`)."""
        ...

    def answer(self, prefixes: Sequence[Any], branches: Sequence[Branch]) -> list[NDArray[np.float32]]:
        """The logits of each branch's options, after the state that lies before it."""
        ...


@dataclass(frozen=True, slots=True)
class _Job:
    """One request's tokens."""

    state: tuple[int, ...]
    branches: list[Branch]


class KevModel:
    """A `DecisionModel` over a layout and a backend.

    Args:
        kept_bytes: memory for states read before, so that further requests about them only cost their questions.
    """

    def __init__(self, layout: Layout, backend: Backend, config: KevConfig, *, kept_bytes: int = KEPT_BYTES) -> None:
        self.layout, self._backend, self._temperature = layout, backend, config.temperature
        self._kept: ByteLru[Sized] = ByteLru(kept_bytes)

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        *,
        onnx: Path | None = None,
        base: Path | None = None,
        device: str | None = None,
        kept_bytes: int = KEPT_BYTES,
        max_tokens: int | None = None,
        cut: Cut = "end",
    ) -> "KevModel":
        """Read a checkpoint folder; with `onnx` the graph computes and torch is never imported.

        Args:
            base: the backbone's folder; without it the one the checkpoint names is looked for (`base.find_base`).
            device: where torch computes; a GPU of CUDA when there is one, else the CPU.
            kept_bytes: memory for states read before.
            max_tokens: tokens of a state, when fewer than the checkpoint's `max_state`.
            cut: where a state that does not fit is cut.

        Raises:
            InputError: a file is missing, broken or unknown, the base is not there or not the one, or `max_tokens` is
                more than the model has.
        """
        refuse_unknown(checkpoint, FILES)
        if onnx is not None:
            from observer_core.decision.kev.onnx_backend import OnnxBackend

            config = KevConfig.load(checkpoint)
            if config is None:
                raise InputError(f"{checkpoint} has a graph but no kev.json; copy the run again or train anew")
            return cls(_layout(checkpoint, config, max_tokens, cut), OnnxBackend(onnx), config, kept_bytes=kept_bytes)
        from observer_core.decision.kev.checkpoint import load_checkpoint
        from observer_core.decision.kev.torch_backend import TorchBackend

        loaded = load_checkpoint(checkpoint, base=base)
        layout = _layout(loaded.tokenizer, loaded.config, max_tokens, cut)
        known, tokens = loaded.network.config.vocab_size, layout.tokenizer.get_vocab_size()
        if tokens > known:
            raise InputError(
                f"the tokenizer in {loaded.tokenizer} has {tokens} tokens, its base {known}; copy it again"
            )
        return cls(layout, TorchBackend.on(device, loaded.network), loaded.config, kept_bytes=kept_bytes)

    def plan(self, state: Any, questions: Mapping[str, Question], *, strict: bool = False) -> Plan:
        """One branch per question (see `DecisionModel.plan`)."""
        branches = [self.layout.branch(name, question) for name, question in questions.items()]
        read = self.layout.state(state, strict=strict)
        tokens = len(read.ids) + sum(len(branch.ids) for branch in branches)
        return Plan(questions, tokens, tokens, read.truncated, _Job(read.ids, branches))

    def run(self, plans: Sequence[Plan]) -> list[Reading]:
        """One reading per plan, in order (see `DecisionModel.run`)."""
        jobs: list[_Job] = [plan.prepared for plan in plans]
        logits: list[list[NDArray[np.float32]]] = [[]] * len(jobs)
        # Requests about one state come one after the other, so that it is read once.
        order = sorted(range(len(jobs)), key=lambda i: (len(jobs[i].state), jobs[i].state))
        lengths = [len(jobs[i].state) for i in order]
        at_once = self._backend.tokens_at_once if self._backend.states_together else 0
        for places in _fitting(lengths, at_once):
            chosen = [order[place] for place in places]
            for i, of_job in zip(chosen, self._answer([jobs[i] for i in chosen]), strict=True):
                logits[i] = of_job
        return [
            Reading(
                answers={
                    name: Answer(
                        question.type, dict(zip(option_names(question), self._softmax(values).tolist(), strict=True))
                    )
                    for (name, question), values in zip(plan.questions.items(), of_plan, strict=True)
                },
                truncated=plan.truncated,
            )
            for plan, of_plan in zip(plans, logits, strict=True)
        ]

    def _answer(self, jobs: Sequence[_Job]) -> list[list[NDArray[np.float32]]]:
        prefixes = self._prefixes([job.state for job in jobs])
        longest = max(len(job.state) for job in jobs)
        rows = [(i, branch) for i, job in enumerate(jobs) for branch in job.branches]
        found: dict[int, NDArray[np.float32]] = {}
        lengths = [longest + len(branch.ids) for _, branch in rows]
        for batch in _fitting(lengths, self._backend.tokens_at_once):
            before = [prefixes[jobs[rows[row][0]].state] for row in batch]
            logits = self._backend.answer(before, [rows[row][1] for row in batch])
            found.update(zip(batch, logits, strict=True))
        of_job: list[list[NDArray[np.float32]]] = [[] for _ in jobs]
        for row, (i, _) in enumerate(rows):
            of_job[i].append(found[row])
        return of_job

    def _prefixes(self, states: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Any]:
        found: dict[tuple[int, ...], Any] = {state: self._kept.get(state) for state in states}
        missing = [state for state, prefix in found.items() if prefix is None]
        if missing:
            for state, prefix in zip(missing, self._backend.read(missing), strict=True):
                found[state] = prefix
                self._kept.put(state, prefix)
        return found

    def _softmax(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        scaled = logits.astype(np.float64) / self._temperature
        if not np.isfinite(scaled).all():
            raise ObserverError(
                "the decision model gave a number that is not finite; train it anew or load another run"
            )
        powers = np.exp(scaled - scaled.max())
        return powers / powers.sum()


def _layout(folder: Path, config: KevConfig, max_tokens: int | None, cut: Cut) -> Layout:
    limit = config.max_state if max_tokens is None else max_tokens
    if limit > config.max_state:
        raise InputError(f"max_tokens {limit} is more than the {config.max_state} of {folder}; lower it")
    return Layout(folder, delimiters=config.delimiters, max_state=limit, max_branch=config.max_branch, cut=cut)


def _fitting(lengths: Sequence[int], tokens_at_once: int) -> Iterator[list[int]]:
    """All rows from short to long, in batches of at most that many padded tokens, or of one row."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[row] * (len(batch) + 1) > tokens_at_once:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
