"""Coalescing batches: small batches are combined before they are written."""

import pyarrow as pa

from lance_core.datafiles.coalesce_batches import coalesce


def test_rows_stay_in_order_and_types_are_not_mixed() -> None:
    rows = pa.table({"id": pa.array(range(40_000), pa.int64()), "name": ["x"] * 40_000})
    narrow = rows.set_column(0, "id", rows["id"].cast(pa.int32()))
    parts = [*rows.to_batches(max_chunksize=1000), *narrow.to_batches(max_chunksize=1000)]
    found = list(coalesce(parts))
    assert [batch.num_rows for batch in found] == [17_000, 17_000, 6_000] * 2
    assert pa.Table.from_batches(found[:3]).combine_chunks() == rows.combine_chunks()
    assert pa.Table.from_batches(found[3:]).combine_chunks() == narrow.combine_chunks()


def test_large_batches_are_not_copied() -> None:
    large = pa.table({"name": ["y" * (5 << 20)] * 3}).to_batches(max_chunksize=1)
    assert [batch.num_rows for batch in coalesce(large)] == [2, 1]
    assert list(coalesce(large[:1])) == large[:1]
    small = pa.table({"name": ["a", "b"]}).to_batches(max_chunksize=1)
    huge = pa.table({"name": ["y" * (9 << 20)]}).to_batches()[0]
    found = list(coalesce([*small, huge, *small]))
    assert [batch.num_rows for batch in found] == [2, 1, 2]
    assert found[1] is huge


def test_dictionaries_stay_apart() -> None:
    """Arrow cannot concatenate dictionaries that contain a null."""
    one = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    other = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([None, "b"]))
    structs = [pa.StructArray.from_arrays([each], names=["d"]) for each in (one, other)]
    batches = [pa.record_batch({"s": each}) for each in structs]
    found = list(coalesce(iter(batches)))
    assert [batch["s"].to_pylist() for batch in found] == [
        [{"d": "a"}, {"d": None}],
        [{"d": None}, {"d": "b"}],
    ]
    assert list(coalesce(iter(()))) == []
