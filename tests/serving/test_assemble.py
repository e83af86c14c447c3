"""Assembly under a clock that tests move."""

import pytest

from observer_serving.assemble import AssembledTrace, Assembler, AssemblyLimits
from observer_serving.receive.wire import Piece, split_ids

LIMITS = AssemblyLimits(
    quiet_period=2, timeout=60, max_spans=10, max_bytes=1000, max_open_traces=3, max_total_bytes=2000
)


class Feed:
    """An assembler with its own clock, and short ways to say what comes in."""

    def __init__(self, limits: AssemblyLimits = LIMITS) -> None:
        self.assembler = Assembler(limits)
        self.now = 100.0

    def add(self, trace: int, spans: list[int], *, root: bool = False, size: int = 10, age: float = 0.0):
        ids = b"".join(number.to_bytes(8, "big") for number in spans)
        made = Piece(trace.to_bytes(16, "big"), ids, root, b"x" * size)
        return self.assembler.add(made, received_ns=7, segment=1, now=self.now, age=age)

    def wait(self, seconds: float) -> list[AssembledTrace]:
        self.now += seconds
        return self.assembler.due(self.now)


def summary(done: list[AssembledTrace]) -> list[tuple[int, str, int]]:
    return [(int.from_bytes(t.trace_id, "big"), t.complete_reason, t.spans) for t in done]


def test_root_ended_and_quiet_period():
    feed = Feed()
    feed.add(1, [2, 3])
    assert feed.wait(10) == []
    feed.add(1, [1], root=True)
    assert feed.wait(1.9) == []
    feed.add(1, [4])
    assert feed.wait(1.9) == []
    assert summary(feed.wait(0.1)) == [(1, "root_ended", 4)]
    assert len(feed.assembler) == feed.assembler.bytes == feed.assembler.spans == 0


def test_without_a_root_the_outer_timeout_decides():
    feed = Feed()
    feed.add(1, [2])
    assert feed.wait(59) == []
    feed.add(1, [3])
    assert summary(feed.wait(1)) == [(1, "timeout", 2)]


def test_a_trace_that_never_falls_quiet_times_out():
    feed = Feed()
    feed.add(1, [0], root=True)
    done = []
    for _ in range(60):
        feed.add(1, [0])
        done += feed.wait(1)
    assert summary(done) == [(1, "root_ended", 1)], "a batch sent again does not prolong the wait"
    feed = Feed(AssemblyLimits(timeout=60, max_spans=1000))
    for number in range(61):
        feed.add(1, [number], root=number == 0)
        done = feed.wait(1)
        if done:
            break
    assert summary(done) == [(1, "timeout", 60)]


@pytest.mark.parametrize(("spans", "size", "reason"), [(10, 10, "span_cap"), (1, 1000, "byte_cap")])
def test_caps_decide_early(spans: int, size: int, reason: str):
    feed = Feed()
    assert summary(feed.add(1, list(range(spans)), size=size)) == [(1, reason, spans)]
    assert feed.wait(100) == []


def test_eviction_takes_the_oldest_and_says_so():
    feed = Feed()
    for trace in (1, 2, 3):
        assert feed.add(trace, [1]) == []
    assert summary(feed.add(4, [1])) == [(1, "evicted", 1)]
    assert summary(feed.add(2, [2], size=990)) == [(2, "byte_cap", 2)]
    feed.add(3, [2], size=900)
    feed.add(4, [2], size=900)
    assert summary(feed.add(5, [1], size=300)) == [(3, "evicted", 2)]


def test_a_span_sent_twice_counts_once():
    feed = Feed()
    feed.add(1, [1, 2, 2], root=True)
    feed.add(1, [2, 3])
    assert feed.assembler.spans == 5
    (done,) = feed.wait(2)
    assert (done.spans, done.duplicates) == (3, 2)
    assert split_ids(done.span_ids) == [n.to_bytes(8, "big") for n in (1, 2, 3)]
    assert done.segments == (1, 1)


def test_a_restart_counts_the_time_before_it():
    feed = Feed()
    feed.add(1, [1], age=59)
    assert summary(feed.wait(1)) == [(1, "timeout", 1)]


def test_flush_completes_everything():
    feed = Feed()
    feed.add(1, [1])
    feed.add(2, [1], root=True)
    assert summary(feed.assembler.flush("shutdown", feed.now)) == [(1, "shutdown", 1), (2, "shutdown", 1)]
    assert feed.wait(1000) == []
