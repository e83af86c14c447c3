"""Answers questions with a Laya model: rows in, distributions out, whatever computes the logits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from observer_core.decision.cut import Cut
from observer_core.decision.laya.config import TOKENIZER_DIR, LayaConfig, refuse_code
from observer_core.decision.laya.layout import Layout, Row, collate
from observer_core.decision.protocol import Answer, ContextOverflowError, Plan, Reading
from observer_core.errors import InputError, ObserverError
from observer_core.questions import Question, option_names


class Backend(Protocol):
    """Computes logits. `rows_at_once` is how many rows it likes to get padded together."""

    rows_at_once: int

    def logits(self, batch: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Float32 (rows, options) for the inputs of `layout.collate`."""
        ...


class OnnxBackend:
    """ONNX Runtime on the CPU; imports no torch.

    One row at a time: batching gains nothing on a CPU that one row already keeps busy, and without padding an answer
    depends on nothing but its own row.

    Raises:
        InputError: the file is missing or is no usable graph.
    """

    rows_at_once = 1

    def __init__(self, file: Path) -> None:
        import onnxruntime as ort

        if not file.is_file():
            raise InputError(f"{file} is missing; copy the run again or train anew")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # Spinning threads would take the cores from the rest of the service between two rows.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's exceptions share no base class but Exception
            message = " ".join(str(error).split())[:200]
            raise InputError(f"{file} is not a usable ONNX graph ({message}); copy the run again") from error

    def logits(self, batch: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        return self._session.run(["logits"], batch)[0]  # pyright: ignore


class TorchBackend:
    """PyTorch, on the device the model lies on."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._device = next(model.parameters()).device
        self.rows_at_once = 1 if self._device.type == "cpu" else 64

    def logits(self, batch: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in batch.items()}
            return self._model(**tensors).cpu().numpy()


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
            InputError: a file is missing or broken or could run code, or `max_tokens` is more than the model has.
        """
        refuse_code(checkpoint)
        config = LayaConfig.load(checkpoint)
        limit = config.max_len if max_tokens is None else max_tokens
        if limit > config.max_len:
            raise InputError(f"max_tokens {limit} is more than the {config.max_len} of {checkpoint}; lower it")
        layout = Layout(checkpoint / TOKENIZER_DIR, max_len=limit, head_max_len=config.head_max_len, cut=cut)
        if onnx is not None:
            return cls(layout, OnnxBackend(onnx), config)
        from observer_core.decision.laya.checkpoint import load_checkpoint

        return cls(layout, TorchBackend(load_checkpoint(checkpoint)[0]), config)

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
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        out: list[NDArray[np.float64]] = [np.empty(0)] * len(rows)
        step = self._backend.rows_at_once
        for start in range(0, len(order), step):
            chosen = order[start : start + step]
            batch = [rows[i] for i in chosen]
            logits = self._backend.logits(collate(batch, self.layout.pad_id))
            for i, row, values in zip(chosen, batch, logits, strict=True):
                out[i] = self._softmax(values[: len(row.markers)], row.type_id)
        return out

    def _softmax(self, logits: NDArray[np.float32], type_id: int) -> NDArray[np.float64]:
        scaled = logits.astype(np.float64) / self._config.temperature_of(type_id, len(logits))
        if not np.isfinite(scaled).all():
            raise ObserverError(
                "the decision model gave a number that is not finite; train it anew or load another run"
            )
        powers = np.exp(scaled - scaled.max())
        return powers / powers.sum()
