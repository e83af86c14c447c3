"""What is kept for how long: old decisions, files of the spool and what was set aside, and dead letters are removed in
small steps."""

import logging
import threading
from pathlib import Path

from observer_core.durations import format_duration
from observer_serving.buffer.record import DecisionRecord
from observer_serving.clock import Clock, rfc3339
from observer_serving.config import RetentionSettings
from observer_serving.engine import Engine
from observer_serving.export.queue import EXPORT_FOLDER
from observer_serving.spool import Spool
from observer_serving.undeliverable import UNDELIVERABLE_FOLDER, Undeliverable

log = logging.getLogger(__name__)

_EVERY_S = 600.0
_ROWS = 1000
"""Rows removed in one transaction: the engine decides nothing meanwhile."""
_STOP_WAIT_S = 2.0


class Retention:
    """Removes what is too old, on a thread of its own; `run_once` does it all at once."""

    def __init__(
        self,
        settings: RetentionSettings,
        folder: Path,
        engine: Engine,
        record: DecisionRecord,
        spool: Spool,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._engine = engine
        self._record = record
        self._spool = spool
        self._clock = clock
        self._undeliverable = Undeliverable(folder / UNDELIVERABLE_FOLDER)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer-retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_WAIT_S)

    def run_once(self) -> None:
        """Remove everything that is too old now."""
        now_ns = self._clock.now_ns()
        settings = self._settings
        if settings.decisions is not None:
            moment = rfc3339(now_ns - int(settings.decisions * 1e9))
            gone = _ROWS
            total = 0
            while gone == _ROWS and not self._stop.is_set():
                gone = self._engine.call(lambda: self._record.remove_before(moment, limit=_ROWS)).result(60)
                total += gone
            _say(total, "decisions", settings.decisions)
        if settings.spool is not None:
            before = now_ns / 1e9 - settings.spool
            _say(self._spool.remove_before(before), "spool files", settings.spool)
            _say(self._undeliverable.remove_before(before), "traces set aside", settings.spool)
        if settings.dead_letters is not None:
            _say(self._remove_dead(now_ns / 1e9 - settings.dead_letters), "dead letters", settings.dead_letters)

    def _remove_dead(self, moment: float) -> int:
        old = [
            path
            for path in (self._folder / EXPORT_FOLDER).glob("*/dead/[!.]*")
            if path.is_file() and path.stat().st_mtime < moment
        ]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def _run(self) -> None:
        while True:
            try:
                self.run_once()
            except Exception:  # a disk that refuses now may not tomorrow
                log.exception("cannot remove what is too old; trying again")
            if self._stop.wait(_EVERY_S):
                return


def _say(removed: int, what: str, age: float) -> None:
    if removed:
        log.info("removed %d %s older than %s", removed, what, format_duration(age))
