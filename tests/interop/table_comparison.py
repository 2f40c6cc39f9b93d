"""How two tables are compared: rows value by value, NaN and the sign of zero included, and manifests message by
message, without what has to differ between two writers.
"""

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format._pb import table_pb2
from lance_core.format.config_keys import TABLE_ID

_TABLE_CONFIG = 8
_FEW = 1000
"""Rows; more of them are compared by Arrow, which knows nothing of NaN and the sign of zero."""
_UNNAMED = {"BaseOperation": "ReserveFragments"}
"""What pylance has no class for."""


def rows(table: pa.Table) -> dict[str, list[str]]:
    """By column, each value as Python spells it: `nan` equals `nan`, `-0.0` is not `0.0`."""
    return {name: [repr(value) for value in table.column(name).to_pylist()] for name in table.column_names}


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema, check_metadata=True), f"{found.schema}\n---\n{expected.schema}"
    if found.num_rows < _FEW and expected.num_rows < _FEW:
        assert rows(found) == rows(expected)
    else:
        assert found.equals(expected)


def by_pylance(uri: str) -> pa.Table:
    """All rows as pylance reads them. Column by column: it cannot read fixed-size lists of structs beside others."""
    dataset = lance.dataset(uri)
    columns = [dataset.to_table(columns=[name]).column(0) for name in dataset.schema.names]
    return pa.Table.from_arrays(columns, schema=dataset.schema)


def by_us(uri: str) -> pa.Table:
    return Table.open(uri).to_table()


def comparable(uri: str, version: int | None = None) -> str:
    """The manifest as text, without times, names of files, sizes, positions, and what is only ours."""
    table = Table.open(uri, version=version)
    message = table_pb2.Manifest()
    message.CopyFrom(table.manifest.message)
    for name in ("timestamp", "writer_version", "transaction_file", "transaction_section", "index_section"):
        message.ClearField(name)
    message.config.pop(TABLE_ID, None)
    if not message.config:
        message.writer_feature_flags &= ~_TABLE_CONFIG
    for field in message.fields:
        field.ClearField("dictionary")  # of the oldest format; pylance writes an empty one where there are rows
    for file in _files(message):
        assert file.path
        assert file.file_size_bytes == Path(uri, "data", file.path).stat().st_size
        file.ClearField("path")
        file.ClearField("file_size_bytes")
    return str(message)


def history(uri: str) -> list[tuple[int, str, int | None, int]]:
    """Number, operation, the version it was planned on, and rows: of every version, as we read them."""
    return [(info.version, info.operation, info.read_version, info.rows) for info in Table.open(uri).versions()]


def history_by_pylance(uri: str) -> list[tuple[int, str, int, int]]:
    dataset = lance.dataset(uri)
    found = []
    for version in dataset.versions():
        number = version["version"]
        transaction = dataset.read_transaction(number)
        assert transaction is not None
        name = type(transaction.operation).__name__
        operation = _UNNAMED.get(name, name)
        found.append((number, operation, transaction.read_version, dataset.checkout_version(number).count_rows()))
    return found


def _files(message: table_pb2.Manifest) -> Iterator[table_pb2.DataFile]:
    for fragment in message.fragments:
        yield from fragment.files
