"""Fragment writer: splits batches into files at the limits, and writes nothing if the rows do not fit the schema."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lance_core import InvalidInput, SchemaMismatch, Unsupported
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import BufferedRows, FileLimits, buffer_rows, write_fragments
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.schema import TableSchema
from lance_core.storage.memory import MemoryStore

SCHEMA = TableSchema.from_arrow(pa.schema([("a", pa.int64()), ("b", pa.string())]))
V22 = StorageVersion(2, 2)


def batch(start: int, stop: int) -> pa.RecordBatch:
    values = range(start, stop)
    texts = [str(value) for value in values]
    return pa.RecordBatch.from_pydict({"a": pa.array(values, pa.int64()), "b": pa.array(texts, pa.string())})


def write(
    store: MemoryStore, batches: list[pa.RecordBatch], *, version: StorageVersion = V22, **limits: int
) -> tuple[Fragment, ...]:
    ids: Iterator[int] = iter(range(1000))
    return write_fragments(
        IpcCodec(store),
        batches,
        schema=SCHEMA,
        version=version,
        limits=FileLimits(**limits),
        conversion=Conversion.EXACT,
        new_uuid=lambda: uuid.UUID(int=next(ids)),
        what="orders",
    )


def rows(store: MemoryStore, fragments: tuple[Fragment, ...]) -> list[int]:
    tables = [IpcCodec(store).open(f"data/{fragment.files[0].path}").table for fragment in fragments]
    return [value for table in tables for value in table["a"].to_pylist()]


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        ([10], 4, [4, 4, 2]),
        ([3, 3, 3], 4, [4, 4, 1]),
        ([4, 4], 4, [4, 4]),
        ([1] * 9, 100, [9]),
        ([0, 5, 0], 2, [2, 2, 1]),
        ([], 4, []),
        ([0, 0], 4, []),
    ],
)
def test_files_end_at_the_limit_of_rows(sizes: list[int], limit: int, expected: list[int]) -> None:
    store = MemoryStore()
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    batches = [batch(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    fragments = write(store, batches, rows_max=limit)
    assert [fragment.physical_rows for fragment in fragments] == expected
    assert rows(store, fragments) == list(range(sum(sizes)))


def test_files_end_at_the_limit_of_bytes() -> None:
    store = MemoryStore()
    fragments = write(store, [batch(0, 100)], bytes_max=400)
    assert len(fragments) > 3
    assert max(fragment.physical_rows for fragment in fragments) < 40
    assert rows(store, fragments) == list(range(100))


def test_a_row_larger_than_the_limit_gets_a_file() -> None:
    assert [fragment.physical_rows for fragment in write(MemoryStore(), [batch(0, 3)], bytes_max=1)] == [1, 1, 1]


def test_files_are_described_as_they_are() -> None:
    store = MemoryStore()
    (fragment,) = write(store, [batch(0, 3)])
    (file,) = fragment.files
    found = store.head(f"data/{file.path}")
    assert found is not None
    assert (file.size, file.field_ids, file.column_indices) == (found.size, (0, 1), (0, 1))
    assert fragment.id == 0


@pytest.mark.parametrize("limits", [{"rows_max": 0}, {"bytes_max": 0}, {"rows_max": -1}])
def test_limits_are_positive(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="must both be positive"):
        FileLimits(**limits)


def test_a_batch_with_other_columns_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="must have the same columns"):
        write(MemoryStore(), [batch(0, 1), batch(1, 2).select(["a"])])
    with pytest.raises(SchemaMismatch, match="'a' is stored as int64, but the data has string"):
        write(MemoryStore(), [batch(0, 1), pa.RecordBatch.from_pydict({"a": ["x"], "b": ["y"]})])


def test_batches_may_have_their_columns_in_any_order() -> None:
    other = batch(1, 2).select(["b", "a"])
    assert [fragment.physical_rows for fragment in write(MemoryStore(), [batch(0, 1), other])] == [2]


def test_unsupported_versions_are_rejected_before_the_first_file() -> None:
    store = MemoryStore()
    with pytest.raises(Unsupported, match="storage version"):
        write(store, [batch(0, 1)], version=StorageVersion(0, 1))
    assert list(store.list("data")) == []


def buffer(*columns: str, version: StorageVersion = V22, **limits: int) -> BufferedRows:
    rows = buffer_rows(
        [batch(0, 2).select(columns), batch(2, 2).select(columns), batch(2, 5).select(columns)],
        schema=SCHEMA,
        version=version,
        limits=FileLimits(**limits),
        conversion=Conversion.EXACT,
        what="orders",
    )
    assert rows
    return rows


def test_buffered_rows_are_written_like_others() -> None:
    store, ids = MemoryStore(), iter(range(1000))
    fragments = buffer("a", "b", rows_max=4).write(IpcCodec(store), lambda: uuid.UUID(int=next(ids)))
    assert [fragment.physical_rows for fragment in fragments] == [4, 1]
    assert rows(store, fragments) == [0, 1, 2, 3, 4]
    nothing = buffer_rows(
        [batch(0, 0)], schema=SCHEMA, version=V22, limits=FileLimits(), conversion=Conversion.EXACT, what="orders"
    )  # fmt: skip
    assert nothing is None


def test_rows_share_a_file_of_the_same_columns_version_and_limits() -> None:
    rows = buffer("a", "b")
    assert (rows.rows, rows.bytes) == (5, buffer("b", "a").bytes)
    assert rows.can_share_file(buffer("b", "a"))
    assert not rows.can_share_file(buffer("a"))
    assert not rows.can_share_file(buffer("a", "b", version=StorageVersion(2, 1)))
    assert not rows.can_share_file(buffer("a", "b", rows_max=7))
