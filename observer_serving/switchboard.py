"""Switches what is in force while the service runs; every switch is recorded, and kept over restarts.

`serving/switches.jsonl` is the log of all switches. A model is in force only after its files' hashes and its golden
traces have been checked; on any doubt the old one stays. Projects with a scorer or a policy of their own switch by
themselves.
"""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_core.files import write_whole
from observer_core.policy import Policy
from observer_serving.active import ACTIVE_FILE, Active, ModelChoice, active_of, with_key
from observer_serving.clock import Clock, rfc3339
from observer_serving.config import SERVICE, Settings
from observer_serving.decide import Decider
from observer_serving.metrics import Metrics
from observer_serving.score import LoadedModel, Scoring, load_model
from observer_serving.uploads import Uploads

log = logging.getLogger(__name__)

SWITCHES_FILE = "switches.jsonl"


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
            policy = with_key(data, active.policy)
            unknown = self._settings.unknown_evaluators(policy)
            if unknown:
                raise InputError(
                    f"policy.rules: no evaluator named {unknown[0]!r} is running; add it to observer.yaml and restart"
                )
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
        stored = json.dumps(self._active[SERVICE].to_json() | {"projects": projects}, indent=2).encode()
        file = self._folder / ACTIVE_FILE
        if not file.exists() or file.read_bytes() != stored:
            write_whole(file, stored)

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
