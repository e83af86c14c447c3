"""Answers questions with a Laya model: rows in, distributions out, whatever computes the logits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.checkpoint_files import refuse_unknown
from observer_core.decision.cut import Cut
from observer_core.decision.laya.config import (
    ENCODER_CONFIG,
    ENCODER_DIR,
    FILES,
    TOKENIZER_DIR,
    LayaConfig,
    read_config,
    refuse_code,
)
from observer_core.decision.laya.layout import Inputs, Layout, Row, collate
from observer_core.decision.protocol import Answer, ContextOverflowError, Plan, Reading
from observer_core.errors import InputError, ObserverError
from observer_core.questions import Question, option_names


class Backend(Protocol):
    """Computes logits. `rows_at_once` is how many rows it likes to get padded together."""

    rows_at_once: int

    def logits(self, batches: Sequence[Inputs]) -> list[NDArray[np.float32]]:
        """For each batch of `layout.collate`, best given longest first: float32 (rows, options)."""
        ...


class LayaModel:
    """A `DecisionModel` over a layout and a backend."""

    def __init__(self, layout: Layout, backend: Backend, config: LayaConfig) -> None:
        self.layout, self._backend, self._config = layout, backend, config

    @classmethod
    def open(
        cls, checkpoint: Path, *, onnx: Path | None = None, max_tokens: int | None = None, cut: Cut = "end"
    ) -> "LayaModel":
        """Read a checkpoint folder; with `onnx` the graph computes and torch is never imported.

        Args:
            max_tokens: tokens of a row, when fewer than the checkpoint's `max_len`.
            cut: where a state that does not fit is cut.

        Raises:
            InputError: a file is missing, broken or unknown or could run code, or `max_tokens` is more than the model
                has.
        """
        refuse_code(checkpoint)
        refuse_unknown(checkpoint, FILES)
        config = LayaConfig.load(checkpoint)
        limit = config.max_len if max_tokens is None else max_tokens
        if limit > config.max_len:
            raise InputError(f"max_tokens {limit} is more than the {config.max_len} of {checkpoint}; lower it")
        layout = Layout(checkpoint / TOKENIZER_DIR, max_len=limit, head_max_len=config.head_max_len, cut=cut)
        _check_reach(checkpoint, layout)
        if onnx is not None:
            from observer_core.decision.laya.onnx_backend import OnnxBackend

            return cls(layout, OnnxBackend(onnx), config)
        from observer_core.decision.laya.checkpoint import load_checkpoint
        from observer_core.decision.laya.torch_backend import TorchBackend

        return cls(layout, TorchBackend.serving(load_checkpoint(checkpoint)[0]), config)

    def plan(self, state: Any, questions: Mapping[str, Question], *, strict: bool = False) -> Plan:
        """One row per question (see `DecisionModel.plan`); a state that is not text reads as its JSON.

        A list of turns that does not fit loses its oldest, any other state what its layout cuts.
        """
        text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)
        cut: Cut | None = "start" if isinstance(state, list) else None
        rows = self.layout.rows(text, questions, cut=cut)
        truncated = any(row.truncated for row in rows)
        if strict and truncated:
            raise ContextOverflowError(
                f"the state does not fit beside its questions in this model's {self.layout.max_len} tokens; shorten it"
            )
        cost = sum(len(row.ids) for row in rows)
        state_tokens = max((row.state_tokens for row in rows), default=0)
        heads = sum(len(row.ids) - row.state_tokens for row in rows)
        return Plan(questions, state_tokens + heads, cost, truncated, rows)

    def run(self, plans: Sequence[Plan]) -> list[Reading]:
        """One reading per plan, in order (see `DecisionModel.run`)."""
        probabilities = iter(self._probabilities([row for plan in plans for row in plan.prepared]))
        return [
            Reading(
                answers={
                    name: Answer(
                        question.type, dict(zip(option_names(question), next(probabilities).tolist(), strict=True))
                    )
                    for name, question in plan.questions.items()
                },
                truncated=plan.truncated,
            )
            for plan in plans
        ]

    def _probabilities(self, rows: list[Row]) -> list[NDArray[np.float64]]:
        # The longest first: what is computed side by side then ends together.
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i].ids))
        step = self._backend.rows_at_once
        chosen = [order[start : start + step] for start in range(0, len(order), step)]
        batches = [collate([rows[i] for i in places], self.layout.pad_id) for places in chosen]
        out: list[NDArray[np.float64]] = [np.empty(0)] * len(rows)
        for places, logits in zip(chosen, self._backend.logits(batches), strict=True):
            for i, values in zip(places, logits, strict=True):
                out[i] = self._softmax(values[: len(rows[i].markers)], rows[i].type_id)
        return out

    def _softmax(self, logits: NDArray[np.float32], type_id: int) -> NDArray[np.float64]:
        scaled = logits.astype(np.float64) / self._config.temperature_of(type_id, len(logits))
        if not np.isfinite(scaled).all():
            raise ObserverError(
                "the decision model gave a number that is not finite; train it anew or load another run"
            )
        powers = np.exp(scaled - scaled.max())
        return powers / powers.sum()


def _check_reach(checkpoint: Path, layout: Layout) -> None:
    """Refuse rows that the encoder could not look up.

    Raises:
        InputError: the tokenizer has more tokens than the encoder, or a row more than a BERT has positions.
    """
    file = checkpoint / ENCODER_DIR / ENCODER_CONFIG
    encoder = read_config(file)
    known, tokens = encoder.get("vocab_size"), layout.tokenizer.get_vocab_size()
    if isinstance(known, int) and tokens > known:
        raise InputError(
            f"the tokenizer in {checkpoint / TOKENIZER_DIR} has {tokens} tokens, {file} {known}; copy it again"
        )
    positions = encoder.get("max_position_embeddings")
    if encoder.get("model_type") == "bert" and isinstance(positions, int) and layout.max_len > positions:
        raise InputError(f"{checkpoint} says max_len {layout.max_len}, {file} has {positions} positions; copy it again")
