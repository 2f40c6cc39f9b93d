"""Table comparison: rows value by value, including NaN and the sign of zero, and manifests message by message, without
the fields in which two writers must differ.
"""

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format._pb import table_pb2
from lance_core.format.config_keys import TABLE_ID
from tests.private_fields import clear_private_fields

_TABLE_CONFIG = 8
_COMPARED_BY_VALUE_MAX = 1000
"""Rows up to which tables are compared value by value; Arrow, which compares larger ones, ignores the sign of zero and
treats NaN as different from itself."""
_OPERATION_NAMES = {"BaseOperation": "ReserveFragments"}
"""Operations for which pylance has no class of their own."""


def values_by_column(table: pa.Table) -> dict[str, list[str]]:
    """Return the `repr` of each value by column: `nan` equals `nan`, and `-0.0` differs from `0.0`."""
    return {name: [repr(value) for value in table.column(name).to_pylist()] for name in table.column_names}


def assert_same_rows(actual: pa.Table, expected: pa.Table) -> None:
    assert actual.schema.equals(expected.schema, check_metadata=True), f"{actual.schema}\n---\n{expected.schema}"
    if actual.num_rows < _COMPARED_BY_VALUE_MAX and expected.num_rows < _COMPARED_BY_VALUE_MAX:
        assert values_by_column(actual) == values_by_column(expected)
    else:
        assert actual.equals(expected)


def read_by_pylance(uri: str) -> pa.Table:
    """Return all rows as pylance reads them, one column at a time: it cannot read fixed-size lists of structs together
    with other columns."""
    dataset = lance.dataset(uri)
    columns = [dataset.to_table(columns=[name]).column(0) for name in dataset.schema.names]
    return pa.Table.from_arrays(columns, schema=dataset.schema)


def read_by_us(uri: str) -> pa.Table:
    return Table.open(uri).to_table()


def comparable_manifest(uri: str, version: int | None = None) -> str:
    """Return the manifest as text, without times, file names, sizes, positions and our own entries."""
    table = Table.open(uri, version=version)
    message = table_pb2.Manifest()
    message.CopyFrom(table.manifest.message)
    clear_private_fields(message)
    for name in ("timestamp", "writer_version", "transaction_file", "transaction_section", "index_section"):
        message.ClearField(name)
    message.config.pop(TABLE_ID, None)
    if not message.config:
        message.writer_feature_flags &= ~_TABLE_CONFIG
    for field in message.fields:
        field.ClearField("dictionary")  # for the oldest storage version; pylance writes an empty one if there are rows
    for file in _files(message):
        assert file.path
        assert file.file_size_bytes == Path(uri, "data", file.path).stat().st_size
        file.ClearField("path")
        file.ClearField("file_size_bytes")
    return str(message)


def history_by_us(uri: str) -> list[tuple[int, str, int | None, int]]:
    """Return number, operation, read version and row count of every version, as we read them."""
    return [(info.version, info.operation, info.read_version, info.rows) for info in Table.open(uri).versions()]


def history_by_pylance(uri: str) -> list[tuple[int, str, int, int]]:
    dataset = lance.dataset(uri)
    history = []
    for version in dataset.versions():
        number = version["version"]
        transaction = dataset.read_transaction(number)
        assert transaction is not None
        name = type(transaction.operation).__name__
        operation = _OPERATION_NAMES.get(name, name)
        history.append((number, operation, transaction.read_version, dataset.checkout_version(number).count_rows()))
    return history


def _files(message: table_pb2.Manifest) -> Iterator[table_pb2.DataFile]:
    for fragment in message.fragments:
        yield from fragment.files
