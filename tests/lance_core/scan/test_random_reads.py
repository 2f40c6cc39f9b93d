"""Random reads: random scans and takes of random tables, compared row by row with Arrow and pylance.

The tables have several fragments, several files in a fragment, deleted rows and nulls in structs, with and without
stable row ids. Each read must equal the same operation of Arrow on the whole table as pylance reads it. The table of
`LARGE` rows has more rows than a batch.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import Table
from lance_core.scan import plan, row_reader

Mask = Callable[[pa.Table], pa.ChunkedArray]
Version = Literal["2.0", "2.1", "2.2"]

STRUCT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string()), ("w", pa.float64())]))])
COLUMNS = ("a", "n", "t", "s", "l", "v", "late", "s.x", "s.y", "s.y.z", "_rowid", "_rowaddr")


@dataclass(frozen=True)
class Filter:
    sql: str
    mask: Mask


def read_path(table: pa.Table, path: str) -> pa.ChunkedArray:
    top, *below = path.split(".")
    return pc.struct_field(table[top], below) if below else table[top]


def compare_filter(path: str, operator: str, value: int) -> Filter:
    compare = {"<": pc.less, ">=": pc.greater_equal, "=": pc.equal, "!=": pc.not_equal}[operator]
    return Filter(f"{path} {operator} {value}", lambda table: compare(read_path(table, path), value))


def remainder_filter(divisor: int, remainder: int) -> Filter:
    def mask(table: pa.Table) -> pa.ChunkedArray:
        return pa.chunked_array([np.asarray(table["a"]) % divisor == remainder], pa.bool_())

    return Filter(f"a % {divisor} = {remainder}", mask)


def both_filters(first: Filter, second: Filter) -> Filter:
    return Filter(
        f"({first.sql}) AND ({second.sql})", lambda table: pc.and_kleene(first.mask(table), second.mask(table))
    )


FILTERS = st.one_of(
    st.builds(
        compare_filter,
        st.sampled_from(["a", "n", "s.x", "late", "_rowid", "_rowaddr"]),
        st.sampled_from(["<", ">=", "=", "!="]),
        st.integers(0, 90),
    ),
    st.builds(remainder_filter, st.integers(1, 5), st.integers(0, 4)),
    st.sampled_from(
        [
            Filter("t LIKE '%1'", lambda table: pc.ends_with(table["t"], "1")),
            Filter("n IS NULL", lambda table: pc.is_null(table["n"])),
            Filter("s.y.z IS NOT NULL", lambda table: pc.is_valid(read_path(table, "s.y.z"))),
            Filter("true", lambda table: pa.chunked_array([np.ones(table.num_rows, bool)], pa.bool_())),
        ]
    ),
)


@dataclass(frozen=True)
class Read:
    columns: Sequence[str] | None
    filter: Filter | None
    limit: int | None
    offset: int | None
    with_row_id: bool
    with_row_address: bool


WINDOWS = st.none() | st.integers(0, 70)
READS = st.builds(
    Read,
    st.none() | st.lists(st.sampled_from(COLUMNS), unique=True, max_size=6),
    st.none() | FILTERS | st.builds(both_filters, FILTERS, FILTERS),
    WINDOWS,
    WINDOWS,
    st.booleans(),
    st.booleans(),
)


@dataclass(frozen=True)
class TableSpec:
    rows: int
    rows_per_file: int
    version: Version
    stable_row_ids: bool
    deleted: tuple[str, ...]
    seed: int


TABLES = st.builds(
    TableSpec,
    st.integers(1, 60),
    st.integers(1, 45),
    st.sampled_from(["2.0", "2.1", "2.2"]),
    st.booleans(),
    st.lists(
        st.sampled_from(["a % 3 = 1", "a < 9", "a >= 20 AND a < 40", "n = 4", "a = 50"]), max_size=2, unique=True
    ).map(tuple),
    st.integers(0, 1000),
)


def create_rows(spec: TableSpec) -> pa.Table:
    random = np.random.default_rng(spec.seed)
    numbers = random.permutation(spec.rows)
    nulls = spec.version != "2.0"

    def struct(number: int) -> dict[str, object] | None:
        if nulls and number % 7 == 3:
            return None
        return {"x": number, "y": None if nulls and number % 5 == 2 else {"z": str(number), "w": number / 2}}

    return pa.table(
        {
            "a": numbers,
            "n": pa.array([None if number % 4 == 0 else number % 9 for number in numbers.tolist()], pa.int32()),
            "t": pa.array([None if number % 6 == 5 else f"text {number}" for number in numbers.tolist()]),
            "s": pa.array([struct(number) for number in numbers.tolist()], STRUCT),
            "l": pa.array([list(range(number % 4)) for number in numbers.tolist()], pa.list_(pa.int16())),
            "v": pa.array([[number, 0.5] for number in numbers.tolist()], pa.list_(pa.float32(), 2)),
        }
    )


def create_table(spec: TableSpec, directory: str) -> tuple[Table, pa.Table]:
    """Create a table; return it and all of its rows with their ids and addresses, as pylance reads them."""
    rows = create_rows(spec)
    table = Table.create(
        directory,
        rows,
        storage_version=spec.version,
        stable_row_ids=spec.stable_row_ids,
        max_rows_per_file=spec.rows_per_file,
        durable=False,
    )
    is_deleted = np.zeros(spec.rows, dtype=np.bool_)
    for predicate in spec.deleted:
        table = table.delete(predicate).table
        is_deleted |= np.isin(
            np.asarray(rows["a"]), np.asarray(lance.dataset(directory, version=1).to_table(filter=predicate)["a"])
        )
    table = table.add_columns({"late": "a * 2"}).table
    theirs = lance.dataset(directory).to_table(with_row_id=True, with_row_address=True)
    assert theirs["a"].to_pylist() == rows["a"].filter(pa.array(~is_deleted)).to_pylist()
    return table, theirs


def expected_rows(all_rows: pa.Table, read: Read) -> pa.Table:
    found = all_rows if read.filter is None else all_rows.filter(read.filter.mask(all_rows))
    found = found.slice(read.offset or 0, read.limit)
    names = list([name for name in all_rows.column_names if name[0] != "_"] if read.columns is None else read.columns)
    names += ["_rowid"] if read.with_row_id and "_rowid" not in names else []
    names += ["_rowaddr"] if read.with_row_address and "_rowaddr" not in names else []
    if not names:
        return pa.table({"rows": pa.nulls(found.num_rows)})
    return pa.table({name: read_path(found, name) for name in names})


def check(table: Table, all_rows: pa.Table, read: Read) -> None:
    sql = None if read.filter is None else read.filter.sql
    expected = expected_rows(all_rows, read)
    window = {"limit": read.limit, "offset": read.offset}
    system_columns = {"with_row_id": read.with_row_id, "with_row_address": read.with_row_address}
    found = table.to_table(read.columns, sql, **window, **system_columns)  # type: ignore[arg-type]
    batches = list(table.to_batches(read.columns, sql, **window, **system_columns))  # type: ignore[arg-type]
    assert sum(batch.num_rows for batch in batches) == expected.num_rows == found.num_rows
    if not found.num_columns:
        assert expected.column_names == ["rows"]
    else:
        assert found.column_names == expected.column_names
        assert found.to_pylist() == expected.to_pylist()
        assert found.cast(expected.schema).equals(expected)
        assert all(batch.schema.equals(found.schema, check_metadata=True) for batch in batches)
        assert pa.Table.from_batches(batches, found.schema).equals(found)
    whole = Read(read.columns, read.filter, None, None, False, False)
    assert table.count_rows(sql) == expected_rows(all_rows, whole).num_rows


STRATEGIES = [(plan.SMALL_FRAGMENT_BYTES, 50), (0, 50), (0, 2)]
"""The size below which a fragment is small, and the ratio of rows to matches from which matches are picked singly."""


@settings(max_examples=25, deadline=None)
@given(TABLES, st.lists(READS, min_size=4, max_size=8), st.sampled_from(STRATEGIES))
def test_random_scans(spec: TableSpec, reads: list[Read], strategy: tuple[int, int]) -> None:
    """Each strategy reads the same rows: all columns at once, late columns as a whole, and late columns row by row."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(plan, "SMALL_FRAGMENT_BYTES", strategy[0])
        monkeypatch.setattr(row_reader, "PICK_ONE_IN", strategy[1])
        table, all_rows = create_table(spec, f"{directory}/t")
        theirs = lance.dataset(table.uri)
        for read in reads:
            check(table, all_rows, read)
            if read.filter is not None and read.columns:
                found = theirs.to_table(columns=list(read.columns), filter=read.filter.sql)
                ours = table.to_table(read.columns, read.filter.sql)
                assert ours.equals(found)
                assert ours.schema == found.schema


