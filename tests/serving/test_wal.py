"""The write-ahead log against crashes, damage and full disks."""

import asyncio
import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from serving.harness import wait_until

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.buffer import segments, wal
from observer_serving.buffer.protocol import BufferUnavailableError, Logged
from observer_serving.buffer.received import JsonTrace, Received
from observer_serving.buffer.segment_file import BUFFER_BYTES
from observer_serving.buffer.segments import BLOCK, framed, read_name, stretches
from observer_serving.buffer.wal import WriteAheadLog
from observer_serving.clock import ManualClock
from observer_serving.config import Settings
from observer_serving.receive.wire import Piece
from observer_serving.storage import open_storage


def piece(number: int, data: bytes = b"span bytes") -> Piece:
    return Piece(number.to_bytes(16, "big"), number.to_bytes(8, "big") * 2, number % 2 == 0, data)


def entry(number: int, size: int = 10) -> Received:
    return Received(1000 + number, (piece(number, bytes([number % 256]) * size), piece(number + 1000)))


def append(log: WriteAheadLog, received: Received) -> None:
    """Append one entry and wait until it is safe."""

    async def run() -> None:
        await log.append(received)

    asyncio.run(run())


def write(folder: Path, entries: list[Received], **options) -> list[Logged]:
    """Append the entries, half of them at once, through a fresh log; returns what was committed, in order."""
    committed: list[Logged] = []
    folder.mkdir(exist_ok=True)
    log = WriteAheadLog(folder, committed.extend, **options)
    list(log.replay())
    log.start()

    async def run() -> None:
        half = len(entries) // 2
        await asyncio.gather(*(log.append(one) for one in entries[:half]))
        for one in entries[half:]:
            await log.append(one)

    asyncio.run(run())
    log.close()
    return committed


def read(folder: Path) -> tuple[list[Received], WriteAheadLog]:
    log = WriteAheadLog(folder, lambda entries: None)
    return [logged.received for logged in log.replay()], log


def test_everything_acknowledged_is_read_back_in_order(tmp_path: Path):
    spans = [entry(i) for i in range(200)]
    json_trace = Received(5, (JsonTrace(b"t" * 16, b'{"question": "?"}'),))
    committed = write(tmp_path, [*spans, json_trace], segment_bytes=2000)
    assert [logged.received for logged in committed] == [*spans, json_trace]
    assert read(tmp_path)[0] == [*spans, json_trace]
    assert len(list(tmp_path.glob("*.wal"))) > 1


def test_a_torn_tail_is_reported_and_everything_before_it_survives(tmp_path: Path):
    entries = [entry(i, size=300) for i in range(5)]
    write(tmp_path, entries)
    (file,) = tmp_path.glob("*.wal")
    whole = file.read_bytes()
    assert len(whole) % BLOCK == 0
    places = [(start, stop) for start, stop, _ in stretches(whole, read_name(file)[1])]
    assert len(places) == 5
    for cut in range(len(whole) - 1, 0, -7):
        file.write_bytes(whole[:cut])
        got, log = read(tmp_path)
        assert got == entries[: sum(stop <= cut for _, stop in places)]
        torn = [cut - start for start, stop in places if start < cut < stop]
        assert [damage.size for damage in log.damage] == torn, "padding is no damage, half an entry is"


