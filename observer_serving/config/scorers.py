"""`scorer:` — which model scores, alone, in a cascade, with shadows beside it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from observer_core.durations import Duration
from observer_core.policy import Bounds
from observer_serving.config.values import Name, Section, url_parts


class ModelSettings(Section):
    """What holds for every model."""

    deadline: Duration = Field(
        default=30.0, description="A trace without a score so long after its turn came is decided unscored"
    )
    max_batch: int = Field(default=8, ge=1, le=4096, description="Traces scored at once; on a CPU more gain nothing")
    max_batch_tokens: int = Field(
        default=16384,
        ge=1,
        description="Tokens scored at once, estimated from the text; a longer trace is scored alone",
    )


class BuiltinSettings(ModelSettings):
    """The documented heuristic that needs no training."""

    kind: Literal["builtin"] = Field(default="builtin", description="`builtin`, `local`, `systemone` or `cascade`")


class LocalSettings(ModelSettings):
    """A run directory, in this process."""

    kind: Literal["local"] = Field(default="local", description="A run directory, in this process")
    run: Path = Field(description="The run directory; relative to where the service starts")
    version: str | None = Field(default=None, description="The registry's name for it; without one the manifest's hash")
    backend: Literal["auto", "onnx", "torch"] = Field(
        default="auto", description="`auto`: the exported graph if there is one"
    )


class SystemOneSettings(ModelSettings):
    """Any server that speaks System One: Kev, Laya, or hosted Jev."""

    kind: Literal["systemone"] = Field(default="systemone", description="A server that speaks System One")
    endpoint: str = Field(pattern=r"^https?://", description="Its base URL")
    model: str = Field(description="The model to ask for, such as `kev-latest`")
    manifest: Path | None = Field(
        default=None,
        description="A `manifest.json` with questions, state format and calibration; without one the defaults",
    )
    api_key: SecretStr | None = Field(default=None, description="Sent as `Authorization: Bearer`")
    version: str | None = Field(
        default=None, description="What decisions call it; without one the server's or the manifest's"
    )

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: str) -> str:
        if not url_parts(endpoint).hostname:
            raise ValueError(f"{endpoint!r} names no host")
        return endpoint


OneModel = Annotated[BuiltinSettings | LocalSettings | SystemOneSettings, Field(discriminator="kind")]


class CascadeStages(Section):
    """A cheap model for all traces, a strong one for those the cheap one is uncertain of."""

    first: OneModel = Field(description="The cheap model; it scores every trace")
    second: OneModel = Field(description="The strong model; if it gives no score in time, the first one's stands")
    uncertain: Bounds = Field(
        default=Bounds(min=0.2, max=0.8), description="Scores of the first model that the second one is asked about"
    )


class _WithShadows(Section):
    shadow: dict[Name, OneModel] = Field(
        default={}, description="Models scored beside, by name: recorded in `shadow`, never deciding, never waited for"
    )


class BuiltinScorerSettings(BuiltinSettings, _WithShadows):
    """`kind: builtin`."""


class LocalScorerSettings(LocalSettings, _WithShadows):
    """`kind: local`."""


class SystemOneScorerSettings(SystemOneSettings, _WithShadows):
    """`kind: systemone`."""


class CascadeScorerSettings(_WithShadows):
    """`kind: cascade`."""

    kind: Literal["cascade"] = Field(default="cascade", description="Two models, the second one for the uncertain")
    cascade: CascadeStages = Field(description="The two models")

    @model_validator(mode="after")
    def _differ(self) -> "CascadeScorerSettings":
        if self.cascade.first == self.cascade.second:
            raise ValueError("cascade.second is the same as cascade.first; name a stronger model")
        return self


ScorerSettings = Annotated[
    BuiltinScorerSettings | LocalScorerSettings | SystemOneScorerSettings | CascadeScorerSettings,
    Field(discriminator="kind"),
]
