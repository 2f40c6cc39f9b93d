"""Dictionary columns: a null is read as such, whether a file stores it in the indices or in the dictionary."""

from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.datafiles.dictionaries import nulls_as_missing_indices


@pytest.mark.parametrize(
    ("values", "indices"),
    [
        (["a", None, "b"], [0, 1, 2, None, 2]),
        ([None, "a"], [1, 0, 0]),
        ([None], [0, None]),
        ([None, "a", None, "b", "c"], [4, 3, 2, 1, 0, None]),
        (["a", "b"], [0, None]),
        (["a", None], []),
    ],
)
def test_a_null_is_a_missing_index(values: list, indices: list) -> None:
    array = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values, pa.string()))
    before = pa.RecordBatch.from_arrays([pa.array(range(len(indices))), array], names=["k", "d"])
    after = nulls_as_missing_indices(before)
    assert after.schema == before.schema
    assert after.to_pylist() == before.to_pylist()
    assert after["d"].dictionary.null_count == 0
    assert after.column("k") is not None


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_dictionaries_of_several_files_are_combined(version: str, tmp_path: Path) -> None:
    values = ["a", None, "b", "a", "c", None, None, "b"]
    data = pa.table({"d": pa.array(values).dictionary_encode(), "k": range(len(values))})
    table = Table.create(str(tmp_path / "t"), data, storage_version=version, max_rows_per_file=2, durable=False)
    assert table.to_table().combine_chunks()["d"].to_pylist() == values
    assert table.take([7, 0, 5, 0])["d"].to_pylist() == ["b", "a", None, "a"]
    assert table.update({"d": "'z'"}, where="k = 1").table.count_rows("d = 'z'") == 1
    assert table.refresh().compact().table.to_table().sort_by("k")["d"].to_pylist() == ["a", "z", *values[2:]]
