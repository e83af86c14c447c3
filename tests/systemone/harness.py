"""A System One server in this process on a real socket, and models that do what no checkpoint may."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from observer_core.decision.laya.checkpoint import copy_tokenizer, round_to_half, save_checkpoint
from observer_core.decision.laya.config import TOKENIZER_DIR, LayaConfig
from observer_core.decision.laya.model import DecisionModel as LayaNetwork
from observer_core.decision.laya.presets import HEAD_LAYERS, HEAD_MAX_LEN
from observer_core.decision.protocol import Answer, DecisionModel, Plan, Reading
from observer_core.questions import Question, default_questions, option_names
from observer_core.rundir import CHECKPOINT, Manifest, RunDirectory, seal
from observer_serving.systemone.app import SystemOne
from observer_serving.systemone.card import ModelCard
from observer_serving.systemone.limits import Limits
from observer_serving.systemone.server import SystemOneServer, open_socket

CARD = ModelCard("tiny@1", ("tiny@1", "tiny", "jev-latest"), "for tests", "2026-01-02")
NOUL = {"type": "noul", "instructions": "Is the customer angry?"}
CHOICE = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "money", "sales": None, "other": {"a": [1]}},
}
SCORE = {"type": "score", "instructions": ["How", "urgent?"], "criteria": ["calm", {"label": "tense"}, 3]}


def body(
    questions: Mapping[str, Any] | None = None, state: Any = "Where is my refund?", **extra: Any
) -> dict[str, Any]:
    return {
        "model": "jev-latest",
        "state": state,
        "questions": {"q": NOUL} if questions is None else questions,
        **extra,
    }


class Served:
    """A running server; `post` asks it with the key it wants."""

    def __init__(self, app: SystemOne, url: str, key: str | None) -> None:
        self.app, self.url = app, url
        self.client = httpx.Client(
            base_url=url, timeout=60, headers={"authorization": f"Bearer {key}"} if key else {}, limits=httpx.Limits()
        )
        self.stop = threading.Event()

    def post(self, json: Any = None, **how: Any) -> httpx.Response:
        return self.client.post("/v1/systemone", **(how if json is None else {"json": json, **how}))

    def metric(self, line: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next(
            (float(one.rsplit(" ", 1)[1]) for one in lines if one.startswith(f"observer_systemone_{line} ")), 0.0
        )


@contextlib.contextmanager
def serving(
    model: DecisionModel, card: ModelCard = CARD, *, key: str | None = None, truncate: bool = False, **limits: Any
) -> Iterator[Served]:
    """Serve a model until the block ends; what it took in is then answered."""
    ready: list[Served] = []
    listening = threading.Event()

    async def serve() -> None:
        app = SystemOne(model, card, limits=Limits(**limits), key=key, truncate=truncate)
        server = SystemOneServer(app, open_socket("127.0.0.1", 0, has_key=key is not None))
        await server.start()
        ready.append(Served(app, server.url, key))
        listening.set()
        await asyncio.to_thread(ready[0].stop.wait)
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert listening.wait(120)
    try:
        yield ready[0]
    finally:
        ready[0].stop.set()
        thread.join(120)
        ready[0].client.close()
        assert not thread.is_alive(), "the server did not stop"


class ScriptedModel:
    """Answers uniformly; a state that holds `HANG` waits for `go`, `NAN` gives what no distribution is, `RAISE` raises.

    `batches` are the states of each call of `run` that it began.
    """

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began = threading.Event()
        self.batches: list[list[str]] = []

    def plan(self, state: Any, questions: Mapping[str, Question], *, strict: bool = False) -> Plan:
        return Plan(questions, 10, 10 * len(questions), False, str(state))

    def run(self, plans: Sequence[Plan]) -> list[Reading]:
        self.batches.append([plan.prepared for plan in plans])
        self.began.set()
        return [self._reading(plan) for plan in plans]

    def _reading(self, plan: Plan) -> Reading:
        if "HANG" in plan.prepared:
            assert self.go.wait(60)
        if "RAISE" in plan.prepared:
            raise RuntimeError("out of memory")
        answers = {}
        for name, question in plan.questions.items():
            names = option_names(question)
            p = float("nan") if "NAN" in plan.prepared else 1 / len(names)
            answers[name] = Answer(question.type, dict.fromkeys(names, p))
        return Reading(answers, False)


OPINION = 60.0
"""What random heads are multiplied by: an answer that is always near uniform would agree with every other one."""


def random_laya_run(out: Path, encoder: Any, tokenizer: Path, *, max_len: int) -> RunDirectory:
    """A run directory as training leaves it, around an encoder and a head that has learned nothing."""
    import torch

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        network = LayaNetwork(encoder, head_layers=HEAD_LAYERS, actions=1)
        network.scorer[-1].weight.mul_(OPINION)
    round_to_half(network)
    config = LayaConfig(encoder="tiny", head_layers=HEAD_LAYERS, max_len=max_len, head_max_len=HEAD_MAX_LEN)
    copy_tokenizer(tokenizer, out / CHECKPOINT / TOKENIZER_DIR)
    save_checkpoint(network, config, out / CHECKPOINT)
    manifest = Manifest(
        family="laya", model=out.name, questions=default_questions(), slice_spec={"format": "v1", "max_tokens": max_len}
    )
    return seal(out, manifest)


def random_kev_run(out: Path, base: Path) -> RunDirectory:
    """The same for a decoder: an adapter and a pointer head that have learned nothing, on a base that travels along."""
    import torch

    from observer_core.decision.kev import checkpoint as kev
    from observer_core.decision.kev.adapter import fresh_adapter
    from observer_core.decision.kev.presets import find_start

    with torch.random.fork_rng():
        torch.manual_seed(0)
        loaded = find_start(str(base), None, None, rank=4).loaded
        loaded.network.backbone = fresh_adapter(loaded.network.backbone, rank=4)
        loaded.network.head.q.weight.data.mul_(OPINION)
    kev.copy_tokenizer(loaded.tokenizer, out / CHECKPOINT)
    kev.save_checkpoint(loaded.network, loaded.config, loaded.base, out / CHECKPOINT)
    return seal(out, Manifest(family="kev", model=out.name, questions=default_questions()))
