"""Settings: table config, table metadata, schema metadata and field metadata compared with pylance."""

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.format.config_keys import TABLE_ID
from lance_core.table.base import Committed
from tests.lance_core.dml.schema_change_pair import SchemaChangePair, alter_column, create_pair


@pytest.fixture
def tables(tmp_path: Path) -> SchemaChangePair:
    return create_pair(tmp_path, indexed="a", deleted="id = 3")


STEPS: list[tuple[dict[str, str | None], bool]] = [
    ({"a": "1", "b": "2"}, False),
    ({"a": None, "c": "3", "gone": None}, False),
    ({"d": "4", "b": None}, True),
    ({}, True),
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Table.set_config, lance.LanceDataset.update_config),
        (Table.set_metadata, lance.LanceDataset.update_metadata),
        (Table.set_schema_metadata, lance.LanceDataset.update_schema_metadata),
    ],
    ids=["config", "table", "schema"],
)
def test_metadata_maps(tables: SchemaChangePair, ours: Callable[..., Committed], theirs: Callable[..., object]) -> None:
    for values, replace in STEPS:
        tables.change(
            lambda table: ours(table, values, replace=replace),  # noqa: B023
            lambda dataset: theirs(dataset, values, replace=replace),  # noqa: B023
        )
    assert not tables.table.config
    assert not tables.table.metadata


def test_fields(tables: SchemaChangePair) -> None:
    for values, replace in STEPS:
        columns: dict[str, dict[str, str | None]] = {"id": values, "s.x": values, "l.item.y": {"only": "this"}}
        tables.change(
            lambda table: table.set_field_metadata(columns, replace=replace),  # noqa: B023
            lambda dataset: dataset.update_field_metadata(columns, replace=replace),  # noqa: B023
        )


def test_reserved_config_survives_a_replacement(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), config={"a": "1"}, durable=False)
    after = table.set_config({"b": "2"}, replace=True, properties={"why": "asked"}).table
    assert dict(after.config) == {"b": "2", TABLE_ID: table.id}
    transaction = after.transaction()
    assert transaction is not None
    assert transaction.properties == {"why": "asked"}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda t: t.set_config({}), "no entry is given"),
        (lambda t: t.set_metadata({"": "x"}), "an empty key"),
        (lambda t: t.set_schema_metadata({"a": 1}), "the entry 'a': 1 is invalid"),
        (lambda t: t.set_field_metadata({}), "no column is given"),
        (lambda t: t.set_field_metadata({"s.xx": {"a": "b"}}), r"there is no column 's\.xx'; did you mean 's\.x'"),
    ],
)
def test_invalid_arguments_are_rejected(
    tables: SchemaChangePair, operation: Callable[[Table], object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        operation(tables.table)
    assert tables.table.version == tables.dataset.version


def test_a_primary_key_is_set_once(tables: SchemaChangePair) -> None:
    key = "lance-schema:unenforced-primary-key"
    tables.change(
        lambda table: table.alter_column("id", nullable=False),
        lambda dataset: alter_column(dataset, "id", nullable=False),
    )
    tables.change(
        lambda table: table.set_field_metadata({"id": {key: "true"}}),
        lambda dataset: dataset.update_field_metadata({"id": {key: "true"}}),
    )
    with pytest.raises(InvalidInput, match="cannot be changed once set"):
        tables.table.set_field_metadata({"id": {key: None}})
