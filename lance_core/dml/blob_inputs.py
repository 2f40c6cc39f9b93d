"""Blob inputs: the blobs of rows, as the function of a computed column receives them, and their content hashes.

Blobs are opened for stale rows only, and their bytes are read when the function reads them. The fingerprint of a row
has a hash of the content, since a compaction moves blobs; it is computed in pieces, so that large blobs are never in
memory whole. Start with `open_inputs`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from lance_core.datafiles.column_layout import is_blob
from lance_core.errors import NotFound
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.scan.blobs import BlobFile, open_blobs
from lance_core.scan.parallel import map_in_order
from lance_core.scan.take import By
from lance_core.versions.snapshot import Snapshot

_HASHED_BYTES = 8 * 1024**2
_MISSING = int(xxhash.xxh64_intdigest(b"missing"))
_FRAGMENT_BITS = 32
Blobs = Sequence[BlobFile | None]
Offsets = npt.NDArray[np.int64]


def blob_names(schema: TableSchema, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the columns that are blobs."""
    blobs = {each.name for each in schema.fields if is_blob(each)}
    return tuple(name for name in names if name in blobs)


def open_column(base: Snapshot, fragment: Fragment, column: str, offsets: Offsets) -> Blobs:
    """Open the blobs of live rows of a fragment; `None` for rows without one."""
    addresses = (int(fragment.id) << _FRAGMENT_BITS) | offsets.astype(np.uint64)
    return open_blobs(base.location, base.manifest, column, addresses, by=By.ROW_ADDRESS)


def hash_column(base: Snapshot, fragment: Fragment, column: str, offsets: Offsets) -> pa.Array:
    """Return the content hash of the blob of each row; null for rows without one."""
    hashes = list(map_in_order(_hash_of, open_column(base, fragment, column, offsets)))
    return pa.array(hashes, pa.uint64())


def _hash_of(blob: BlobFile | None) -> int | None:
    if blob is None:
        return None
    state = xxhash.xxh64()
    try:
        while part := blob.read(_HASHED_BYTES):
            state.update(part)
    except NotFound:  # an external file; its row becomes stale when the file appears
        return _MISSING
    return int(state.intdigest())


@dataclass(frozen=True, slots=True)
class FunctionInputs:
    """Inputs of rows: a batch, and open files for columns of blobs."""

    batch: pa.RecordBatch
    """Inputs that are not blobs."""
    names: tuple[str, ...]
    """All inputs, in the declared order."""
    blobs: Mapping[str, Blobs] = field(default_factory=dict)
    reads_blobs: bool = False
    """True if the function receives bytes instead of files."""

    @property
    def num_rows(self) -> int:
        return len(self.batch)

    def slice(self, start: int, count: int) -> "FunctionInputs":
        blobs = {name: files[start : start + count] for name, files in self.blobs.items()}
        return FunctionInputs(self.batch.slice(start, count), self.names, blobs, self.reads_blobs)

    def column_of_blobs(self, name: str) -> list[BlobFile | bytes | None]:
        """Return the files of a column, or their bytes, which are read now."""
        files = self.blobs[name]
        return [blob.read() if blob is not None and self.reads_blobs else blob for blob in files]

    def row_makers(self) -> Iterator[Callable[[], dict[str, object]]]:
        """Yield for each row a function that returns it as a dict of Python values, and reads its blobs."""
        for number, row in enumerate(self.batch.to_pylist()):
            yield partial(self._row, number, row)

    def _row(self, number: int, row: Mapping[str, object]) -> dict[str, object]:
        if not self.blobs:
            return dict(row)
        one = self.slice(number, 1)
        return {name: one.column_of_blobs(name)[0] if name in self.blobs else row[name] for name in self.names}


def open_inputs(
    base: Snapshot,
    fragment: Fragment,
    batch: pa.RecordBatch,
    offsets: Offsets,
    names: Sequence[str],
    *,
    reads_blobs: bool,
) -> FunctionInputs:
    """Return the inputs of rows at offsets of a fragment. `batch` has the inputs that are not blobs."""
    blobs = {name: open_column(base, fragment, name, offsets) for name in blob_names(base.manifest.schema, names)}
    plain = batch.select([name for name in names if name not in blobs])
    return FunctionInputs(plain, tuple(names), blobs, reads_blobs)
