"""`observer.yaml`: every setting of the service, validated before anything starts.

Every key is optional. Durations are written `500ms`, `2s`, `10m`; sizes `64MiB`, `10MB` or a number of bytes; `${VAR}`
stands for an environment variable, and `OBSERVER__SECTION__KEY` in the environment overrides a key. Errors are one line
with the file and the key's path. `docs/settings.md` is made from these classes.
"""

from observer_serving.config.read import read_settings
from observer_serving.config.scorers import (
    BuiltinSettings,
    CascadeScorerSettings,
    LocalSettings,
    OneModel,
    ScorerSettings,
    SystemOneSettings,
)
from observer_serving.config.sections import (
    EvaluatorsSettings,
    ExporterSettings,
    NotifyRule,
    NotifySettings,
    ProjectSettings,
    RedactSettings,
    RetentionSettings,
    TelemetrySettings,
    TlsSettings,
)
from observer_serving.config.settings import SERVICE, Settings
from observer_serving.config.values import is_loopback, parse_size, split_address

__all__ = [
    "SERVICE",
    "BuiltinSettings",
    "CascadeScorerSettings",
    "EvaluatorsSettings",
    "ExporterSettings",
    "LocalSettings",
    "NotifyRule",
    "NotifySettings",
    "OneModel",
    "ProjectSettings",
    "RedactSettings",
    "RetentionSettings",
    "ScorerSettings",
    "Settings",
    "SystemOneSettings",
    "TelemetrySettings",
    "TlsSettings",
    "is_loopback",
    "parse_size",
    "read_settings",
    "split_address",
]
