"""Scorers over System One servers: any of them, or the one the environment names."""

from collections.abc import Sequence
from pathlib import Path

from observer_core.decision.jev.client import KEY_ENV, JevModel, Server
from observer_core.decision.jev.cost import Cost
from observer_core.decision.protocol import NotRunError, Score
from observer_core.decision.scorer import RunScorer, deciding, state_scorer
from observer_core.home import Home
from observer_core.questions import default_questions
from observer_core.rundir import Manifest
from observer_core.slices import StateBuilder
from observer_core.traces.trace import Trace


class SystemOneScorer(RunScorer):
    """A `Scorer` that asks a server the manifest's questions and calibrates what it says.

    `model_version` is the manifest's; without one it is the concrete model that answered (before the first answer, the
    name asked for).
    """

    def __init__(
        self, jev: JevModel, manifest: Manifest, *, model_version: str | None = None, tokenizer: Path | None = None
    ) -> None:
        raw = state_scorer(jev, manifest, tokenizer=tokenizer)
        super().__init__(manifest, model_version or jev.server.model, raw)
        self.jev, self._versioned = jev, model_version is not None
        self._states = StateBuilder(manifest.slice_spec, tokenizer)

    def score(self, traces: Sequence[Trace]) -> list[Score]:
        """One score per trace, in order (see `JevModel.run` for what it raises)."""
        scores = super().score(traces)
        if not self._versioned and self.jev.spent.models:
            self.model_version = ", ".join(sorted(self.jev.spent.models))
        return scores

    def cost(self, traces: Sequence[Trace]) -> Cost:
        """What scoring these will cost, cached answers left out."""
        states = [self._states.build(trace).text for trace in traces]
        return self.jev.cost([self.jev.plan(state, self.manifest.questions) for state in states])


def systemone_scorer(
    endpoint: str,
    model: str,
    manifest: Manifest | None = None,
    *,
    model_version: str | None = None,
    tokenizer: Path | None = None,
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
        tokenizer: `RunDirectory.tokenizer` of that run, for state formats that count tokens.
        timeout, attempts: seconds of one request, and tries in all. A live service wants both small.
        cache: keep answers in this SQLite file.

    Raises:
        InputError: the SDK is not installed, or the manifest's decision question cannot decide.
    """
    server = Server(endpoint, model, api_key, timeout=timeout, attempts=attempts)
    asked = manifest or Manifest(model=model, questions=default_questions())
    return SystemOneScorer(JevModel(server, cache=cache), asked, model_version=model_version, tokenizer=tokenizer)


def jev_scorer(*, cache: Path | None = None) -> SystemOneScorer:
    """Jev as the SDK's environment variables name it, asked the question that decides, uncalibrated.

    Raises:
        NotRunError: no key is set.
    """
    server = Server.from_env()
    if server is None:
        raise NotRunError(f"no key in {KEY_ENV}; set it (any value for a local server that wants none)")
    manifest = deciding(Manifest(model=server.model, questions=default_questions()))
    return SystemOneScorer(JevModel(server, cache=cache), manifest)


def jev_cache(home: Home) -> Path:
    """Where answers are kept when whole data sets are scored."""
    return home.models / "jev" / "answers.sqlite"