def test_damage_in_the_middle_costs_only_the_damaged_entry(tmp_path: Path):
    entries = [entry(i, size=300) for i in range(9)]
    write(tmp_path, entries)
    (file,) = tmp_path.glob("*.wal")
    data = bytearray(file.read_bytes())
    start, stop, _ = list(stretches(bytes(data), read_name(file)[1]))[4]
    data[(start + stop) // 2] ^= 0xFF
    file.write_bytes(data)
    got, log = read(tmp_path)
    assert got == entries[:4] + entries[5:]
    assert len(log.damage) == 1


def test_what_a_client_sends_is_never_taken_for_an_entry(tmp_path: Path):
    """Not even when a power cut leaves of its request only what looks like one."""
    forged = b"".join(framed(Received(1, (JsonTrace(b"F" * 16, b"{}"),)).encode(), 0))
    first = entry(1)
    write(tmp_path, [first, Received(2, (JsonTrace(b"E" * 16, b"x" * 5000 + forged + b"y" * 20_000),))])
    (file,) = tmp_path.glob("*.wal")
    file.write_bytes(file.read_bytes()[: -2 * BLOCK])
    got, log = read(tmp_path)
    assert got == [first]
    assert len(log.damage) == 1


@pytest.mark.parametrize("stray", ["copy.wal", "0000000000000001-copy.wal", "0000000000000001-00000000.wal"])
def test_what_is_no_segment_or_a_copy_of_one_is_named_at_start(tmp_path: Path, stray: str):
    write(tmp_path, [entry(1)])
    (tmp_path / stray).write_bytes(b"")
    with pytest.raises(InputError, match="to another folder"):
        list(WriteAheadLog(tmp_path, lambda _: None).replay())


def test_the_log_of_an_older_version_is_read_back(tmp_path: Path):
    (tmp_path / f"{7:016x}.wal").write_bytes(b"".join(framed(entry(1).encode(), 0)))
    assert read(tmp_path)[0] == [entry(1)]


@pytest.mark.parametrize("payload", [b"\x01", b"\x01" + bytes(8) + b"\xff\xff\xff\x7f", b"\x09" + bytes(12), b""])
def test_what_is_whole_and_no_entry_keeps_nothing_from_starting_and_stays(tmp_path: Path, payload: bytes):
    write(tmp_path, [entry(1)])
    (file,) = tmp_path.glob("*.wal")
    file.write_bytes(file.read_bytes() + b"".join(framed([payload], read_name(file)[1])))
    got, log = read(tmp_path)
    assert got == [entry(1)]
    assert len(log.damage) == 1
    log.release(1, len(entry(1).items))
    assert file.exists()


def test_segments_are_deleted_when_released_and_not_before(tmp_path: Path):
    write(tmp_path, [entry(i, size=500) for i in range(10)], segment_bytes=1500)
    log = WriteAheadLog(tmp_path, lambda entries: None)
    logged = list(log.replay())
    files = len(list(tmp_path.glob("*.wal")))
    assert files > 2
    first = [one.segment for one in logged if one.segment == logged[0].segment]
    log.release(logged[0].segment, 2 * len(first) - 1)
    assert len(list(tmp_path.glob("*.wal"))) == files
    log.release(logged[0].segment, 1)
    assert len(list(tmp_path.glob("*.wal"))) == files - 1
    for one in logged:
        if one.segment != logged[0].segment:
            log.release(one.segment, 2)
    assert list(tmp_path.glob("*.wal")) == []
    assert log.size == 0


def test_what_is_read_back_may_be_released_at_once(tmp_path: Path):
    write(tmp_path, [entry(i) for i in range(5)])
    log = WriteAheadLog(tmp_path, lambda entries: None)
    for logged in log.replay():
        log.release(logged.segment, len(logged.received.items))
    assert list(tmp_path.glob("*.wal")) == []


@pytest.mark.parametrize("fsync", [True, False])
def test_nothing_is_acknowledged_before_the_disk_has_confirmed_it(tmp_path: Path, monkeypatch, fsync: bool):
    real = wal._sync
    assert real in (getattr(os, "fdatasync", None), os.fsync)
    events: list[int | str] = []

    def sync(descriptor: int) -> None:
        (file,) = (tmp_path / "wal").glob("*.wal")
        assert os.fstat(descriptor).st_ino == file.stat().st_ino
        events.append(sum(payload is not None for _, _, payload in stretches(file.read_bytes(), read_name(file)[1])))
        real(descriptor)

    monkeypatch.setattr(wal, "_sync", sync)
    settings = validated(Settings, {"buffer": {"fsync": fsync}})
    storage = open_storage(settings, tmp_path, lambda: SimpleNamespace(accept=lambda entries: None))  # pyright: ignore
    assert isinstance(storage.buffer, WriteAheadLog)
    storage.buffer.start()

    async def run() -> None:
        for number in range(3):
            await storage.buffer.append(entry(number))
            events.append("acknowledged")

    asyncio.run(run())
    storage.buffer.close()
    storage.record.close()
    synced = [1, "acknowledged", 2, "acknowledged", 3, "acknowledged"]
    assert events == (synced if fsync else ["acknowledged"] * 3)


def test_what_the_disk_does_not_confirm_is_refused_and_gone(tmp_path: Path, monkeypatch):
    real, fails = wal._sync, True

    def sync(descriptor: int) -> None:
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(wal, "_sync", sync)
    committed: list[Logged] = []
    log = WriteAheadLog(tmp_path, committed.extend)
    log.start()
    with pytest.raises(BufferUnavailableError, match="Input/output error"):
        append(log, entry(1))
    fails = False
    append(log, entry(2))
    log.close()
    assert [one.received for one in committed] == [entry(2)]
    assert read(tmp_path)[0] == [entry(2)], "a refused entry must not come back: its client sends it again"


def test_the_log_leaves_room_for_what_empties_it(tmp_path: Path, monkeypatch):
    """On a disk of 10 GB, when the next entry would leave less than 256 MiB free; and again once there is room."""
    free = 1 << 30
    real = os.statvfs
    monkeypatch.setattr(
        segments.os,
        "statvfs",
        lambda path: SimpleNamespace(f_frsize=1, f_blocks=10 << 30, f_bavail=free) if path == tmp_path else real(path),
    )
    log = WriteAheadLog(tmp_path, lambda entries: None)
    log.start()
    append(log, entry(1))
    free = (256 << 20) + 99
    with pytest.raises(BufferUnavailableError, match="less than 256 MiB would be free"):
        append(log, entry(2, size=100))
    assert log.failure is not None
    free = 257 << 20
    wait_until(lambda: log.failure is None)
    append(log, entry(3, size=100))
    log.close()
    assert read(tmp_path)[0] == [entry(1), entry(3, size=100)]


def test_a_full_disk_refuses_and_leaves_nothing_half_written(tmp_path: Path, monkeypatch):
    committed: list[Logged] = []
    log = WriteAheadLog(tmp_path, committed.extend)
    log.start()
    real_write = os.write
    full = False

    def write_until_full(descriptor: int, data: bytes | memoryview) -> int:
        if full and len(data) == BLOCK and isinstance(data, memoryview):  # the log's, not the probe's
            return real_write(descriptor, data[:512])
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write_until_full)

    async def run() -> None:
        nonlocal full
        await log.append(entry(1))
        full = True
        with pytest.raises(BufferUnavailableError, match="No space left"):
            await log.append(entry(2))
        assert log.failure is not None
        await asyncio.sleep(1.5)
        assert log.failure is not None, "the disk is still full"
        full = False
        for _ in range(100):  # without an entry: nobody sends any to a service that says it is not ready
            if log.failure is None:
                break
            await asyncio.sleep(0.1)
        assert log.failure is None
        await log.append(entry(3))
        assert log.failure is None

    asyncio.run(run())
    log.close()
    assert [one.received for one in committed] == [entry(1), entry(3)]
    again, reread = read(tmp_path)
    assert again == [entry(1), entry(3)]
    assert reread.damage == []


