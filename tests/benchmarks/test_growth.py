"""Growth of work: the number of Python bytecodes of each operation stays equal, or doubles with the size of its table.

Each operation runs on tables of n, 2n and 4n columns, fragments, ...; unlike time, its number of bytecodes does not
depend on the machine. Work within C functions is not counted: `make bench ARGS=growth` measures times.
"""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.growth import AXES, Axis, Step, copy_table
from benchmarks.work import count_work

_SIZES: Mapping[str, int] = {
    "columns": 100,
    "fragments": 200,
    "fragments of one row": 20,
    "versions": 20,
    "tags": 20,
    "index segments": 2,
    "tables": 10,
}
"""Smallest size of each axis; the others are twice and four times as large."""
_FLAT = (
    "columns: open",
    "fragments: open",
    "fragments: append",
    "fragments: commit a file",
    "fragments: delete one fragment",
    "tags: open by tag",
    "tags: create",
)
_IN_DOUBLING_GROUPS = ("versions: open by timestamp",)
"""Steps that read groups of growing size until they find what they want, up to twice as many items as necessary."""
_GROWTH_OF_FLAT = 1.1
_GROWTH_OF_LINEAR = 2.4
"""Growth of the additional work from one doubling of the size to the next: 2 if the work is linear, 4 if it is
quadratic. Caches and the order of threads change a few percent."""

_NARROW, _WIDER, _WIDER_TIME_MAX = 500, 8, 20
"""Linear steps take 3 to 9 times the time for 8 times the columns."""


class Tables:
    """Tables of three sizes for each axis, built when the first test needs them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._built: dict[str, list[Path]] = {}

    def of(self, axis: Axis) -> list[Path]:
        if axis.name not in self._built:
            sizes = [_SIZES[axis.name] * factor for factor in (1, 2, 4)]
            self._built[axis.name] = [self._directory / f"{axis.name}-{size}" for size in sizes]
            for path, size in zip(self._built[axis.name], sizes, strict=True):
                axis.build(path, size)
        return self._built[axis.name]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(tmp_path_factory.mktemp("growth"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """Tables of few and of many columns."""
    directory = tmp_path_factory.mktemp("wide")
    tables = {size: directory / str(size) for size in (_NARROW, _NARROW * _WIDER)}
    for size, path in tables.items():
        AXES[0].build(path, size)
    return tables


def grows_linearly(small: int, middle: int, large: int) -> bool:
    """Return whether the work at n, 2n and 4n is at most linear. The constant part of the work does not matter."""
    first, second = middle - small, large - middle
    return second <= max(first * _GROWTH_OF_LINEAR, small * (_GROWTH_OF_FLAT - 1))


@pytest.mark.parametrize(
    ("axis", "step"),
    [pytest.param(axis, step, id=f"{axis.name}: {step.name}") for axis in AXES for step in axis.steps],
)
def test_work_follows_the_size(axis: Axis, step: Step, built: Tables, tmp_path: Path) -> None:
    tables = built.of(axis)
    _count(step, tables[0], tmp_path / "warm-up")
    work = [_count(step, table, tmp_path / table.name) for table in tables]
    if f"{axis.name}: {step.name}" in _FLAT:
        assert max(work) <= min(work) * _GROWTH_OF_FLAT, f"the work should not depend on the number of {axis.name}"
    elif f"{axis.name}: {step.name}" in _IN_DOUBLING_GROUPS:
        assert max(work) <= 4 * work[0], f"bytecodes for n, 2n and 4n {axis.name}: {work}"
    else:
        assert grows_linearly(*work), f"bytecodes for n, 2n and 4n {axis.name}: {work}"


def _count(step: Step, table: Path, copy: Path) -> int:
    if step.changes_table:
        copy_table(table, copy)
    return count_work(step.ours(str(copy if step.changes_table else table)))


@pytest.mark.parametrize("step", [step for step in AXES[0].steps if step.name != "open"], ids=lambda step: step.name)
def test_processor_time_follows_the_columns(step: Step, wide: Mapping[int, Path], tmp_path: Path) -> None:
    """Searching all columns for each column happens in C, where no bytecode shows it, and costs 64 times the time."""
    narrow, wider = (_processor_time(step, table, tmp_path / str(size)) for size, table in wide.items())
    assert wider <= narrow * _WIDER_TIME_MAX, f"{wider:.3f} s instead of {narrow:.3f} s for {_WIDER} times the columns"


def _processor_time(step: Step, table: Path, copies: Path) -> float:
    """Return the lower time of two calls."""
    seconds = []
    for number in range(2):
        copy_table(table, copies / str(number))
        call = step.ours(str(copies / str(number)))
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def test_a_quadratic_part_is_detected() -> None:
    assert grows_linearly(*(50_000 + 1_000 * size for size in (100, 200, 400)))
    assert grows_linearly(50_000, 50_000, 51_000)
    assert not grows_linearly(*(50_000 + 1_000 * size + 5 * size**2 for size in (100, 200, 400)))


def test_bytecodes_of_loops_and_of_threads_are_counted() -> None:
    def loop(count: int) -> None:
        for _ in range(count):
            pass

    def in_thread() -> None:
        thread = threading.Thread(target=loop, args=(1_000,))
        thread.start()
        thread.join()

    assert count_work(lambda: loop(2_000)) > 1.9 * count_work(lambda: loop(1_000)) > 1_900
    assert count_work(in_thread) > count_work(lambda: loop(1_000))
