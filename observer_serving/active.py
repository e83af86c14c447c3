"""What is in force, by scope: which model, which policy.

`serving/active.json` holds what was last accepted, until `scorer` or `policy` in `observer.yaml` change: then the file
speaks again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_core.policy import Policy, read_policy
from observer_serving.config import SERVICE, LocalSettings, ScorerSettings, Settings

ACTIVE_FILE = "active.json"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model serves: the built-in heuristic, a run directory (`run`, absolute) under a version's name, or, for
    `systemone` and `cascade`, what the settings say (they may hold secrets, which are written down nowhere else).
    """

    kind: str = "builtin"
    run: str | None = None
    version: str | None = None
    backend: str = "auto"

    @classmethod
    def of(cls, settings: ScorerSettings) -> "ModelChoice":
        """What the settings choose."""
        if isinstance(settings, LocalSettings):
            run = str(settings.run.expanduser().resolve())
            return cls("local", run, settings.version, settings.backend)
        return cls(settings.kind)

    @property
    def from_settings(self) -> bool:
        """Whether only the settings know the rest."""
        return self.kind in ("systemone", "cascade")

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "run": self.run, "version": self.version, "backend": self.backend}


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
        InputError: `active.json` cannot be read, or a policy in it looks at an evaluator that the settings lack.
    """
    active = active_of(settings)
    file = folder / ACTIVE_FILE
    if not file.exists():
        return active
    try:
        stored = json.loads(file.read_bytes())
        kept = {SERVICE: stored} | stored.get("projects", {})
        found = {scope: _kept(kept[scope], spoken) if scope in kept else spoken for scope, spoken in active.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove it to go back to observer.yaml") from None
    for policy in policies_of(found).values():
        if unknown := settings.unknown_evaluators(policy):
            raise InputError(
                f"{file}: a policy in force looks at the evaluator {unknown[0]!r}; add it to evaluators.rewards, or "
                "remove the file to go back to observer.yaml"
            )
    return found


def _kept(stored: Mapping[str, Any], spoken: Active) -> Active:
    if stored["fingerprint"] != spoken.fingerprint:
        return spoken
    model, previous = (ModelChoice(**stored[key]) if stored[key] else None for key in ("model", "previous"))
    policy = with_key(stored["policy"], spoken.policy) if spoken.policy else None
    return Active(spoken.fingerprint, model, previous, policy)


def with_key(data: Any, policy: Policy) -> Policy:
    """A policy from its JSON, with the hash key of the policy in force: the key is a secret and never travels."""
    return read_policy(data).model_copy(update={"hash_key": policy.hash_key})


def policies_of(active: Mapping[str, Active]) -> dict[str, Policy]:
    """The policies in force, by scope."""
    return {scope: one.policy for scope, one in active.items() if one.policy is not None}
