"""The service put together: what is built in which order, how it starts, drains and stops.

Start: lock the state folder, bind the ports, read the log back, then listen. A model may still be loading then: spans
are taken in, logged and assembled, their traces wait for it, and `/readyz` says so. One that does not pass its checks
ends the service as if it had not started; what was acknowledged meanwhile is in the log.
Stop (SIGTERM, Ctrl-C): refuse new work with 503, decide what is open within the drain deadline, close the ports last,
so that clients are told to come back and never meet a closed door. What could not be decided waits in the log.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from observer_core.errors import InputError
from observer_core.home import Home
from observer_core.traces.otlp import protobuf_from_json
from observer_serving.access import Keys
from observer_serving.active import policies_of
from observer_serving.api.app import build_api
from observer_serving.api.parts import Parts
from observer_serving.assemble import Assembler
from observer_serving.beside import Beside
from observer_serving.buffer.protocol import Logged
from observer_serving.clock import Clock, SystemClock
from observer_serving.config import ExporterSettings, Settings, split_address
from observer_serving.connections import PatientProtocol
from observer_serving.decide import Decider
from observer_serving.deliver import Delivery
from observer_serving.engine import Engine
from observer_serving.erase import Eraser
from observer_serving.evaluate import Evaluators
from observer_serving.export import Exporter, make_exporter
from observer_serving.export.queue import EXPORT_FOLDER
from observer_serving.listen import GrpcListener, HttpListener, bind
from observer_serving.loading import Loading
from observer_serving.lock import hold
from observer_serving.metrics import Metrics
from observer_serving.notify import Notifier, trace_url
from observer_serving.receive.grpc import build_server
from observer_serving.receive.http import OtlpHttp
from observer_serving.receive.protocol import OtlpProtocol
from observer_serving.receive.receiver import Gate, Most, Receiver
from observer_serving.redact import make_redactor
from observer_serving.retention import Retention
from observer_serving.score import Scoring, patience
from observer_serving.spool import Spool
from observer_serving.stats import Stats
from observer_serving.storage import open_storage
from observer_serving.switchboard import Switchboard
from observer_serving.undeliverable import UNDELIVERABLE_FOLDER, Undeliverable
from observer_serving.uploads import Uploads

log = logging.getLogger(__name__)

_PREPARE_SECONDS = 0.25
_LIVE = ("scorer", "policy", "projects", "keys", "api_key", "redact")
"""What `App.reload` puts in force; everything else waits for a restart."""


class App:
    """One service over one state folder. `start`, then `stop`; or `run` until a signal."""

    def __init__(
        self, settings: Settings, home: Home, *, clock: Clock | None = None, loading: Loading | None = None
    ) -> None:
        """Build everything and bind the ports; nothing runs yet.

        Args:
            loading: the models of these settings, for a service that listens before they are loaded; without it they
                are loaded here.

        Raises:
            InputError: the folder cannot be written or is in use, a port is taken, a model loaded here does not pass
                its checks.
            ObserverError: the decision record cannot be opened.
        """
        self.settings = settings
        self._folder = home.ensure(home.serving)
        self._lock = _lock(self._folder)
        clock = clock or SystemClock()
        keys = self._keys = Keys(settings)
        sockets = {
            name: bind(name, address)
            for name in ("api", "otlp_http")
            if (address := getattr(settings.listen, name)) is not None
        }
        metrics, stats = Metrics(), Stats(clock.monotonic())
        self._metrics = metrics
        self._loading = loading or Loading(self._folder, settings)
        active = self._loading.active
        self._storage = storage = open_storage(settings, self._folder, lambda: self.engine)
        self.record, self.wal = storage.record, storage.buffer
        decider = Decider(self._folder, policies_of(active), clock, own_key=storage.own_key, epochs=storage.epochs)
        self.scoring = Scoring(
            {}, lambda event: self.engine.put(event), clock, metrics, patience=patience(settings.scorer)
        )
        self._evaluators = (
            Evaluators(settings.evaluators, lambda evaluated: self.engine.put(evaluated), metrics)
            if settings.evaluators.rewards
            else None
        )
        self._notifier = (
            Notifier(settings.notify, self._folder, clock, metrics, trace_url=trace_url(settings))
            if settings.notify.webhooks
            else None
        )
        self._telemetry = None
        if settings.telemetry.endpoint is not None:
            from observer_serving.telemetry import Telemetry

            self._telemetry = Telemetry(settings.telemetry, metrics, version=version("observer-pipeline"))
        self._spool = Spool(home.ensure(home.spool), max_rows=settings.spool.max_rows, max_age_s=settings.spool.max_age)
        self.exporters = [self._exporter(one) for one in settings.exporters]
        undeliverable = Undeliverable(self._folder / UNDELIVERABLE_FOLDER)
        delivery = Delivery(
            self.record,
            self.wal.release,
            self._spool,
            self.exporters,
            undeliverable,
            metrics,
            settle_after=settings.spool.max_age,
            settle_rows=settings.spool.max_rows,
            settle_bytes=settings.assembly.max_total_bytes // 4,
        )
        assembler = Assembler(settings.assembly.limits())
        self.engine = Engine(
            assembler=assembler,
            scoring=self.scoring,
            beside=Beside(self._evaluators, clock, metrics),
            decider=decider,
            record=self.record,
            delivery=delivery,
            release=self.wal.release,
            clock=clock,
            metrics=metrics,
            stats=stats,
            # After a restart a trace waits at least the quiet period: its client may be sending again right now.
            max_age=settings.assembly.timeout - settings.assembly.quiet_period,
            max_backlog=settings.assembly.max_total_bytes,
            decides_open=not self.wal.shared,
            on_decided=[told.add for told in (self._notifier, self._telemetry) if told is not None],
        )
        kept = settings.retention.model_copy(update={"decisions": settings.decisions_kept})
        self._retention = Retention(kept, self._folder, self.engine, self.record, self._spool, clock)
        self._eraser = Eraser(
            self.engine, assembler, self.record, self.wal, self._spool, self.exporters, undeliverable, metrics
        )
        uploads = Uploads(self._folder, keep=settings.retention.models)
        self._switchboard = Switchboard(self._folder, settings, active, self.scoring, decider, uploads, clock, metrics)
        # A shared buffer holds what this engine has no room for.
        self._gate = Gate(
            settings.assembly.max_total_bytes, lambda: 0 if self.wal.shared else self.engine.backlog_bytes
        )
        self._redactor = make_redactor(settings.redact, metrics)
        most = Most(settings.receive.max_request_spans, settings.receive.max_request_values)
        receiver = self._receiver = Receiver(self.wal, self._gate, clock, metrics, self._redactor, most=most)
        parts = Parts(
            version=version("observer-pipeline"),
            receiver=receiver,
            gate=self._gate,
            record=self.record,
            wal=self.wal,
            engine=self.engine,
            scoring=self.scoring,
            decider=decider,
            switchboard=self._switchboard,
            eraser=self._eraser,
            exporters=self.exporters,
            undeliverable=undeliverable,
            metrics=metrics,
            stats=stats,
            clock=clock,
            max_request=settings.receive.max_request,
            max_values=settings.receive.max_request_values,
            trace_url=trace_url(settings),
            listeners=lambda: self.addresses,
        )
        self._listeners: dict[str, HttpListener | GrpcListener] = {}
        applications: dict[str, Callable[[], Any]] = {
            "api": lambda: build_api(parts, keys),
            "otlp_http": lambda: OtlpHttp(
                receiver,
                keys,
                max_request=settings.receive.max_request,
                max_bodies=settings.receive.max_waiting,
                path=settings.receive.traces_path,
            ),
        }
        for name, sock in sockets.items():
            protocol = OtlpProtocol if name == "otlp_http" else PatientProtocol
            self._listeners[name] = HttpListener(sock, applications[name](), settings.tls_of(name), protocol=protocol)
        self._grpc = (
            (lambda: build_server(receiver, keys, max_request=settings.receive.max_request))
            if settings.listen.otlp_grpc is not None
            else None
        )
        self.addresses: dict[str, str] = {}
        """Name → `host:port` of every listener, once it listens."""
        if loading is None:
            self._switchboard.begin(self._loading.models())

    def _exporter(self, settings: ExporterSettings) -> Exporter:
        folder = self._folder / EXPORT_FOLDER / settings.name
        return make_exporter(settings, folder, on_outcome=lambda outcome: self.engine.put(outcome))

    async def start(self) -> None:
        """Read the log back, start the threads, listen.

        Raises:
            InputError: the gRPC port is taken.
        """
        if self._grpc is not None and self.settings.listen.otlp_grpc is not None:
            self._listeners["otlp_grpc"] = GrpcListener(
                self._grpc(), self.settings.listen.otlp_grpc, self.settings.tls_of("otlp_grpc")
            )
        self.scoring.start()
        if self._evaluators is not None:
            self._evaluators.start()
        if self._notifier is not None:
            self._notifier.start()
        if self._telemetry is not None:
            self._telemetry.start()
        for exporter in self.exporters:
            exporter.start()
        self.engine.start()
        await asyncio.to_thread(lambda: self.engine.resume(self._logged()))
        self.wal.start()
        self._retention.start()
        self._eraser.start()
        for name, listener in self._listeners.items():
            await listener.start()
            host, _ = split_address(getattr(self.settings.listen, name))
            self.addresses[name] = f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        log.info("listening", extra={"fields": {"listen": self.addresses}})

    def _logged(self) -> Iterable[Logged]:
        """What the log holds, as the settings want it read now."""
        return self.wal.replay() if self._redactor is None else map(self._redactor.logged, self.wal.replay())

    async def stop(self) -> None:
        """Drain within the deadline, then stop listening and close everything."""
        deadline = time.monotonic() + self.settings.drain
        self._gate.draining = True
        if self.scoring.loading:  # nothing can be decided; it is in the log
            deadline = time.monotonic()
        await asyncio.to_thread(self._retention.stop)
        await asyncio.to_thread(self._eraser.stop)
        await asyncio.to_thread(self.wal.flush)
        await asyncio.to_thread(self.engine.drain, max(1.0, deadline - time.monotonic()))
        if self.wal.shared:  # what is open goes on elsewhere at once, however long the exporters take
            await asyncio.to_thread(self.wal.close)
        for exporter in self.exporters:
            await asyncio.to_thread(exporter.stop, max(1.0, deadline - time.monotonic()))
        for listener in self._listeners.values():
            await listener.stop()
        self.addresses = {}
        self.wal.close()
        self.scoring.stop()
        if self._evaluators is not None:
            self._evaluators.stop()
        if self._notifier is not None:
            self._notifier.stop()
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.stop)
        self.record.close()
        self._storage.close()
        os.close(self._lock)

    def urls(self) -> dict[str, str]:
        """Name → URL of every listener, once it listens."""
        return {
            name: f"{'https' if self.settings.tls_of(name) else 'http'}://{address}"
            for name, address in self.addresses.items()
        }

    def reload(self, settings: Settings) -> None:
        """Put changed settings in force: scorers, policies, keys, redaction; the others are told to need a restart.

        Raises:
            InputError: a model does not pass its checks, or what is new does not go with what waits for a restart (a
                listener that strangers reach, and no key any more); everything stays as it was.
        """
        before = self.settings
        in_force = before.model_copy(update={name: getattr(settings, name) for name in _LIVE})
        try:
            in_force.check()
        except ValueError as error:
            raise InputError(f"only with a restart, since other settings stay in force until then: {error}") from None
        changed = self._switchboard.reload(in_force)
        if (in_force.keys, in_force.api_key) != (before.keys, before.api_key):
            self._keys.use(in_force)
            changed.append("keys")
        if in_force.redact != before.redact:
            self._receiver.redactor = make_redactor(in_force.redact, self._metrics)
            changed.append("redact")
        self.settings = in_force
        waiting = [name for name in type(settings).model_fields if getattr(settings, name) != getattr(in_force, name)]
        log.info("settings read again", extra={"fields": {"changed": changed, "need_a_restart": waiting}})

    async def run(
        self,
        *,
        on_ready: Callable[["App"], None] | None = None,
        read_again: Callable[[], Settings] | None = None,
    ) -> None:
        """Serve until SIGTERM or SIGINT; a second one ends the drain. SIGHUP puts what `read_again` gives in force.

        Raises:
            InputError: a model does not pass its checks; what was acknowledged meanwhile is in the log.
        """
        loop = asyncio.get_running_loop()
        loaded = asyncio.create_task(self._load())
        # What is wrong at first sight (no such run) is said instead of listening. What is shared goes to other
        # workers meanwhile, and a log that does not fit in memory can only be read back while traces are decided.
        log_is_large = self.wal.left > self.settings.assembly.max_total_bytes // 2
        if self._loading.done or self.wal.shared or log_is_large:
            await loaded
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        reloads: set[asyncio.Task[None]] = set()
        if read_again is not None:
            again = read_again

            def hang_up() -> None:
                task = asyncio.create_task(self._read_when_loaded(loaded, again))
                reloads.add(task)
                task.add_done_callback(reloads.discard)

            loop.add_signal_handler(signal.SIGHUP, hang_up)
        await self.start()
        loaded.add_done_callback(lambda task: stopping.set() if task.exception() is not None else None)
        if on_ready is not None:
            on_ready(self)
        loop.call_later(_PREPARE_SECONDS, threading.Thread(target=_prepare, daemon=True).start)
        await stopping.wait()
        log.info("draining", extra={"fields": {"open_traces": self.engine.open_traces}})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        await self.stop()
        if loaded.done():
            loaded.result()
        else:
            await asyncio.to_thread(self._loading.join, self.settings.drain)

    async def _load(self) -> None:
        await self._loading.wait()
        if self.scoring.loading:
            await asyncio.to_thread(self._switchboard.begin, self._loading.models())

    async def _read_when_loaded(self, loaded: "asyncio.Task[None]", read_again: Callable[[], Settings]) -> None:
        await asyncio.wait({loaded})
        await asyncio.to_thread(self._read_again, read_again)

    def _read_again(self, read_again: Callable[[], Settings]) -> None:
        try:
            self.reload(read_again())
        except InputError as error:
            log.error("settings not put in force, the old ones stay: %s", error)
            self._switchboard.note_refusal(str(error))
        except Exception as error:
            log.exception("settings not put in force, the old ones stay")
            self._switchboard.note_refusal(f"a fault in observer ({error!r}); its log says more")


def create_app(
    settings: Settings, home: Home | None = None, *, clock: Clock | None = None, loading: Loading | None = None
) -> App:
    """The service for these settings over `home` (default: `OBSERVER_HOME`)."""
    return App(settings, home or Home.from_env(), clock=clock, loading=loading)


def _prepare() -> None:
    """Import now, while nobody waits for it, what the first request in JSON and the spool's first file need: msgspec,
    and pyarrow with what its first conversion imports."""
    protobuf_from_json(b"{}")
    import pyarrow as pa
    import pyarrow.parquet

    pa.array([None])


def _lock(folder: Path) -> int:
    descriptor = hold(folder)
    if descriptor is None:
        raise InputError(f"another service uses {folder}; stop it or set OBSERVER_HOME to another folder")
    return descriptor
