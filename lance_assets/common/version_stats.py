"""How a version lies on the store, as its manifest tells: rows, deletions, files, bytes, and which fragments are small.

Nothing is read but the manifest, which a table has at hand, and one pass goes over its fragments, of which there may be
a hundred thousand.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lance_core import Table

SMALL_ROWS = 1_048_576
"""A full fragment is never small, however narrow its rows are."""
SMALL_BYTES = 32 * 1024**2
"""Opening a file takes as long as reading this much of it, on a store that is far away."""


@dataclass(frozen=True, slots=True)
class FragmentStats:
    """A fragment, in figures."""

    id: int
    rows: int
    """Those that live."""
    deleted: int
    files: int
    bytes: int
    """As far as the manifest knows."""
    unsized: int
    """Files whose size it does not tell; old writers did not note it."""
    is_small: bool


@dataclass(frozen=True, slots=True)
class VersionStats:
    rows: int
    deleted: int
    fragments: int
    small: int
    with_deletions: int
    files: int
    bytes: int
    """Of data files, as far as the manifest knows."""
    unsized: int
    """Files whose size it does not tell."""

    @classmethod
    def of(cls, table: Table) -> "VersionStats":
        found = list(fragment_stats(table))
        return cls(
            rows=sum(piece.rows for piece in found),
            deleted=sum(piece.deleted for piece in found),
            fragments=len(found),
            small=sum(piece.is_small for piece in found),
            with_deletions=sum(piece.deleted > 0 for piece in found),
            files=sum(piece.files for piece in found),
            bytes=sum(piece.bytes for piece in found),
            unsized=sum(piece.unsized for piece in found),
        )

    @property
    def deleted_share(self) -> float:
        """Of the rows that are in the files."""
        return self.deleted / (self.rows + self.deleted) if self.deleted else 0.0


def fragment_stats(table: Table) -> Iterator[FragmentStats]:
    for fragment in table.fragments:
        sizes = [file.size for file in fragment.files]
        rows, live, size = fragment.physical_rows, fragment.live_rows, sum(filter(None, sizes))
        yield FragmentStats(
            id=fragment.id,
            rows=live,
            deleted=rows - live,
            files=len(sizes),
            bytes=size,
            unsized=sizes.count(None),
            is_small=rows < SMALL_ROWS and size < SMALL_BYTES,
        )
