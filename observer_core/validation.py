"""Settings and documents read through pydantic, with errors of one line that name the field's path."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from observer_core.errors import InputError

M = TypeVar("M", bound=BaseModel)


def _path(where: str, location: tuple[int | str, ...]) -> str:
    path = where
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def problem_of(error: ValidationError, where: str = "") -> str:
    """The first problem of a `ValidationError` as one line: the field's path below `where`, then what is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "no such setting; check the spelling"
    path = _path(where, first["loc"])
    more = error.error_count() - 1
    also = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return f"{path + ': ' if path else ''}{message[:1].lower()}{message[1:]}{also}"


def validated(model: type[M], data: Any, *, where: str = "") -> M:
    """`data` as a `model`.

    Raises:
        InputError: a field is unknown, missing or has an unusable value; names its path below `where`.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InputError(problem_of(error, where)) from None
