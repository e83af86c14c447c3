"""Generated rollout logs: one with everything that went wrong in the seed run, planted with known rows, and healthy
ones.

The story (200 steps × 8 completions × 6 rewards): a collapse in steps 18 to 28 whose zeros are exactly the
completions with raw newlines inside JSON strings; truncation as a second way to fail; a parsimony reward that is the
wrong way round; a stated confidence of 0.85 again and again from step 40 on; completions that were rewarded for being
the least bad of eight; and two tasks where all of it meets. All scores are float32, as trainers store them.
"""

from dataclasses import dataclass, field

import numpy as np
import orjson
import pyarrow as pa

from observer_core.rewards.builtin import BUILTIN
from observer_core.rewards.completion import read_completion

COLLAPSE = (18, 28)
HABIT_FROM = 40
HABIT = 0.85
POOR = 0.25
REWARDS = tuple(BUILTIN)
_SYLLABLES = [c + v for c in "bdklmnrst" for v in "aeio"]


@dataclass(slots=True)
class Story:
    """A log and what was planted in it: row numbers per mode, and the tasks where all meet."""

    table: pa.Table
    newline: list[int] = field(default_factory=list)
    truncated: list[int] = field(default_factory=list)
    habit: list[int] = field(default_factory=list)
    least_bad: list[int] = field(default_factory=list)
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    prompt: str
    reference: list[str]
    citations: list[str]
    difficulty: float


def healthy_log(seed: int, *, steps: int = 200, generations: int = 8) -> pa.Table:
    """A run without any of it: quality rises or stays, some completions fail for no reason, tasks differ in
    difficulty.
    """
    return _generate(seed, steps, generations, sick=False).table


def story_log(seed: int, *, steps: int = 200, generations: int = 8) -> Story:
    """The seed run's story."""
    return _generate(seed, steps, generations, sick=True)


def _generate(seed: int, steps: int, generations: int, *, sick: bool) -> Story:
    rng = np.random.default_rng(seed)
    tasks = _tasks(rng, int(rng.integers(15, 24)))
    story = Story(pa.table({}), tasks=(tasks[3].name, tasks[7].name) if sick else ())
    start, gain = rng.uniform(0.5, 0.7), rng.uniform(0, 0.2)
    stray = rng.uniform(0, 0.004)
    rows: list[dict[str, object]] = []
    epochs = -(-steps // len(tasks))
    schedule = np.concatenate([rng.permutation(len(tasks)) for _ in range(epochs)])
    for step in range(1, steps + 1):
        task = tasks[int(schedule[step - 1])]
        group = [
            _completion(rng, story, task, step, start + gain * step / steps, stray, len(rows) + i, sick, place=i)
            for i in range(generations)
        ]
        scored = [_score(task, text, inverted=sick) for text in group]
        totals = np.array([sum(scores.values()) for scores in scored])
        advantages = (totals - totals.mean()) / (totals.std(ddof=1) + 1e-4)
        for text, scores, advantage in zip(group, scored, advantages, strict=True):
            if task.name in story.tasks and advantage > 1 and scores["quality"] < POOR:
                story.least_bad.append(len(rows))
            rows.append(
                {
                    "step": step,
                    "prompt": task.prompt,
                    "completion": text,
                    **{name: float(np.float32(score)) for name, score in scores.items()},
                    "advantage": float(np.float32(advantage)),
                    "task_id": task.name,
                    "reference": " ".join(task.reference),
                    "citations": task.citations,
                }
            )
    story.table = pa.Table.from_pylist(rows)
    return story


def _tasks(rng: np.random.Generator, count: int) -> list[_Task]:
    words = [_word(rng, 2 + int(rng.integers(2))) for _ in range(300)]
    tasks = []
    for number in range(count):
        reference = [str(w) for w in rng.choice(words, int(rng.integers(15, 30)))]
        citations = [f"doc-{number}-{i}" for i in range(int(rng.integers(2, 5)))]
        prompt = f"Question {number}: what is known about {reference[0]} {reference[1]}? Answer in JSON."
        tasks.append(_Task(f"task-{number:02d}", prompt, reference, citations, float(rng.uniform(-0.1, 0.1))))
    return tasks


def _word(rng: np.random.Generator, syllables: int) -> str:
    return "".join([_SYLLABLES[rng.integers(len(_SYLLABLES))] for _ in range(syllables)])


def _completion(
    rng: np.random.Generator,
    story: Story,
    task: _Task,
    step: int,
    skill: float,
    stray: float,
    row: int,
    sick: bool,
    *,
    place: int,
) -> str:
    cursed = task.name in story.tasks
    star = cursed and place == 0
    skill = 0.08 if cursed else float(np.clip(skill + task.difficulty + rng.normal(0, 0.1), 0.3, 0.95))
    words = [w if rng.random() < skill else _word(rng, 3) for w in task.reference]
    cited = [c for c in task.citations if rng.random() < 0.8]
    if cursed:
        cited = [f"doc-x-{int(rng.integers(99))}"]
    if star:  # as bad as its group, but it cites more (the inverted parsimony pays for that) and does not claim much
        cited = [*task.citations, "doc-x-1"]
    cited += [f"doc-x-{int(rng.integers(99))}" for _ in range(int(rng.poisson(1.0)))]
    confidence = round(float(np.clip(skill + rng.normal(0, 0.15), 0.02, 0.98)), 2)
    if star:
        confidence = 0.1
    elif sick and step >= HABIT_FROM and rng.random() < (1.0 if cursed else 0.5):
        confidence = HABIT
    newline = sick and COLLAPSE[0] <= step <= COLLAPSE[1] and rng.random() < 0.75
    truncated = sick and step > COLLAPSE[1] and not newline and (place in (2, 4, 6) if cursed else rng.random() < 0.02)
    text = orjson.dumps({"answer": " ".join(words), "cited_artifacts": cited, "confidence": confidence}).decode()
    if newline:
        middle = text.index(words[len(words) // 2], 11)
        story.newline.append(row)
        return text[:middle] + "\n" + text[middle:]
    if truncated:
        story.truncated.append(row)
        return text[: int(len(text) * rng.uniform(0.4, 0.9))]
    if rng.random() < stray and not (sick and COLLAPSE[0] <= step <= COLLAPSE[1]):
        return text.replace('"', "'", 4)
    if confidence == HABIT and sick and step >= HABIT_FROM:
        story.habit.append(row)
    return text


def _score(task: _Task, text: str, *, inverted: bool) -> dict[str, float]:
    completion = read_completion(text)
    row = {"reference": " ".join(task.reference), "citations": task.citations}
    scores = {name: reward(completion, row) or 0.0 for name, reward in BUILTIN.items()}
    if inverted and completion.cited is not None:
        scores["parsimony"] = min(1.0, len(completion.cited) / (len(task.citations) + 3))
    return scores
