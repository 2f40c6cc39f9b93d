"""Sample rows and column descriptions: the newest rows in an event, cut, with pictures, and only if declared."""

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lance_assets import WriteContext, lance_table
from lance_assets.ledger.sample_rows import sample_metadata
from lance_core import Table
from tests.lance_assets.instances import events, run
from tests.lance_assets.writes.arrow_writes import ArrowAppend


def png(side: int) -> bytes:
    """Return a red picture whose bytes do not compress."""
    noise = bytes((number * 7919 >> 3) % 256 for number in range(side * side * 3))
    lines = b"".join(b"\0" + noise[side * 3 * line : side * 3 * (line + 1)] for line in range(side))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(lines, 0)) + chunk(b"IEND", b"")


SMALL, LARGE = png(4), png(90)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"comment": "Number of the page."}),
        pa.field("text", pa.string(), metadata={"description": "From the field."}),
        pa.field("vector", pa.list_(pa.float32(), 8)),
        pa.field("picture", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        pa.field("thumbnail", pa.binary()),
        pa.field("at", pa.timestamp("us")),
        pa.field("place", pa.struct([("city", pa.string())])),
        pa.field("share", pa.float64()),
    ]
)


def rows(*numbers: int) -> pa.Table:
    pictures = [SMALL, LARGE, b"not a picture", None]
    return pa.Table.from_pylist(
        [
            {
                "id": number if number else 2**60,
                "text": "x" * 500 if number == 2 else f"page {number}",
                "vector": [number / 3] * 8,
                "picture": pictures[number % 4],
                "thumbnail": pictures[number % 4],
                "at": None,
                "place": {"city": "Oslo"},
                "share": float("nan") if number == 1 else 0.5,
            }
            for number in numbers
        ],
        SCHEMA,
    )


def test_newest_rows_come_first_and_are_cut(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(*range(20, 30)), durable=False).append(rows(3, 2, 1, 0)).table
    metadata = sample_metadata(table)
    sample: Any = metadata["lance/sample"].value
    records = [record.data for record in sample.records]
    assert [record["id"] for record in records] == [str(2**60), 1, 2, 3, 29, 28, 27, 26, 25, 24]
    assert [column.name for column in sample.schema.columns] == SCHEMA.names
    newest, second, third, *_ = records
    assert len(str(third["text"])) == 80
    assert (second["share"], newest["share"], newest["at"]) == ("nan", 0.5, None)
    assert newest["place"] == '{"city": "Oslo"}'
    assert newest["vector"] == "[0, 0, 0, 0, 0, … 8 values]"
    for column in ("picture", "thumbnail"):
        assert str(newest[column]).startswith("image/png, ")
        assert (str(third[column]).partition(",")[0], records[3][column]) == ("bytes", None)
    pictures = str(metadata["lance/sample_pictures"].value)
    encoded = base64.b64encode(SMALL).decode()
    assert pictures.count(f"](data:image/png;base64,{encoded})") == 6  # of the ids 2**60, 28 and 24, in both columns
    assert len(LARGE) > 16 * 1024
    assert len(pictures) < 5_000


def test_fingerprints_are_not_shown(tmp_path: Path) -> None:
    computed = pa.field("n", pa.int64(), metadata={"lance_assets.computed": "{}"})
    schema = pa.schema([computed, pa.field("n__fingerprint", pa.uint64()), pa.field("x__fingerprint", pa.uint64())])
    data = pa.table([[1], [2], [3]], schema=schema)
    sample: Any = sample_metadata(Table.create(str(tmp_path / "t"), data, durable=False))["lance/sample"].value
    assert [record.data for record in sample.records] == [{"n": 1, "x__fingerprint": 3}]


def test_a_table_without_rows_has_no_sample(tmp_path: Path) -> None:
    assert sample_metadata(Table.create(str(tmp_path / "t"), SCHEMA, durable=False)) == {}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as each:
        yield each


@pytest.mark.parametrize("samples", [True, False])
def test_events_of_runs_have_samples_and_descriptions(
    tmp_path: Path, instance: dg.DagsterInstance, samples: bool
) -> None:
    def new_rows(ctx: WriteContext) -> pa.Table:
        return rows(7)

    uri = str(tmp_path / "t.lance")
    Table.create(uri, SCHEMA, durable=False)
    described = {"text": "Declared.", "gone": "Of no column."}
    table = lance_table("t", uri=uri, writes=[ArrowAppend("w", new_rows)], samples=samples, columns=described)
    run(table, "w", instance, None)
    (_, first), (_, second) = events(instance, table.key)
    assert "lance/sample" not in first.metadata
    assert ("lance/sample" in second.metadata) == samples
    ((_, written),) = events(instance, table.write_key("w"))
    for event in (first, second, written):
        schema: Any = event.metadata["dagster/column_schema"].value
        descriptions = {column.name: column.description for column in schema.columns if column.description}
        assert descriptions == {"id": "Number of the page.", "text": "Declared."}
