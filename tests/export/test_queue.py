"""The queue on disk."""

import subprocess
import sys

import pytest

from observer_core.errors import InputError, ObserverError
from observer_core.files import write_whole
from observer_serving.export.item import QueueFull
from observer_serving.export.queue import NOTE, DiskQueue, dead_letters, replay

BIG = 1 << 30


def _all(queue, **limits):
    return queue.oldest(**({"max_bytes": BIG, "max_spans": BIG, "max_items": 100} | limits))


def _names(entries):
    return [entry.read()[0]["n"] for entry in entries]


def test_items_come_out_in_order_and_in_bounds(tmp_path):
    queue = DiskQueue(tmp_path, max_bytes=BIG)
    for n in range(4):
        queue.put({"n": n}, bytes([n]) * 100, spans=3)
    assert _names(_all(queue)) == [0, 1, 2, 3]
    assert _names(_all(queue, max_spans=7)) == [0, 1]
    assert _names(_all(queue, max_bytes=250)) == [0, 1]
    assert _names(_all(queue, max_items=3)) == [0, 1, 2]
    assert _names(_all(queue, max_spans=1)) == [0]  # one is always sent, however big
    assert _all(queue)[2].read() == ({"n": 2}, b"\2" * 100)
    items, size, age = queue.depth()
    assert (items, size > 400, age >= 0) == (4, True, True)


def test_a_new_process_finds_what_was_left_and_what_is_done_is_gone(tmp_path):
    queue = DiskQueue(tmp_path, max_bytes=BIG)
    for n in range(3):
        queue.put({"n": n}, b"body\nwith lines", spans=1)
    first, second, _ = _all(queue)
    queue.done(first)
    queue.move(second, NOTE)
    queue.close()
    again = DiskQueue(tmp_path, max_bytes=BIG)
    assert _names(_all(again)) == [2]
    assert _names(again.waiting(NOTE, 10)) == [1]
    again.done(again.waiting(NOTE, 10)[0])
    again.done(_all(again)[0])
    assert again.depth()[:2] == (0, 0)


def test_an_item_survives_kill_9_right_after_put(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from observer_serving.export.queue import DiskQueue\n"
        "queue = DiskQueue(Path(sys.argv[1]), max_bytes=1 << 30)\n"
        "for n in range(5): queue.put({'n': n}, b'x', spans=1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    (tmp_path / "queue" / ".00000000000000000001-1-abc.spans.ffff.tmp").write_bytes(b"half")  # a write cut short
    queue = DiskQueue(tmp_path, max_bytes=BIG)
    assert _names(_all(queue)) == [0, 1, 2, 3, 4]


def test_a_full_queue_and_a_second_owner_are_refused(tmp_path):
    queue = DiskQueue(tmp_path, max_bytes=150)
    queue.put({}, b"x" * 100, spans=1)
    with pytest.raises(QueueFull, match="is full"):
        queue.put({}, b"x" * 100, spans=1)
    assert queue.depth()[0] == 1
    with pytest.raises(InputError, match="in use by another process"):
        DiskQueue(tmp_path, max_bytes=150)


def test_a_dead_letter_keeps_the_answer_and_comes_back(tmp_path):
    queue = DiskQueue(tmp_path / "export" / "phoenix", max_bytes=BIG)
    queue.put({"trace_id": "ab", "decision": None}, b"spans", spans=2)
    queue.bury(_all(queue)[0], {"at": "now", "status": 422, "response": "no"})
    assert _all(queue) == []
    [letter] = dead_letters(tmp_path)
    assert (letter.exporter, letter.trace_id, letter.spans, letter.status, letter.response) == ("phoenix", "ab", 2, 422, "no")  # fmt: skip
    replay(letter)
    assert list(dead_letters(tmp_path)) == []
    queue.rescan()
    assert _all(queue)[0].read() == ({"trace_id": "ab", "decision": None}, b"spans")


def test_damaged_files_are_named(tmp_path):
    queue = DiskQueue(tmp_path, max_bytes=BIG)
    queue.put({"n": 1}, b"x", spans=1)
    [entry] = _all(queue)
    entry.path.write_bytes(b"garbage")
    with pytest.raises(ObserverError, match="cannot read"):
        entry.read()
    queue.set_aside(entry)
    assert _all(queue) == []
    assert [path.suffix for path in (tmp_path / "dead").iterdir()] == [".damaged"]


def test_an_item_delivered_before_put_returns_leaves_no_ghost(tmp_path, monkeypatch):
    """A scan may find the file the moment it appears; the worker may be done with it before `put` goes on."""
    queue = DiskQueue(tmp_path, max_bytes=BIG)

    def write_and_be_overtaken(path, data):
        write_whole(path, data)
        queue.rescan()
        (entry,) = _all(queue)
        queue.done(entry)

    monkeypatch.setattr("observer_serving.export.queue.write_whole", write_and_be_overtaken)
    queue.put({"n": 0}, b"spans", spans=1)
    assert _all(queue) == []
    assert queue.depth() == (0, 0, 0.0)


def test_a_file_that_somebody_removed_is_forgotten(tmp_path):
    queue = DiskQueue(tmp_path, max_bytes=BIG)
    queue.put({"n": 0}, b"spans", spans=1)
    (entry,) = _all(queue)
    entry.path.unlink()
    queue.set_aside(entry)
    assert queue.depth() == (0, 0, 0.0)


def test_what_is_erased_while_it_is_refused_leaves_no_dead_letter(tmp_path, monkeypatch):
    queue = DiskQueue(tmp_path, max_bytes=BIG)
    queue.put({"trace_id": "aa"}, b"x", spans=1)
    (entry,) = _all(queue)

    def erase_and_write(path, data):
        queue.erase("aa")
        write_whole(path, data)

    monkeypatch.setattr("observer_serving.export.queue.write_whole", erase_and_write)
    queue.bury(entry, {"at": "", "status": 400, "response": "no"})
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]
