"""Reading `observer.yaml`: YAML, then environment variables inside it and over it, then validation."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.config.settings import Settings

OVERRIDE = "OBSERVER__"
"""`OBSERVER__POLICY__RANDOM_SHARE=0.03` sets `policy.random_share`; the value is read as YAML."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_settings(path: Path | None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in `path`, or the defaults for `None`, with what the environment overrides.

    Raises:
        InputError: unreadable, not YAML, an unknown key or an unusable value; names the file and the key's path.
    """
    data: Any = {}
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise InputError(f"cannot read {path}: {why}; give --config a YAML file") from None
        data = _parse(text, str(path))
    if data is not None and not isinstance(data, dict):
        raise InputError(f"{path}: must be a mapping of settings; see the examples")
    where = str(path) if path is not None else "the environment"
    try:
        expanded = _expand(data or {}, "", environment)
        return validated(Settings, _overridden(expanded, environment))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise InputError(f"{where}: not YAML{line}: {getattr(error, 'problem', error)}; mend it") from None


def _overridden(data: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings with every `OBSERVER__SECTION__KEY` put in place; a whole section may be given as YAML."""
    for name in sorted(environment):
        if not name.startswith(OVERRIDE):
            continue
        *sections, key = [part.lower() for part in name.removeprefix(OVERRIDE).split("__")]
        node = data
        for section in sections:
            inner = node.get(section)
            node[section] = node = dict(inner) if isinstance(inner, dict) else {}
        node[key] = _parse(environment[name], name)
    return data


def _expand(value: Any, path: str, environment: Mapping[str, str]) -> Any:
    """Put environment variables in place of `${VAR}`, everywhere."""
    if isinstance(value, dict):
        return {key: _expand(item, f"{path}.{key}" if path else str(key), environment) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, f"{path}[{i}]", environment) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environment:
            raise InputError(f"{path}: the environment variable {name} is not set; export it")
        return environment[name]

    return _VARIABLE.sub(variable, value)
