"""Blob locations: where the blobs of a column are, decoded from its descriptors. A blob is in the data file itself
(v1, and small blobs of v2), in a blob file of its own (dedicated) or shared with others (packed), or outside the
table.

The decoding is vectorized with numpy, since a fragment may have many blobs. Pure: descriptors in, paths and ranges
out. `versions/location.py` decides which external blobs may be opened. Start with `BlobLocations.of`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import Corrupt, Unsupported
from lance_core.format import naming
from lance_core.format.fragment import DataFile
from lance_core.format.naming import qualify_path

INLINE, PACKED, DEDICATED, EXTERNAL, MANAGED = range(5)
"""Kinds in a v2 descriptor."""
_NULL_OF_V1 = (1, 0)
"""Position and size that mean null in 2.0, which cannot store one; no empty blob is at position 1."""
_RANGE = ("position", "size")
_POSITION_MAX = 2**62
BASE_REFERENCE = re.compile(r"@(\d{1,9})/(.+)", re.DOTALL)
"""Form in which a reference below a base path of the table is passed on: the base id, and the path from there."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExternalBlob:
    """A blob that the table only refers to."""

    uri: str
    """Absolute URI, or `@{id}/...` for a path below that base path of the table."""
    position: int
    size: int | None
    """`None` for the whole file."""


@dataclass(frozen=True, slots=True)
class BlobRange:
    """Range of bytes in a file of the table."""

    path: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class BlobLocations:
    """Locations of the blobs of one column, for rows of one data file."""

    column: str
    file: DataFile
    is_null: Bools
    kinds: Ints
    positions: Ints
    sizes: Ints
    """Sizes of the blobs in the table; 0 for external blobs."""
    _ids: Ints
    _descriptors: pa.StructArray

    @classmethod
    def of(cls, descriptors: pa.StructArray, *, column: str, file: DataFile) -> "BlobLocations":
        """Decode descriptors of either generation, as columns with descriptors contain them."""
        names = [child.name for child in descriptors.type]
        zeros = np.zeros(len(descriptors), dtype=np.int64)
        kinds, ids, is_null = zeros, zeros, null_mask(descriptors)
        positions, sizes = (_int64_column(descriptors, name, file) for name in _RANGE)
        if "kind" in names:
            kinds, ids = _int64_column(descriptors, "kind", file), _int64_column(descriptors, "blob_id", file)
            if len(unknown := np.unique(kinds[~is_null & (kinds > EXTERNAL)])):
                what = "managed by the table" if unknown[0] == MANAGED else f"of the unknown kind {unknown[0]}"
                raise Unsupported(
                    f"{file.path}: column {column!r} has a blob that is {what}, which this release cannot open"
                )
        own_sizes = np.where(is_null | (kinds == EXTERNAL), 0, sizes)
        return cls(column, file, is_null, kinds, positions, own_sizes, ids, descriptors)

    def __len__(self) -> int:
        return len(self.is_null)

    def slice(self, start: int, stop: int) -> "BlobLocations":
        return BlobLocations(
            self.column,
            self.file,
            self.is_null[start:stop],
            self.kinds[start:stop],
            self.positions[start:stop],
            self.sizes[start:stop],
            self._ids[start:stop],
            self._descriptors.slice(start, stop - start),
        )

    def location_of(self, row: int) -> BlobRange | ExternalBlob | None:
        """Return the location of the blob of a row; `None` for a null."""
        if self.is_null[row]:
            return None
        if self.kinds[row] == EXTERNAL:
            return self._external_blob(row)
        return BlobRange(
            self._path_of(int(self.kinds[row]), int(self._ids[row])), int(self.positions[row]), int(self.sizes[row])
        )

    def external_blobs(self) -> Iterator[tuple[int, ExternalBlob]]:
        """Yield the rows with external blobs, each with its blob."""
        for row in np.flatnonzero((self.kinds == EXTERNAL) & ~self.is_null).tolist():
            yield row, self._external_blob(row)

    def rows_by_path(self) -> Iterator[tuple[str, Ints]]:
        """Yield the files that hold blobs of these rows, each with the rows, in the order of their bytes."""
        stored = np.flatnonzero(~self.is_null & (self.kinds != EXTERNAL) & (self.sizes > 0))
        kinds, ids = self.kinds[stored], np.where(self.kinds[stored] == INLINE, 0, self._ids[stored])
        order = np.lexsort((self.positions[stored], ids, kinds))
        rows, kinds, ids = stored[order], kinds[order], ids[order]
        cuts = np.flatnonzero((np.diff(kinds) != 0) | (np.diff(ids) != 0)) + 1
        for group in np.split(rows, cuts) if len(rows) else ():
            yield self._path_of(int(self.kinds[group[0]]), int(self._ids[group[0]])), group

    def _path_of(self, kind: int, number: int) -> str:
        if kind == INLINE:
            return self.file.qualified_path
        return f"{self.file.qualified_path.removesuffix('.lance')}/{naming.blob_file_name(number)}"

    def _external_blob(self, row: int) -> ExternalBlob:
        uri = self._descriptors.field("blob_uri")[row].as_py() or ""
        base, size = int(self._ids[row]), int(pc.struct_field(self._descriptors, "size")[row].as_py())
        if base:
            check_relative_path(uri, path=self.file.path)
            uri = qualify_path(base, uri)
        elif uri.startswith("@") or not uri:
            raise Corrupt(f"refers to a blob at {uri!r}, which is not a URI", path=self.file.path, field=self.column)
        return ExternalBlob(uri, int(self.positions[row]), size or None)


def null_mask(descriptors: pa.StructArray) -> Bools:
    """Return which rows have no blob."""
    is_null: Bools = np.asarray(descriptors.is_null())
    if descriptors.type.get_field_index("kind") < 0:
        position, size = (descriptors.field(name).fill_null(0).to_numpy(zero_copy_only=False) for name in _RANGE)
        is_null = is_null | ((position == _NULL_OF_V1[0]) & (size == _NULL_OF_V1[1]))
    return is_null


def is_relative_path(path: str) -> bool:
    """Return whether the path of a blob stays below its base path. Unlike the names of the table's own files, it may
    contain any character."""
    return bool(path) and "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(path.split("/"))


def check_relative_path(uri: str, *, path: str) -> None:
    if not is_relative_path(uri):
        raise Corrupt(f"refers to a blob at {uri!r}, which is outside its base path", path=path, field="blob_uri")


def _int64_column(descriptors: pa.StructArray, name: str, file: DataFile) -> Ints:
    numbers = descriptors.field(name).cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
    if len(numbers) and int(numbers.max()) > _POSITION_MAX:
        raise Corrupt(f"places a blob at {numbers.max()}", path=file.path, field=name)
    column: Ints = numbers.astype(np.int64)
    return column
