"""Error context: adds the table, the version, the fragment and the columns to errors of damaged files.

A file knows none of these, and a user needs them to find the rows and to choose a version to restore.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lance_core.errors import Corrupt, NotFound, StorageError
from lance_core.format import naming

_COLUMNS_MAX = 5


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Columns of a fragment of a version that are read."""

    manifest_path: str
    """Path of the manifest of the version, with the location of the table."""
    fragment: int
    columns: Sequence[str] = ()

    def __str__(self) -> str:
        table, _, name = self.manifest_path.rpartition("/_versions/")
        parsed = naming.parse_manifest_name(name)
        version = f"version {parsed[0]} of {table}" if parsed and table else self.manifest_path
        if not self.columns:
            return f"fragment {self.fragment} of {version}"
        shown = ", ".join(self.columns[:_COLUMNS_MAX]) + (", ..." if len(self.columns) > _COLUMNS_MAX else "")
        return f"read for {shown} in fragment {self.fragment} of {version}"

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Add this context to the message of an error of a file."""
        try:
            yield
        except Corrupt as error:
            if type(error) is not Corrupt:
                raise
            raise Corrupt(f"{error.what} ({self})", path=error.path, field=error.field) from error
        except (StorageError, NotFound) as error:
            if type(error) not in (StorageError, NotFound):
                raise
            raise type(error)(f"{error} ({self})") from error
