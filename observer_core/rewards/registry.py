"""Where rewards come from: the built-in ones, installed ones (entry points) and a user's `module:function`.

A user's function has TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`, and is accepted as
it is.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Literal

from observer_core.errors import InputError
from observer_core.rewards.builtin import BUILTIN, builtin_name
from observer_core.rewards.completion import completion_text, read_completion

ENTRY_POINTS = "observer.rewards"
"""Entry point group: the name is the reward's, the object a function with TRL's signature or a `Reward`."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function and what is documented about it.

    `style` is `row` (built-in: completion and row in, number out) or `trl` (lists in, list out). `source` finds it
    again in another process. `failure` is the value given to a completion that cannot be read.
    """

    name: str
    call: Callable[..., Any]
    style: Literal["row", "trl"]
    source: str
    low: float | None = None
    high: float | None = None
    failure: float | None = None

    @property
    def builtin(self) -> bool:
        return self.source.startswith("builtin:")

    def revision(self) -> str:
        """Twelve hex digits that change when the function's code, or code of the same package that it uses, changes."""
        digest = hashlib.sha256()
        for text in _sources(self.call, set()):
            digest.update(text.encode())
        return digest.hexdigest()[:12]


def trl_reward(name: str, **column: str) -> Callable[..., list[float | None]]:
    """A built-in reward as a function for `GRPOTrainer(reward_funcs=…)`, so that training
    and re-grading run the same code.

    Args:
        name: a built-in; also the function's name, hence the log's column.
        column: where the reward finds its columns, e.g. `reference="solution"`.
    """
    reward = find_reward(name)

    def function(completions: list[Any], **columns: Any) -> list[float | None]:
        wanted = {ours: columns.get(column.get(ours, ours)) for ours in ("reference", "citations")}
        texts = [completion_text(completion)[0] for completion in completions]
        return [
            reward.call(
                read_completion(text), {ours: values[i] for ours, values in wanted.items() if values is not None}
            )
            for i, text in enumerate(texts)
        ]

    function.__name__ = function.__qualname__ = name
    return function


def builtin_rewards() -> list[Reward]:
    return [_builtin(name, name) for name in BUILTIN]


def _builtin(name: str, kind: str) -> Reward:
    return Reward(name, BUILTIN[kind], "row", f"builtin:{kind}", low=0.0, high=1.0, failure=0.0)


def find_reward(spec: str) -> Reward:
    """A reward by name, or by `module:function` / `file.py:function`; `column=` in front names the log's column it
    explains.

    Raises:
        InputError: nothing of that name; lists what there is.
    """
    column, equals, rest = spec.partition("=")
    target = rest if equals else spec
    if ":" in target:
        function = _load(target)
        if isinstance(function, Reward):
            return function
        return Reward(column if equals else _name_of(function, target), function, "trl", target)
    kind = builtin_name(target)
    if kind:
        return _builtin(column if equals else target, kind)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry.name == target:
            found = entry.load()
            name = column if equals else target
            return found if isinstance(found, Reward) else Reward(name, found, "trl", entry.value)
    installed = sorted({e.name for e in importlib.metadata.entry_points(group=ENTRY_POINTS)} | set(BUILTIN))
    raise InputError(f"no reward is named {target!r}; give module:function or one of: {', '.join(installed)}")


def find_rewards(specs: Iterable[str]) -> list[Reward]:
    """All rewards named; two of one name are refused.

    Raises:
        InputError: unknown or repeated reward.
    """
    rewards = [find_reward(spec) for spec in specs]
    names = [reward.name for reward in rewards]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"rewards named twice: {', '.join(repeated)}; give each its own name with NAME=SPEC")
    return rewards


def known_rewards(columns: Iterable[str]) -> list[Reward]:
    """The rewards of a log that Observer can grade by itself: its columns that name a built-in or an installed
    reward.
    """
    installed = {e.name for e in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return [find_reward(column) for column in columns if builtin_name(column) or column in installed]


def _name_of(function: Any, target: str) -> str:
    return getattr(function, "__name__", None) or target.rpartition(":")[2]


def _load(target: str) -> Any:
    module_name, _, attribute = target.rpartition(":")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"cannot import {module_name}: {type(error).__name__}: {error}; mend the module") from error
    found = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found) and not isinstance(found, Reward):
        raise InputError(f"{module_name} has no function {attribute!r}; give module:function")
    return found


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"no file {path}; give the path of a Python file with the reward function")
    name = f"observer_rewards_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _sources(function: Any, seen: set[int]) -> Iterable[str]:
    """The function's source and, in order of use, that of functions and constants of its top-level package."""
    function = inspect.unwrap(function)
    if id(function) in seen:
        return
    seen.add(id(function))
    try:
        yield textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        yield repr(getattr(function, "__qualname__", function))
    if not isinstance(function, FunctionType):
        return
    package = function.__module__.partition(".")[0]
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if inspect.isfunction(value) and value.__module__.partition(".")[0] == package:
            yield from _sources(value, seen)
        elif isinstance(value, (str, int, float, tuple, re.Pattern)):
            yield f"{name}={value!r}"


def _names(code: CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return names