@settings(max_examples=20, deadline=None)
@given(TABLES, st.data())
def test_random_takes(spec: TableSpec, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        table, all_rows = create_table(spec, f"{directory}/t")
        for _ in range(4):
            offsets = data.draw(st.lists(st.integers(0, max(0, all_rows.num_rows - 1)), max_size=30))
            offsets = offsets if all_rows.num_rows else []
            columns = data.draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1, max_size=6))
            expected = expected_rows(
                all_rows.take(pa.array(offsets, pa.int64())), Read(columns, None, None, None, False, False)
            )
            for by, numbers in (
                ("offset", offsets),
                ("row_id", values_at(all_rows, "_rowid", offsets)),
                ("row_address", values_at(all_rows, "_rowaddr", offsets)),
            ):
                found = table.take(numbers, columns, by=by)  # type: ignore[arg-type]
                assert found.column_names == columns
                assert found.to_pylist() == expected.to_pylist()
            if offsets:
                assert (
                    lance.dataset(table.uri)
                    .take(offsets, columns=["a", "t", "s", "late"])
                    .equals(table.take(offsets, ["a", "t", "s", "late"]))
                )


def values_at(all_rows: pa.Table, name: str, offsets: Sequence[int]) -> list[int]:
    numbers = all_rows[name].to_pylist()
    return [numbers[directory] for directory in offsets]


