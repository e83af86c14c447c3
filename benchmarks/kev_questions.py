"""What further questions about one state cost a Kev model: three questions against one, on a state of 512 tokens.

The state is read once and every question is a branch after it, so three questions should take hardly longer than one
(target: at most 1.35 times). Also printed: the same request again, when the state is still kept, and peak memory.

    uv run python benchmarks/kev_questions.py                  kev-mini as training begins with it, in torch
    uv run python benchmarks/kev_questions.py --run RUN        a run as it is served (ONNX Runtime when it has a graph)
"""

import argparse
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from observer_core.decision.kev.runtime import KevModel
from observer_core.decision.load import served_graph
from observer_core.questions import Question, default_questions
from observer_core.rundir import open_run

STATE_TOKENS = 512
TARGET = 1.35
WORDS = ("lake", "tower", "river", "engineer", "county", "bridge", "opened", "north", "film", "album", "born", "1931")


def fresh_mini() -> KevModel:
    """kev-mini with a head that has learnt nothing: its speed is that of a trained one."""
    from observer_core.decision.kev.layout import Layout
    from observer_core.decision.kev.presets import find_start
    from observer_core.decision.kev.torch_backend import TorchBackend

    loaded = find_start(None, None, None, rank=8).loaded
    config = loaded.config
    layout = Layout(
        loaded.tokenizer, delimiters=config.delimiters, max_state=config.max_state, max_branch=config.max_branch
    )
    return KevModel(layout, TorchBackend(loaded.network), config)


def served(run: Path) -> KevModel:
    """A run's model as the service opens it."""
    opened = open_run(run)
    graph = served_graph(opened.path, opened.manifest, "auto")
    return KevModel.open(opened.checkpoint, onnx=graph)


def made_up_state(model: KevModel, rng: np.random.Generator) -> str:
    """A text of exactly `STATE_TOKENS` tokens, its delimiter included."""
    text = " ".join(rng.choice(WORDS, STATE_TOKENS))
    return model.layout.tokenizer.decode(list(model.layout.state(text).ids[1:STATE_TOKENS]))


def questions() -> dict[str, Question]:
    """The two of a new run, and why a run fails."""
    causes = {"none": None, "missing_evidence": "claims without evidence", "bad_tool_use": "a wrong call"}
    return default_questions() | {"failure": Question(type="choice", instructions="Main cause", criteria=causes)}


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and process time of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a Kev run; without it kev-mini, which is fetched on first use")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each, taken in turn; the best counts")
    asked = parser.parse_args()

    model = served(asked.run) if asked.run else fresh_mini()
    rng = np.random.default_rng(0)
    same = made_up_state(model, rng)
    three = questions()
    one = dict(list(three.items())[:1])

    def ask(state: str, about: Mapping[str, Question]) -> Callable[[], object]:
        return lambda: model.run([model.plan(state, about)])

    works = {
        "one question": lambda: ask(made_up_state(model, rng), one),
        "three questions": lambda: ask(made_up_state(model, rng), three),
        "three, state kept": lambda: ask(same, three),
    }
    best = dict.fromkeys(works, (float("inf"), float("inf")))
    for work in works.values():
        work()()
    for _ in range(asked.rounds):
        for name, work in works.items():
            wall, cpu = seconds(work())
            best[name] = min(best[name][0], wall), min(best[name][1], cpu)
    branches = [len(model.layout.branch(name, question).ids) for name, question in three.items()]
    print(f"state {STATE_TOKENS} tokens, questions {', '.join(map(str, branches))}; best of {asked.rounds} rounds")
    for name, (wall, cpu) in best.items():
        by_wall, by_cpu = wall / best["one question"][0], cpu / best["one question"][1]
        print(f"{name:18} {wall * 1000:7.1f} ms, {by_wall:.2f} times; {cpu * 1000:7.1f} core-ms, {by_cpu:.2f} times")
    ratio = best["three questions"][1] / best["one question"][1]
    print(f"three against one: {ratio:.2f} times the processor time (target at most {TARGET})")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
