"""Scorers over System One servers: any of them, or the one the environment names."""

from collections.abc import Sequence
from pathlib import Path

from observer_core.decision.jev.client import KEY_ENV, JevModel, Server
from observer_core.decision.jev.cost import Cost
from observer_core.decision.protocol import NotRunError, Score
from observer_core.decision.scorer import RunScorer, state_scorer
from observer_core.questions import DECISION_QUESTION, default_questions
from observer_core.rundir import Manifest
from observer_core.slices import build_state
from observer_core.traces.trace import Trace


class SystemOneScorer(RunScorer):
    """A `Scorer` that asks a server the manifest's questions and calibrates what it says.

    `model_version` is the manifest's; without one it is the concrete model that answered (before the first answer, the
    name asked for).
    """

    def __init__(self, jev: JevModel, manifest: Manifest, model_version: str | None = None) -> None:
        super().__init__(manifest, model_version or jev.server.model, state_scorer(jev, manifest))
        self.jev, self.manifest, self._versioned = jev, manifest, model_version is not None

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        """One score per trace, in order (see `JevModel.run` for what it raises)."""
        scores = super().score(traces)
        if not self._versioned and self.jev.spent.models:
            self.model_version = ", ".join(sorted(self.jev.spent.models))
        return scores

    def cost(self, traces: Sequence[Trace]) -> Cost:
        """What scoring these will cost, cached answers left out."""
        states = [build_state(trace, self.manifest.slice_spec).text for trace in traces]
        return self.jev.cost([self.jev.plan(state, self.manifest.questions) for state in states])


def systemone_scorer(
    endpoint: str,
    model: str,
    manifest: Manifest | None = None,
    *,
    model_version: str | None = None,
    api_key: str | None = None,
    timeout: float = 10.0,
    attempts: int = 5,
    cache: Path | None = None,
) -> SystemOneScorer:
    """A scorer over any System One server (`observer systemone`, Kev, Laya, Jev); asks nothing yet.

    Args:
        endpoint: base URL, with or without `/v1/systemone`.
        model: the name or alias asked for.
        manifest: which questions decide, how the state is built, and the calibration of this very model; without one
            the default questions, format v1 and the raw probabilities.
        model_version: what decisions carry; `RunDirectory.version` of the manifest's run.
        timeout, attempts: seconds of one request, and tries in all. A live service wants both small.
        cache: keep answers in this SQLite file.

    Raises:
        InputError: the SDK is not installed, or the manifest's decision question cannot decide.
    """
    server = Server(endpoint, model, api_key, timeout=timeout, attempts=attempts)
    asked = manifest or Manifest(model=model, questions=default_questions())
    return SystemOneScorer(JevModel(server, cache=cache), asked, model_version)


def jev_scorer(*, cache: Path | None = None) -> SystemOneScorer:
    """Jev as the SDK's environment variables name it, asked the question that decides, uncalibrated.

    Raises:
        NotRunError: no key is set.
    """
    server = Server.from_env()
    if server is None:
        raise NotRunError(f"no key in {KEY_ENV}; set it (any value for a local server that wants none)")
    questions = {DECISION_QUESTION: default_questions()[DECISION_QUESTION]}
    return SystemOneScorer(JevModel(server, cache=cache), Manifest(model=server.model, questions=questions))
