"""Rows to write, made once and kept as Parquet: a table as wide as TPC-H's lineitem, and vectors.

The same seed gives the same rows on every machine. What is kept lies in a directory named after its contents and
gets that name when it is whole, so that an interrupted run leaves nothing to trip over.
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
_RECIPE, _RECIPE_OF_EVENTS = 1, 2
"""Goes up when the rows change, so that kept ones are made anew."""

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
"""A prime: multiples of it, round and round, meet every row once."""
_FIRST_DAY, _LAST_DAY = 8035, 10_561
"""1992 to 1998, in days since 1970."""


def lineitem(kept: Path, rows: int) -> Path:
    """16 columns: keys, decimals, dates, short strings and a comment; about 170 bytes a row in Arrow."""
    return _kept(kept / f"lineitem-{rows}-{_RECIPE}", rows, _lineitem)


def vectors(kept: Path, rows: int) -> Path:
    """An id and 128 floats a row, normally distributed: nothing for a compressor."""
    return _kept(kept / f"vectors-{rows}-{_RECIPE}", rows, _vectors)


def events(kept: Path, rows: int) -> Path:
    """Four columns, about 40 bytes a row: an id, a small number, a float without a fraction, a short string that hardly
    any other row has."""
    return _kept(kept / f"events-{rows}-{_RECIPE_OF_EVENTS}", rows, _events)


def scores(kept: Path, rows: int, rows_per_fragment: int) -> Path:
    """A number for every event, in any order, with its id, and its address in a table of fragments of that size."""

    def made(start: int, count: int) -> pa.Table:
        places = np.random.default_rng(start).permutation(np.arange(start, start + count, dtype=np.int64))
        # A bijection over all rows, so that neighbours of one file lie all over the table.
        ids = (places * _STRIDE) % rows if rows % _STRIDE else places
        addresses = (ids // rows_per_fragment << 32) | ids % rows_per_fragment
        return pa.table({"id": ids, "_rowaddr": addresses, "score": (ids % 1000).astype(np.float64)})

    return _kept(kept / f"scores-{rows}-{rows_per_fragment}-{_RECIPE}", rows, made)


def _kept(directory: Path, rows: int, make: Callable[[int, int], pa.Table]) -> Path:
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


def _lineitem(start: int, rows: int) -> pa.Table:
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
            "l_quantity": _money(random.integers(1, 51, rows) * 100),
            "l_extendedprice": _money(random.integers(90_000, 10_500_000, rows)),
            "l_discount": _money(random.integers(0, 11, rows)),
            "l_tax": _money(random.integers(0, 9, rows)),
            "l_returnflag": _one_of(random, _FLAGS, rows),
            "l_linestatus": _one_of(random, _STATUS, rows),
            "l_shipdate": pa.array(shipped, pa.date32()),
            "l_commitdate": pa.array(shipped + random.integers(-60, 60, rows, dtype=np.int32), pa.date32()),
            "l_receiptdate": pa.array(shipped + random.integers(1, 31, rows, dtype=np.int32), pa.date32()),
            "l_shipinstruct": _one_of(random, _INSTRUCTIONS, rows),
            "l_shipmode": _one_of(random, _MODES, rows),
            "l_comment": _one_of(random, comments, rows),
        }
    )


def _events(start: int, rows: int) -> pa.Table:
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


def _vectors(start: int, rows: int) -> pa.Table:
    random = np.random.default_rng(start)
    values = pa.array(random.standard_normal(rows * DIMENSIONS, dtype=np.float32))
    return pa.table(
        {
            "id": np.arange(start, start + rows, dtype=np.int64),
            "vector": pa.FixedSizeListArray.from_arrays(values, DIMENSIONS),
        }
    )


def _money(cents: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    """Decimals are 128-bit integers, low half first; these are not negative."""
    halves = np.zeros((len(cents), 2), dtype=np.int64)
    halves[:, 0] = cents
    return pa.Array.from_buffers(_MONEY, len(cents), [None, pa.py_buffer(halves)])


def _one_of(random: np.random.Generator, choices: "tuple[str, ...] | list[str]", rows: int) -> pa.Array:
    return pa.array(choices, pa.string()).take(pa.array(random.integers(0, len(choices), rows)))
