"""Legacy codec: reads data files of format 0.1, which pylance still writes on request, in every type and range.

The format does not store validity; a test states the consequences. Damaged files raise typed errors. Files of older
releases are read in `tests/golden/`.
"""

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.datafiles import legacy_codec
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.errors import Corrupt, LanceError, NotFound, Unsupported
from lance_core.format.legacy_file import Page, PageTable
from lance_core.format.schema import TableSchema
from lance_core.storage.local import LocalStore
from tests.golden.columns import columns_of_every_type, columns_of_later_types

ROWS = 23
ROWS_PER_BATCH = 7
NOT_STORABLE = ("map",)
COLUMNS = columns_of_every_type(ROWS) | {
    name: column for name, column in columns_of_later_types(ROWS).items() if name not in NOT_STORABLE
}
RANGES = ((0, ROWS), (0, 1), (22, 1), (6, 2), (7, 7), (3, 15), (8, 5), (13, 9), (5, 0))


def write(directory: Path, table: pa.Table, rows_per_batch: int = 1024) -> LegacyFileReader:
    """Write a table of one file and open that file with the codec."""
    lance.write_dataset(table, str(directory), data_storage_version="legacy", max_rows_per_group=rows_per_batch)
    return open_file(directory)


def open_file(directory: Path) -> LegacyFileReader:
    (file,) = (directory / "data").glob("*.lance")
    return LegacyFileReader.open(LocalStore(directory), f"data/{file.name}")


def read(reader: LegacyFileReader, start: int = 0, count: int | None = None) -> pa.Table:
    names = [field.name for field in reader.table_schema.fields]
    batches = list(reader.read(names, start, reader.row_count if count is None else count))
    if not batches:
        return pa.table({name: [] for name in names})
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_in_every_range(tmp_path: Path, name: str) -> None:
    reader = write(tmp_path, pa.table({name: COLUMNS[name]}), ROWS_PER_BATCH)
    theirs = lance.dataset(str(tmp_path)).to_table()
    ours = Table.open(str(tmp_path)).to_table()
    ours.validate(full=True)
    assert ours.schema == theirs.schema
    assert ours.to_pylist() == theirs.to_pylist()
    assert reader.row_count == ROWS
    whole = read(reader).column(0).to_pylist()
    for start, count in RANGES:
        assert read(reader, start, count).column(0).to_pylist() == whole[start : start + count], (start, count)


def test_types_keep_their_values(tmp_path: Path) -> None:
    """Values are compared with the written ones, because both readers could have the same bug."""
    representable = {
        name: column for name, column in COLUMNS.items() if not column.null_count and "" not in column.to_pylist()
    }
    del representable["json"]  # stored as a value, not as the original text
    assert len(representable) > 35
    write(tmp_path, pa.table(representable), ROWS_PER_BATCH)
    assert Table.open(str(tmp_path)).to_table().to_pylist() == pa.table(representable).to_pylist()


def test_validity_is_not_kept(tmp_path: Path) -> None:
    """In a nullable column every empty string or blob is read as null, and no other value is."""
    nullable = pa.table({
        "number": pa.array([1, None, 3], pa.int32()),
        "text": ["a", None, ""],
        "list": pa.array([[1], None, []], pa.list_(pa.int8())),
        "struct": pa.array([{"x": 1}, None, {"x": 3}], pa.struct([("x", pa.int8())])),
        "bool": [True, None, False],
    })  # fmt: skip
    rows = read(write(tmp_path / "nullable", nullable)).to_pydict()
    assert rows["text"] == ["a", None, None]
    assert rows["list"] == [[1], [], []]
    assert None not in rows["number"] + rows["struct"] + rows["bool"]
    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])
    assert read(write(tmp_path / "strict", pa.table({"text": ["a", ""]}, schema)))["text"].to_pylist() == ["a", ""]


