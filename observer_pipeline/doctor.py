"""Whether Observer can run here: versions, ports, disk, optional services, each with what to do."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_pipeline.resources.settings import Settings
from observer_pipeline.stack import Ports
from observer_pipeline.supervise import port_is_free, port_owner

_ENOUGH_DISK = 5 << 30
_ENOUGH_MEMORY = 6 << 30

PACKAGES = {
    "torch": "train",
    "transformers": "train",
    "onnxruntime": None,
    "google-adk": "agent",
    "dagster": "pipeline",
    "dagster-webserver": "pipeline",
    "mlflow": "pipeline",
    "arize-phoenix-client": "pipeline",
}
"""What is looked for → the extra that brings it (`None`: the base)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `optional` things may be missing; `bad` ones stand in the way."""

    state: Literal["ok", "optional", "bad"]
    what: str
    found: str
    mend: str = ""


def examine(home: Home, ports: Ports) -> list[Finding]:
    """Look at everything; changes nothing but to create OBSERVER_HOME."""
    return [*_versions(), *_folder(home), *_settings(), *_ports(ports), *_optional()]


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding("ok" if fits else "bad", "Python", python, "" if fits else "use Python 3.11 or 3.12")
    for name, extra in PACKAGES.items():
        try:
            yield Finding("ok", name, version(name))
        except PackageNotFoundError:
            wanted = f"observer-pipeline[{extra}]" if extra else "observer-pipeline"
            yield Finding("optional" if extra else "bad", name, "not installed", f"uv pip install '{wanted}'")
    uv = shutil.which("uvx") or shutil.which("uv")
    yield Finding(
        "ok" if uv else "optional", "uv", uv or "not found", "" if uv else "install uv: it runs Phoenix's server"
    )


def _folder(home: Home) -> Iterator[Finding]:
    import psutil

    try:
        home.ensure(home.root)
    except InputError as error:
        yield Finding("bad", "OBSERVER_HOME", str(home.root), str(error))
        return
    yield Finding("ok", "OBSERVER_HOME", str(home.root))
    free = shutil.disk_usage(home.root).free
    mend = "" if free >= _ENOUGH_DISK else "free space, or set OBSERVER_HOME to a larger disk"
    yield Finding("ok" if not mend else "bad", "disk", f"{free / 2**30:.1f} GiB free", mend)
    memory = psutil.virtual_memory().available
    mend = "" if memory >= _ENOUGH_MEMORY else "training needs up to 4 GB and the stack 2 GB; close other programs"
    yield Finding("ok" if not mend else "optional", "memory", f"{memory / 2**30:.1f} GiB available", mend)


def _settings() -> Iterator[Finding]:
    try:
        Settings.from_env()
    except InputError as error:
        yield Finding("bad", "settings", "OBSERVER_* variables", str(error))
    else:
        yield Finding("ok", "settings", f"{sum(k.startswith('OBSERVER_') for k in os.environ)} OBSERVER_* variables")


def _ports(ports: Ports) -> Iterator[Finding]:
    names = Ports.__slots__
    for name, port in zip(names, astuple(ports), strict=True):
        if port_is_free(port):
            yield Finding("ok", f"port {name}", f"{port} is free")
        else:
            owner = port_owner(port) or "another program"
            yield Finding(
                "bad", f"port {name}", f"{port}: {owner}", f"stop it, or observer up --ports {name}={port + 10000}"
            )


def ollama_finding() -> Finding:
    """Whether an Ollama server answers, and which models it has."""
    mend = "only needed to run the test agent with a real language model"
    try:
        from observer_pipeline.agent.models.ollama_server import installed_models, ollama_host
    except ModuleNotFoundError:
        return Finding("optional", "Ollama", "its client is not installed", "uv pip install 'observer-pipeline[agent]'")
    try:
        models = installed_models(ollama_host())
    except ObserverError as error:
        return Finding("optional", "Ollama", str(error).partition(";")[0], mend)
    if not models:
        return Finding("optional", "Ollama", f"{ollama_host()}, no models", "ollama pull qwen2.5:7b")
    return Finding("ok", "Ollama", f"{ollama_host()}: {', '.join(models)}")


def _optional() -> Iterator[Finding]:
    yield ollama_finding()
    key = bool(os.environ.get("TYPESAFE_API_KEY"))
    yield Finding("ok" if key else "optional", "Jev", "key set" if key else "no TYPESAFE_API_KEY",
                  "" if key else "only needed to compare with the hosted model")  # fmt: skip
