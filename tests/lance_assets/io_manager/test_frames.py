"""Frames where libraries or sizes are in the way; what each becomes is tried by the io manager's tests."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lance_assets.io_manager import frames
from lance_assets.io_manager.frames import FRAME_TYPES, Scan, frame_type_for
from lance_core import InvalidInput, Table


class Large:
    """As a table with more text than one batch can have."""

    num_rows = 2

    def combine_chunks(self) -> "Large":
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return [pa.record_batch({"a": [1]}), pa.record_batch({"a": [2]})]


def test_rows_that_are_more_than_a_batch_are_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = Scan(Table.create(tmp_path / "t", pa.table({"a": [1]})), None, None)
    kind = frame_type_for(pa.RecordBatch)
    assert kind is not None
    assert kind.from_scan(scan) == pa.record_batch({"a": [1]})
    monkeypatch.setattr(frames.Scan, "to_table", lambda self: Large())
    with pytest.raises(InvalidInput, match="do not fit into one batch"):
        kind.from_scan(scan)


def test_a_library_that_nobody_has_imported_is_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in FRAME_TYPES:
        if kind.module in ("pandas", "polars"):
            monkeypatch.delitem(sys.modules, kind.module, raising=False)
    assert frame_type_for(None) is None
