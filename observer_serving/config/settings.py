"""The whole of `observer.yaml`."""

import hashlib
import json
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from observer_core.durations import Duration
from observer_core.policy import Policy
from observer_serving.config.scorers import BuiltinScorerSettings, ScorerSettings
from observer_serving.config.sections import (
    AssemblySettings,
    BufferSettings,
    EvaluatorsSettings,
    ExporterSettings,
    KeysSettings,
    Listen,
    NotifySettings,
    ProjectSettings,
    ReceiveSettings,
    RedactSettings,
    RetentionSettings,
    SpoolSettings,
    TelemetrySettings,
    TlsSettings,
)
from observer_serving.config.values import Section, is_loopback, leads_to, split_address

SERVICE = ""
"""The scope of everything that no project has settings of its own for."""


class Settings(Section):
    """Every key is optional."""

    listen: Listen = Field(default=Listen(), description="Where the service listens")
    api_key: SecretStr | None = Field(default=None, description="A key that may do everything")
    keys: KeysSettings = Field(default=KeysSettings(), description="Keys for single purposes")
    tls: TlsSettings | None = Field(default=None, description="TLS on the listeners")
    scorer: ScorerSettings = Field(default=BuiltinScorerSettings(), description="Which model scores")
    policy: Policy = Field(default=Policy.model_validate({}), description="Which traces are kept")
    projects: dict[Annotated[str, Field(min_length=1)], ProjectSettings] = Field(
        default={}, description="Scorer and policy of single projects, by name"
    )
    redact: RedactSettings = Field(default=RedactSettings(), description="What is never written down")
    evaluators: EvaluatorsSettings = Field(default=EvaluatorsSettings(), description="Rewards run on live traces")
    notify: NotifySettings = Field(default=NotifySettings(), description="Notes to people")
    buffer: BufferSettings = Field(
        default=BufferSettings(), description="What is acknowledged lies here until it is dealt with"
    )
    receive: ReceiveSettings = Field(default=ReceiveSettings(), description="Limits of a request")
    assembly: AssemblySettings = Field(default=AssemblySettings(), description="When a trace is complete")
    exporters: tuple[ExporterSettings, ...] = Field(default=(), description="Back ends that kept traces are sent to")
    spool: SpoolSettings = Field(default=SpoolSettings(), description="Files for the pipeline")
    retention: RetentionSettings = Field(default=RetentionSettings(), description="How long things stay")
    telemetry: TelemetrySettings = Field(default=TelemetrySettings(), description="The service's own traces")
    drain: Duration = Field(default=20.0, description="How long SIGTERM waits for what is open")

    @field_validator("api_key")
    @classmethod
    def _not_empty(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not key.get_secret_value():
            raise ValueError("a key must not be empty; leave it out for none")
        return key

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        self.check()
        return self

    def check(self) -> None:
        """Whether the sections go together.

        Raises:
            ValueError: they do not; names the key.
        """
        everything = self.api_key is not None or bool(self.keys.admin)
        for name, address in self.listen.addresses().items():
            kept = everything or bool(self.keys.read if name == "api" else self.keys.ingest)
            if address is not None and not kept and not is_loopback(address):
                key = "keys.read" if name == "api" else "keys.ingest"
                raise ValueError(
                    f"listen.{name}: {address} can be reached from other machines; "
                    f"set api_key or {key}, or listen on 127.0.0.1"
                )
        for scope in self.scopes():
            policy = self.policy_of(scope)
            unknown = self.unknown_evaluators(policy) if policy else []
            if unknown:
                where = f"projects.{scope}.policy" if scope else "policy"
                raise ValueError(f"{where}.rules: no evaluator is named {unknown[0]!r}; add it to evaluators.rewards")
        for rule in self.notify.rules:
            if rule.metric.startswith("evaluator.") and rule.metric[10:] not in self.evaluators.rewards:
                raise ValueError(f"notify.rules: no evaluator is named {rule.metric[10:]!r}")
        if self.telemetry.endpoint is not None and self._is_own(self.telemetry.endpoint):
            raise ValueError("telemetry.endpoint: is this service itself; name another back end")
        for exporter in self.exporters:
            if self._is_own(exporter.endpoint):
                raise ValueError(
                    f"exporters: {exporter.name} leads to {exporter.endpoint}, which is this service itself: what is "
                    "kept would come back for ever; name another back end"
                )
        names = [exporter.name for exporter in self.exporters]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"exporters: two are named {repeated!r}; rename one")

    @property
    def decisions_kept(self) -> float | None:
        """For how many seconds decisions are kept; `None` for ever. A record that is shared always forgets."""
        shared = self.buffer.record_age if self.buffer.kind == "nats" else None
        return self.retention.decisions if self.retention.decisions is not None else shared

    def _is_own(self, url: str) -> bool:
        """Whether a URL leads to one of the listeners."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        for address in self.listen.addresses().values():
            own, own_port = split_address(address) if address is not None else ("", 0)
            if port == own_port and (host == own or leads_to(host, own)):  # names are looked up only here
                return True
        return False

    def unknown_evaluators(self, policy: Policy) -> list[str]:
        """Evaluators that a policy's rules look at and the settings do not have."""
        wanted = {name for rule in policy.rules for name in rule.when.evaluators}
        return sorted(wanted - self.evaluators.rewards.keys())

    def scorer_of(self, scope: str) -> ScorerSettings | None:
        """The scorer settings that a scope has of its own; the service always has some."""
        return self.scorer if scope == SERVICE else self.projects[scope].scorer

    def policy_of(self, scope: str) -> Policy | None:
        """The policy that a scope has of its own; the service always has one."""
        return self.policy if scope == SERVICE else self.projects[scope].policy

    def tls_of(self, listener: str) -> TlsSettings | None:
        """The TLS settings of a listener; `None` where it speaks plainly."""
        return self.tls if self.tls is not None and listener in self.tls.listeners else None

    def scopes(self) -> tuple[str, ...]:
        """The service, then every project with settings of its own."""
        return (SERVICE, *self.projects)

    def fingerprint(self, scope: str = SERVICE) -> str:
        """Changes with the scope's `scorer` or `policy`: then the file speaks again, whatever was accepted since."""
        scorer, policy = self.scorer_of(scope), self.policy_of(scope)
        spoken = {
            "scorer": scorer.model_dump(mode="json") if scorer else None,
            "policy": policy.to_json() if policy else None,
        }
        return hashlib.sha256(json.dumps(spoken, sort_keys=True).encode()).hexdigest()
