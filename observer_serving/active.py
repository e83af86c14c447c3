"""Which model and which policy are in force: switched while running, kept over restarts, every switch recorded.

`serving/active.json` holds what was last accepted, until `scorer` or `policy` in `observer.yaml` change: then the file
speaks again. `serving/switches.jsonl` is the log of all switches. A model is in force only after its files' hashes
and its golden traces have been checked; on any doubt the old one stays. Projects with a scorer or a policy of their own
switch by themselves.
"""

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.policy import Policy, read_policy
from observer_serving.clock import Clock, rfc3339
from observer_serving.config import SERVICE, Settings
from observer_serving.decide import Decider
from observer_serving.metrics import Metrics
from observer_serving.score import LoadedModel, ModelChoice, Scoring, load_model
from observer_serving.uploads import Uploads

log = logging.getLogger(__name__)

ACTIVE_FILE = "active.json"
SWITCHES_FILE = "switches.jsonl"


@dataclass(frozen=True, slots=True)
class Active:
    """What is in force in one scope; `model` or `policy` is `None` where a project takes the service's."""

    fingerprint: str
    model: ModelChoice | None
    previous: ModelChoice | None
    policy: Policy | None

    def to_json(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "model": self.model.to_json() if self.model else None,
            "previous": self.previous.to_json() if self.previous else None,
            "policy": self.policy.to_json() if self.policy else None,
        }


def active_of(settings: Settings) -> dict[str, Active]:
    """What the settings put in force, by scope."""
    found: dict[str, Active] = {}
    for scope in settings.scopes():
        scorer = settings.scorer_of(scope)
        choice = ModelChoice.of(scorer) if scorer else None
        found[scope] = Active(settings.fingerprint(scope), choice, None, settings.policy_of(scope))
    return found


