"""What a service keeps its traces and decisions in, by the settings: on this machine's disk, or in NATS JetStream."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from observer_core.errors import InputError
from observer_core.files import remove_unfinished
from observer_serving.buffer.protocol import Buffer, Intake
from observer_serving.buffer.record import DecisionRecord
from observer_serving.buffer.wal import WriteAheadLog
from observer_serving.config import Settings
from observer_serving.decide import hash_key_of
from observer_serving.epochs import EpochLog

if TYPE_CHECKING:
    from observer_serving.buffer.nats.link import NatsLink

RECORD_FILE = "decisions.sqlite"
WAL_FOLDER = "wal"
VIEWS = "decisions-{prefix}-*.sqlite"
"""Of a record shared over NATS: this replica's views of it, one per making of the streams."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The parts that change together.

    Attributes:
        own_key: the hash key that replicas share where the settings give none; `None`: the process keeps its own.
        epochs: scope → its epochs, shared by replicas; `None`: the process keeps its own.
        close: to be called last.
    """

    record: DecisionRecord
    buffer: Buffer
    own_key: bytes | None = None
    epochs: Callable[[str], EpochLog] | None = None
    close: Callable[[], None] = lambda: None


def open_storage(
    settings: Settings, folder: Path, intake: Callable[[], Intake], *, works: bool | None = None
) -> Storage:
    """Open what the settings name; `intake` gives the engine, once entries come.

    Args:
        works: whether to take a share of the traces to decide, whatever the settings say (NATS).

    Raises:
        InputError: the log's folder cannot be made; NATS cannot be used as the settings want, or its client is not
            installed.
        ObserverError: the decision record cannot be opened.
    """
    if settings.buffer.kind == "nats":
        return _open_nats(settings, folder, intake, settings.buffer.decide if works is None else works)
    log = settings.buffer.dir or folder / WAL_FOLDER
    try:
        log.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {log}: {error.strerror}; set buffer.dir to a folder you may write") from None
    remove_unfinished(log)
    buffer = WriteAheadLog(
        log,
        lambda entries: intake().accept(entries),
        sync=settings.buffer.fsync,
        max_bytes=settings.buffer.max_bytes,
        max_age=settings.buffer.max_age,
        max_waiting_bytes=settings.receive.max_waiting,
    )
    return Storage(DecisionRecord(folder / RECORD_FILE), buffer)


def read_storage(settings: Settings, folder: Path) -> tuple[Path, bytes]:
    """The file of the decision record in a state folder, and the key that decided there; a service may be using both.

    Raises:
        InputError: there is no record, or NATS, which has the key, does not answer.
    """
    shared = settings.buffer.kind == "nats"
    file = folder / RECORD_FILE
    if shared:
        views = folder.glob(VIEWS.format(prefix=settings.buffer.prefix))
        file = max(views, key=lambda view: view.stat().st_mtime, default=file)
    if not file.exists():
        raise InputError(f"no decision record at {file}; set OBSERVER_HOME to the service's")
    if shared and settings.policy.hash_key is None:
        return file, _shared_key(settings)
    return file, hash_key_of(folder, settings.policy)


def _shared_key(settings: Settings) -> bytes:
    link = _link(settings)
    try:
        from observer_serving.buffer.nats.shared import shared_hash_key

        return shared_hash_key(link)
    finally:
        link.close()


def _link(settings: Settings) -> "NatsLink":
    """A connection as the settings want it.

    Raises:
        InputError: it cannot be had.
    """
    try:
        import nats  # noqa: F401
    except ImportError:
        raise InputError("buffer.kind: nats needs nats-py; install observer-pipeline[nats]") from None
    from observer_serving.buffer.nats.link import LinkOptions, NatsLink

    chosen = settings.buffer
    return NatsLink(
        LinkOptions(
            url=chosen.url,
            credentials=chosen.credentials,
            prefix=chosen.prefix,
            parts=chosen.parts,
            replicas=chosen.replicas,
            max_bytes=chosen.max_bytes,
            record_age=settings.decisions_kept or chosen.record_age,
            lease=chosen.lease,
        )
    )


def _open_nats(settings: Settings, folder: Path, intake: Callable[[], Intake], works: bool) -> Storage:
    link = _link(settings)
    from observer_serving.buffer.nats.buffer import NatsBuffer
    from observer_serving.buffer.nats.record import ReplicatedRecord
    from observer_serving.buffer.nats.shared import SharedEpochs, shared_hash_key

    record = ReplicatedRecord(folder, link)
    buffer = NatsBuffer(
        link,
        record,
        intake,
        works=works,
        max_backlog=settings.assembly.max_total_bytes,
        max_waiting=settings.receive.max_waiting,
    )
    return Storage(record, buffer, shared_hash_key(link), lambda scope: SharedEpochs(link, scope), link.close)
