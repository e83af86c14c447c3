"""Work side by side: order, errors, and threads that compute alone."""

import threading

import pytest
import torch

from observer_core.decision.lanes import Lanes


def test_results_come_in_order_from_threads_that_work_at_once() -> None:
    lanes, together = Lanes(3), threading.Barrier(3, timeout=10)

    def work(number: int) -> int:
        together.wait()  # passed only when three are at it
        return number * number

    assert lanes.map(work, range(6)) == [0, 1, 4, 9, 16, 25]
    with pytest.raises(ZeroDivisionError):
        lanes.map(lambda number: 1 // number, [1, 0, 2])
    assert lanes.map(abs, [-1]) == [1]


def test_every_thread_is_prepared_before_work_begins() -> None:
    prepared: set[int] = set()
    lanes = Lanes(2, lambda: prepared.add(threading.get_ident()))
    assert len(prepared) == 2
    assert set(lanes.map(lambda _: threading.get_ident(), range(20))) <= prepared


def test_torch_computes_on_one_core_in_a_lane_and_on_all_outside() -> None:
    before = torch.get_num_threads()
    lanes = Lanes(2, lambda: torch.set_num_threads(1))
    torch.set_num_threads(before)
    assert set(lanes.map(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert torch.get_num_threads() == before


def test_few_items_stay_with_the_caller() -> None:
    lanes, here = Lanes(4), threading.get_ident()
    assert lanes.spread(lambda _: threading.get_ident(), [0, 1]) == [here, here]
    assert here not in lanes.spread(lambda _: threading.get_ident(), [0, 1, 2])
