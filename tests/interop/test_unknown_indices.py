"""Unknown indices: index types of pylance that our library recognizes but does not use. Queries scan the rows instead,
and `explain` and `fsck` report the unused index.

Decision record 2 of `lance_core/index/` gives the reason why JSON is among them; its premise is tested here.
"""

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

from lance_core import InvalidInput, Table

ROWS = 90
DOCUMENTS = [json.dumps({"x": row, "s": f"t{row % 5}"}) if row % 7 else None for row in range(ROWS)]
POINT = pa.struct([pa.field(name, pa.float64(), nullable=False) for name in "xy"])


@pytest.fixture
def documents(tmp_path: Path) -> str:
    uri = str(tmp_path)
    dataset = lance.write_dataset(pa.table({"id": range(ROWS), "j": pa.array(DOCUMENTS, pa.json_())}), uri)
    dataset.create_scalar_index("j", IndexConfig("json", {"target_index_type": "btree", "path": "$.x"}))
    return uri


@pytest.fixture
def points(tmp_path: Path) -> str:
    uri = str(tmp_path)
    metadata = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"}
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("g", POINT, metadata=metadata)])
    values = [{"x": float(row), "y": -float(row)} if row % 7 else None for row in range(ROWS)]
    table = pa.Table.from_arrays([pa.array(range(ROWS)), pa.array(values, POINT)], schema=schema)
    lance.write_dataset(table, uri).create_scalar_index("g", "RTREE")
    return uri


def find_ids(uri: str, condition: str) -> list[int]:
    ids: list[int] = Table.open(uri, durable=False).to_table(filter=condition, columns=["id"])["id"].to_pylist()
    return ids


def check_unused(uri: str, name: str, details: str, condition: str) -> None:
    table = Table.open(uri, durable=False)
    explained = str(table.explain(filter=condition))
    assert f"{name} ({details.removesuffix('IndexDetails')}): has an unknown index type ({details})" in explained
    (finding,) = (finding for finding in table.fsck("head").findings if finding.rule == "index_unknown")
    assert name in finding.what
    assert details in finding.what
    assert f"an unknown index type ({details})" in finding.what


def test_json_indices_are_not_used(documents: str) -> None:
    assert find_ids(documents, "json_get_int(j, 'x') = 5") == [5]
    assert find_ids(documents, "json_get_string(j, 's') = 't1'") == [
        row for row in range(ROWS) if row % 5 == 1 and row % 7
    ]
    assert find_ids(documents, "j IS NULL") == list(range(0, ROWS, 7))
    check_unused(documents, "j_idx", "JsonIndexDetails", "json_get_int(j, 'x') = 5")


def test_json_indices_of_pylance_differ_from_its_scans(documents: str) -> None:
    """The index takes the argument as a path; a scan takes it as a key, which no document has."""
    condition = "json_get_int(j, '$.x') = 5"
    dataset = lance.dataset(documents)
    assert dataset.to_table(filter=condition, columns=["id"])["id"].to_pylist() == [5]
    assert dataset.to_table(filter=condition, columns=["id"], use_scalar_index=False)["id"].to_pylist() == []
    assert find_ids(documents, condition) == []


def test_r_tree_indices_are_not_used(points: str) -> None:
    assert find_ids(points, "g IS NULL") == list(range(0, ROWS, 7))
    assert find_ids(points, "g.x < 3") == [1, 2]
    check_unused(points, "g_idx", "RTreeIndexDetails", "g IS NULL")


@pytest.mark.parametrize(("index_type", "column"), [("JSON", "j"), ("RTREE", "id")])
def test_unsupported_index_types_are_not_built(index_type: str, column: str, documents: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{index_type}' is not an index type; use one of .*ZONEMAP"):
        Table.open(documents, durable=False).create_index(column, index_type, name="other")
