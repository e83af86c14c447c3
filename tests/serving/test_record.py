"""The decision record's index of traces and scores: chunks, crashes, erasure, age, and records of an earlier version."""

import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from export.export_items import DECISION

from observer_core.decisions import Decision
from observer_core.errors import ObserverError
from observer_serving.buffer.record import DecisionRecord
from observer_serving.buffer.sieve import Sieve, filter_of
from observer_serving.buffer.trace_index import TraceIndex

CHUNK = 16


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observer_serving.buffer.trace_index.CHUNK_ROWS", CHUNK)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.sqlite"


def made(number: int, *, seed: int = 0) -> Decision:
    """Decision `number`: its score is one of few, or none."""
    rng = random.Random(seed * 1_000_003 + number)
    return replace(
        DECISION, trace_id=rng.randbytes(16).hex(), p_wrong=rng.choice([None, *(i / 10 for i in range(11))]),
        decided_at=f"2026-11-30T12:{number // 60:02d}:{number % 60:02d}.000000Z",
    )  # fmt: skip


def fill(record: DecisionRecord, count: int, *, batch: int = 3) -> list[Decision]:
    decisions = [made(number) for number in range(count)]
    for first in range(0, count, batch):
        record.add([(decision, b"12345678") for decision in decisions[first : first + batch]])
    return decisions


def traces_of(decisions: list[Decision]) -> list[bytes]:
    return [bytes.fromhex(decision.trace_id) for decision in decisions]


def indexed(file: Path) -> list[tuple[int, bytes]]:
    with sqlite3.connect(file) as db:
        return db.execute("SELECT id, trace_id FROM chunk_ids ORDER BY id").fetchall()


def pages(record: DecisionRecord, **filters: float | str) -> Iterator[Decision]:
    before = None
    while True:
        page, before = record.find(filters, limit=7, before=before)
        yield from page
        if before is None:
            return


def assert_found_by_score(record: DecisionRecord, decisions: list[Decision]) -> None:
    """Every search by score is what walking over all decisions gives, newest first."""
    for bounds in ({"min_p_wrong": 0.9}, {"max_p_wrong": 0.0}, {"min_p_wrong": 0.3, "max_p_wrong": 0.5}):
        low, high = bounds.get("min_p_wrong", 0.0), bounds.get("max_p_wrong", 1.0)
        wanted = [d.trace_id for d in reversed(decisions) if d.p_wrong is not None and low <= d.p_wrong <= high]
        assert [d.trace_id for d in pages(record, **bounds)] == wanted
    assert wanted


@pytest.mark.parametrize("batch", [1, 5, 200], ids=["alone", "few at once", "many chunks in one transaction"])
def test_every_decision_is_found_in_chunks_and_out_of_them_and_after_a_restart(file: Path, batch: int):
    record = DecisionRecord(file)
    decisions = fill(record, 200, batch=batch)
    strangers = [random.Random(number).randbytes(16) for number in range(-500, 0)]
    for _ in range(2):
        assert len(indexed(file)) == 192, "all full chunks, and nothing else"
        assert record.decided([*strangers, *traces_of(decisions)]) == set(traces_of(decisions))
        assert [record.get(decision.trace_id) for decision in decisions] == decisions
        assert_found_by_score(record, decisions)
        record.close()
        record = DecisionRecord(file)
    assert record.count() == 200


def test_a_second_decision_is_refused_wherever_the_first_one_is(file: Path):
    record = DecisionRecord(file)
    decisions = fill(record, 40)
    for one in (decisions[0], decisions[-1]):
        with pytest.raises(sqlite3.IntegrityError):
            record.add([(made(1000), b""), (one, b"")])
    with pytest.raises(sqlite3.IntegrityError):
        record.add([(made(1000), b""), (made(1000), b"")])
    assert record.get(made(1000).trace_id) is None
    assert record.count() == 40


