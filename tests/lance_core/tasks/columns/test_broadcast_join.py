"""Broadcast join: the size of a source that each worker loads completely, and the fragments it is joined with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.format.fragment import Fragment
from lance_core.tasks.columns import broadcast_join, merge_columns
from lance_core.tasks.columns.broadcast_join import _address_order, estimate_row_bytes
from lance_core.tasks.columns.fill_by_address import FillTask, KeysTask
from tests.lance_core.tasks.columns.test_merge_columns import InMemorySource, merge, values_by_address

ROWS = pa.table({"id": pa.array(range(1000), pa.int64())})


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (pa.int64(), 8),
        (pa.bool_(), 1),
        (pa.float16(), 2),
        (pa.list_(pa.float32(), 128), 512),
        (pa.list_(pa.list_(pa.float32(), 4), 2), 32),
        (pa.binary(6), 6),
        (pa.string(), 32),
        (pa.list_(pa.float32()), 32),
        (pa.struct([("a", pa.int64())]), 32),
    ],
)
def test_sizes_of_rows(kind: pa.DataType, size: int) -> None:
    assert estimate_row_bytes(pa.schema([pa.field("a", kind), pa.field("b", pa.int32())])) == size + 4


@pytest.mark.parametrize(
    ("estimate", "bytes_max", "staged", "is_broadcast"),
    [
        (16_000, 16_000, 1, True),
        (64_000, 16_000, 1, True),  # an estimate may be too high
        (64_001, 16_000, 0, False),
        (None, 16_000, 0, False),
        (1, 15_999, 1, False),  # or too low: the staged files have the real size
    ],
)
def test_a_merge_by_key_broadcasts_small_sources(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    estimate: int | None,
    bytes_max: int,
    staged: int,
    is_broadcast: bool,
) -> None:
    for module in (merge_columns, broadcast_join):
        monkeypatch.setattr(module, "BROADCAST_BYTES_MAX", bytes_max)
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, durable=False)
    source = InMemorySource(pa.table({"id": ROWS["id"], "score": ROWS["id"]}), size_estimate=estimate)
    joined = []

    def by_key(keys: Sequence[str], values: Sequence[str], keys_task: KeysTask, task: FillTask) -> pa.Table:
        joined.append(keys)
        return InMemorySource.fill_by_key(source, keys, values, keys_task, task)

    source.fill_by_key = by_key  # type: ignore[method-assign]
    table = merge(uri, source, ["id"])
    assert table.to_table()["score"] == ROWS["id"]
    assert (source.stage_count, not joined) == (staged, is_broadcast)
    remaining = {path.name for path in Path(uri, "data").iterdir()}
    assert remaining == {file.path for fragment in table.fragments for file in fragment.files}, "no staged file remains"


@pytest.mark.parametrize(("bytes_max", "staged"), [(16_000, 1), (15_999, 0)])
def test_a_merge_by_address_has_one_row_for_each_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int, staged: int
) -> None:
    monkeypatch.setattr(merge_columns, "BROADCAST_BYTES_MAX", bytes_max)
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, durable=False)
    source = InMemorySource(values_by_address(uri), size_estimate=None)
    found = merge(uri, source).to_table()
    assert found["score"].to_pylist() == [10 * each for each in range(1000)]
    assert source.stage_count == staged


def test_a_fragment_without_values_gets_no_file(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS, max_rows_per_file=100, durable=False)
    table = merge(uri, InMemorySource(pa.table({"id": [250, 5000], "score": [1, 2]})), ["id"])
    assert [len(fragment.files) for fragment in table.fragments] == [1, 1, 2, 1, 1, 1, 1, 1, 1, 1]
    assert table.to_table(filter="score is not null").to_pylist() == [{"id": 250, "score": 1}]


@pytest.mark.parametrize("ids", [[3, 7], [0, 1, 2]], ids=["apart", "in a row"])
def test_addresses_are_sorted(ids: list[int]) -> None:
    fragments = [Fragment.of(files=[], physical_rows=4).with_id(number) for number in ids]
    addresses = np.array([number << 32 | offset for number in ids for offset in (2, 0, 3)], dtype=np.int64)
    shuffled = addresses[np.random.default_rng(3).permutation(len(addresses))]
    order = _address_order(shuffled, fragments)
    assert order is not None
    assert (shuffled[order] == np.sort(addresses)).all()
    assert _address_order(np.append(shuffled, shuffled[0]), fragments) is None, "a duplicate address"
    assert _address_order(np.append(shuffled, ids[-1] << 32 | 4), fragments) is None, "an address beyond the fragment"
