"""`docs/settings.md`, made from the settings' own classes.

python -m observer_serving.config.reference docs/settings.md
"""

import json
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from observer_core.durations import format_duration
from observer_serving.config.settings import Settings
from observer_serving.config.values import format_size

_HEAD = """# Settings (`observer.yaml`)

Made from the code by `python -m observer_serving.config.reference docs/settings.md`; do not edit.

Every key is optional unless it says *required*. Durations are written `500ms`, `2s`, `10m`, `1h`, `30d`; sizes `64MiB`,
`10MB` or a number of bytes. `${VAR}` in a value stands for an environment variable.

Any key can be set from the environment: `OBSERVER__POLICY__RANDOM_SHARE=0.03` is `policy.random_share`. The value is
read as YAML, so a whole list or mapping fits; where the setting is text, such as a key, it is taken as it stands, but
for `null` where nothing is allowed. Names are in lower case in the file.

`observer serve --check --config FILE` validates a file, loads its models and asks its back ends. SIGHUP reads the file
again: scorers, policies, keys and redaction change while running, the rest needs a restart (the log says which). A file
that does not pass leaves everything as it was.
"""


_TABLE = "| key | type | default | meaning |\n|---|---|---|---|"


def reference() -> str:
    """The whole page; a section that occurs in several places is described at the first."""
    parts = [_HEAD]
    described: dict[type[BaseModel], str] = {}
    waiting: list[tuple[type[BaseModel], str, str]] = [(Settings, "", "All keys")]
    while waiting:
        model, path, title = waiting.pop(0)
        parts.append(_section(model, path, title, described))
        inner: list[tuple[type[BaseModel], str, str]] = []
        for name, field in model.model_fields.items():
            models = list(dict.fromkeys(_models(field.annotation)))
            key = f"{path}{field.alias or name}{_step(field.annotation)}"
            for one in models:
                if one not in described:
                    described[one] = key
                    kind = f" with kind `{one.model_fields['kind'].default}`" if len(models) > 1 else ""
                    inner.append((one, f"{key}.", f"`{key}`{kind}"))
        waiting = inner + waiting
    return "".join(parts)


def _section(model: type[BaseModel], path: str, title: str, described: dict[type[BaseModel], str]) -> str:
    """One table; `described` says where the sections inside it are."""
    lines = [f"\n## {title}\n", " ".join((model.__doc__ or "").split()) + "\n", _TABLE]
    for name, field in model.model_fields.items():
        key = f"{path}{field.alias or name}"
        models = list(dict.fromkeys(_models(field.annotation)))
        about = " ".join((field.description or (models[0].__doc__ if models else "") or "").split("\n\n")[0].split())
        elsewhere = described.get(models[0]) if models else None
        if elsewhere is not None and elsewhere != f"{key}{_step(field.annotation)}":
            about += f" (as `{elsewhere}`)"
        cells = (f"`{key}`", _type(field), _default(field, bool(models)), about)
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The section classes inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for inner in get_args(annotation):
        if get_origin(annotation) is Annotated and inner is not get_args(annotation)[0]:
            return
        yield from _models(inner)


def _step(annotation: Any) -> str:
    """How a key goes on into what it holds."""
    origin = _bare(annotation)
    if origin is dict:
        return ".<name>"
    return "[]" if origin is tuple else ""


def _bare(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    return get_origin(annotation)


def _type(field: FieldInfo) -> str:
    return _named(field.metadata) or _words(field.annotation)


def _named(metadata: Iterable[Any]) -> str | None:
    """The name of a type that is told by how it is written out."""
    return next((_NAMED[func] for each in metadata if (func := getattr(each, "func", None)) in _NAMED), None)


def _words(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _named(inner[1:]) or _words(inner[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(each) for each in inner))
    if origin is dict:
        return f"mapping of {_words(inner[1])}"
    if origin is tuple:
        return f"list of {_words(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo, is_section: bool) -> str:
    default = field.default if field.default_factory is None else field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "*required*"
    if default is None:
        return "null"
    if default in ((), {}):
        return "none"
    if is_section:
        return "see below"
    kind = _type(field)
    if "duration" in kind and isinstance(default, float):
        return f"`{format_duration(default)}`"
    if "size" in kind and isinstance(default, int):
        return f"`{format_size(default)}`"
    return f"`{json.dumps(default, default=str)}`" if not isinstance(default, str) else f"`{default}`"


_PLAIN = {str: "text", bool: "true or false", int: "number", float: "number", Path: "path", SecretStr: "secret text",
          type(None): "null"}  # fmt: skip
_NAMED: dict[Any, str] = {format_duration: "duration", format_size: "size"}


def main() -> None:
    """Write the page to the file named as the argument."""
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
