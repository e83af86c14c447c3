"""`observer.yaml`: every setting of the service, validated before anything starts.

Every key is optional. Durations are written `500ms`, `2s`, `10m`; sizes `64MiB`, `10MB` or a number of bytes; `${VAR}`
stands for an environment variable. Errors are one line with the file and the key's path.
"""

import hashlib
import ipaddress
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from observer_core.durations import Duration
from observer_core.errors import InputError
from observer_core.policy import Policy
from observer_core.validation import validated
from observer_serving.assemble import AssemblyLimits
from observer_serving.score import DEFAULT_MAX_BATCH

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def parse_size(value: Any) -> int:
    """Bytes of `64MiB`, `10MB`, `2GiB` or a whole number.

    Raises:
        ValueError: not of that form, or not above 0.
    """
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str | int) else None
    if isinstance(value, bool) or match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write it as 64MiB, 10MB or a number of bytes")
    size = int(float(match[1]) * _UNITS[match[2].upper()])
    if size <= 0:
        raise ValueError(f"{value!r} must be above 0")
    return size


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be longer than 0s")
    return value


Size = Annotated[int, BeforeValidator(parse_size)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:]+\]|[^:\[\]]+):\d{1,5}$")]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listen(_Settings):
    """Addresses as `host:port`; null switches a listener off, port 0 takes a free one."""

    api: Address | None = "127.0.0.1:8080"
    otlp_http: Address | None = "127.0.0.1:4318"
    otlp_grpc: Address | None = "127.0.0.1:4317"

    def __iter__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self.model_dump().items())


class BuiltinSettings(_Settings):
    """The documented heuristic that needs no training."""

    kind: Literal["builtin"] = "builtin"
    deadline: Duration = 30.0
    max_batch: Annotated[int, Field(ge=1, le=4096)] = DEFAULT_MAX_BATCH


class LocalSettings(BuiltinSettings):
    """A run directory, in this process. `version` is the registry's name for it; without one its own hash is used."""

    kind: Literal["local"] = "local"  # pyright: ignore[reportIncompatibleVariableOverride]
    run: Path
    version: str | None = None
    backend: Literal["auto", "onnx", "torch"] = "auto"


ScorerSettings = Annotated[BuiltinSettings | LocalSettings, Field(discriminator="kind")]


class BufferSettings(_Settings):
    """The write-ahead log; `dir` is `OBSERVER_HOME/serving/wal` when absent.

    A segment is followed by a new one after `max_age`, so that what has been dealt with leaves the disk.
    """

    kind: Literal["local"] = "local"
    dir: Path | None = None
    fsync: bool = True
    max_bytes: Size = 8 << 30
    max_age: Duration = 600.0


class ReceiveSettings(_Settings):
    """`max_request` bounds a request after decompression; `max_waiting` what waits for the disk.

    `traces_path` is where OTLP/HTTP clients post to.
    """

    traces_path: Annotated[str, Field(pattern=r"^/[!-~]*[^/]$")] = "/v1/traces"
    max_request: Size = 64 << 20
    max_waiting: Size = 256 << 20


class AssemblySettings(_Settings):
    """When a trace is complete (see `observer_serving.assemble`)."""

    quiet_period: Duration = 2.0
    timeout: Duration = 60.0
    max_spans: Annotated[int, Field(ge=1)] = 32_000
    max_bytes: Size = 64 << 20
    max_open_traces: Annotated[int, Field(ge=1)] = 100_000
    max_total_bytes: Size = 1 << 30

    @model_validator(mode="after")
    def _ordered(self) -> "AssemblySettings":
        if self.timeout < self.quiet_period:
            raise ValueError("timeout must not be shorter than quiet_period")
        return self

    def limits(self) -> AssemblyLimits:
        return AssemblyLimits(**{name: getattr(self, name) for name in type(self).model_fields})


class SpoolSettings(_Settings):
    """Files of the spool are sealed at `max_rows` decisions or `max_age`, whichever comes first."""

    max_rows: Annotated[int, Field(ge=1)] = 10_000
    max_age: Duration = 60.0


class ExporterSettings(_Settings):
    """One back end that kept traces are sent to."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    kind: Literal["otlp_http"] = "otlp_http"
    endpoint: Annotated[str, Field(pattern=r"^https?://")]
    project: str | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    annotate: bool = True
    traces_per_second: Annotated[float, Field(gt=0)] | None = None


class Settings(_Settings):
    """The whole of `observer.yaml`."""

    listen: Listen = Listen()
    api_key: SecretStr | None = None
    scorer: ScorerSettings = BuiltinSettings()
    buffer: BufferSettings = BufferSettings()
    receive: ReceiveSettings = ReceiveSettings()
    assembly: AssemblySettings = AssemblySettings()
    policy: Policy = Field(default_factory=lambda: Policy.model_validate({}))
    exporters: tuple[ExporterSettings, ...] = ()
    spool: SpoolSettings = SpoolSettings()
    drain: Duration = 20.0

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        for name, address in self.listen:
            if address is not None and self.api_key is None and not is_loopback(address):
                raise ValueError(
                    f"listen.{name}: {address} can be reached from other machines; set api_key or listen on 127.0.0.1"
                )
        names = [exporter.name for exporter in self.exporters]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"exporters: two are named {repeated!r}; rename one")
        return self

    def fingerprint(self) -> str:
        """Changes when `scorer` or `policy` change: then the file speaks again, whatever was accepted while running."""
        spoken = {"scorer": self.scorer.model_dump(mode="json"), "policy": self.policy.to_json()}
        return hashlib.sha256(json.dumps(spoken, sort_keys=True).encode()).hexdigest()


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair; an IPv6 host comes in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach `host:port`."""
    host, _ = split_address(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_settings(path: Path | None) -> Settings:
    """The settings in `path`, or the defaults for `None`.

    Raises:
        InputError: unreadable, not YAML, an unknown key or an unusable value; names the file and the key's path.
    """
    if path is None:
        return Settings()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"cannot read {path}: {why}; give --config a YAML file") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}: not YAML{where}: {getattr(error, 'problem', error)}; mend the file") from None
    if data is not None and not isinstance(data, dict):
        raise InputError(f"{path}: must be a mapping of settings; see the examples")
    try:
        return validated(Settings, _expand(data or {}, ""))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _expand(value: Any, path: str) -> Any:
    """Put environment variables in place of `${VAR}`, everywhere."""
    if isinstance(value, dict):
        return {key: _expand(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise InputError(f"{path}: the environment variable {name} is not set; export it")
        return os.environ[name]

    return _VARIABLE.sub(variable, value)
