"""Where pylance 14 fails or goes wrong, small: the reasons for which generated programs leave a step out
(`known_pylance_defects.py`), or never have it. Each asserts what pylance does today, and that we do better; one that
fails after an upgrade of pylance has a line to be taken away there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from tests.interop.columns import batch, rows
from tests.interop.known_pylance_defects import FAULTS

Change = Callable[[lance.LanceDataset], object]
OurChange = Callable[[Table], object]


def refused(name: str) -> str:
    """What pylance says."""
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    return fault.says


def check(place: Path, data: pa.Table, fault: str, theirs: Change, ours: OurChange, **options: Any) -> Table:
    """pylance fails, we do not, and pylance reads what we made of its table."""
    uri = str(place / "table")
    dataset = lance.write_dataset(data, uri, **options)
    with pytest.raises((OSError, ValueError, TypeError), match=refused(fault)):
        theirs(dataset)
    ours(Table.open(uri, durable=False))
    after = Table.open(uri)
    assert after.version > 1
    assert lance.dataset(uri).to_table().to_pylist() == after.to_table().to_pylist()
    return after


def cast(dataset: lance.LanceDataset, name: str, arrow: pa.DataType) -> None:
    change: Any = {"path": name, "data_type": arrow}
    dataset.alter_columns(change)


def test_casts_only_between_relatives(tmp_path: Path) -> None:
    after = check(
        tmp_path,
        pa.table({"a": [1, 2]}),
        "casts only between relatives",
        lambda dataset: cast(dataset, "a", pa.string()),
        lambda table: table.alter_column("a", type=pa.string()),
    )
    assert after.to_table().to_pylist() == [{"a": "1"}, {"a": "2"}]


def test_a_packed_struct_that_is_null(tmp_path: Path) -> None:
    data = rows({"k": "key", "a": "struct-packed"}, range(3))
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(data, uri)
    with pytest.raises(OSError, match=refused("a packed struct that is null")):
        dataset.update({"a": "null"}, where="k = 1")


def test_a_function_for_a_table_without_rows(tmp_path: Path) -> None:
    def new(given: pa.RecordBatch) -> pa.RecordBatch:
        return batch({"b": "int8"}, given, 0)

    after = check(
        tmp_path,
        rows({"k": "key"}, []),
        "a function for a table without rows",
        lambda dataset: dataset.add_columns(new, read_columns=["k"]),
        lambda table: table.add_columns(new, read_columns=["k"]),
    )
    assert after.schema.field("b").type == pa.int8()


def test_columns_merged_from_no_rows(tmp_path: Path) -> None:
    data = rows({"k": "key", "b": "int8"}, [])
    check(
        tmp_path,
        rows({"k": "key"}, range(3)),
        "columns merged from no rows",
        lambda dataset: dataset.merge(data, "k"),
        lambda table: table.merge_columns(data, "k"),
    )


def test_a_fragment_without_files(tmp_path: Path) -> None:
    """All of its columns were dropped; its rows are there, null. pylance makes such a table and reads it no more. We
    read it, and do not make it."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"k": [1, 2], "b": [1, 2]}), uri)
    lance.write_dataset(pa.table({"b": [3]}), uri, mode="append")
    expected = [{"k": 1}, {"k": 2}, {"k": None}]
    ours = Table.open(uri, durable=False).drop_columns(["b"]).table
    assert lance.dataset(uri).to_table().to_pylist() == ours.to_table().to_pylist() == expected
    ours.restore(2)
    dataset = lance.dataset(uri)
    dataset.drop_columns(["b"])
    with pytest.raises(pa.ArrowInvalid, match="Fragment 1 does not contain any data"):
        dataset.to_table()
    assert Table.open(uri).to_table().to_pylist() == expected


