"""The sections of `observer.yaml` around the model and the policy."""

import re
import ssl
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from observer_core.durations import Duration
from observer_core.policy import Policy
from observer_serving.assemble import AssemblyLimits
from observer_serving.config.scorers import ScorerSettings
from observer_serving.config.values import Address, Name, Section, Size, url_parts


class Listen(Section):
    """Addresses as `host:port`; null switches a listener off, port 0 takes a free one."""

    api: Address | None = Field(default="127.0.0.1:8080", description="JSON API, dashboard, metrics, health")
    otlp_http: Address | None = Field(default="127.0.0.1:4318", description="OTLP over HTTP")
    otlp_grpc: Address | None = Field(default="127.0.0.1:4317", description="OTLP over gRPC")

    def addresses(self) -> dict[str, str | None]:
        """Listener → address."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class BufferSettings(Section):
    """The write-ahead log, or NATS JetStream for several receivers and workers."""

    kind: Literal["local", "nats"] = Field(
        default="local", description="`local`: a log on this machine's disk; `nats`: NATS JetStream"
    )
    dir: Path | None = Field(default=None, description="Where it lies; `OBSERVER_HOME/serving/wal` when absent")
    fsync: bool = Field(default=True, description="Whether the disk has confirmed a request before it is acknowledged")
    max_bytes: Size = Field(default=8 << 30, description="Above this new requests get 503")
    max_age: Duration = Field(
        default=600.0,
        description="(local) A file is followed by a new one so old, so that what is dealt with leaves the disk",
    )
    url: str = Field(
        default="nats://127.0.0.1:4222",
        pattern=r"^(nats|tls)://",
        description="(nats) The servers, separated by commas; user and password or a token may be in it",
    )
    credentials: Path | None = Field(default=None, description="(nats) A `.creds` file")
    prefix: str = Field(
        default="observer",
        pattern=r"^[A-Za-z0-9_-]+$",
        description="(nats) Before all names there; deployments with different ones share a server",
    )
    parts: int = Field(
        default=16, ge=1, le=1024, description="(nats) Parts the traces are spread over; at most so many workers"
    )
    replicas: int = Field(default=1, ge=1, le=5, description="(nats) Servers of a cluster that hold every message")
    decide: bool = Field(default=True, description="(nats) Whether this process also decides, or only receives")
    lease: Duration = Field(
        default=10.0, description="(nats) A worker silent for so long loses its parts to the others"
    )
    record_age: Duration = Field(
        default=7 * 86_400.0,
        description="(nats) How long decisions are remembered, where `retention.decisions` does not say",
    )

    @model_validator(mode="after")
    def _of_this_kind(self) -> "BufferSettings":
        local = {"dir", "fsync", "max_age"}
        nats = {"url", "credentials", "prefix", "parts", "replicas", "decide", "lease", "record_age"}
        wrong = self.model_fields_set & (nats if self.kind == "local" else local)
        if wrong:
            other = "nats" if self.kind == "local" else "local"
            raise ValueError(f"{sorted(wrong)[0]} is for kind: {other}; leave it out")
        return self


class ReceiveSettings(Section):
    """What one request may hold."""

    traces_path: str = Field(
        default="/v1/traces", pattern=r"^/[!-~]*[^/]$", description="Where OTLP/HTTP clients post traces to"
    )
    max_request: Size = Field(default=64 << 20, description="Largest request, after decompression")
    max_request_spans: int = Field(
        default=200_000, ge=1, description="Most spans in one request, with the resources and scopes they are under"
    )
    max_request_values: int = Field(
        default=1_000_000,
        ge=1,
        description="Most attributes, events, links and elements of values in one request, or values of a JSON body",
    )
    max_waiting: Size = Field(
        default=256 << 20, description="What may come in at once, or wait for the disk, before clients get 503"
    )


class AssemblySettings(Section):
    """When a trace is complete."""

    quiet_period: Duration = Field(
        default=2.0, description="Without a span for so long after the root ended, it is complete"
    )
    timeout: Duration = Field(default=60.0, description="Complete at the latest so long after its first span")
    max_spans: int = Field(default=32_000, ge=1, description="A trace with so many spans is decided at once")
    max_bytes: Size = Field(default=64 << 20, description="A trace of so many bytes is decided at once")
    max_open_traces: int = Field(default=100_000, ge=1, description="With more than this the oldest are decided early")
    max_total_bytes: Size = Field(
        default=1 << 30, description="Bytes of all open traces; above it the oldest are decided early"
    )

    @model_validator(mode="after")
    def _ordered(self) -> "AssemblySettings":
        if self.timeout < self.quiet_period:
            raise ValueError("timeout must not be shorter than quiet_period")
        return self

    def limits(self) -> AssemblyLimits:
        return AssemblyLimits(**{name: getattr(self, name) for name in type(self).model_fields})


class SpoolSettings(Section):
    """When a file of the spool is sealed."""

    max_rows: int = Field(default=10_000, ge=1, description="At so many rows")
    max_age: Duration = Field(default=60.0, description="When its oldest row is so old")


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _check_authority(file: Path) -> None:
    """
    Raises:
        ValueError: the file holds no certificate of an authority.
    """
    try:
        ssl.create_default_context(cafile=str(file))
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"ca: cannot use {file}: {error.strerror or error}") from None


class ExporterSettings(Section):
    """One back end that kept traces are sent to."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = Field(description="Its name in metrics and folders")
    kind: Literal["otlp_http", "otlp_grpc"] = Field(default="otlp_http", description="`otlp_http` or `otlp_grpc`")
    endpoint: str = Field(description="URL of the traces route; for gRPC `host:port` or a URL")
    project: str | None = Field(default=None, description="Phoenix's project, sent as its header")
    headers: dict[str, SecretStr] = Field(default={}, description="Sent with every request, such as the back end's key")
    annotate: bool = Field(default=True, description="Whether a Phoenix gets the trace annotation `observer.p_wrong`")
    read_back: bool = Field(
        default=False, description="Whether a trace counts as exported only once Phoenix shows it (needs `project`)"
    )
    ca: Path | None = Field(default=None, description="The authority that signed the back end's certificate, PEM")
    max_batch: Size = Field(
        default=(4 << 20) - (64 << 10), description="Largest request; gRPC servers take 4 MiB unless told otherwise"
    )
    traces_per_second: Annotated[float, Field(gt=0)] | None = Field(default=None, description="A bound on the pace")

    @model_validator(mode="after")
    def _consistent(self) -> "ExporterSettings":
        if self.kind == "otlp_http" and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError("endpoint: must begin with http:// or https://")
        url_parts(self.endpoint if "://" in self.endpoint else f"http://{self.endpoint}")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"headers: {name!r} is no name of a header")
            if not _is_header_value(value.get_secret_value()):
                raise ValueError(f"headers.{name}: only printable ASCII can be sent, and no line break")
        if self.project is not None and not _is_header_value(self.project):
            raise ValueError("project: is sent as a header, which takes printable ASCII only")
        if self.ca is not None:
            _check_authority(self.ca)
        if self.kind == "otlp_grpc" and (self.project is not None or self.read_back):
            raise ValueError("project and read_back are for Phoenix over otlp_http; leave them out")
        if self.read_back and self.project is None:
            raise ValueError("read_back looks into a Phoenix project; set project")
        return self


