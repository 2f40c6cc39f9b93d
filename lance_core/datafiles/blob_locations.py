"""Where blobs are, as their column says: in the data file itself (v1, and small ones of v2), in a file of blobs beside
it, one (dedicated) or many (packed) to a file, or outside of the table.

Row by row in numpy, since a fragment has many. Pure: descriptors in, paths and ranges out; who may open what lies
outside is told elsewhere. Start with `BlobLocations.of`.
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
from lance_core.format.base_path import qualify_path
from lance_core.format.fragment import DataFile

INLINE, PACKED, DEDICATED, EXTERNAL, MANAGED = range(5)
"""What a descriptor of v2 says of its kind."""
_NULL_OF_1 = (1, 0)
"""Position and size that stand for null where 2.0 had no other way to say it; no empty blob is at 1."""
_RANGE = ("position", "size")
_AT_MAX = 2**62
BELOW_BASE = re.compile(r"@(\d{1,9})/(.+)", re.DOTALL)
"""What a reference below a base path of the table looks like on its way: its number, and the path from there."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExternalBlob:
    """A blob that the table only refers to."""

    uri: str
    """Absolute; or `@{number}/...`, below that base path of the table."""
    position: int
    size: int | None
    """None: all of the file."""


@dataclass(frozen=True, slots=True)
class BlobRange:
    """Of bytes in a file of the table."""

    path: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class BlobLocations:
    """Of one column in rows of one data file."""

    column: str
    file: DataFile
    is_null: Bools
    kinds: Ints
    positions: Ints
    sizes: Ints
    """Of what is in the table; 0 for what is outside."""
    _ids: Ints
    _descriptors: pa.StructArray

    @classmethod
    def of(cls, descriptors: pa.StructArray, *, column: str, file: DataFile) -> "BlobLocations":
        """As `described` columns come, of either generation."""
        names = [child.name for child in descriptors.type]
        zeros = np.zeros(len(descriptors), dtype=np.int64)
        kinds, ids, is_null = zeros, zeros, nulls(descriptors)
        positions, sizes = (_whole(descriptors, name, file) for name in _RANGE)
        if "kind" in names:
            kinds, ids = _whole(descriptors, "kind", file), _whole(descriptors, "blob_id", file)
            if len(strange := np.unique(kinds[~is_null & (kinds > EXTERNAL)])):
                what = "managed by the table" if strange[0] == MANAGED else f"of an unknown kind, {strange[0]}"
                raise Unsupported(
                    f"{file.path}: column {column!r} has a blob that is {what}, which this version does not open"
                )
        inside = np.where(is_null | (kinds == EXTERNAL), 0, sizes)
        return cls(column, file, is_null, kinds, positions, inside, ids, descriptors)

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

    def at(self, row: int) -> BlobRange | ExternalBlob | None:
        """None for a null."""
        if self.is_null[row]:
            return None
        if self.kinds[row] == EXTERNAL:
            return self._outside(row)
        return BlobRange(
            self._path(int(self.kinds[row]), int(self._ids[row])), int(self.positions[row]), int(self.sizes[row])
        )

    def outside(self) -> Iterator[tuple[int, ExternalBlob]]:
        """By their rows."""
        for row in np.flatnonzero((self.kinds == EXTERNAL) & ~self.is_null).tolist():
            yield row, self._outside(row)

    def by_path(self) -> Iterator[tuple[str, Ints]]:
        """The files that hold blobs of these rows, each with the rows, in the order of their bytes."""
        held = np.flatnonzero(~self.is_null & (self.kinds != EXTERNAL) & (self.sizes > 0))
        kinds, ids = self.kinds[held], np.where(self.kinds[held] == INLINE, 0, self._ids[held])
        order = np.lexsort((self.positions[held], ids, kinds))
        rows, kinds, ids = held[order], kinds[order], ids[order]
        cuts = np.flatnonzero((np.diff(kinds) != 0) | (np.diff(ids) != 0)) + 1
        for some in np.split(rows, cuts) if len(rows) else ():
            yield self._path(int(self.kinds[some[0]]), int(self._ids[some[0]])), some

    def _path(self, kind: int, number: int) -> str:
        if kind == INLINE:
            return self.file.qualified_path
        return f"{self.file.qualified_path.removesuffix('.lance')}/{naming.blob_file_name(number)}"

    def _outside(self, row: int) -> ExternalBlob:
        uri = self._descriptors.field("blob_uri")[row].as_py() or ""
        base, size = int(self._ids[row]), int(pc.struct_field(self._descriptors, "size")[row].as_py())
        if base:
            check_below(uri, path=self.file.path)
            uri = qualify_path(base, uri)
        elif uri.startswith("@") or not uri:
            raise Corrupt(f"refers to a blob at {uri!r}, which is no URI", path=self.file.path, field=self.column)
        return ExternalBlob(uri, int(self.positions[row]), size or None)


def nulls(descriptors: pa.StructArray) -> Bools:
    """Which rows have no blob."""
    found: Bools = np.asarray(descriptors.is_null())
    if descriptors.type.get_field_index("kind") < 0:
        position, size = (descriptors.field(name).fill_null(0).to_numpy(zero_copy_only=False) for name in _RANGE)
        found = found | ((position == _NULL_OF_1[0]) & (size == _NULL_OF_1[1]))
    return found


def is_below(path: str) -> bool:
    """Whether a name of a blob stays below its base path. Unlike names that a table gives itself, it may have any
    letters in it."""
    return bool(path) and "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(path.split("/"))


def check_below(uri: str, *, path: str) -> None:
    if not is_below(uri):
        raise Corrupt(f"refers to a blob at {uri!r}, which leads out of its base path", path=path, field="blob_uri")


def _whole(descriptors: pa.StructArray, name: str, file: DataFile) -> Ints:
    numbers = descriptors.field(name).cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False)
    if len(numbers) and int(numbers.max()) > _AT_MAX:
        raise Corrupt(f"tells a blob to be at {numbers.max()}", path=file.path, field=name)
    found: Ints = numbers.astype(np.int64)
    return found
