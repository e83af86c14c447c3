"""Logs as JSON lines on stderr: one object a line, every decision one line with the fields of its record."""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson

DECISIONS = "observer.decisions"


class JsonLines(logging.Formatter):
    """`{"at", "level", "logger", "message"}`; a record with the attribute `fields` adds them."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is when there is something to say: the one of the start may be closed by then."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(level: int = logging.INFO) -> None:
    """Send everything to stderr as JSON lines; libraries only from warnings on."""
    handler = _Stderr()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("observer", "observer_serving", "observer_core"):
        logging.getLogger(name).setLevel(level)