class EvaluatorsSettings(Section):
    """Rewards that run on live traces: recorded in `evaluators`, usable in rules' `when`."""

    rewards: dict[Name, str] = Field(
        default={}, description="Name → a built-in reward, an installed one, or `module:function` with TRL's signature"
    )
    answers: Literal["text", "json"] = Field(
        default="text", description="`json`: answers are objects as in training runs"
    )
    columns: dict[str, str] = Field(
        default={},
        description="Column a reward reads (such as `reference`) → the attribute or JSON field that holds it",
    )
    timeout: Duration = Field(default=1.0, description="One call of one evaluator; a hanging one is ended and named")
    deadline: Duration = Field(default=3.0, description="The longest a decision waits for evaluators")


class NotifyRule(Section):
    """One thing people want to be told of; it resolves by itself."""

    name: str = Field(description="What the note calls it")
    metric: str = Field(
        pattern=r"^(high_severity|kept|scorer_failed|overload|p_wrong|evaluator\.[A-Za-z0-9_.-]+)$",
        description="Per decision: `high_severity`, `kept`, `scorer_failed`, `overload` (0 or 1), `p_wrong`, or "
        "`evaluator.<name>`",
    )
    threshold: float = Field(description="With what the aggregate is compared")
    compare: Literal[">", ">=", "<", "<="] = Field(default=">=", description="How")
    aggregate: Literal["sum", "mean", "min", "max"] = Field(
        default="sum", description="Over the decisions of the window; `mean` of a 0-or-1 metric is a share"
    )
    window: Duration = Field(default=600.0, gt=0, description="How far back the rule looks")
    min_samples: int = Field(default=1, ge=1, description="Decisions the window needs before a mean says anything")
    project: str | None = Field(default=None, description="Only decisions of this project")
    resolve_threshold: float | None = Field(default=None, description="Where well begins; the threshold when absent")
    resolve_after: Duration = Field(default=0.0, description="How long it must be well")
    severity: Literal["critical", "warning", "info"] = Field(default="warning", description="The note's colour")
    message: str = Field(default="", description="Added to the note, such as a link to a runbook")


