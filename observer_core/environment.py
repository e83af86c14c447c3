"""Where a model computes, as far as what it computes depends on that."""

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import observer_core

_LIBRARIES = ("observer-pipeline", "numpy", "tokenizers", "onnxruntime", "torch", "transformers")
_CPUINFO = Path("/proc/cpuinfo")


def environment() -> str:
    """A sha256 of this package's code, the versions of Python and of the libraries that compute, and the processor: the
    same run gives the same scores where it is the same."""
    told = [_code(), platform.python_version(), *((name, _version(name)) for name in _LIBRARIES), _processor()]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _code() -> list[tuple[str, int, int]]:
    """Names, sizes and times of its files: a checkout changes under one version."""
    return sorted(_modules(str(Path(observer_core.__file__).parent), ""))


def _modules(folder: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                stat = entry.stat()
                yield prefix + entry.name, stat.st_size, stat.st_mtime_ns
            elif entry.is_dir():
                yield from _modules(entry.path, f"{prefix}{entry.name}/")


def _version(library: str) -> str:
    """Read from the head of the metadata: parsing all of it, as `importlib.metadata.version` does, takes a service
    that starts more time than hashing its code."""
    try:
        head = distribution(library).read_text("METADATA") or ""
    except PackageNotFoundError:  # or installed under another name, as onnxruntime-gpu is
        return getattr(sys.modules.get(library), "__version__", "absent")
    return head.partition("\nVersion:")[2].partition("\n")[0].strip()


def _processor() -> str:
    """Model and instruction sets of the first core."""
    if not _CPUINFO.exists():
        return f"{platform.machine()} {platform.processor()}"
    told: dict[str, str] = {}
    with _CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, found, value = line.partition(":")
            if not found:
                break
            told[name.strip()] = value.strip()
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # of x86, then of ARM
    return " ".join((platform.machine(), *(told[name] for name in wanted if name in told)))
