"""Parallel map: the order, the bound and the errors of work that runs ahead of its consumer."""

import threading

import pytest

from lance_core.scan.parallel import map_in_order


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_results_come_in_order(threads: int, count: int) -> None:
    assert list(map_in_order(lambda item: item * 2, range(count), threads=threads)) == [
        2 * item for item in range(count)
    ]


def test_work_starts_only_within_the_window() -> None:
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        return item

    results = map_in_order(work, iter(range(1000)), threads=2)
    assert started == []
    assert next(results) == 0
    assert len(started) <= 5
    results.close()
    assert len(started) <= 5


def test_threads_run_concurrently() -> None:
    """Each of the two calls waits for the other."""
    barrier = threading.Barrier(2, timeout=10)
    assert sorted(map_in_order(lambda item: barrier.wait() * 0 + item, [1, 2], threads=2)) == [1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_ends_the_iteration(threads: int) -> None:
    def work(item: int) -> int:
        if item == 3:
            raise KeyError(item)
        return item

    results = map_in_order(work, range(100), threads=threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert list(results) == []


def test_items_in_progress_are_bounded_by_their_size() -> None:
    """Items that wait for their consumer count, and a single item may be larger than the bound."""
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        return item

    for results_read, in_progress in [(1, 3), (2, 4), (4, 4), (5, 5), (6, 6)]:
        started.clear()
        results = map_in_order(work, iter([5, 40, 30, 30, 200, 1]), threads=8, size_of=lambda item: item, size_max=100)
        assert [next(results) for _ in range(results_read)] == [5, 40, 30, 30, 200, 1][:results_read]
        results.close()
        assert len(started) <= in_progress
