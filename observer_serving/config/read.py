"""Reading `observer.yaml`: YAML, then environment variables inside it and over it, then validation."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.config.settings import Settings

OVERRIDE = "OBSERVER__"
"""`OBSERVER__POLICY__RANDOM_SHARE=0.03` sets `policy.random_share`; the value is read as YAML, or as it
stands where the setting is text."""
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
    except RecursionError:
        raise InputError(f"{where}: an alias (*) stands for what holds itself; write out what is meant") from None


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise InputError(f"{where}: nested too deeply; no setting needs that") from None
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
        node[key] = _value(environment[name], name, [*sections, key])
    return data


def _value(text: str, name: str, path: list[str]) -> Any:
    """What the environment says a setting is: text for a key or a path, even where YAML would read a number."""
    kinds: list[Any] = [Settings]
    for part in path:
        kinds = [kind for one in kinds for kind in _inside(one, part)]
    kinds = [alternative for kind in kinds for alternative in _alternatives(kind)]
    if not {str, SecretStr, Path} & set(kinds) or (text == "null" and type(None) in kinds):
        return _parse(text, name)
    return _parse(text, name) if text.startswith("[") and any(get_origin(kind) is tuple for kind in kinds) else text


def _inside(kind: Any, key: str) -> Iterator[Any]:
    """What a section or mapping holds under a key, in each of its alternatives."""
    for one in _alternatives(kind):
        if get_origin(one) is dict:
            yield get_args(one)[1]
        elif isinstance(one, type) and issubclass(one, BaseModel) and key in one.model_fields:
            yield one.model_fields[key].annotation


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a value may have; those of a tuple's items too, as one item may stand for the tuple."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind
        if origin is tuple:
            yield from _alternatives(get_args(kind)[0])


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
