"""Result of a write: the version that holds it, and the work that it took."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_core.commit.write_protocol import WriteResult
from lance_core.format.ids import Version

if TYPE_CHECKING:
    from lance_core.table.table import Table


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a write."""

    version: Version
    """The version that holds the write."""
    table: "Table"
    """The table at that version."""
    operation: str
    """Name of the format's operation, such as "Append"."""
    rows_added: int
    rows_removed: int
    files: int
    """Number of data and index files written. A file that several appends share counts once for each."""
    bytes: int
    """Size of the files written. The size of a shared file is divided in proportion to the rows."""
    attempts: int
    """Number of puts until one succeeded; 0 if no put was needed."""
    rebased_over: tuple[Version, ...]
    """Versions that other writers committed between planning and commit."""
    already_committed: bool
    """An earlier attempt with the same intent committed this version; this call wrote nothing."""
    uncovered: tuple[str, ...] = ()
    """Names of the indices that cover less after a compaction than before. Queries scan the rows that they lost."""

    @property
    def landed_before(self) -> bool:
        """The name of `already_committed` before version 0.2.0. Deprecated; removed in 0.3.0."""
        return self.already_committed

    @classmethod
    def of(cls, result: WriteResult, table: "Table") -> "Committed":
        """Return the public form of the result of the write protocol; `table` is the table at its version."""
        summary = result.summary
        return cls(
            version=Version(summary.version),
            table=table,
            operation=summary.operation,
            rows_added=summary.rows_added,
            rows_removed=summary.rows_removed,
            files=summary.files,
            bytes=summary.bytes,
            attempts=result.attempts,
            rebased_over=result.rebased_over,
            already_committed=result.already_committed,
            uncovered=result.uncovered,
        )

    def followed_by(self, other: "Committed") -> "Committed":
        """Return this write and `other`, which the same call committed after it, as one result."""
        return replace(
            self,
            version=other.version,
            table=other.table,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            attempts=self.attempts + other.attempts,
            rebased_over=(*self.rebased_over, *other.rebased_over),
        )