def test_no_keys_to_delete_both_ways(tmp_path: Path) -> None:
    keys = pa.table({"k": pa.array([], pa.int64())})
    after = check(
        tmp_path,
        pa.table({"k": [1, 2], "b": [1, 2]}),
        "no keys, to delete both ways",
        lambda dataset: (
            dataset.merge_insert("k").when_matched_delete().when_not_matched_by_source_delete("b = 2").execute(keys)
        ),
        lambda table: table.upsert(keys, "k", matched="delete", insert=False, delete_unmatched="b = 2"),
    )
    assert after.to_table().to_pylist() == [{"k": 1, "b": 1}]


def test_a_struct_that_did_not_come_in_2_0(tmp_path: Path) -> None:
    """pylance writes nulls for it, and the oldest of the storage versions has none; we write nothing."""
    data = rows({"k": "key"}, [7])
    after = check(
        tmp_path,
        rows({"k": "key", "a": "struct"}, range(3)),
        "a struct that did not come, in 2.0",
        lambda dataset: dataset.merge_insert("k").when_not_matched_insert_all().execute(data),
        lambda table: table.upsert(data, "k", matched="ignore"),
        data_storage_version="2.0",
    )
    assert after.to_table(filter="k = 7").to_pylist() == [{"k": 7, "a": None}]


def test_an_empty_struct_hides_what_is_beside_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    data = pa.table({"a": pa.array([{}, {}], pa.struct([])), "b": [1, 2]})
    dataset = lance.write_dataset(data, uri)
    assert dataset.to_table()["b"].to_pylist() == [None, None]
    assert dataset.to_table(["b"])["b"].to_pylist() == Table.open(uri).to_table()["b"].to_pylist() == [1, 2]


def test_lists_of_structs_of_a_fixed_size_are_read_alone(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([{"x": n} for n in range(4)]), 2)
    dataset = lance.write_dataset(pa.table({"a": pairs, "b": [1, 2]}), uri)
    with pytest.raises(pa.ArrowInvalid, match="cannot read columns of differing lengths together"):
        dataset.to_table()
    assert Table.open(uri).to_table()["a"].to_pylist() == dataset.to_table(["a"])["a"].to_pylist() == pairs.to_pylist()


def test_an_extension_that_has_lost_its_metadata(tmp_path: Path) -> None:
    """Replaced by other entries. pylance goes on reading JSON, and takes none; so with bfloat16."""
    data = rows({"k": "key", "a": "json"}, range(3))
    uri = str(tmp_path / "table")
    lance.write_dataset(data, uri)
    Table.open(uri, durable=False).set_field_metadata({"a": {"unit": "mm"}}, replace=True)
    with pytest.raises(OSError, match=refused("an extension that has lost its metadata")):
        lance.write_dataset(data, uri, mode="append")
    after = Table.open(uri, durable=False).append(data).table
    assert lance.dataset(uri).to_table().to_pylist() == after.to_table().to_pylist()
    assert after.count_rows() == 6


