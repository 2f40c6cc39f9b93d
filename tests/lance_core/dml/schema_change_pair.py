"""Schema change pair: two copies of a table, one changed by pylance and one by lance_core.

After each change the manifests agree about fields, files, lineage and indices, and both libraries read the same rows
from both tables.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format import field_ids, index_metadata
from lance_core.format._pb import table_pb2
from lance_core.table.base import Committed
from tests.private_fields import clear_private_fields

LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "a": pa.array([None if n % 3 == 0 else n for n in range(10)], pa.int32()),
        "s": pa.array([{"x": n, "y": str(n)} for n in range(10)], POINT),
        "l": pa.array([[{"x": n, "y": str(n)}] * (n % 3) for n in range(10)], pa.list_(POINT)),
    }
)
WITH_NULLS = ROWS.set_column(2, "s", pa.array([{"x": n, "y": None} if n % 4 else None for n in range(10)], POINT))


@dataclass(frozen=True)
class SchemaChangePair:
    ours: str
    theirs: str

    @property
    def table(self) -> Table:
        return Table.open(self.ours, durable=False)

    @property
    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.theirs)

    def change(self, ours: Callable[[Table], Committed], theirs: Callable[[lance.LanceDataset], object]) -> None:
        theirs(self.dataset)
        ours(self.table)
        self.check()

    def check(self) -> None:
        assert describe_version(self.ours) == describe_version(self.theirs)
        expected = self.dataset.to_table()
        ours = lance.dataset(self.ours)
        ours.validate()
        assert ours.to_table() == expected
        assert ours.schema.equals(expected.schema, check_metadata=True)
        assert self.table.to_table().equals(expected, check_metadata=True)
        assert Table.open(self.theirs).to_table().equals(expected, check_metadata=True)
        if self.table.manifest.has_stable_row_ids:
            assert ours.to_table(LINEAGE) == self.dataset.to_table(LINEAGE) == self.table.to_table(LINEAGE)


def create_pair(
    directory: Path,
    rows: pa.Table = ROWS,
    *,
    version: str = "2.2",
    stable: bool = False,
    deleted: str = "",
    indexed: str = "",
) -> SchemaChangePair:
    """Create two equal tables with five rows per fragment."""
    theirs = str(directory / "theirs")
    options: Any = {"data_storage_version": version, "enable_stable_row_ids": stable}
    dataset = lance.write_dataset(rows, theirs, max_rows_per_file=5, **options)
    if indexed:
        dataset.create_scalar_index(indexed, "BTREE")
    if deleted:
        dataset.delete(deleted)
    shutil.copytree(theirs, directory / "ours")
    return SchemaChangePair(str(directory / "ours"), theirs)


def alter_column(dataset: lance.LanceDataset, path: str, **change: object) -> None:
    alteration: Any = {"path": path, **change}
    dataset.alter_columns(alteration)


def describe_version(uri: str) -> dict[str, object]:
    """Return the content of a version without file names, sizes, times and the entries that only lance_core writes."""
    table = Table.open(uri)
    manifest = table.manifest
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    clear_private_fields(message)
    for fragment in message.fragments:
        for file in fragment.files:
            assert file.file_size_bytes == Path(uri, "data", file.path).stat().st_size
            file.ClearField("path")
            file.ClearField("file_size_bytes")
        fragment.deletion_file.ClearField("id")
    transaction = table.transaction()
    assert transaction is not None
    operation = transaction.operation
    indices = index_metadata.decode_section(manifest.index_section, path="m")
    return {
        "fields": list(map(str, message.fields)),
        "fragments": list(map(str, message.fragments)),
        "schema metadata": dict(message.schema_metadata),
        "config": {key: value for key, value in message.config.items() if key != field_ids.FIELD_ID_MAX_KEY},
        "table metadata": dict(message.table_metadata),
        "operation": (operation.name, getattr(operation, "preserves_nullability", None)),
        "indices": [(index.name, index.field_ids, index.covers, index.dataset_version) for index in indices],
    }


def file_layouts(uri: str) -> list[list[tuple[list[int], list[int]]]]:
    """Return the field ids and column indices of each file of each fragment."""
    fragments = Table.open(uri).manifest.message.fragments
    return [[(list(file.fields), list(file.column_indices)) for file in each.files] for each in fragments]