class NotifySettings(Section):
    """Notes to people, by Slack-compatible webhooks."""

    webhooks: dict[Name, SecretStr] = Field(default={}, description="Name → URL")
    rules: tuple[NotifyRule, ...] = Field(
        default=(NotifyRule(name="high severity", metric="high_severity", threshold=1),),
        description="When; by default as soon as a trace of high severity is kept",
    )
    trace_url: str | None = Field(
        default=None,
        description="Link to a trace, `{trace_id}` in it; by default that of the first Phoenix among the exporters",
    )

    @model_validator(mode="after")
    def _named(self) -> "NotifySettings":
        names = [rule.name for rule in self.rules]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"two rules are named {repeated!r}; rename one")
        for url in self.webhooks.values():
            if not url.get_secret_value().startswith(("http://", "https://")):
                raise ValueError("webhooks: a URL must begin with http:// or https://")
        try:
            (self.trace_url or "").format(trace_id="")
        except (ValueError, LookupError, AttributeError):
            raise ValueError("trace_url: {trace_id} is all that is replaced; write other braces twice") from None
        return self


Keyring = Annotated[tuple[SecretStr, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class KeysSettings(Section):
    """Keys for single purposes; each may be one key or a list, so that keys can be changed without a gap."""

    ingest: Keyring = Field(default=(), description="May send traces")
    read: Keyring = Field(default=(), description="May read decisions, figures, metrics and the dashboard")
    admin: Keyring = Field(default=(), description="May do everything: switch models and policies, erase traces")

    @field_validator("*")
    @classmethod
    def _not_empty(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if any(not key.get_secret_value() for key in keys):
            raise ValueError("a key must not be empty")
        return keys


class TlsSettings(Section):
    """TLS on the listeners."""

    cert: Path = Field(description="The certificate chain, PEM")
    key: Path = Field(description="Its private key, PEM")
    ca: Path | None = Field(default=None, description="Clients must show a certificate that this authority signed")
    listeners: tuple[Literal["api", "otlp_http", "otlp_grpc"], ...] = Field(
        default=("api", "otlp_http", "otlp_grpc"), description="Which listeners; by default all"
    )

    @model_validator(mode="after")
    def _readable(self) -> "TlsSettings":
        for name in ("cert", "key", "ca"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name}: no file {path}")
        return self


class TelemetrySettings(Section):
    """The service's own OpenTelemetry traces, one per decision; off without an endpoint, and never sent to itself."""

    endpoint: str | None = Field(default=None, pattern=r"^https?://", description="URL of an OTLP/HTTP traces route")
    headers: dict[str, SecretStr] = Field(default={}, description="Sent with every request")
    share: Annotated[float, Field(gt=0, le=1)] = Field(default=1.0, description="Of all decisions, drawn at random")


class RetentionSettings(Section):
    """How long things stay; null: for ever."""

    decisions: Duration | None = Field(
        default=None, ge=3600, description="The decision record; spans that come later than this make a new trace"
    )
    spool: Duration | None = Field(
        default=None,
        ge=3600,
        description="Sealed files of the spool, longer than the pipeline takes to read them; also traces set aside",
    )
    dead_letters: Duration | None = Field(default=None, ge=3600, description="Traces that a back end refused")
    models: int = Field(default=3, ge=0, description="Uploaded models, besides those in use")


class RedactSettings(Section):
    """What is replaced before anything is written down, sent on or scored."""

    patterns: dict[Name, str] = Field(
        default={}, description="Name → regular expression, searched in every text and number"
    )
    attributes: tuple[str, ...] = Field(
        default=(), description="Attribute keys and JSON fields replaced whole; `*` stands for anything"
    )
    replacement: str = Field(default="[redacted]", description="What stands there instead")

    @model_validator(mode="after")
    def _compile(self) -> "RedactSettings":
        for name, pattern in self.patterns.items():
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"patterns.{name}: not a regular expression ({error})") from None
            if compiled.search("") is not None:
                raise ValueError(f"patterns.{name}: matches the empty text and so everything; write it narrower")
            if compiled.search(self.replacement) is not None:
                raise ValueError(f"replacement: is itself matched by patterns.{name}; choose another")
        return self


class ProjectSettings(Section):
    """What differs for one project (`openinference.project.name` of a trace, else its `service.name`)."""

    scorer: ScorerSettings | None = Field(default=None, description="As `scorer`; null: the service's")
    policy: Policy | None = Field(default=None, description="As `policy`, whole; null: the service's")