def test_an_update_reads_what_it_just_wrote(tmp_path: Path) -> None:
    """Two columns that change places become one: which of them is left to chance."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"a": [1], "b": [2]}), uri)
    ours = Table.open(uri, durable=False).update({"a": "b", "b": "a"}).table
    assert ours.to_table().to_pylist() == [{"a": 2, "b": 1}]
    dataset = lance.dataset(uri)
    dataset.update({"a": "b", "b": "a"})
    assert dataset.to_table().to_pylist() in ([{"a": 1, "b": 1}], [{"a": 2, "b": 2}])


def test_a_cast_loses_the_metadata_of_its_column(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"unit": "mm"})])
    dataset = lance.write_dataset(pa.table({"a": [1]}, schema=schema), uri)
    Table.open(uri, durable=False).alter_column("a", type=pa.int16())
    assert lance.dataset(uri).schema.field("a").metadata == {b"unit": b"mm"}
    dataset = lance.dataset(uri)
    cast(dataset, "a", pa.int32())
    assert dataset.schema.field("a").metadata is None


@pytest.mark.parametrize("case", ["json", "uuid", "tensor", "bool8"])
def test_a_column_computed_from_another_loses_what_it_means(case: str, tmp_path: Path) -> None:
    """A copy of JSON would be bytes."""
    uri = str(tmp_path / "table")
    lance.write_dataset(rows({"k": "key", "a": case}, range(3)), uri)
    Table.open(uri, durable=False).add_columns({"b": "a"})
    dataset = lance.dataset(uri)
    assert dataset.schema.field("b").type == dataset.schema.field("a").type
    dataset.add_columns({"c": "a"})
    assert not isinstance(dataset.schema.field("c").type, pa.BaseExtensionType)


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_field_in_a_list_takes_the_column_with_it(version: str, tmp_path: Path) -> None:
    """Rows are lost. From storage version 2.2 on only the field goes."""
    uri = str(tmp_path / "table")
    options: Any = {"data_storage_version": version}
    dataset = lance.write_dataset(rows({"k": "key", "a": "list-of-struct"}, range(3)), uri, **options)
    dataset.drop_columns(["a.item.y"])
    assert dataset.schema.names == ["k"]
    after = Table.open(uri, durable=False).restore(1).table.drop_columns(["a.item.y"]).table
    assert after.schema.field("a").type == pa.list_(pa.struct([("x", pa.int32())]))
    assert lance.dataset(uri).to_table() == after.to_table()


def test_keys_alone_move_rows(tmp_path: Path) -> None:
    """An upsert that brings nothing but keys changes nothing; pylance writes the rows anew, as they were."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"k": [1, 2], "b": [3, 4]}), uri)
    keys = pa.table({"k": [1]})
    ours = Table.open(uri, durable=False).upsert(keys, "k", insert=False).table
    assert [fragment.live_rows for fragment in ours.fragments] == [2]
    dataset = lance.dataset(uri)
    dataset.merge_insert("k").when_matched_update_all().execute(keys)
    assert [fragment.count_rows() for fragment in dataset.get_fragments()] == [1, 1]


def test_rows_that_are_not_written_are_not_looked_at(tmp_path: Path) -> None:
    """We refuse data of another type, and nulls where none may be, whatever becomes of the rows."""
    uri = str(tmp_path / "table")
    schema = pa.schema([pa.field("k", pa.int64(), False), ("b", pa.int64())])
    lance.write_dataset(pa.table({"k": [1], "b": [3]}, schema=schema), uri)
    for data in (pa.table({"k": [7], "b": ["x"]}).slice(0, 0), pa.table({"k": [7], "c": [7]}).slice(0, 0)):
        lance.dataset(uri).merge_insert("k").when_matched_update_all().execute(data)
        with pytest.raises(InvalidInput):
            Table.open(uri, durable=False).upsert(data, "k", insert=False)


# Indices


@pytest.mark.parametrize("stable", [False, True])
def test_rows_that_moved_are_found_where_they_were(stable: bool, tmp_path: Path) -> None:
    """Of two segments, by row ids: what the first says of a row that moved is believed once the second covers where it
    is. `optimize_indices()` of ours writes the first anew then."""
    uri = str(tmp_path / "table")
    data = pa.table({"id": range(40), "v": [number % 5 for number in range(40)]})
    dataset = lance.write_dataset(data, uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    dataset.create_scalar_index("v", "BITMAP")
    dataset.update({"v": "99"}, where="id = 3")
    twin = str(tmp_path / "twin")
    dataset.deep_clone(twin, dataset.version)
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    assert (3 in dataset.to_table(filter="v = 3")["id"].to_pylist()) is stable
    Table.open(twin, durable=False).optimize_indices(merge="none")
    assert 3 not in lance.dataset(twin).to_table(filter="v = 3")["id"].to_pylist()


def test_what_wrote_an_index_anew_cannot_be_shown(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(pa.table({"id": range(40)}), uri, max_rows_per_file=10)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    with pytest.raises(TypeError, match="RewrittenIndex"):
        dataset.read_transaction(dataset.version)
    assert Table.open(uri).transaction() is not None
