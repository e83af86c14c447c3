"""Makes the Laya part of a run directory: checkpoint, ONNX graph, and what the manifest says of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from observer_core.decision.golden import golden_traces
from observer_core.decision.laya.checkpoint import copy_tokenizer, save_checkpoint
from observer_core.decision.laya.config import TOKENIZER_DIR, LayaConfig
from observer_core.decision.laya.layout import Layout, collate
from observer_core.decision.laya.model import DecisionModel
from observer_core.decision.laya.onnx_backend import OnnxBackend
from observer_core.decision.laya.runtime import Backend, LayaModel
from observer_core.decision.laya.start import find_start
from observer_core.decision.laya.torch_backend import TorchBackend
from observer_core.decision.laya.trainer import LayaTraining, make_examples, train_laya
from observer_core.decision.onnx import Exported, export_checked, export_graph
from observer_core.decision.protocol import read
from observer_core.decision.training.data import Part, questions_to_learn
from observer_core.decision.training.loop import LoopOptions, reproducible
from observer_core.decision.training.lora import LoraOptions
from observer_core.decision.training.options import TrainOptions
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.decision.training.session import Session
from observer_core.questions import DECISION_QUESTION, Question
from observer_core.rundir import CHECKPOINT, ONNX, Manifest
from observer_core.slices import StateBuilder, v2_spec
from observer_core.traces.trace import Split, Trace


def write_laya(
    folder: Path,
    parts: Mapping[Split, Part],
    options: TrainOptions,
    *,
    session: Session,
    progress: Progress,
    on_metric: MetricSink,
) -> Manifest:
    """Train, then write `checkpoint/` and `onnx/` into the run's folder.

    Returns:
        The manifest so far: what the model is and how it is asked; no calibration and no numbers yet.

    Raises:
        InputError: the starting point cannot be used.
        TrainingFailedError: it diverged or collapsed.
    """
    questions = questions_to_learn(parts["train"], failure=options.failure)
    tokenizer = folder / CHECKPOINT / TOKENIZER_DIR
    with reproducible(options.seed):
        progress("loading the encoder", 0.0)
        start = find_start(options)
        session.confirm("starting point", start.init_from or f"{start.base}@{start.revision}")
        copy_tokenizer(start.tokenizer, tokenizer)
        layout = Layout(tokenizer, max_len=options.max_tokens, head_max_len=start.config.head_max_len)
        spec = {"max_tokens": options.max_tokens} | v2_spec(tokenizer, layout.state_room(questions))
        states = StateBuilder(spec, tokenizer)
        decides = {DECISION_QUESTION: questions[DECISION_QUESTION]}
        fitted = train_laya(
            start.model,
            make_examples(layout, *_labeled(parts["train"], states), questions),
            make_examples(layout, *_labeled(parts["validation"], states), decides),
            LayaTraining(
                learning_rate=options.learning_rate,
                head_learning_rate=options.head_learning_rate,
                head_epochs=options.head_epochs if start.init_from is None else 0.0,
                lora=LoraOptions(options.lora_rank),
                loop=LoopOptions.of(options),
            ),
            session=session,
            progress=part(progress, 0.05, 0.9),
            on_metric=on_metric,
        )
    training = {
        "steps": fitted.steps,
        "best_step": fitted.best_step,
        "validation_loss": fitted.best_loss,
        "tokens_per_second": round(fitted.tokens_per_second, 1),
        "computed_on": fitted.computed_on,
    }
    config = start.config.model_copy(update={"training": training})
    save_checkpoint(start.model, config, folder / CHECKPOINT)
    manifest = Manifest(
        family="laya",
        model=start.name,
        base=start.base,
        base_revision=start.revision,
        init_from=start.init_from,
        questions=questions,
        slice=spec,
    )
    if options.onnx:
        progress("exporting to ONNX", 0.92)
        golden = [states.build(trace).text for trace in golden_traces()]
        exported = export_laya(start.model, config, layout, golden, questions, folder / ONNX, int8=options.int8)
        manifest.onnx = exported.to_json()
    return manifest


def _labeled(part: Part, states: StateBuilder) -> tuple[list[str], list[Trace], list[float]]:
    return [states.build(trace).text for trace in part.traces], part.traces, part.weight.tolist()


class Unpadded(nn.Module):
    """The graph's inputs: rows without padding, so without a mask."""

    def __init__(self, model: DecisionModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, marker_pos: Tensor, marker_mask: Tensor, qtype: Tensor) -> Tensor:
        return self.model(input_ids, None, marker_pos, marker_mask, qtype)


def export_laya(
    model: DecisionModel,
    config: LayaConfig,
    layout: Layout,
    states: Sequence[str],
    questions: Mapping[str, Question],
    folder: Path,
    *,
    int8: bool,
) -> Exported:
    """Export the graph and serve from it only if it answers as torch does on these states (see `export_checked`)."""
    dims = {
        "input_ids": ("rows", "tokens"),
        "marker_pos": ("rows", "options"),
        "marker_mask": ("rows", "options"),
        "qtype": ("rows",),
    }
    # Rows, options and tokens of the example differ, so that no dimension is taken for another.
    rows = [row for state in states[:2] for row in layout.rows(state, questions)]
    example = {name: array for name, array in collate(rows, layout.pad_id).items() if name in dims}

    def answers(backend: Backend) -> np.ndarray:
        given = read(LayaModel(layout, backend, config), states, questions)
        return np.array([p for of in given for answer in of.answers.values() for p in answer.probabilities.values()])

    return export_checked(
        lambda file: export_graph(Unpadded(model).eval(), example, dims, file),
        lambda file: answers(OnnxBackend(file)),
        answers(TorchBackend(model)),
        folder,
        int8=int8,
    )
