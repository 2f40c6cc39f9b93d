"""Encodings: the encoding options in the metadata of a field have the same effect in our files as in those of pylance.

The page layouts of our file and of pylance's file of the same rows must be equal, and must differ from those of a file
without the option. An option that the layout does not show, such as a compression level, is tested by the file size.
"""

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from lance_core import Table
from tests.interop.type_cases import StorageName

PREFIX = "lance-encoding:"
ROWS = 6000
_NUMBERS = random.Random(5)
_POINT = pa.struct([pa.field("x", pa.int32(), False), pa.field("y", pa.float64(), False)])

COLUMNS: dict[str, pa.Array] = {
    "few texts": pa.array([f"value {row % 200}" for row in range(ROWS)]),
    "long texts": pa.array([f"x{row}" * 200 for row in range(600)]),
    "runs": pa.array([row // 100 * 7919 % 1000 for row in range(ROWS)], pa.int64()),
    "floats": pa.array([_NUMBERS.random() for _ in range(ROWS)]),
    "points": pa.array([{"x": row, "y": float(row)} for row in range(ROWS)], _POINT),
}

V20: tuple[StorageName, ...] = ("2.0",)
V21: tuple[StorageName, ...] = ("2.1", "2.2")
V22: tuple[StorageName, ...] = ("2.2",)

# Options, column, storage versions, and a pattern that the layout matches if the options have an effect.
EFFECTS: list[tuple[dict[str, str], str, tuple[StorageName, ...], str]] = [
    ({"compression": "zstd"}, "long texts", V20, "zstd"),
    ({"compression": "lz4"}, "few texts", V20, "lz4"),
    ({"compression": "none"}, "few texts", V20, '"none"'),
    ({"compression": "fsst"}, "long texts", V20, "Fsst"),
    ({"packed": "true"}, "points", V20 + V21, "PackedStruct"),
    ({"compression": "zstd"}, "floats", V21, "CompressionAlgorithmZstd"),
    ({"compression": "lz4"}, "runs", V21, "CompressionAlgorithmLz4"),
    ({"compression": "none"}, "long texts", V21, "(?s)^(?!.*Fsst)"),
    ({"compression": "none"}, "floats", V21, "(?s)^(?!.*(Bitpacking|General))"),
    ({"structural-encoding": "fullzip"}, "floats", V21, "FullZipLayout"),
    ({"structural-encoding": "miniblock"}, "long texts", V21, "MiniBlockLayout"),
    ({"rle-threshold": "0.0001"}, "runs", V21, "(?s)^(?!.*Rle)"),
    ({"dict-divisor": "100000"}, "few texts", V21, "dictionary: None"),
    ({"dict-size-ratio": "0.0001"}, "few texts", V21, "dictionary: None"),
    ({"dict-values-compression": "zstd"}, "few texts", V22, "CompressionAlgorithmZstd"),
    ({"dict-values-compression": "none"}, "few texts", V22, "(?s)^(?!.*Lz4)"),
]
EFFECTS_BY_VERSION = [
    (encoding, column, version, pattern) for encoding, column, versions, pattern in EFFECTS for version in versions
]


def make_table(column: str, encoding: Mapping[str, str]) -> pa.Table:
    values = COLUMNS[column]
    metadata = {PREFIX + key: value for key, value in encoding.items()}
    return pa.table([values], pa.schema([pa.field("c", values.type, metadata=metadata or None)]))


def write_ours(folder: Path, rows: pa.Table, version: str) -> str:
    return Table.create(folder, rows, storage_version=version, durable=False).uri


def write_theirs(folder: Path, rows: pa.Table, version: str) -> str:
    lance.write_dataset(rows, str(folder), data_storage_version=version)  # type: ignore[arg-type]
    return str(folder)


def page_layouts(uri: str, fragment: int = 0, file: int = 0, column: int | None = None) -> list[str]:
    """Return the layouts of the pages of a data file without the parts that vary: symbol tables and the lengths that
    depend on them."""
    stored = Table.open(uri).fragments[fragment].files[file]
    columns = LanceFileReader(str(Path(uri, "data", stored.path))).metadata().columns
    selected = columns if column is None else [columns[column]]
    varying = re.compile(r'(?:symbol_table: b?(".*?"|\[.*?\])|null_adjustment: \d+)(?=,\n)', re.DOTALL)
    return [varying.sub("", page.encoding) for column_metadata in selected for page in column_metadata.pages]


def file_size(uri: str) -> int:
    return Table.open(uri).fragments[0].file_bytes


@pytest.mark.parametrize(("encoding", "column", "version", "pattern"), EFFECTS_BY_VERSION)
def test_page_layout_follows_the_field_metadata(
    encoding: dict[str, str], column: str, version: StorageName, pattern: str, tmp_path: Path
) -> None:
    rows = make_table(column, encoding)
    actual = page_layouts(write_ours(tmp_path / "ours", rows, version))
    assert actual == page_layouts(write_theirs(tmp_path / "theirs", rows, version))
    assert actual != page_layouts(write_ours(tmp_path / "unasked", make_table(column, {}), version))
    assert all(re.search(pattern, layout) for layout in actual)
    assert Table.open(tmp_path / "ours").to_table() == rows
    assert lance.dataset(str(tmp_path / "ours")).to_table() == rows


ZSTD = {"compression": "zstd"}
CHUNKED = {"compression": "none", "structural-encoding": "miniblock"}


@pytest.mark.parametrize(
    ("column", "large", "small"),
    [
        ("floats", ZSTD | {"compression-level": "1"}, ZSTD | {"compression-level": "19"}),
        ("long texts", CHUNKED | {"minichunk-size": "256"}, CHUNKED | {"minichunk-size": "16384"}),
    ],
)
def test_file_size_follows_the_field_metadata(
    column: str, large: dict[str, str], small: dict[str, str], tmp_path: Path
) -> None:
    sizes = []
    for name, encoding in (("large", large), ("small", small)):
        rows = make_table(column, encoding)
        our_size = file_size(write_ours(tmp_path / name, rows, "2.2"))
        assert our_size == file_size(write_theirs(tmp_path / f"{name} theirs", rows, "2.2"))
        sizes.append(our_size)
    assert sizes[0] > sizes[1]


Change = Callable[[Table], Table]
REWRITES: dict[str, tuple[Change, int, int]] = {
    "append": (lambda table: table.append(table.to_table()).table, -1, 0),
    "overwrite": (lambda table: table.overwrite(table.to_table()).table, -1, 0),
    "update": (lambda table: table.update({"k": "k + 1"}, where="k >= 3000").table, -1, 0),
    "upsert": (lambda table: table.upsert(table.to_table(), "k").table, -1, 0),
    "compact": (lambda table: table.append(table.to_table()).table.compact().table, -1, 0),
    "cast": (lambda table: table.alter_column("c", type=pa.large_string()).table, 0, 1),
}


@pytest.mark.parametrize("operation", REWRITES)
def test_every_operation_follows_the_field_metadata(operation: str, tmp_path: Path) -> None:
    """The options of the table apply to rows whose own schema has other options or none."""
    change, fragment, file = REWRITES[operation]
    rows = make_table("few texts", {"compression": "zstd"})
    table = Table.create(tmp_path / "t", rows.append_column("k", pa.array(range(ROWS))), durable=False)
    uri = change(table).uri
    stored = Table.open(uri).fragments[fragment].files[file]
    position = stored.column_indices[stored.field_ids.index(Table.open(uri).manifest.schema.field("c").id)]
    actual = page_layouts(uri, fragment, file, position)
    assert actual
    assert all("CompressionAlgorithmZstd" in layout for layout in actual)
