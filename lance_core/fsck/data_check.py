"""Data check: options of the verification of file contents, and the progress that it reports."""

import os
from dataclasses import dataclass

from lance_core.errors import InvalidInput
from lance_core.format.file_checksum import FileChecksum


@dataclass(frozen=True, slots=True)
class DataCheck:
    """Options of the verification of file contents."""

    resume: str | os.PathLike[str] | None = None
    """Local file with the verified files of an interrupted run, written while this one runs, and removed at its
    end."""
    share: float = 1.0
    """Share of the files to verify."""
    turn: int = 0
    """Number of the share: turns 0, 1, 2, ... together verify all files."""

    sources: tuple[str, ...] = ()
    """Tables or directories whose copies may replace damaged files."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"share= must be above 0 and at most 1, not {self.share}")

    def includes(self, path: str) -> bool:
        """Return whether the share of this turn includes a file."""
        parts = round(1 / self.share)
        return (FileChecksum.of(path.encode()).xxh3 or 0) % parts == self.turn % parts
