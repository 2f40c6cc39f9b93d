"""Known defects of pylance 14, each in a small test: errors that `known_pylance_defects.py` skips, and situations that
the step generators avoid.

Each test asserts the present behaviour of pylance and the correct behaviour of our library. If one fails after an
upgrade of pylance, the workaround for that defect can be removed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from tests.interop.columns import make_batch, make_rows
from tests.interop.known_pylance_defects import PYLANCE_DEFECTS

Change = Callable[[lance.LanceDataset], object]
OurChange = Callable[[Table], object]


def defect_message(name: str) -> str:
    """Return the pattern of the error message of a known defect."""
    (defect,) = [defect for defect in PYLANCE_DEFECTS if defect.name == name]
    return defect.message


def check_defect(
    folder: Path, data: pa.Table, defect: str, their_change: Change, our_change: OurChange, **options: Any
) -> Table:
    """Check that pylance fails, that we do not, and that pylance reads the table that we changed."""
    uri = str(folder / "table")
    dataset = lance.write_dataset(data, uri, **options)
    with pytest.raises((OSError, ValueError, TypeError), match=defect_message(defect)):
        their_change(dataset)
    our_change(Table.open(uri, durable=False))
    after = Table.open(uri)
    assert after.version > 1
    assert lance.dataset(uri).to_table().to_pylist() == after.to_table().to_pylist()
    return after


def cast_column(dataset: lance.LanceDataset, name: str, arrow: pa.DataType) -> None:
    change: Any = {"path": name, "data_type": arrow}
    dataset.alter_columns(change)


def test_values_of_a_type_that_the_column_holds_exactly(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array([2], pa.int32())})
    after = check_defect(
        tmp_path,
        pa.table({"a": [1.0]}),
        "values of a type that the column holds exactly",
        lambda dataset: lance.write_dataset(rows, dataset, mode="append"),
        lambda table: table.append(rows),
    )
    assert after.to_table().to_pylist() == [{"a": 1.0}, {"a": 2.0}]


def test_casts_only_between_relatives(tmp_path: Path) -> None:
    after = check_defect(
        tmp_path,
        pa.table({"a": [1, 2]}),
        "casts only between relatives",
        lambda dataset: cast_column(dataset, "a", pa.string()),
        lambda table: table.alter_column("a", type=pa.string()),
    )
    assert after.to_table().to_pylist() == [{"a": "1"}, {"a": "2"}]


def test_null_packed_struct(tmp_path: Path) -> None:
    data = make_rows({"k": "key", "a": "struct-packed"}, range(3))
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(data, uri)
    with pytest.raises(OSError, match=defect_message("a packed struct that is null")):
        dataset.update({"a": "null"}, where="k = 1")


def test_column_function_on_table_without_rows(tmp_path: Path) -> None:
    def make_column(keys: pa.RecordBatch) -> pa.RecordBatch:
        return make_batch({"b": "int8"}, keys, 0)

    after = check_defect(
        tmp_path,
        make_rows({"k": "key"}, []),
        "a function for a table without rows",
        lambda dataset: dataset.add_columns(make_column, read_columns=["k"]),
        lambda table: table.add_columns(make_column, read_columns=["k"]),
    )
    assert after.schema.field("b").type == pa.int8()


def test_merge_of_columns_without_rows(tmp_path: Path) -> None:
    data = make_rows({"k": "key", "b": "int8"}, [])
    check_defect(
        tmp_path,
        make_rows({"k": "key"}, range(3)),
        "columns merged from no rows",
        lambda dataset: dataset.merge(data, "k"),
        lambda table: table.merge_columns(data, "k"),
    )


def test_fragment_without_files(tmp_path: Path) -> None:
    """A fragment without columns has rows of nulls. pylance writes such a table but cannot read it; we read but do not
    write it."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"k": [1, 2], "b": [1, 2]}), uri)
    lance.write_dataset(pa.table({"b": [3]}), uri, mode="append")
    expected = [{"k": 1}, {"k": 2}, {"k": None}]
    our_change = Table.open(uri, durable=False).drop_columns(["b"]).table
    assert lance.dataset(uri).to_table().to_pylist() == our_change.to_table().to_pylist() == expected
    our_change.restore(2)
    dataset = lance.dataset(uri)
    dataset.drop_columns(["b"])
    with pytest.raises(pa.ArrowInvalid, match="Fragment 1 does not contain any data"):
        dataset.to_table()
    assert Table.open(uri).to_table().to_pylist() == expected


