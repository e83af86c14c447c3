"""Makes the Kev part of a run directory: checkpoint, ONNX graph, and what the manifest says of them."""

from collections.abc import Mapping
from pathlib import Path

from observer_core.decision.golden import golden_traces
from observer_core.decision.kev.adapter import merged
from observer_core.decision.kev.base import remember_base
from observer_core.decision.kev.checkpoint import copy_tokenizer, save_checkpoint
from observer_core.decision.kev.examples import KevExamples, make_rows
from observer_core.decision.kev.graph import export_kev
from observer_core.decision.kev.layout import Layout
from observer_core.decision.kev.presets import find_start
from observer_core.decision.kev.trainer import KevTraining, train_kev
from observer_core.decision.training.data import Part, questions_to_learn
from observer_core.decision.training.determinism import reproducible
from observer_core.decision.training.loop import LoopOptions
from observer_core.decision.training.options import TrainOptions
from observer_core.decision.training.progress import MetricSink, Progress, part
from observer_core.decision.training.session import Session
from observer_core.errors import InputError
from observer_core.questions import DECISION_QUESTION, Question
from observer_core.rundir import CHECKPOINT, ONNX, Manifest
from observer_core.slices import StateBuilder, v2_spec
from observer_core.traces.trace import Split

MIN_STATE = 32


def write_kev(
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
    checkpoint = folder / CHECKPOINT
    with reproducible(options.seed):
        progress("loading the backbone", 0.0)
        start = find_start(options.preset, options.init_from, options.base, rank=options.lora_rank)
        loaded, network = start.loaded, start.loaded.network
        session.confirm("starting point", start.init_from or f"{loaded.base.name}@{loaded.base.revision}")
        copy_tokenizer(loaded.tokenizer, checkpoint)
        layout = Layout(
            checkpoint,
            delimiters=loaded.config.delimiters,
            max_state=loaded.config.max_state,
            max_branch=loaded.config.max_branch,
            cut="before_final_answer",
        )
        spec = v2_spec(checkpoint, _room(layout, questions, options.max_tokens)) | {"cut": layout.cut}
        states = StateBuilder(spec, checkpoint)

        def examples(part: Part, asked: Mapping[str, Question]) -> KevExamples:
            texts = [states.build(trace).text for trace in part.traces]
            weights = part.weight.tolist()
            return KevExamples(make_rows(layout, texts, part.traces, weights, asked, together=not network.hybrid))

        fitted = train_kev(
            network,
            examples(parts["train"], questions),
            examples(parts["validation"], {DECISION_QUESTION: questions[DECISION_QUESTION]}),
            KevTraining(
                learning_rate=options.learning_rate,
                lora_rank=options.lora_rank if start.init_from is None else None,
                head_learning_rate=options.head_learning_rate,
                head_epochs=options.head_epochs if start.init_from is None else 0.0,
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
        "computed_on": fitted.computed_on,
    }
    # A temperature belongs to the weights it was fitted on; the run's own calibration takes its place.
    config = loaded.config.model_copy(update={"training": training, "temperature": 1.0})
    save_checkpoint(network, config, loaded.base, checkpoint)
    remember_base(loaded.base, checkpoint)
    manifest = Manifest(
        family="kev",
        model=start.model,
        base=loaded.base.name,
        base_revision=loaded.base.revision,
        init_from=start.init_from,
        questions=questions,
        slice=spec,
    )
    if options.onnx:
        progress("exporting to ONNX", 0.92)
        network.backbone = merged(network.backbone)
        golden = [states.build(trace).text for trace in golden_traces()]
        exported = export_kev(network, config, layout, golden, questions, folder / ONNX, int8=options.int8)
        manifest.onnx = exported.to_json()
    return manifest


def _room(layout: Layout, questions: Mapping[str, Question], max_tokens: int) -> int:
    """The tokens that the longest question leaves for a state's text in a row of `max_tokens`.

    Raises:
        InputError: nothing useful is left, or the model reads less.
    """
    longest = 1 + max(len(layout.branch(name, question).ids) for name, question in questions.items())
    room, most = max_tokens - longest, layout.max_state - 1
    if room < MIN_STATE:
        raise InputError(
            f"--max-tokens {max_tokens} leaves {room} for a state beside {longest} of a question; raise it"
        )
    if room > most:
        raise InputError(f"this model reads {most + longest} tokens, not {max_tokens}; lower --max-tokens")
    return room
