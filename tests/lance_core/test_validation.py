"""Validation: invalid arguments are rejected before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.format.config_keys import TABLE_ID
from lance_core.operations import Overwrite, TableSchema

ROW = pa.table({"id": [1]})
SCHEMA = TableSchema.from_arrow(ROW.schema)
NO_INTENT: Any = 5
NUMBER: Any = {"a": 1}
NO_VERSIONS: list[Any] = ["1", 1.5]
BAD_TEXTS: list[Any] = [{"a": 1}, {1: "a"}, {"a": "\ud800"}, ["a"], "a"]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", ROW, durable=False)


CALLS: list[tuple[Callable[[Table], object], str]] = [
    *((lambda table, bad=bad: table.append(ROW, properties=bad), "properties must map strings") for bad in BAD_TEXTS),
    *((lambda table, bad=bad: table.overwrite(ROW, config=bad), "config must map strings") for bad in BAD_TEXTS),
    (lambda table: table.commit(Overwrite((), SCHEMA), properties=NUMBER), "properties must map strings"),
    (lambda table: Table.create(f"{table.uri}2", ROW, config=NUMBER), "config must map strings"),
    (lambda table: Table.create(f"{table.uri}2", ROW, properties=NUMBER), "properties must map strings"),
    (lambda table: Table.create(f"{table.uri}2", ROW, retries=0), "retries=0: at least one attempt"),
    (lambda table: table.append(ROW, retries=0), "retries=0"),
    (lambda table: table.append(ROW, intent=NO_INTENT), "intent must be a string that UTF-8 can encode, not 5"),
    (lambda table: table.append(ROW, intent="\ud800"), "intent must be a string"),
    (lambda table: Table.create(f"{table.uri}2", ROW, intent=NO_INTENT), "intent must be a string"),
    (lambda table: table.overwrite(ROW, retries=-1), "retries=-1"),
    (lambda table: table.commit(Overwrite((), SCHEMA), retries=0), "retries=0"),
    (lambda table: table.overwrite(ROW, config={TABLE_ID: "other"}), f"the config key {TABLE_ID} identifies the table"),
    (lambda table: table.commit(Overwrite((), SCHEMA, {TABLE_ID: "other"})), "identifies the table"),
    (lambda table: Table.create(f"{table.uri}2", ROW, config={TABLE_ID: "mine"}), "identifies the table"),
    (lambda table: Table.create(f"{table.uri}2", []), "the columns of the table are unknown"),
    (lambda table: table.merge_columns([], "id"), "the columns of zero batches are unknown"),
    (lambda table: Table.open(table.uri, version=NO_VERSIONS[0]), "a version must be an integer, not '1'"),
    (lambda table: table.at(NO_VERSIONS[1]), "a version must be an integer"),
    (lambda table: table.at(0), "there is no version 0"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_invalid_arguments_are_rejected_before_a_write(
    call: Callable[[Table], object], message: str, table: Table, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match=message):
        call(table)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_list_is_no_rows(table: Table) -> None:
    committed = table.append([])
    assert (committed.version, committed.rows_added) == (1, 0)


def test_a_path_object_is_a_location(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = Table.create(path, ROW, retries=1, durable=False)
    assert Table.exists(path)
    assert Table.open(path).uri == table.uri == str(path)
