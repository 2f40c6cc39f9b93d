"""Kinds of pylance that are recognised and not used: rows are right all the same, and it is said that nobody asks them.

Why JSON is among them, decision 2 of `lance_core/index/` tells; its premise is tested here.
"""

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

from lance_core import InvalidInput, Table

ROWS = 90
DOCUMENTS = [json.dumps({"x": at, "s": f"t{at % 5}"}) if at % 7 else None for at in range(ROWS)]
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
    told = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"}
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("g", POINT, metadata=told)])
    places = [{"x": float(at), "y": -float(at)} if at % 7 else None for at in range(ROWS)]
    table = pa.Table.from_arrays([pa.array(range(ROWS)), pa.array(places, POINT)], schema=schema)
    lance.write_dataset(table, uri).create_scalar_index("g", "RTREE")
    return uri


def found(uri: str, sql: str) -> list[int]:
    ids: list[int] = Table.open(uri, durable=False).to_table(filter=sql, columns=["id"])["id"].to_pylist()
    return ids


def check_unused(uri: str, name: str, what: str, sql: str) -> None:
    table = Table.open(uri, durable=False)
    explained = str(table.explain(filter=sql))
    assert f"{name} ({what.removesuffix('IndexDetails')}): has an unknown index type ({what})" in explained
    (finding,) = (each for each in table.fsck("head").findings if each.rule == "index_unknown")
    assert name in finding.what
    assert what in finding.what
    assert f"an unknown index type ({what})" in finding.what


def test_json_paths(documents: str) -> None:
    assert found(documents, "json_get_int(j, 'x') = 5") == [5]
    assert found(documents, "json_get_string(j, 's') = 't1'") == [at for at in range(ROWS) if at % 5 == 1 and at % 7]
    assert found(documents, "j IS NULL") == list(range(0, ROWS, 7))
    check_unused(documents, "j_idx", "JsonIndexDetails", "json_get_int(j, 'x') = 5")


def test_an_index_of_json_paths_answers_another_question_than_a_scan(documents: str) -> None:
    """It is asked by a path, which without it is taken for a key that no document has."""
    sql = "json_get_int(j, '$.x') = 5"
    dataset = lance.dataset(documents)
    assert dataset.to_table(filter=sql, columns=["id"])["id"].to_pylist() == [5]
    assert dataset.to_table(filter=sql, columns=["id"], use_scalar_index=False)["id"].to_pylist() == []
    assert found(documents, sql) == []


def test_rectangles(points: str) -> None:
    assert found(points, "g IS NULL") == list(range(0, ROWS, 7))
    assert found(points, "g.x < 3") == [1, 2]
    check_unused(points, "g_idx", "RTreeIndexDetails", "g IS NULL")


@pytest.mark.parametrize(("kind", "column"), [("JSON", "j"), ("RTREE", "id")])
def test_neither_is_built(kind: str, column: str, documents: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{kind}' is not an index type; use one of .*ZONEMAP"):
        Table.open(documents, durable=False).create_index(column, kind, name="other")