def test_decisions_in_chunks_take_late_spans_exports_and_shadows(file: Path):
    record = DecisionRecord(file)
    decisions = fill(record, 40)
    for trace_id in traces_of([decisions[2], decisions[-1]]):
        recorded = record.lookup(trace_id)
        assert recorded is not None
        record.add_late([(recorded, b"abcdefgh")])
        record.set_exported([trace_id.hex()])
        record.add_shadows([(trace_id.hex(), "other", {"p_wrong": 0.5})])
        after = record.lookup(trace_id)
        assert after is not None
        assert (after.span_ids, after.decision.late_spans) == (b"12345678abcdefgh", 1)
        assert after.decision.exported
        assert after.decision.shadow == {"other": {"p_wrong": 0.5}}


def test_an_erased_decision_is_in_no_index_and_its_chunk_goes_on(file: Path):
    record = DecisionRecord(file)
    decisions = fill(record, 40)
    for gone in (decisions[3], decisions[-2]):
        assert record.erase(bytes.fromhex(gone.trace_id))
        assert not record.erase(bytes.fromhex(gone.trace_id))
        decisions.remove(gone)
    for _ in range(2):
        assert record.decided(traces_of([made(3), made(38)])) == set()
        assert_found_by_score(record, decisions)
        assert record.count() == len(decisions)
        record.close()
        record = DecisionRecord(file)
    with sqlite3.connect(file) as db:
        (scores,) = db.execute("SELECT count(*) FROM chunk_scores").fetchone()
    assert scores == sum(d.p_wrong is not None for d in decisions[:31])


def test_what_is_too_old_goes_chunk_by_chunk_and_the_memory_for_it_too(file: Path):
    record = DecisionRecord(file)
    decisions = fill(record, 200)
    record.settle([(200, "")])
    while record.remove_before(decisions[150].decided_at, limit=20):
        pass
    assert record.decided(traces_of(decisions)) == set(traces_of(decisions[150:]))
    assert [row for row, _ in indexed(file)] == list(range(151, 193))
    with sqlite3.connect(file) as db:
        assert [last for (last,) in db.execute("SELECT last FROM chunks")] == [160, 176, 192]
    columns = len(record._index._sieve._columns)
    later = [made(number) for number in range(200, 350)]
    record.add([(decision, b"") for decision in later])
    assert len(record._index._sieve._columns) == columns, "chunks that went made room for new ones"
    assert_found_by_score(record, decisions[150:] + later)
    record.settle([(350, "")])
    assert record.remove_before("2027", limit=1000) == 200
    assert indexed(file) == []
    assert record.count() == 0
    record.add([(made(1000), b"")])
    assert record.get(made(1000).trace_id) == made(1000)


def test_a_row_that_is_written_again_after_an_erasure_is_found_like_all_others(file: Path):
    """A replica that reads the log later meets such rows after rows that came later."""
    record = DecisionRecord(file)
    decisions = [made(number) for number in range(60)]
    with record._transaction():
        for row, decision in enumerate(decisions, start=1):
            if row not in (4, 20, 59):
                record._insert(row, decision, b"")
    for row in (4, 20, 59):
        with record._transaction():
            record._insert(row, decisions[row - 1], b"")
            assert record._rows([decisions[row - 1].trace_id]) == {decisions[row - 1].trace_id: row}
    for _ in range(2):
        assert record.decided(traces_of(decisions)) == set(traces_of(decisions))
        assert_found_by_score(record, decisions)
        record.close()
        record = DecisionRecord(file)


def test_what_a_full_disk_refuses_is_not_decided(file: Path):
    record = DecisionRecord(file)
    decisions = fill(record, 30)
    (size,) = record._db.execute("PRAGMA page_count").fetchone()
    record._db.execute(f"PRAGMA max_page_count = {size}")
    more = [(made(number), b"x" * 200) for number in range(30, 200)]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        record.add(more)
    assert record.decided(traces_of([decision for decision, _ in more])) == set()
    record._db.execute("PRAGMA max_page_count = 1000000")
    record.add(more)
    decisions += [decision for decision, _ in more]
    assert record.decided(traces_of(decisions)) == set(traces_of(decisions))
    assert len(indexed(file)) == 192


# --- records of an earlier version


def as_before(file: Path) -> None:
    """What an earlier version left: a unique index of trace ids and one of scores, no chunks."""
    with sqlite3.connect(file) as db:
        db.executescript(
            "DROP TABLE chunks; DROP TABLE chunk_ids; DROP TABLE chunk_scores;"
            "CREATE UNIQUE INDEX decisions_trace_id ON decisions (trace_id);"
            "CREATE INDEX decisions_p_wrong ON decisions (p_wrong);"
        )


