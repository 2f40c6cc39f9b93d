"""Column layout: the columns that store each field in each storage version, and the names of stored columns."""

import pyarrow as pa
import pytest

from lance_core import Corrupt, Unsupported
from lance_core.datafiles.column_layout import check_storable, columns_of, paths_of, stored_ids
from lance_core.format.fragment import DataFile, StorageVersion
from lance_core.format.schema import TableSchema

V20, V21, V22 = (StorageVersion(2, minor) for minor in range(3))
XY = pa.struct([("x", pa.int8()), ("y", pa.int8())])
PACKED = {"lance-encoding:packed": "true"}

# Stored field ids in tables written by pylance: in storage version 2.0, and since 2.1.
LAYOUTS = {
    "primitive": (pa.field("v", pa.int8()), [0], [0]),
    "struct": (pa.field("v", XY), [0, 1, 2], [1, 2]),
    "nested struct": (pa.field("v", pa.struct([("s", XY), ("z", pa.int8())])), [0, 1, 2, 3, 4], [2, 3, 4]),
    "list": (pa.field("v", pa.list_(pa.int8())), [0, 1], [1]),
    "list of struct": (pa.field("v", pa.list_(XY)), [0, 1, 2, 3], [2, 3]),
    "list of list": (pa.field("v", pa.list_(pa.list_(pa.int8()))), [0, 1, 2], [2]),
    "fixed-size list": (pa.field("v", pa.list_(pa.float32(), 3)), [0], [0]),
    "list of fixed-size list": (pa.field("v", pa.list_(pa.list_(pa.float32(), 3))), [0, 1], [1]),
    "packed struct": (pa.field("v", XY, metadata=PACKED), [0], [0]),
    "empty struct": (pa.field("v", pa.struct([])), [0], [0]),
    "empty struct inside": (pa.field("v", pa.struct([("e", pa.struct([])), ("x", pa.int8())])), [0, 1, 2], [1, 2]),
    "dictionary": (pa.field("v", pa.dictionary(pa.int8(), pa.string())), [0], [0]),
}


def schema_of(*fields: pa.Field) -> TableSchema:
    return TableSchema.from_arrow(pa.schema(fields))


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    field, in_2_0, since_2_1 = LAYOUTS[name]
    for version, ids in ((V20, in_2_0), (V21, since_2_1), (V22, since_2_1)):
        columns = columns_of(schema_of(field), version)
        assert (list(columns.field_ids), list(columns.column_indices)) == (ids, list(range(len(ids))))
        assert stored_ids(schema_of(field).fields[0], version) == set(ids)


def data_file(ids: list[int], columns: list[int], version: StorageVersion = V22) -> DataFile:
    return DataFile.of(path="f.lance", field_ids=ids, column_indices=columns, version=version, size=1)


def test_names_are_found_by_position() -> None:
    """A file keeps the name `v` if the table renames the column; tombstones and unplaced fields have no path."""
    schema = schema_of(pa.field("a", pa.int8()), pa.field("v", XY))
    assert paths_of(data_file([9, 7, 4], [0, 1, 2]), schema) == {9: ("a",), 7: ("v", "x"), 4: ("v", "y")}
    assert paths_of(data_file([4, -2, 7], [2, 0, -1]), schema) == {4: ("v", "y")}
    assert paths_of(data_file([1, 2, 3, 4], [0, 1, 2, 3], V20), schema)[2] == ("v",)


def test_a_missing_column_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=r"f\.lance: has no column 5"):
        paths_of(data_file([1], [5]), schema_of(pa.field("a", pa.int8())))


@pytest.mark.parametrize("version", [StorageVersion(0, 1), StorageVersion(2, 4), StorageVersion(3, 0)], ids=str)
def test_other_versions_are_not_written(version: StorageVersion) -> None:
    with pytest.raises(Unsupported, match=r"choose one of 2\.0, 2\.1, 2\.2, 2\.3"):
        check_storable(schema_of(pa.field("a", pa.int8())), version)


@pytest.mark.parametrize(
    ("field", "version"),
    [
        (pa.field("a", pa.large_binary(), metadata={"lance-encoding:blob": "true"}), V22),
        (
            pa.field(
                "a",
                pa.struct([("data", pa.large_binary()), ("uri", pa.string())]),
                metadata={"ARROW:extension:name": "lance.blob.v2"},
            ),
            StorageVersion(2, 1),
        ),
    ],
    ids=["v1", "v2"],
)
def test_blobs_are_not_written_as_something_else(field: pa.Field, version: StorageVersion) -> None:
    with pytest.raises(Unsupported, match="column 'a' is a blob column in a form that storage version"):
        check_storable(schema_of(field), version)
