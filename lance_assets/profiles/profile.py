"""Profile of one version: version statistics from the manifest, and column statistics from rows.

Dagster is used only to validate the declaration.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lance_assets.common.version_stats import VersionStats
from lance_assets.profiles.column_profile import ContentProfile, profile_contents
from lance_core import IndexStatistics, InvalidInput, Table

COLUMNS_MAX = 200
READ_BYTES_MAX = 256 * 1024**2
VERSIONS_PER_RUN = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Settings of the profiles of a table.

        lance_table("docs", uri=..., profile=Profile(columns=["text", "embedding"], read_bytes_max=2 * 1024**3))

    Statistics from the manifest (rows, files and indices) cost nothing. `columns` are the columns whose values are
    read too; `None` means all, `[]` none. At most `read_bytes_max` bytes of a version are read; beyond that the
    statistics describe a sample and say so. A backfill is divided into runs of `versions_per_run` versions.
    """

    columns: Sequence[str] | None = None
    read_bytes_max: int = READ_BYTES_MAX
    versions_per_run: int = VERSIONS_PER_RUN
    pictures: bool = True

    def __post_init__(self) -> None:
        columns: object = self.columns
        if isinstance(columns, str) or not all(isinstance(name, str) for name in self.columns or ()):
            raise InvalidInput(f"Profile: columns= must be a list of column names, not {columns!r}")
        if any("." in name for name in self.columns or ()):
            raise InvalidInput("Profile: columns= must be top-level columns; a struct includes its fields")
        for name in ("read_bytes_max", "versions_per_run"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise InvalidInput(f"Profile: {name}= must be a whole number of at least 1, not {number!r}")


@dataclass(frozen=True, slots=True)
class VersionProfile:
    """Statistics of one version."""

    table: Table
    stats: VersionStats
    contents: ContentProfile
    indices: tuple[IndexStatistics, ...]
    seconds: float


def profile_version(table: Table, settings: Profile) -> VersionProfile:
    started = time.monotonic()
    stats = VersionStats.of(table)
    contents = profile_contents(
        table, stats, columns=settings.columns, columns_max=COLUMNS_MAX, bytes_max=settings.read_bytes_max
    )
    return VersionProfile(table, stats, contents, table.index_statistics(), time.monotonic() - started)