def test_delete_of_matched_and_unmatched_rows_without_keys(tmp_path: Path) -> None:
    keys = pa.table({"k": pa.array([], pa.int64())})
    after = check_defect(
        tmp_path,
        pa.table({"k": [1, 2], "b": [1, 2]}),
        "no keys, to delete both ways",
        lambda dataset: (
            dataset.merge_insert("k").when_matched_delete().when_not_matched_by_source_delete("b = 2").execute(keys)
        ),
        lambda table: table.upsert(keys, "k", matched="delete", insert=False, delete_unmatched="b = 2"),
    )
    assert after.to_table().to_pylist() == [{"k": 1, "b": 1}]


def test_struct_that_the_data_lacks_in_2_0(tmp_path: Path) -> None:
    """pylance writes nulls for it, which storage version 2.0 cannot represent; we omit the column."""
    data = make_rows({"k": "key"}, [7])
    after = check_defect(
        tmp_path,
        make_rows({"k": "key", "a": "struct"}, range(3)),
        "a struct that the data lacks, in 2.0",
        lambda dataset: dataset.merge_insert("k").when_not_matched_insert_all().execute(data),
        lambda table: table.upsert(data, "k", matched="ignore"),
        data_storage_version="2.0",
    )
    assert after.to_table(filter="k = 7").to_pylist() == [{"k": 7, "a": None}]


def test_empty_struct_hides_other_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    data = pa.table({"a": pa.array([{}, {}], pa.struct([])), "b": [1, 2]})
    dataset = lance.write_dataset(data, uri)
    assert dataset.to_table()["b"].to_pylist() == [None, None]
    assert dataset.to_table(["b"])["b"].to_pylist() == Table.open(uri).to_table()["b"].to_pylist() == [1, 2]


def test_fixed_size_lists_of_structs_are_read_alone(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([{"x": n} for n in range(4)]), 2)
    dataset = lance.write_dataset(pa.table({"a": pairs, "b": [1, 2]}), uri)
    with pytest.raises(pa.ArrowInvalid, match="cannot read columns of differing lengths together"):
        dataset.to_table()
    assert Table.open(uri).to_table()["a"].to_pylist() == dataset.to_table(["a"])["a"].to_pylist() == pairs.to_pylist()


def test_extension_that_has_lost_its_metadata(tmp_path: Path) -> None:
    """Other entries replace the metadata. pylance still reads such JSON or bfloat16, but refuses to write it."""
    data = make_rows({"k": "key", "a": "json"}, range(3))
    uri = str(tmp_path / "table")
    lance.write_dataset(data, uri)
    Table.open(uri, durable=False).set_field_metadata({"a": {"unit": "mm"}}, replace=True)
    with pytest.raises(OSError, match=defect_message("an extension that has lost its metadata")):
        lance.write_dataset(data, uri, mode="append")
    after = Table.open(uri, durable=False).append(data).table
    assert lance.dataset(uri).to_table().to_pylist() == after.to_table().to_pylist()
    assert after.count_rows() == 6