def read_active(folder: Path, settings: Settings) -> dict[str, Active]:
    """What is in force at start, by scope: `active.json` while the settings say what they said, else the settings.

    Raises:
        InputError: `active.json` cannot be read.
    """
    active = active_of(settings)
    file = folder / ACTIVE_FILE
    if not file.exists():
        return active
    try:
        stored = json.loads(file.read_bytes())
        kept = {SERVICE: stored} | stored.get("projects", {})
        return {scope: _kept(kept[scope], spoken) if scope in kept else spoken for scope, spoken in active.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove it to go back to observer.yaml") from None


def _kept(stored: Mapping[str, Any], spoken: Active) -> Active:
    if stored["fingerprint"] != spoken.fingerprint:
        return spoken
    model, previous = (ModelChoice(**stored[key]) if stored[key] else None for key in ("model", "previous"))
    policy = _with_key(stored["policy"], spoken.policy) if spoken.policy else None
    return Active(spoken.fingerprint, model, previous, policy)


def _with_key(data: Any, policy: Policy) -> Policy:
    """A policy from its JSON, with the hash key of the policy in force: the key is a secret and never travels."""
    return read_policy(data).model_copy(update={"hash_key": policy.hash_key})


def load_models(active: Mapping[str, Active], settings: Settings) -> dict[str, LoadedModel]:
    """The models in force, by scope.

    Raises:
        InputError: one does not pass its checks; names the project.
    """
    models: dict[str, LoadedModel] = {}
    for scope, one in active.items():
        scorer = settings.scorer_of(scope)
        if one.model is not None and scorer is not None:
            try:
                models[scope] = load_model(one.model, scorer)
            except InputError as error:
                if scope == SERVICE:
                    raise
                raise InputError(f"projects.{scope}.scorer: {error}") from None
    return models


class Loading:
    """What is in force at start, its models being loaded on a thread: what needs none of them can go on meanwhile.

    Raises:
        InputError: `active.json` cannot be read.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.active = read_active(folder, settings)
        self._models: Future[dict[str, LoadedModel]] = Future()
        self._models.set_running_or_notify_cancel()  # a model cannot be interrupted
        self._thread = threading.Thread(target=self._load, args=(settings,), name="observer-load", daemon=True)
        self._thread.start()

    def models(self) -> dict[str, LoadedModel]:
        """The models, once they are loaded.

        Raises:
            InputError: one does not pass its checks.
        """
        return self._models.result()

    @property
    def done(self) -> bool:
        """Whether `models` returns at once, or raises."""
        return self._models.done()

    async def wait(self) -> None:
        """Return when the models are loaded; raises as `models`."""
        await asyncio.wrap_future(self._models)

    def join(self, seconds: float) -> None:
        """Wait for the thread: a process that ends while native code works on one of its threads may crash."""
        self._thread.join(seconds)

    def _load(self, settings: Settings) -> None:
        try:
            self._models.set_result(load_models(self.active, settings))
        except BaseException as error:
            self._models.set_exception(error)


def policies_of(active: Mapping[str, Active]) -> dict[str, Policy]:
    """The policies in force, by scope."""
    return {scope: one.policy for scope, one in active.items() if one.policy is not None}


class Switchboard:
    """Switches models and policies of a running service; calls come from any thread and wait for each other.

    Until `begin` nothing can be switched (`ObserverError`): the models of the start are still being loaded.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        active: dict[str, Active],
        scoring: Scoring,
        decider: Decider,
        uploads: Uploads,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._active = active
        self._scoring = scoring
        self._decider = decider
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self.uploads = uploads
        self.since: dict[str, str] = {}

    def begin(self, models: Mapping[str, LoadedModel]) -> None:
        """Put the models of the start in force, which have passed their checks."""
        with self._lock:
            self._save()
            self.since = {scope: rfc3339(self._clock.now_ns()) for scope in self._active}
            self._decider.begin({scope: model.validation_scores for scope, model in models.items()})
            self._scoring.begin(models)

    def active(self, scope: str = SERVICE) -> Active:
        """What is in force in a scope.

        Raises:
            InputError: the project has no settings of its own.
        """
        if scope not in self._active:
            raise InputError(f"project {scope!r} has no settings of its own; add projects.{scope} to observer.yaml")
        return self._active[scope]

    def switch(
        self, choice: ModelChoice, *, reason: str | None = None, action: str = "switch", scope: str = SERVICE
    ) -> None:
        """Check the model, then serve it from the next batch on.

        Raises:
            InputError: it did not pass; the old one serves on, and the refusal is recorded.
        """
        with self._switching():
            active, scorer = self.active(scope), self._settings.scorer_of(scope)
            if active.model is None or scorer is None:
                raise InputError(f"project {scope!r} has no scorer of its own; add projects.{scope}.scorer")
            try:
                loaded = load_model(choice, scorer)
                self._serve(scope, loaded, replace(active, model=loaded.choice, previous=active.model))
            except InputError as error:
                self._metrics.model_switches.labels("refused").inc()
                self._note(action, scope, choice, reason, refused=str(error))
                raise
            else:
                self._save()
                self._metrics.model_switches.labels("done").inc()
                self._note(action, scope, loaded.choice, reason)
            finally:
                used = [one.run for each in self._active.values() for one in (each.model, each.previous) if one]
                self.uploads.prune(run for run in used if run)

    def rollback(self, *, reason: str | None = None, scope: str = SERVICE) -> None:
        """Serve the model before the present one again.

        Raises:
            InputError: there is none, or it no longer passes its checks.
        """
        previous = self.active(scope).previous
        if previous is None:
            raise InputError("no model was replaced yet; there is nothing to roll back to")
        self.switch(previous, reason=reason, action="rollback", scope=scope)

    def set_policy(self, data: Any, *, scope: str = SERVICE) -> Policy:
        """Decide by another policy from the next trace on.

        Raises:
            InputError: a setting is unknown or unusable; the old policy stays in force.
        """
        if isinstance(data, dict) and data.get("hash_key") is not None:
            raise InputError("policy.hash_key: is set in observer.yaml only; leave it out")
        with self._switching():
            active = self.active(scope)
            if active.policy is None:
                raise InputError(f"project {scope!r} has no policy of its own; add projects.{scope}.policy")
            policy = _with_key(data, active.policy)
            unknown = self._settings.unknown_evaluators(policy)
            if unknown:
                raise InputError(f"policy.rules: no evaluator is named {unknown[0]!r}; add it to observer.yaml")
            self._decider.use(policy, scope)
            self._active[scope] = replace(active, policy=policy)
            self._save()
            self._note_policy("policy", scope, policy)
            return policy

    def reload(self, settings: Settings) -> list[str]:
        """Put the scorers and policies of changed settings in force; all of them, or none when one does not pass.

        What was switched by hand meanwhile is kept where the settings say what they said before. Returns what changed,
        in words.

        Raises:
            InputError: a model does not pass, or projects came or went (routes are laid at start); all stays as it was.
        """
        with self._switching():
            return self._reload(settings)

    def note_refusal(self, why: str) -> None:
        """Record settings that were not put in force."""
        with self._lock:
            self._metrics.model_switches.labels("refused").inc()
            self._write_line({"action": "reload", "refused": why})

    def _reload(self, settings: Settings) -> list[str]:
        spoken = active_of(settings)
        if self._shape(spoken) != self._shape(self._active):
            raise InputError("projects: their scorers and policies came or went; restart the service for that")
        changed = [scope for scope in spoken if spoken[scope].fingerprint != self._active[scope].fingerprint]
        loaded: dict[str, LoadedModel] = {}
        for scope in changed:
            choice, scorer = spoken[scope].model, settings.scorer_of(scope)
            if choice and scorer and scorer != self._settings.scorer_of(scope):
                loaded[scope] = load_model(choice, scorer)
        words: list[str] = []
        self._settings = settings
        for scope in changed:
            new, old = spoken[scope], self._active[scope]
            model = loaded.get(scope)
            if model is not None:
                previous = old.model if old.model and not old.model.from_settings else None
                self._serve(scope, model, replace(new, model=model.choice, previous=previous))
                self._note("reload", scope, model.choice, None)
                words.append(f"{_named(scope)}scorer")
            else:
                self._active[scope] = replace(new, model=old.model, previous=old.previous)
            if new.policy is not None and new.policy != old.policy:
                self._decider.use(new.policy, scope)
                self._note_policy("reload", scope, new.policy)
                words.append(f"{_named(scope)}policy")
        self._save()
        return words

    @contextlib.contextmanager
    def _switching(self) -> Iterator[None]:
        with self._lock:
            self._scoring.route()  # raises while the models are being loaded
            yield

    @staticmethod
    def _shape(active: Mapping[str, Active]) -> dict[str, tuple[bool, bool]]:
        return {scope: (one.model is not None, one.policy is not None) for scope, one in active.items()}

    def _serve(self, scope: str, loaded: LoadedModel, active: Active) -> None:
        self._active[scope] = active
        self._scoring.route(scope).use(loaded)
        if loaded.validation_scores:
            self._decider.start_over(loaded.validation_scores, scope)
        self.since[scope] = rfc3339(self._clock.now_ns())

    def _save(self) -> None:
        projects = {scope: one.to_json() for scope, one in self._active.items() if scope != SERVICE}
        stored = self._active[SERVICE].to_json() | {"projects": projects}
        write_whole(self._folder / ACTIVE_FILE, json.dumps(stored, indent=2).encode())

    def _note(
        self, action: str, scope: str, choice: ModelChoice, reason: str | None, *, refused: str | None = None
    ) -> None:
        where = {"project": scope} if scope else {}
        self._write_line({"action": action, **where, **choice.to_json(), "reason": reason, "refused": refused})

    def _note_policy(self, action: str, scope: str, policy: Policy) -> None:
        where = {"project": scope} if scope else {}
        self._write_line({"action": action, **where, "policy_version": policy.version, "policy": policy.to_json()})

    def _write_line(self, line: dict[str, Any]) -> None:
        log.info("switch: %s", json.dumps(line))
        with (self._folder / SWITCHES_FILE).open("ab") as stream:
            stream.write(json.dumps({"at": rfc3339(self._clock.now_ns()), **line}).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _named(scope: str) -> str:
    return f"projects.{scope}." if scope else ""
