"""What the metadata of a field asks of the encoder takes effect in our files as in pylance's, whoever writes them.

A file is asked how its pages are laid out; ours and pylance's of the same rows have to answer alike, and differently
from a file of which nothing was asked. What is not told by a layout, such as a compression level, shows in the size.
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

ASKED = "lance-encoding:"
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

# What is asked, of which column, in which storage versions, and what the layout says where it is heard.
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
EVERY = [(asked, column, version, says) for asked, column, versions, says in EFFECTS for version in versions]


def table_of(column: str, asked: Mapping[str, str]) -> pa.Table:
    values = COLUMNS[column]
    metadata = {ASKED + key: value for key, value in asked.items()}
    return pa.table([values], pa.schema([pa.field("c", values.type, metadata=metadata or None)]))


def ours(place: Path, rows: pa.Table, version: str) -> str:
    return Table.create(place, rows, storage_version=version, durable=False).uri


def theirs(place: Path, rows: pa.Table, version: str) -> str:
    lance.write_dataset(rows, str(place), data_storage_version=version)  # type: ignore[arg-type]
    return str(place)


def layouts(uri: str, fragment: int = 0, file: int = 0, column: int | None = None) -> list[str]:
    """Of the pages of a data file, without what is drawn anew for each: tables of symbols, and lengths under them."""
    stored = Table.open(uri).fragments[fragment].files[file]
    columns = LanceFileReader(str(Path(uri, "data", stored.path))).metadata().columns
    chosen = columns if column is None else [columns[column]]
    drawn = re.compile(r'(?:symbol_table: b?(".*?"|\[.*?\])|null_adjustment: \d+)(?=,\n)', re.DOTALL)
    return [drawn.sub("", page.encoding) for each in chosen for page in each.pages]


def size(uri: str) -> int:
    return Table.open(uri).fragments[0].file_bytes


@pytest.mark.parametrize(("asked", "column", "version", "says"), EVERY)
def test_a_layout_is_the_one_that_was_asked_for(
    asked: dict[str, str], column: str, version: StorageName, says: str, tmp_path: Path
) -> None:
    rows = table_of(column, asked)
    found = layouts(ours(tmp_path / "ours", rows, version))
    assert found == layouts(theirs(tmp_path / "theirs", rows, version))
    assert found != layouts(ours(tmp_path / "unasked", table_of(column, {}), version))
    assert all(re.search(says, layout) for layout in found)
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
def test_a_size_is_the_one_that_was_asked_for(
    column: str, large: dict[str, str], small: dict[str, str], tmp_path: Path
) -> None:
    sizes = []
    for name, asked in (("large", large), ("small", small)):
        rows = table_of(column, asked)
        mine = size(ours(tmp_path / name, rows, "2.2"))
        assert mine == size(theirs(tmp_path / f"{name} theirs", rows, "2.2"))
        sizes.append(mine)
    assert sizes[0] > sizes[1]


Change = Callable[[Table], Table]
REWRITTEN: dict[str, tuple[Change, int, int]] = {
    "append": (lambda table: table.append(table.to_table()).table, -1, 0),
    "overwrite": (lambda table: table.overwrite(table.to_table()).table, -1, 0),
    "update": (lambda table: table.update({"k": "k + 1"}, where="k >= 3000").table, -1, 0),
    "upsert": (lambda table: table.upsert(table.to_table(), "k").table, -1, 0),
    "compact": (lambda table: table.append(table.to_table()).table.compact().table, -1, 0),
    "cast": (lambda table: table.alter_column("c", type=pa.large_string()).table, 0, 1),
}


@pytest.mark.parametrize("verb", REWRITTEN)
def test_it_holds_for_every_writer(verb: str, tmp_path: Path) -> None:
    """Rows that come with another request, or none, are written as the table asks."""
    change, fragment, file = REWRITTEN[verb]
    rows = table_of("few texts", {"compression": "zstd"})
    table = Table.create(tmp_path / "t", rows.append_column("k", pa.array(range(ROWS))), durable=False)
    uri = change(table).uri
    stored = Table.open(uri).fragments[fragment].files[file]
    at = stored.column_indices[stored.field_ids.index(Table.open(uri).manifest.schema.field("c").id)]
    found = layouts(uri, fragment, file, at)
    assert found
    assert all("CompressionAlgorithmZstd" in layout for layout in found)