@pytest.mark.parametrize("refuses", ["nothing", "opening", "writing"])
def test_entries_of_any_size_come_back_from_any_file_system(tmp_path: Path, monkeypatch, refuses: str):
    """One that cannot go past the page cache says so when the file is opened, or only at the first write."""
    real_open, real_write = os.open, os.write
    refused: list[str] = []

    def open_through(path, flags: int, mode: int = 0o777, **others) -> int:
        if refuses == "opening" and flags & os.O_DIRECT:
            refused.append("opening")
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, mode, **others)

    def write_through(descriptor: int, data: memoryview) -> int:
        if refuses == "writing" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append("writing")
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "open", open_through)
    monkeypatch.setattr(os, "write", write_through)
    entries = [entry(i, size=size) for i, size in enumerate((1, BLOCK, 3 * BUFFER_BYTES + 17, 5, BUFFER_BYTES))]
    write(tmp_path, entries)
    got, log = read(tmp_path)
    assert got == entries
    assert log.damage == []
    assert set(refused) == {refuses} - {"nothing"}


def test_limits_refuse_before_anything_is_written(tmp_path: Path):
    log = WriteAheadLog(tmp_path, lambda entries: None, max_bytes=1000)
    log.start()

    async def run() -> None:
        await log.append(entry(1, size=2000))
        with pytest.raises(BufferUnavailableError, match="limit"):
            await log.append(entry(2))

    asyncio.run(run())
    log.close()
    with pytest.raises(BufferUnavailableError, match="shutting down"):
        append(log, entry(3))


def test_the_segment_written_to_goes_too_once_nobody_holds_it(tmp_path: Path):
    committed: list[Logged] = []
    log = WriteAheadLog(tmp_path, committed.extend)
    log.start()
    for number in range(3):
        append(log, entry(number))
        assert len(list(tmp_path.glob("*.wal"))) == 1
        log.release(committed[-1].segment, 2)
        wait_until(lambda: list(tmp_path.glob("*.wal")) == [])
    assert log.size == 0
    log.close()


def test_no_segment_is_written_to_for_longer_than_its_age(tmp_path: Path):
    committed: list[Logged] = []
    clock = ManualClock()
    log = WriteAheadLog(tmp_path, committed.extend, max_age=60, monotonic=clock.monotonic)
    log.start()
    for _ in range(4):
        append(log, entry(1))
        clock.advance(31)
    log.close()
    assert [one.segment for one in committed] == [1, 1, 2, 2]
    log.release(1, 4)
    assert [read_name(file)[0] for file in tmp_path.glob("*.wal")] == [2]
