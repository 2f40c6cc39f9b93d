"""Generated inputs: a table as wide as TPC-H's lineitem, vectors and events, generated once and cached as Parquet.

The same seed gives the same rows on every machine. A cached input lies in a directory that is named after its
contents. The directory gets that name when it is complete, so an interrupted run leaves no partial input behind.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

DIMENSIONS = 128
_ROWS_PER_FILE = 500_000
_RECIPE, _EVENTS_RECIPE = 1, 2
"""Versions of the generated rows. Increase one when its rows change, so that cached rows are regenerated."""

_MONEY = pa.decimal128(15, 2)
_FLAGS = ("A", "N", "R")
_STATUS = ("F", "O")
_INSTRUCTIONS = ("COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN")
_MODES = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")
_WORDS = (
    "bold",
    "carefully",
    "deposits",
    "even",
    "final",
    "ideas",
    "packages",
    "quickly",
    "regular",
    "requests",
)
_COMMENTS = 4096
_STRIDE = 7_919
"""A prime, so that its multiples modulo the number of rows reach every row once."""
_FIRST_DAY, _LAST_DAY = 8035, 10_561
"""1992 to 1998 as days since 1970."""


def lineitem_files(cache: Path, rows: int) -> Path:
    """Return the directory of a table of 16 columns (keys, decimals, dates, short strings and a comment) with about
    170 bytes per row in Arrow."""
    return _cached_files(cache / f"lineitem-{rows}-{_RECIPE}", rows, _lineitem_rows)


def vector_files(cache: Path, rows: int) -> Path:
    """Return the directory of a table with an id and 128 normally distributed floats per row, which do not compress."""
    return _cached_files(cache / f"vectors-{rows}-{_RECIPE}", rows, _vector_rows)


def event_files(cache: Path, rows: int) -> Path:
    """Return the directory of a table of four columns and about 40 bytes per row: an id, a small number, a float
    without a fraction, and a short string that is almost unique."""
    return _cached_files(cache / f"events-{rows}-{_EVENTS_RECIPE}", rows, _event_rows)


def score_files(cache: Path, rows: int, rows_per_fragment: int) -> Path:
    """Return the directory of shuffled scores: one number per event, with its id and its row address in a table with
    fragments of the given size."""

    def score_rows(start: int, count: int) -> pa.Table:
        positions = np.random.default_rng(start).permutation(np.arange(start, start + count, dtype=np.int64))
        # A bijection over all rows, so that neighbouring rows of one file are spread over the table.
        ids = (positions * _STRIDE) % rows if rows % _STRIDE else positions
        addresses = (ids // rows_per_fragment << 32) | ids % rows_per_fragment
        return pa.table({"id": ids, "_rowaddr": addresses, "score": (ids % 1000).astype(np.float64)})

    return _cached_files(cache / f"scores-{rows}-{rows_per_fragment}-{_RECIPE}", rows, score_rows)


def _cached_files(directory: Path, rows: int, make: Callable[[int, int], pa.Table]) -> Path:
    if directory.exists():
        return directory
    unfinished = directory.with_name(f"{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number, start in enumerate(range(0, rows, _ROWS_PER_FILE)):
        table = make(start, min(_ROWS_PER_FILE, rows - start))
        pq.write_table(table, unfinished / f"part-{number:04d}.parquet", row_group_size=_ROWS_PER_FILE // 4)
    unfinished.rename(directory)
    return directory


def _lineitem_rows(start: int, rows: int) -> pa.Table:
    random = np.random.default_rng(start)
    number = np.arange(start, start + rows, dtype=np.int64)
    comments = [" ".join(random.choice(_WORDS, 5)) for _ in range(_COMMENTS)]
    shipped = random.integers(_FIRST_DAY, _LAST_DAY, rows, dtype=np.int32)
    return pa.table(
        {
            "l_orderkey": number // 4,
            "l_partkey": random.integers(1, 200_000, rows),
            "l_suppkey": random.integers(1, 10_000, rows),
            "l_linenumber": (number % 4).astype(np.int32),
            "l_quantity": _decimal_array(random.integers(1, 51, rows) * 100),
            "l_extendedprice": _decimal_array(random.integers(90_000, 10_500_000, rows)),
            "l_discount": _decimal_array(random.integers(0, 11, rows)),
            "l_tax": _decimal_array(random.integers(0, 9, rows)),
            "l_returnflag": _random_choices(random, _FLAGS, rows),
            "l_linestatus": _random_choices(random, _STATUS, rows),
            "l_shipdate": pa.array(shipped, pa.date32()),
            "l_commitdate": pa.array(shipped + random.integers(-60, 60, rows, dtype=np.int32), pa.date32()),
            "l_receiptdate": pa.array(shipped + random.integers(1, 31, rows, dtype=np.int32), pa.date32()),
            "l_shipinstruct": _random_choices(random, _INSTRUCTIONS, rows),
            "l_shipmode": _random_choices(random, _MODES, rows),
            "l_comment": _random_choices(random, comments, rows),
        }
    )


def _event_rows(start: int, rows: int) -> pa.Table:
    random = np.random.default_rng(start)
    number = np.arange(start, start + rows, dtype=np.int64)
    numbers = pa.array(random.integers(0, 10**11, rows)).cast(pa.string())
    return pa.table(
        {
            "id": number,
            "k": random.integers(0, 1000, rows, dtype=np.int32),
            "x": random.integers(0, 1_000_000, rows).astype(np.float64),
            "s": pc.binary_join_element_wise("event", pc.utf8_lpad(numbers, 11, "0"), "-"),
        }
    )


def _vector_rows(start: int, rows: int) -> pa.Table:
    random = np.random.default_rng(start)
    values = pa.array(random.standard_normal(rows * DIMENSIONS, dtype=np.float32))
    return pa.table(
        {
            "id": np.arange(start, start + rows, dtype=np.int64),
            "vector": pa.FixedSizeListArray.from_arrays(values, DIMENSIONS),
        }
    )


def _decimal_array(cents: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    """Return decimals. Arrow stores them as 128-bit integers with the low half first; these are not negative."""
    halves = np.zeros((len(cents), 2), dtype=np.int64)
    halves[:, 0] = cents
    return pa.Array.from_buffers(_MONEY, len(cents), [None, pa.py_buffer(halves)])


def _random_choices(random: np.random.Generator, choices: "tuple[str, ...] | list[str]", rows: int) -> pa.Array:
    return pa.array(choices, pa.string()).take(pa.array(random.integers(0, len(choices), rows)))
