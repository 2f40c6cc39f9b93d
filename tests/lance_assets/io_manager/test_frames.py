"""Frame types: missing libraries and large tables; `test_manager.py` tests each frame type."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lance_assets.io_manager import frames
from lance_assets.io_manager.frames import FRAME_TYPES, Scan, frame_type_for
from lance_core import InvalidInput, Table


class LargeTable:
    """Table with more text than one batch can hold."""

    num_rows = 2

    def combine_chunks(self) -> "LargeTable":
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return [pa.record_batch({"a": [1]}), pa.record_batch({"a": [2]})]


def test_rows_beyond_one_batch_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = Scan(Table.create(tmp_path / "t", pa.table({"a": [1]})), None, None)
    kind = frame_type_for(pa.RecordBatch)
    assert kind is not None
    assert kind.from_scan(scan) == pa.record_batch({"a": [1]})
    monkeypatch.setattr(frames.Scan, "to_table", lambda self: LargeTable())
    with pytest.raises(InvalidInput, match="do not fit into one batch"):
        kind.from_scan(scan)


def test_library_that_is_not_imported_is_no_frame_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in FRAME_TYPES:
        if kind.module in ("pandas", "polars"):
            monkeypatch.delitem(sys.modules, kind.module, raising=False)
    assert frame_type_for(None) is None