def test_a_record_of_an_earlier_version_goes_on_also_when_bringing_it_up_is_interrupted(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    record = DecisionRecord(file)
    decisions = fill(record, 100)
    record.erase(bytes.fromhex(decisions.pop(50).trace_id))
    record.close()
    as_before(file)

    class Stopped(Exception): ...

    def stop_in_the_middle(ids: list[bytes]) -> bytes:
        if len(indexed(file)) >= 2 * CHUNK:
            raise Stopped
        return filter_of(ids)

    with monkeypatch.context() as patched:
        patched.setattr("observer_serving.buffer.trace_index.filter_of", stop_in_the_middle)
        db = sqlite3.connect(file, isolation_level=None)
        with pytest.raises(Stopped):
            TraceIndex(db)
        db.close()
    assert len(indexed(file)) == 2 * CHUNK
    record = DecisionRecord(file)
    assert len(indexed(file)) == 96
    assert record.decided(traces_of([made(number) for number in range(100)])) == set(traces_of(decisions))
    assert_found_by_score(record, decisions)
    with sqlite3.connect(file) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert not names & {"decisions_trace_id", "decisions_p_wrong"}
    record.add([(made(1000), b"")])
    assert record.count() == 100


# --- crashes

_WRITER = """
    import sys
    from pathlib import Path
    from observer_serving.buffer import trace_index
    from serving.test_record import CHUNK, made
    from observer_serving.buffer.record import DecisionRecord

    trace_index.CHUNK_ROWS = CHUNK
    record = DecisionRecord(Path(sys.argv[1]))
    number = int(sys.argv[2])
    while True:
        record.add([(made(number + i), b"") for i in range(5)])
        number += 5
        print(number, flush=True)
"""


def test_kill_at_any_moment_leaves_every_decision_in_one_place(file: Path):
    decided = 0
    for round_ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_WRITER), str(file), str(decided)], stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1], text=True,
        ) as writer:  # fmt: skip
            assert writer.stdout is not None
            for _ in range(10 + 7 * round_):
                said = writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                said = line if line.endswith("\n") else said
        acknowledged = int(said)
        record = DecisionRecord(file)
        decided = record.count()
        assert decided - 5 <= acknowledged <= decided
        decisions = [made(number) for number in range(decided)]
        assert record.decided(traces_of(decisions)) == set(traces_of(decisions))
        assert len(indexed(file)) == decided // CHUNK * CHUNK
        record.close()
    assert decided > 300


# --- the filters


