"""Grade batches on several processes; a call that hangs is ended, named, and the rest of its batch is graded again.

The child writes which row and reward it is at into shared memory before every call; the parent looks every now and
then and kills a child whose call is older than the timeout (so a hang inside C code ends too). A reward that hung
`MAX_HANGS` times is switched off for the rest of the run, and says so for every row.
"""

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from observer_core.errors import ObserverError
from observer_core.rewards.grade import Graded, RewardFailure, Watch, grade
from observer_core.rewards.registry import Reward, find_reward

MAX_HANGS = 3
_IDLE = -1.0


class _SharedWatch(Watch):
    """Writes [begin time, row, reward, rows in the call] into shared memory; the time last, so that a reader never
    sees a half-written call.
    """

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def begin(self, row: int, reward: int, size: int = 1) -> None:
        cell = self._cell
        cell[1] = row
        cell[2] = reward
        cell[3] = size
        cell[0] = monotonic()

    def end(self) -> None:
        self._cell[0] = _IDLE


def _work(pipe: Connection, cell: Any, specs: list[tuple[str, str]], plain: bool) -> None:
    rewards = [_refind(name, source) for name, source in specs]
    watch = _SharedWatch(cell)
    while True:
        try:
            task = pipe.recv()
        except EOFError:  # the parent was killed
            return
        if task is None:
            return
        schema, packed, skip, alone, off = task
        batch = pa.ipc.read_record_batch(pa.py_buffer(packed), schema)
        graded = grade(rewards, batch.to_pylist(), plain=plain, skip=skip, off=off, alone=alone, watch=watch)
        graded.completions = []
        pipe.send(graded)


def _refind(name: str, source: str) -> Reward:
    return find_reward(f"{name}={source.removeprefix('builtin:')}")


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    cell: Any
    task: int | None = None


@dataclass(slots=True)
class _Task:
    """`packed` is the batch in Arrow's own format: it holds a slice alone, pickle would send what it is a slice of."""

    batch: pa.RecordBatch
    packed: pa.Buffer
    skip: dict[tuple[int, str], RewardFailure] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)


class RewardPool:
    """Grades batches in order on `workers` processes. Use as a context manager.

    Args:
        timeout: seconds one call may take.
        plain: completions are plain text.
    """

    def __init__(self, rewards: Sequence[Reward], *, workers: int, timeout: float = 10.0, plain: bool = False) -> None:
        self._rewards = list(rewards)
        self._timeout = timeout
        self._plain = plain
        # Children fork from a server that has imported this module once: starting one, also after a hang, costs little.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._hangs: dict[str, int] = {}
        self._workers = [self._start() for _ in range(max(1, workers))]

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker.task is None and worker.process.is_alive():
                worker.pipe.send(None)
            else:
                worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    @property
    def switched_off(self) -> list[str]:
        """Rewards that hung too often."""
        return sorted(name for name, hangs in self._hangs.items() if hangs >= MAX_HANGS)

    def grade(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Graded]]:
        """Every batch with its scores, in order; at most two batches per process are held.

        Raises:
            ObserverError: a process died by itself (out of memory, a crash in native code).
        """
        source = enumerate(batches)
        tasks: dict[int, _Task] = {}
        queue: list[int] = []
        done: dict[int, Graded] = {}
        following = 0
        exhausted = False
        while True:
            while not exhausted and len(tasks) < 2 * len(self._workers):
                item = next(source, None)
                if item is None:
                    exhausted = True
                else:
                    tasks[item[0]] = _Task(item[1], item[1].serialize())
                    queue.append(item[0])
            self._hand_out(tasks, queue)
            if not tasks:
                return
            done.update(self._collect(tasks, queue))
            # Before the caller's and the reader's turn, so that no process waits for either.
            self._hand_out(tasks, queue)
            while following in done:
                yield tasks.pop(following).batch, done.pop(following)
                following += 1

    def _hand_out(self, tasks: dict[int, _Task], queue: list[int]) -> None:
        for worker in self._workers:
            if worker.task is None and queue:
                worker.task = queue.pop(0)
                task = tasks[worker.task]
                worker.pipe.send((task.batch.schema, task.packed, task.skip, task.alone, self.switched_off))

    def _collect(self, tasks: dict[int, _Task], queue: list[int]) -> Iterator[tuple[int, Graded]]:
        busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
        for pipe in wait(list(busy), timeout=min(0.2, self._timeout / 4)):
            worker = busy.pop(pipe)  # type: ignore[call-overload]
            try:
                graded = worker.pipe.recv()
            except EOFError as error:
                row = int(worker.cell[1])
                raise ObserverError(
                    f"a grading process died at row {row} (exit {worker.process.exitcode}); "
                    "look for memory or a crash in native code, or grade without the reward that does it"
                ) from error
            assert worker.task is not None
            yield worker.task, graded
            worker.task = None
        for worker in busy.values():
            begun = worker.cell[0]
            if begun != _IDLE and monotonic() - begun > self._timeout:
                self._end_hang(worker, tasks, queue)

    def _end_hang(self, worker: _Worker, tasks: dict[int, _Task], queue: list[int]) -> None:
        row, name = int(worker.cell[1]), self._rewards[int(worker.cell[2])].name
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        number = worker.task
        assert number is not None
        if worker.cell[3] > 1:
            tasks[number].alone.add(name)
        else:
            tasks[number].skip[row, name] = RewardFailure(row, name, "timeout", f"no answer after {self._timeout:g} s")
            self._hangs[name] = self._hangs.get(name, 0) + 1
        queue.insert(0, number)
        fresh = self._start()
        worker.process, worker.pipe, worker.cell, worker.task = fresh.process, fresh.pipe, fresh.cell, None

    def _start(self) -> _Worker:
        cell = self._context.RawArray("d", [_IDLE, 0, 0, 0])
        ours, theirs = self._context.Pipe()
        specs = [(reward.name, reward.source) for reward in self._rewards]
        process = self._context.Process(target=_work, args=(theirs, cell, specs, self._plain), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, cell)
