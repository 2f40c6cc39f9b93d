"""System columns: row id, row address, row offset and row versions, which every table has in addition to its own
columns.

`_rowid` is the stable row id if the table has stable row ids, otherwise the row address. In a fragment that records no
row versions, every row has version 1.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.open_fragment import LiveRows
from lance_core.errors import Corrupt
from lance_core.expressions import METADATA_COLUMNS
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.row_lineage import RowIdSequence, RowVersions

ROW_ID, ROW_ADDRESS, ROW_OFFSET = "_rowid", "_rowaddr", "_rowoffset"
CREATED_AT, LAST_UPDATED_AT = "_row_created_at_version", "_row_last_updated_at_version"
SYSTEM_COLUMN_NAMES = frozenset(METADATA_COLUMNS.names)


class SystemColumns:
    """System columns of the rows of one fragment. Each sequence is decoded on first use."""

    def __init__(self, manifest: Manifest, fragment: Fragment, *, path: str) -> None:
        self._manifest = manifest
        self._fragment = fragment
        self._path = path

    def add_to(self, rows: LiveRows, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the batch with these columns, in this order."""
        if SYSTEM_COLUMN_NAMES.isdisjoint(columns) and list(columns) == rows.batch.schema.names:
            return rows.batch
        return self.add_columns(rows.batch, rows.offsets, columns)

    def add_columns(
        self, batch: pa.RecordBatch, offsets: npt.NDArray[np.int64], columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Return the rows at these offsets with these columns, in this order. `batch` has their stored columns."""
        if SYSTEM_COLUMN_NAMES.isdisjoint(columns) and list(columns) == batch.schema.names:
            return batch
        arrays = [
            pa.array(self.values(name, offsets)) if name in SYSTEM_COLUMN_NAMES else batch.column(name)
            for name in columns
        ]
        schema = pa.schema(
            [
                METADATA_COLUMNS.field(name) if name in SYSTEM_COLUMN_NAMES else batch.schema.field(name)
                for name in columns
            ],
            batch.schema.metadata,
        )
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def values(self, name: str, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the values of a system column for rows at these offsets."""
        if name == ROW_ADDRESS or (name == ROW_ID and not self._manifest.has_stable_row_ids):
            return offsets.astype(np.uint64) | np.uint64(self._fragment.id << 32)
        if name == ROW_OFFSET:
            return offsets.astype(np.uint64)
        if name == ROW_ID:
            return self.row_ids[offsets]
        return (self.created_at if name == CREATED_AT else self.last_updated_at)[offsets]

    @property
    def row_id_sequence(self) -> RowIdSequence:
        data = self._fragment.row_ids
        if data is None:
            raise Corrupt(
                "has no row ids, although the table has stable row ids",
                path=self._path,
                field=f"fragments[id={self._fragment.id}]",
            )
        return RowIdSequence.decode(data, rows=self._fragment.physical_rows, path=self._path)

    @cached_property
    def row_ids(self) -> npt.NDArray[np.uint64]:
        return self.row_id_sequence.to_numpy()

    @cached_property
    def created_at(self) -> npt.NDArray[np.uint64]:
        return self._versions(self._fragment.created_at, "created_at")

    @cached_property
    def last_updated_at(self) -> npt.NDArray[np.uint64]:
        return self._versions(self._fragment.last_updated_at, "last_updated_at")

    def _versions(self, data: bytes | None, field: str) -> npt.NDArray[np.uint64]:
        rows = self._fragment.physical_rows
        return RowVersions.decode(data, rows=rows, path=self._path, field=field).to_numpy()