def test_the_sieve_misses_no_id_and_passes_few_others(monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(0)
    chunks = {number: [rng.randbytes(16) for _ in range(4096)] for number in range(1, 71)}
    filters = {number: filter_of(ids) for number, ids in chunks.items()}
    sieve = Sieve({number: filters[number] for number in range(1, 66)})
    for number in range(66, 71):
        sieve.put(number, filters[number])
    sieve.drop(7)
    for number, ids in chunks.items():
        passed = {trace_id for trace_id, chunk in sieve.candidates(ids) if chunk == number}
        assert passed == (set() if number == 7 else set(ids))
    sieve.put(100, filters[7])
    assert {chunk for _, chunk in sieve.candidates(chunks[7])} >= {100}
    strangers = [rng.randbytes(16) for _ in range(20_000)]
    assert len(list(sieve.candidates(strangers))) < 20_000 * 70 * 1e-4


@pytest.mark.parametrize("place", [0, 8], ids=["first half", "last half"])
def test_the_sieve_spreads_ids_that_are_not_random(place: int):
    """Some tracers fill half of the id only, some count."""
    ids = [number.to_bytes(8, "big").rjust(8 + place, b"\0").ljust(16, b"\0") for number in range(50_000)]
    sieve = Sieve({1: filter_of(ids[:4096])})
    assert len(list(sieve.candidates(ids[4096:]))) < 50_000 * 2e-4


# --- searches by time


def jumping(count: int) -> list[Decision]:
    """Decisions under a clock that is set back and forth by up to an hour now and then."""
    rng = random.Random(7)
    clock, decisions = 100_000, []
    for number in range(count):
        clock += rng.choice([0, 1, 2]) if rng.random() < 0.98 else rng.randint(-3600, 3600)
        hours, minutes, seconds = clock // 3600 % 24, clock // 60 % 60, clock % 60
        moment = f"2026-11-{1 + clock // 86400:02d}T{hours:02d}:{minutes:02d}:{seconds:02d}.000000Z"
        decisions.append(replace(made(number), decided_at=moment, decision=rng.choice(["keep", "drop"])))
    return decisions


def assert_found_by_time(record: DecisionRecord, decisions: list[Decision]) -> None:
    moments = [decision.decided_at for decision in random.Random(3).sample(decisions, 12)]
    for since, until in [*zip(moments[::2], moments[1::2], strict=True), ("", moments[0]), (moments[0], "3")]:
        for verdict in (None, "keep"):
            wanted = [
                d.trace_id
                for d in reversed(decisions)
                if since <= d.decided_at < until and verdict in (None, d.decision)
            ]
            named = {"since": since, "until": until} | ({"decision": verdict} if verdict else {})
            assert [d.trace_id for d in pages(record, **named)] == wanted


def test_searches_by_time_find_all_whatever_the_clock_did(file: Path):
    record = DecisionRecord(file)
    decisions = jumping(3000)
    for first in range(0, len(decisions), 50):
        record.add([(decision, b"12345678") for decision in decisions[first : first + 50]])
    assert_found_by_time(record, decisions)
    assert record.find({"since": "2027"}, limit=5) == record.find({"until": "2025"}, limit=5) == ([], None)
    record.close()
    with sqlite3.connect(file) as db:  # a version without this index wrote the last ones
        db.execute("DELETE FROM times WHERE block > 4")
    assert_found_by_time(DecisionRecord(file), decisions)
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE times")
    record = DecisionRecord(file)
    assert_found_by_time(record, decisions)
    oldest = sorted(decision.decided_at for decision in decisions)[1500]
    record.settle([(len(decisions), "")])
    while record.remove_before(oldest, limit=400):
        pass
    assert_found_by_time(record, [decision for decision in decisions if decision.decided_at >= oldest])


def test_a_page_of_a_search_by_time_costs_the_same_in_a_larger_record(tmp_path: Path):
    def steps(count: int) -> list[int]:
        """SQLite's instructions for the first page of some searches, in hundreds."""
        record = DecisionRecord(tmp_path / f"{count}.sqlite")
        decisions = [replace(made(n), decision="keep", decided_at=f"2026-11-30T{n:09d}") for n in range(count)]
        record.add([(decision, b"12345678") for decision in decisions])
        ticks: list[None] = []
        record._reader().set_progress_handler(lambda: ticks.append(None), 100)
        early, late = (decisions[count * tenths // 10].decided_at for tenths in (1, 9))
        taken: list[int] = []
        for filters in ({"since": early}, {"until": late}, {"since": early, "until": late, "decision": "keep"}):
            ticks.clear()
            page, more = record.find(filters, limit=20)
            assert (len(page), more is None) == (20, False)
            taken.append(len(ticks))
        return taken

    for few, many in zip(steps(1_000), steps(8_000), strict=True):
        assert many < 2 * few + 20


# --- a record that cannot be opened


@pytest.mark.parametrize("there", [False, True], ids=["new", "of before"])
def test_a_full_disk_is_not_blamed_on_the_record(file: Path, there: bool):
    if there:
        fill(record := DecisionRecord(file), 3)
        record.close()
    program = (
        "import pathlib, resource, sys\n"
        "from observer_serving.buffer.record import DecisionRecord\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "DecisionRecord(pathlib.Path(sys.argv[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert f"cannot use the decision record {file}" in last
    assert last.endswith("free space, and see that it can be written")


def test_a_file_that_is_no_record_is_to_be_moved_away(file: Path):
    file.write_bytes(b"no database" * 100)
    with pytest.raises(ObserverError, match="not a database; move it away"):
        DecisionRecord(file)
