"""Version statistics: rows, deletions, files, bytes and small fragments of a version, taken from its manifest.

This module reads no file: the table already holds its manifest. It makes one pass over the fragments, of which a table
may have a hundred thousand. Start with `VersionStats.of`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lance_core import Table

FULL_FRAGMENT_ROWS = 1_048_576
"""Row count of a full fragment, which is never small, however narrow its rows are."""
SMALL_FRAGMENT_BYTES_MAX = 32 * 1024**2
"""On a remote store, opening a file takes as long as reading this many bytes of it."""


@dataclass(frozen=True, slots=True)
class FragmentStats:
    """Statistics of one fragment."""

    id: int
    rows: int
    """Number of live rows."""
    deleted: int
    files: int
    bytes: int
    """Total size of the data files whose size the manifest records."""
    files_without_size: int
    """Number of files whose size the manifest lacks; old writers did not record it."""
    is_small: bool


@dataclass(frozen=True, slots=True)
class VersionStats:
    """Statistics of one version, summed over its fragments."""

    rows: int
    deleted: int
    fragments: int
    small_fragments: int
    fragments_with_deletions: int
    files: int
    bytes: int
    """Total size of the data files whose size the manifest records."""
    files_without_size: int
    """Number of files whose size the manifest lacks."""

    @classmethod
    def of(cls, table: Table) -> "VersionStats":
        """Return the statistics of the version that `table` is open at."""
        fragments = list(fragment_stats(table))
        return cls(
            rows=sum(fragment.rows for fragment in fragments),
            deleted=sum(fragment.deleted for fragment in fragments),
            fragments=len(fragments),
            small_fragments=sum(fragment.is_small for fragment in fragments),
            fragments_with_deletions=sum(fragment.deleted > 0 for fragment in fragments),
            files=sum(fragment.files for fragment in fragments),
            bytes=sum(fragment.bytes for fragment in fragments),
            files_without_size=sum(fragment.files_without_size for fragment in fragments),
        )

    @property
    def deleted_share(self) -> float:
        """Fraction of the physical rows that are deleted."""
        return self.deleted / (self.rows + self.deleted) if self.deleted else 0.0


def fragment_stats(table: Table) -> Iterator[FragmentStats]:
    """Yield the statistics of each fragment of the version that `table` is open at."""
    for fragment in table.fragments:
        sizes = [file.size for file in fragment.files]
        rows, live, size = fragment.physical_rows, fragment.live_rows, sum(filter(None, sizes))
        yield FragmentStats(
            id=fragment.id,
            rows=live,
            deleted=rows - live,
            files=len(sizes),
            bytes=size,
            files_without_size=sizes.count(None),
            is_small=rows < FULL_FRAGMENT_ROWS and size < SMALL_FRAGMENT_BYTES_MAX,
        )
