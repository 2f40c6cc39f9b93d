"""Version watch: shows whether the versions of a branch have changed, by a listing alone.

A process that looks at a table again and again opens it only when something has changed. Start with `VersionWatch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lance_core.errors import NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.storage.store import ObjectDetails, ObjectInfo
from lance_core.versions.location import Location
from lance_core.versions.snapshot import versions_of


@dataclass(frozen=True, slots=True)
class VersionListing:
    """Versions of a branch at one time. Two equal listings mean that no version was added, removed or replaced."""

    numbers: tuple[int, ...]
    """Numbers of the versions, ascending."""
    newest: str
    """Size, time and tag of the newest manifest, which differ if the table was created again with as many versions."""


@dataclass(frozen=True, slots=True)
class VersionWatch:
    """Watch on the versions of one branch. It holds no version."""

    _location: Location

    @classmethod
    def on(cls, location: Location) -> "VersionWatch":
        """Return a watch on the branch at a location."""
        return cls(replace(location, store=location.own_store))

    def read(self) -> VersionListing:
        """List the versions: one request to an object store for each thousand."""
        listed = self._location.store.list(naming.VERSIONS)
        numbers = versions_of(self._location, listed).numbers
        return VersionListing(tuple(numbers), _describe(listed, numbers[-1]) if numbers else "")


def _describe(listed: Sequence[ObjectInfo], newest: Version) -> str:
    for info in listed:
        parsed = naming.parse_manifest_name(info.path.rpartition("/")[2])
        if parsed and parsed[0] == newest:
            try:
                return f"{info.size} {info.modified.isoformat()} {info.tag if isinstance(info, ObjectDetails) else ''}"
            except NotFound:  # removed since the listing
                return ""
    return ""
