"""What every writer returns: the version that holds the write, and what it took to get there."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_core.format.ids import Version

if TYPE_CHECKING:
    from lance_core.table.table import Table


@dataclass(frozen=True, slots=True)
class Committed:
    version: Version
    table: "Table"
    """The table at that version."""
    operation: str
    rows_added: int
    rows_removed: int
    files: int
    """Files written, of data and of indices. One that several appends share is one of each."""
    bytes: int
    """Their size. That of a shared file is dealt out by rows."""
    attempts: int
    """Puts until one landed; 0 if none was needed."""
    rebased_over: tuple[Version, ...]
    """Versions of others that came between planning and landing."""
    already_committed: bool
    """The intent had landed already, here or elsewhere; nothing was written now."""
    uncovered: tuple[str, ...] = ()
    """Compaction: names of indices that cover less after it than before. Queries scan what they do not cover."""

    @property
    def landed_before(self) -> bool:
        """The name of `already_committed` before version 0.2.0. Deprecated; removed in 0.3.0."""
        return self.already_committed

    def followed_by(self, other: "Committed") -> "Committed":
        """As one, where the same call made a second version."""
        return replace(
            self,
            version=other.version,
            table=other.table,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            attempts=self.attempts + other.attempts,
            rebased_over=(*self.rebased_over, *other.rebased_over),
        )