LARGE = 400_000
LARGE_FILTERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k = 77777": lambda k: k == 77_777,
    "k < 40": lambda k: k < 40,
    "k % 90 = 0": lambda k: k % 90 == 0,
    "k % 3 = 0": lambda k: k % 3 == 0,
    "k != 5": lambda k: k != 5,
    "k >= 150000 AND k < 158000": lambda k: (k >= 150_000) & (k < 158_000),
    "k >= 60000 AND k < 140000": lambda k: (k >= 60_000) & (k < 140_000),
    "k >= 196600 AND k < 196620": lambda k: (k >= 196_600) & (k < 196_620),
    "k < 0": lambda k: k < 0,
    "k >= 0": lambda k: k >= 0,
}


@pytest.fixture(scope="module", params=[False, True], ids=["nothing deleted", "deleted here and there"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, np.ndarray]:
    """A table with two fragments of several batches and one fragment of a single batch."""
    directory = str(tmp_path_factory.mktemp("large") / "t")
    k = np.arange(LARGE)
    rows = pa.table({"k": k, "text": pa.array(k % 1000).cast(pa.string()), "half": k / 2})
    table = Table.create(directory, rows, max_rows_per_file=190_000, durable=False)
    if request.param:
        table = table.delete("k % 7 = 3 OR (k >= 65000 AND k < 131500) OR k = 158001").table
        k = k[~((k % 7 == 3) | ((k >= 65_000) & (k < 131_500)) | (k == 158_001))]
    return table, k


@pytest.mark.parametrize("filter", LARGE_FILTERS)
def test_filters_across_batches(large: tuple[Table, np.ndarray], filter: str) -> None:
    """The matches are few or many, adjacent or scattered, and cross the boundaries of batches."""
    table, k = large
    expected = k[LARGE_FILTERS[filter](k)]
    found = table.to_table(["half", "k", "_rowaddr", "text"], filter)
    assert np.array_equal(np.asarray(found["k"]), expected)
    assert np.array_equal(np.asarray(found["half"]), expected / 2)
    assert found["text"].to_pylist() == [str(each) for each in (expected % 1000).tolist()]
    assert np.array_equal(np.asarray(found["_rowaddr"]), (expected // 190_000 << 32) | expected % 190_000)
    assert table.count_rows(filter) == len(expected)
    for limit, offset in ((1, 0), (10, 3), (70_000, 65_530), (10**6, len(expected) - 2 if len(expected) > 2 else 0)):
        window = table.to_table(["text", "k"], filter, limit=limit, offset=offset)
        assert np.array_equal(np.asarray(window["k"]), expected[offset : offset + limit])
        assert window["text"].to_pylist() == [str(each % 1000) for each in expected[offset : offset + limit].tolist()]


@pytest.mark.parametrize("offset", [0, 64_999, 65_536, 189_999, 200_000, 333_333])
@pytest.mark.parametrize("limit", [1, 65_537, 200_000, None])
def test_windows_over_batches(large: tuple[Table, np.ndarray], limit: int | None, offset: int) -> None:
    table, k = large
    expected = k[offset : None if limit is None else offset + limit]
    assert np.array_equal(np.asarray(table.to_table(["k"], limit=limit, offset=offset)["k"]), expected)


def test_a_take_spans_many_batches(large: tuple[Table, np.ndarray]) -> None:
    table, k = large
    offsets = np.random.default_rng(3).integers(0, len(k), 150_000)
    found = table.take(offsets, ["text", "k"])
    assert np.array_equal(np.asarray(found["k"]), k[offsets])
