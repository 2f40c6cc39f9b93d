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