def test_update_reads_columns_that_it_has_assigned(tmp_path: Path) -> None:
    """After a swap both columns have the values of one of them; which one is random."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"a": [1], "b": [2]}), uri)
    our_change = Table.open(uri, durable=False).update({"a": "b", "b": "a"}).table
    assert our_change.to_table().to_pylist() == [{"a": 2, "b": 1}]
    dataset = lance.dataset(uri)
    dataset.update({"a": "b", "b": "a"})
    assert dataset.to_table().to_pylist() in ([{"a": 1, "b": 1}], [{"a": 2, "b": 2}])


def test_cast_loses_the_metadata_of_its_column(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"unit": "mm"})])
    dataset = lance.write_dataset(pa.table({"a": [1]}, schema=schema), uri)
    Table.open(uri, durable=False).alter_column("a", type=pa.int16())
    assert lance.dataset(uri).schema.field("a").metadata == {b"unit": b"mm"}
    dataset = lance.dataset(uri)
    cast_column(dataset, "a", pa.int32())
    assert dataset.schema.field("a").metadata is None


@pytest.mark.parametrize("case", ["json", "uuid", "tensor", "bool8"])
def test_computed_column_loses_its_extension_type(case: str, tmp_path: Path) -> None:
    """A copy of a JSON column is a column of bytes."""
    uri = str(tmp_path / "table")
    lance.write_dataset(make_rows({"k": "key", "a": case}, range(3)), uri)
    Table.open(uri, durable=False).add_columns({"b": "a"})
    dataset = lance.dataset(uri)
    assert dataset.schema.field("b").type == dataset.schema.field("a").type
    dataset.add_columns({"c": "a"})
    assert not isinstance(dataset.schema.field("c").type, pa.BaseExtensionType)


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_drop_of_a_field_in_a_list_drops_the_column(version: str, tmp_path: Path) -> None:
    """The other fields are lost. From storage version 2.2 on pylance drops only the field."""
    uri = str(tmp_path / "table")
    options: Any = {"data_storage_version": version}
    dataset = lance.write_dataset(make_rows({"k": "key", "a": "list-of-struct"}, range(3)), uri, **options)
    dataset.drop_columns(["a.item.y"])
    assert dataset.schema.names == ["k"]
    after = Table.open(uri, durable=False).restore(1).table.drop_columns(["a.item.y"]).table
    assert after.schema.field("a").type == pa.list_(pa.struct([("x", pa.int32())]))
    assert lance.dataset(uri).to_table() == after.to_table()


def test_upsert_of_keys_alone_moves_rows(tmp_path: Path) -> None:
    """An upsert of data with keys alone changes nothing; pylance rewrites the rows unchanged."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"k": [1, 2], "b": [3, 4]}), uri)
    keys = pa.table({"k": [1]})
    our_change = Table.open(uri, durable=False).upsert(keys, "k", insert=False).table
    assert [fragment.live_rows for fragment in our_change.fragments] == [2]
    dataset = lance.dataset(uri)
    dataset.merge_insert("k").when_matched_update_all().execute(keys)
    assert [fragment.count_rows() for fragment in dataset.get_fragments()] == [1, 1]


def test_upsert_does_not_check_rows_that_it_ignores(tmp_path: Path) -> None:
    """We refuse data of another type, and nulls in a column that is not nullable, even if no row is written."""
    uri = str(tmp_path / "table")
    schema = pa.schema([pa.field("k", pa.int64(), False), ("b", pa.int64())])
    lance.write_dataset(pa.table({"k": [1], "b": [3]}, schema=schema), uri)
    for data in (pa.table({"k": [7], "b": ["x"]}).slice(0, 0), pa.table({"k": [7], "c": [7]}).slice(0, 0)):
        lance.dataset(uri).merge_insert("k").when_matched_update_all().execute(data)
        with pytest.raises(InvalidInput):
            Table.open(uri, durable=False).upsert(data, "k", insert=False)


# Defects of indices.


@pytest.mark.parametrize("stable", [False, True])
def test_second_segment_returns_outdated_values_of_moved_rows(stable: bool, tmp_path: Path) -> None:
    """With stable row ids pylance trusts the old entry of a moved row in the first segment once a second segment covers
    its new fragment. Our `optimize_indices()` rewrites the first segment then."""
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


def test_transaction_that_rewrote_an_index_is_not_readable(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    dataset = lance.write_dataset(pa.table({"id": range(40)}), uri, max_rows_per_file=10)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    with pytest.raises(TypeError, match="RewrittenIndex"):
        dataset.read_transaction(dataset.version)
    assert Table.open(uri).transaction() is not None
