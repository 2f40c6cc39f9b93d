"""Fragment reader: returns the rows of a fragment under the schema of the table.

Columns are found by field id, not by their names in the files, and a field that no file stores is null.
"""

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Corrupt, NotFound, Unsupported
from lance_core.datafiles.fragment_reader import FragmentReader, read_fragment
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.schema import Field, TableSchema
from lance_core.storage.memory import MemoryStore

V22 = StorageVersion(2, 2)


def primitive_field(id: int, name: str, logical: str = "int64") -> Field:
    return Field(id, name, logical, True, {})


def schema(*fields: Field) -> TableSchema:
    return TableSchema(fields, {})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def write_file(
    store: MemoryStore, name: str, table: pa.Table, ids: list[int], columns: list[int] | None = None
) -> DataFile:
    writer = IpcCodec(store).create(f"data/{name}", table.schema, V22)
    for batch in table.to_batches():
        writer.write(batch)
    size = writer.finish().size
    indices = list(range(len(ids))) if columns is None else columns
    return DataFile.of(path=name, field_ids=ids, column_indices=indices, version=V22, size=size)


def read(store: MemoryStore, fragment: Fragment, stored: TableSchema, *columns: str) -> list[dict[str, object]]:
    names = columns or stored.arrow.names
    batches = [rows.batch for rows in read_fragment(store, IpcCodec(store), fragment, stored, columns=names, path="m")]
    found = pa.Table.from_batches(batches, pa.schema([stored.arrow.field(name) for name in names])).to_pylist()
    assert isinstance(found, list)
    return found


A_AND_B = pa.table({"a": [1, 2], "b": [3, 4]})


def test_columns_are_found_by_id(store: MemoryStore) -> None:
    """Columns are renamed or reordered; one is a tombstone, one is in a later file and one in no file."""
    first = write_file(store, "1.lance", A_AND_B, [7, -2])
    second = write_file(store, "2.lance", pa.table({"z": [5, 6], "b": [7, 8]}), [4, 9], [1, 0])
    stored = schema(
        primitive_field(9, "nine"), primitive_field(7, "seven"), primitive_field(2, "none"), primitive_field(4, "four")
    )
    assert read(store, Fragment.of(files=[first, second], physical_rows=2), stored) == [
        {"nine": 5, "seven": 1, "none": None, "four": 7},
        {"nine": 6, "seven": 2, "none": None, "four": 8},
    ]


def test_only_files_that_are_needed_are_opened(store: MemoryStore) -> None:
    first = write_file(store, "1.lance", A_AND_B, [0, 1])
    second = write_file(store, "2.lance", pa.table({"c": [5, 6]}), [2])
    store.delete("data/2.lance")
    stored = schema(primitive_field(0, "a"), primitive_field(2, "c"))
    fragment = Fragment.of(files=[first, second], physical_rows=2)
    assert read(store, fragment, stored, "a") == [{"a": 1}, {"a": 2}]
    with pytest.raises(NotFound, match=r"2\.lance"):
        read(store, fragment, stored)


def test_children_of_structs_are_found_by_id_too(store: MemoryStore) -> None:
    """One child is renamed, one is dropped and one was added later."""
    values = pa.array([{"x": 1, "y": 2}, None], pa.struct([("x", pa.int64()), ("y", pa.int64())]))
    data_file = write_file(store, "1.lance", pa.table({"s": values}), [1, 2])
    stored = schema(Field(0, "s", "struct", True, {}, (primitive_field(5, "new"), primitive_field(2, "why"))))
    assert read(store, Fragment.of(files=[data_file], physical_rows=2), stored) == [
        {"s": {"new": None, "why": 2}},
        {"s": None},
    ]


def test_a_struct_in_two_files_is_put_together(store: MemoryStore) -> None:
    one = write_file(store, "1.lance", pa.table({"s": pa.array([{"x": 1}, None])}), [1])
    two = write_file(store, "2.lance", pa.table({"t": pa.array([{"why": 2}, None])}), [2])
    stored = schema(
        Field(0, "s", "struct", True, {}, (primitive_field(2, "y"), primitive_field(1, "x"), primitive_field(3, "z")))
    )
    assert read(store, Fragment.of(files=[one, two], physical_rows=2), stored) == [
        {"s": {"y": 2, "x": 1, "z": None}},
        {"s": None},
    ]


POINTS = Field(
    0,
    "l",
    "list.struct",
    True,
    {},
    (Field(1, "item", "struct", True, {}, (primitive_field(2, "x"), primitive_field(3, "y"))),),
)


def test_lists_in_two_files_are_put_together(store: MemoryStore) -> None:
    one = write_file(store, "1.lance", pa.table({"l": [[{"x": 1}, {"x": 2}], None, []]}), [2])
    two = write_file(store, "2.lance", pa.table({"l": [[{"y": 3}, {"y": 4}], None, []]}), [3])
    fragment = Fragment.of(files=[one, two], physical_rows=3)
    assert read(store, fragment, schema(POINTS)) == [
        {"l": [{"x": 1, "y": 3}, {"x": 2, "y": 4}]},
        {"l": None},
        {"l": []},
    ]


def test_lists_of_different_lengths_are_corrupt_unless_deleted(store: MemoryStore) -> None:
    one = write_file(store, "1.lance", pa.table({"l": [[{"x": 1}, {"x": 2}], [{"x": 3}]]}), [2])
    two = write_file(store, "2.lance", pa.table({"l": [[{"y": 4}], [{"y": 5}]]}), [3])
    fragment = Fragment.of(files=[one, two], physical_rows=2)
    with pytest.raises(
        Corrupt, match=r"2\.lance: stores lists of column 'l' whose lengths differ from those in 1\.lance"
    ):
        read(store, fragment, schema(POINTS))
    deleted = fragment.with_deletion_file(is_bitmap=False, read_version=Version(1), number=7, rows=1)
    assert deleted.deletion_file is not None
    store.put(deleted.deletion_file.path, DeletionVector.of([0]).encode(as_bitmap=False))
    assert read(store, deleted, schema(POINTS)) == [{"l": [{"x": 3, "y": 5}]}]
    stored = schema(POINTS)
    reader = FragmentReader(store, IpcCodec(store), stored, stored, path="m")
    assert reader.take(deleted, np.array([0, 1])).to_pylist() == [{"l": None}, {"l": [{"x": 3, "y": 5}]}]


def test_rows_are_counted(store: MemoryStore) -> None:
    data_file = write_file(store, "1.lance", A_AND_B, [0, 1])
    with pytest.raises(Corrupt, match=r"1\.lance: has 2 rows, but its fragment 0 has 3"):
        read(store, Fragment.of(files=[data_file], physical_rows=3), schema(primitive_field(0, "a")))


def test_a_stored_type_that_differs_is_rejected(store: MemoryStore) -> None:
    data_file = write_file(store, "1.lance", pa.table({"a": ["x"]}), [0])
    with pytest.raises(Unsupported, match=r"1\.lance: column 'a' is stored as string, but the table declares int64"):
        read(store, Fragment.of(files=[data_file], physical_rows=1), schema(primitive_field(0, "a")))
