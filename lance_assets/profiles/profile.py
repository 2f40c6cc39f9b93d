"""What is computed of a version: the manifest's figures, and those of its columns. No Dagster here, but for the
declaration's checks of itself."""

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
    """How a table's versions are profiled.

        lance_table("docs", uri=..., profile=Profile(columns=["text", "embedding"], read_bytes_max=2 * 1024**3))

    What the manifest knows, of rows, files and indices, costs nothing. `columns` are those whose values are looked at
    as well, all of them unless they are named, none with `[]`; of one version at most `read_bytes_max` bytes are read,
    and what is told then is of a sample, and says so. `versions_per_run` is how a backfill is cut into runs.
    """

    columns: Sequence[str] | None = None
    read_bytes_max: int = READ_BYTES_MAX
    versions_per_run: int = VERSIONS_PER_RUN
    pictures: bool = True

    def __post_init__(self) -> None:
        columns: object = self.columns
        if isinstance(columns, str) or not all(isinstance(name, str) for name in self.columns or ()):
            raise InvalidInput(f"Profile: columns= is a list of names of columns, not {columns!r}")
        if any("." in name for name in self.columns or ()):
            raise InvalidInput("Profile: columns= are columns of the table; the fields of a struct come with it")
        for name in ("read_bytes_max", "versions_per_run"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise InvalidInput(f"Profile: {name}= is a whole number from 1 on, not {number!r}")


@dataclass(frozen=True, slots=True)
class VersionProfile:
    table: Table
    stats: VersionStats
    contents: ContentProfile
    indices: tuple[IndexStatistics, ...]
    seconds: float


def profile_version(table: Table, how: Profile) -> VersionProfile:
    started = time.monotonic()
    layout = VersionStats.of(table)
    contents = profile_contents(
        table, layout, columns=how.columns, columns_max=COLUMNS_MAX, bytes_max=how.read_bytes_max
    )
    return VersionProfile(table, layout, contents, table.index_statistics(), time.monotonic() - started)
