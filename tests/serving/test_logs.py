"""Log lines, whatever becomes of the stderr there was at the start."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from observer_serving import logs


@pytest.fixture
def configured() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "observer", "observer_serving", "observer_core")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    logs.configure()
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.usefixtures("configured")
def test_lines_go_to_what_stderr_is_now(monkeypatch: pytest.MonkeyPatch):
    for text in ("one", "two"):
        now = io.StringIO()
        monkeypatch.setattr("sys.stderr", now)
        logging.getLogger("observer").info("%s", text)
        assert [json.loads(line)["message"] for line in now.getvalue().splitlines()] == [text]
        now.close()
