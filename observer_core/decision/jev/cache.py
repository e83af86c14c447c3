"""Answers kept on disk by the content of what was asked, so that nothing is paid for twice."""

import hashlib
import json
import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from observer_core.errors import ObserverError

_TABLE = """
create table if not exists answers (
  key text primary key, endpoint text not null, model text not null, answered_by text not null,
  answers text not null, input_tokens integer, answered_at text not null
) strict
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a server answered: its answer objects as sent, the concrete model, the input tokens it counted, and whether
    it said that it saw the state cut."""

    answers: dict[str, Any]
    model: str
    input_tokens: int | None
    truncated: bool = False


def request_key(endpoint: str, model: str, state: Any, questions: dict[str, Any]) -> str:
    """The sha256 (hex) of everything an answer depends on; the order of the questions is part of it."""
    body = json.dumps([endpoint, model, state, questions], ensure_ascii=True)
    return hashlib.sha256(body.encode()).hexdigest()


class AnswerCache:
    """A SQLite file; each answer is committed on its own, so that a batch that is cut off loses none it has paid for.

    States are not stored, only their digests. Safe for threads and for several processes.

    Raises:
        ObserverError: the file cannot be used; names it (every method may).
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def get(self, key: str) -> Answered | None:
        """What was answered, or `None`."""
        with self._lock:
            try:
                row = self._db.execute(
                    "select answers, answered_by, input_tokens from answers where key = ?", (key,)
                ).fetchone()
                if row is None:
                    return None
                answers = json.loads(row[0])
                cut = isinstance(answers, list)  # [answers] of a state that was cut
                return Answered(answers[0] if cut else answers, row[1], row[2], cut)
            except (sqlite3.Error, ValueError, IndexError) as error:
                raise self._unusable(error) from error

    def put(self, key: str, endpoint: str, model: str, answered: Answered) -> None:
        """Keep an answer."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        answers = json.dumps([answered.answers] if answered.truncated else answered.answers, ensure_ascii=False)
        row = (key, endpoint, model, answered.model, answers, answered.input_tokens, at)
        with self._lock:
            try:
                self._db.execute("insert or replace into answers values (?, ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.Error as error:
                raise self._unusable(error) from error

    def close(self) -> None:
        self._db.close()

    def _unusable(self, error: Exception) -> ObserverError:
        return ObserverError(f"the answer cache {self._path} cannot be used ({error}); free space or remove the file")
