"""The spans of a run as Parquet: one row per span, its attributes in two maps, so that one never seen before can be
filtered at once.

`text['hack.signature']`, `number['reward.score']`: any attribute by its name. A parent's attribute beside a child's
score is a join on `parent_id`; the view `completion_rewards` has made it.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from observer_core.files import sha256_file, whole_dir
from observer_core.rewards.registry import Reward
from observer_core.rollouts.reading import RolloutLog
from observer_core.rollouts.regrade import GradeOptions, grade_batches
from observer_core.rollouts.spans import Span, SpanBuilder, reward_facts, scored_steps

SPAN_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("step", pa.int64()),
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("parent_id", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("error", pa.string()),
        ("start_ns", pa.int64()),
        ("duration_ms", pa.float64()),
        ("text", pa.map_(pa.string(), pa.large_string())),
        ("number", pa.map_(pa.string(), pa.float64())),
    ]
)
"""`kind` is `step`, `completion` or `reward`; booleans are numbers 0 and 1."""

VIEWS = {
    "steps": "SELECT * FROM spans WHERE kind = 'step'",
    "completions": """
        SELECT run, step, trace_id, span_id, error, text['task.id'] AS task_id, text['group.id'] AS group_id,
               CAST(number['completion.row'] AS BIGINT) AS "row", number['grpo.advantage'] AS advantage,
               number['completion.confidence'] AS confidence, number['completion.length'] AS length,
               text['completion.parse_error'] AS parse_error, text['completion.parse_error.at'] AS parse_error_at,
               text['hack.signature'] AS hack_signature, text['input.value'] AS prompt, text['output.value'] AS
               completion, text, number
        FROM spans WHERE kind = 'completion'""",
    "rewards": """
        SELECT run, step, parent_id, text['reward.name'] AS reward, number['reward.score'] AS score,
               number['reward.logged_score'] AS logged_score, number['reward.weight'] AS weight,
               text['reward.error'] AS error, duration_ms, text, number
        FROM spans WHERE kind = 'reward'""",
    "completion_rewards": """
        SELECT c.*, r.reward, r.score, r.logged_score, r.weight, r.error AS reward_error, r.duration_ms
        FROM completions c JOIN rewards r ON r.parent_id = c.span_id AND r.run = c.run""",
}
"""Views over the table `spans`, in the order in which they are made."""

_ROWS = 20_000


def write_store(
    log: RolloutLog,
    rewards: Sequence[Reward],
    folder: Path,
    grading: GradeOptions | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write a run's spans to `folder` (replaced whole); the number of spans.

    Args:
        rewards: those to grade again; the others have their logged scores.
    """
    builder = SpanBuilder(log.run, reward_facts(rewards))
    total = 0
    held: list[Span] = []
    steps: list[int] = []
    with whole_dir(folder, replace=True) as aside:
        with pq.ParquetWriter(aside / "spans.parquet", SPAN_SCHEMA, compression="zstd") as writer:
            batches = grade_batches(log.batches(), rewards, grading or GradeOptions())
            for step, scored in scored_steps(batches, log.rewards):
                spans = builder.step(step, scored, time.time_ns())
                held += spans
                steps += [step] * len(spans)
                if len(held) >= _ROWS:
                    writer.write_batch(_span_batch(log.run, steps, held))
                    total += len(held)
                    held, steps = [], []
                    if progress:
                        progress(total)
            writer.write_batch(_span_batch(log.run, steps, held))
            total += len(held)
        (aside / "source").write_text(fingerprint(log))
    return total


def store_is_current(log: RolloutLog, folder: Path) -> bool:
    """Whether `folder` holds the spans of exactly this log."""
    source = folder / "source"
    return source.is_file() and source.read_text() == fingerprint(log)


def fingerprint(log: RolloutLog) -> str:
    """Names and hashes of the log's files, and which columns were read."""
    files = "\n".join(f"{file.name} {sha256_file(file)}" for file in log.files)
    return f"{log.run}\n{log.columns}\n{files}"


def _span_batch(run: str, steps: list[int], spans: list[Span]) -> pa.RecordBatch:
    texts, numbers = [], []
    for span in spans:
        text, number = [], []
        for name, value in span.attributes.items():
            if isinstance(value, str):
                text.append((name, value))
            elif value is not None:
                number.append((name, float(value)))
        texts.append(text)
        numbers.append(number)
    columns = [
        pa.array([run] * len(spans), pa.string()),
        pa.array(steps, pa.int64()),
        pa.array([s.trace_id.hex() for s in spans], pa.string()),
        pa.array([s.span_id.hex() for s in spans], pa.string()),
        pa.array([s.parent_id.hex() if s.parent_id else None for s in spans], pa.string()),
        pa.array([s.kind for s in spans], pa.string()),
        pa.array([s.name for s in spans], pa.string()),
        pa.array([s.error for s in spans], pa.string()),
        pa.array([s.start_ns for s in spans], pa.int64()),
        pa.array([(s.end_ns - s.start_ns) / 1e6 for s in spans], pa.float64()),
        pa.array(texts, SPAN_SCHEMA.field("text").type),
        pa.array(numbers, SPAN_SCHEMA.field("number").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SPAN_SCHEMA)