def test_batches_have_the_length_of_the_other_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one fragment are read in step, whatever batch size their writers used."""
    monkeypatch.setattr(legacy_codec, "BATCH_ROWS", 10)
    reader = write(tmp_path, pa.table({"id": list(range(ROWS))}), ROWS_PER_BATCH)
    assert [batch.num_rows for batch in reader.read(["id"], 1, 22)] == [10, 10, 2]


def test_files_of_a_fragment_with_columns_changed(tmp_path: Path) -> None:
    directory = str(tmp_path)
    lance.write_dataset(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}), directory, data_storage_version="legacy")
    lance.dataset(directory).add_columns({"c": "a * 10"})
    renamed: Any = {"path": "b", "name": "renamed"}
    lance.dataset(directory).alter_columns(renamed)
    lance.dataset(directory).drop_columns(["a"])
    lance.dataset(directory).delete("c = 20")
    lance.dataset(directory).add_columns({"d": "c + 1"})
    ours = Table.open(directory)
    assert ours.to_table().to_pydict() == {"renamed": ["x", "z"], "c": [10, 30], "d": [11, 31]}
    assert ours.to_table(columns=["d"]).to_pydict() == {"d": [11, 31]}
    assert ours.count_rows() == 2


def test_is_read_never_written(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"id": [1]}))
    table = Table.open(str(tmp_path))
    with pytest.raises(Unsupported, match=r"0\.1 cannot be written"):
        table.append(pa.table({"id": [2]}))
    assert Table.open(str(tmp_path)).count_rows() == 1


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"data/gone.lance does not exist"):
        LegacyFileReader.open(LocalStore(tmp_path), "data/gone.lance")


# Damage

DAMAGED = ("string_null", "list_of_structs", "dictionary", "bool", "vector_of_vectors", "large_list", "null")


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("whole")
    small_columns = {name: COLUMNS[name].slice(0, 4) for name in DAMAGED}
    lance.write_dataset(pa.table(small_columns), str(directory), data_storage_version="legacy", max_rows_per_group=3)
    (file,) = (directory / "data").glob("*.lance")
    return file.read_bytes()


def damaged_copies(data: bytes) -> Iterator[bytes]:
    """Yield every truncation of the data, and the data with each byte changed in two ways."""
    random_source = random.Random(1)
    for length in range(len(data)):
        yield data[:length]
    for position in range(len(data)):
        for byte in {data[position] ^ 0xFF, random_source.randrange(256)} - {data[position]}:
            yield data[:position] + bytes([byte]) + data[position + 1 :]


def test_damage_is_a_typed_error_or_other_values(tmp_path: Path, whole_file: bytes) -> None:
    """Damage leads to no other exception, no endless loop and no allocation beyond the size of the file."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "x.lance"
    rejected = 0
    for data in damaged_copies(whole_file):
        file.write_bytes(data)
        try:
            rows = read(LegacyFileReader.open(LocalStore(tmp_path), "data/x.lance"))
        except LanceError:
            rejected += 1
        else:
            rows.validate(full=True)
            assert rows.nbytes < 100 * len(whole_file)
    assert rejected > len(whole_file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:8], "too short"),
        (lambda data: data[:-4] + b"LANX", "instead of"),
        (lambda data: data[:-16] + (2**40).to_bytes(8, "little") + data[-8:], "places the metadata at byte"),
        (lambda data: data[:-16] + (-5).to_bytes(8, "little", signed=True) + data[-8:], "places the metadata at byte"),
    ],
)
def test_damaged_footer(tmp_path: Path, whole_file: bytes, change: object, message: str) -> None:
    assert callable(change)
    (tmp_path / "x.lance").write_bytes(change(whole_file))
    with pytest.raises(Corrupt, match=message):
        LegacyFileReader.open(LocalStore(tmp_path), "x.lance")


def test_page_tables_begin_at_the_first_field_or_at_zero() -> None:
    """Release 0.5 reserved empty entries for fields that the file does not have."""
    schema = TableSchema.from_arrow(pa.schema([("s", pa.struct([("x", pa.int8())]))]), first_id=3)
    pages = {4: Page(16, 2)}

    def table(first_id: int) -> bytes:
        found = [pages.get(field_id, Page(0, 0)) for field_id in range(first_id, 5)]
        return b"".join(struct.pack("<qq", page.position, page.length) for page in found)

    for first_id in (0, 3):
        assert PageTable.decode(table(first_id), schema, 1).page(4, 0) == pages[4]
    assert PageTable.decode(table(3), schema, 1).page(5, 0) is None
