"""Resident rows: a take that is answered from memory returns what the codec returned before, for every type and with
deleted, updated and replaced rows."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

from lance_core import Table
from lance_core.scan import resident_rows

ROWS = 3_000
COLUMNS = {
    "id": pa.array(range(ROWS), pa.int64()),
    "text": pa.array([None if row % 5 == 0 else f"text {row}" * (row % 4) for row in range(ROWS)]),
    "category": pa.array([f"value {row % 3}" for row in range(ROWS)]).dictionary_encode(),
    "list": pa.array([None if row % 6 == 0 else list(range(row % 4)) for row in range(ROWS)], pa.list_(pa.int32())),
    "struct": pa.array([{"x": row, "l": [1.5] * (row % 3)} for row in range(ROWS)]),
    "flag": pa.array([row % 3 == 0 for row in range(ROWS)]),
    "moment": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
}
RNG = np.random.default_rng(5)


def test_takes_equal_those_of_pylance_before_and_after_the_rows_are_resident(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table(COLUMNS), durable=False)
    table = table.delete("id % 7 = 3").table
    table = table.update({"text": "'new'"}, "id % 11 = 5").table
    theirs = lance.dataset(str(tmp_path / "t"))
    rows = table.count_rows()
    for columns in (["id", "text"], ["list", "struct", "moment"], ["category", "id"], ["_rowid", "flag"]):
        before = resident_rows.resident_bytes()
        for _ in range(6):
            offsets = RNG.integers(0, rows, 9)
            ours = table.take(offsets, columns=columns)
            expected = theirs.to_table(columns=columns).take(pa.array(offsets))
            assert ours.equals(expected.cast(ours.schema)), columns
        assert (resident_rows.resident_bytes() > before) == (columns[0] != "category"), columns


def test_rows_that_are_many_bytes_are_not_kept(tmp_path: Path) -> None:
    texts = pa.array(["x" * 20_000] * ROWS)
    table = Table.create(str(tmp_path / "t"), pa.table({"text": texts}), durable=False)
    before = resident_rows.resident_bytes()
    for _ in range(20):
        assert table.take([5, 2_000], columns=["text"])["text"].to_pylist() == ["x" * 20_000] * 2
    assert resident_rows.resident_bytes() == before
