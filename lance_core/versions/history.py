"""The versions of a table, as a person asks for them: when, what, by whom, how many rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lance_core.errors import Corrupt, NotFound, Unsupported
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.transactions.change_stats import rows_changed
from lance_core.transactions.fold import parts_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_transaction


@dataclass(frozen=True, slots=True)
class VersionInfo:
    version: Version
    timestamp: datetime
    operation: str
    """As the format names it; `Unknown` where the writer left no record."""
    read_version: Version | None
    """As its transaction has it."""
    planned_on: Version | None
    """Mostly the same. Where sets of deleted rows were joined, the format has the newest version for the other one."""
    uuid: str | None
    together: tuple[str, ...]
    """The uuids of the appends that share this version, where several do, in the order of their rows."""
    properties: Mapping[str, str]
    rows: int
    rows_added: int | None
    """None where the version before is gone, so that nobody can tell; the same for removed rows."""
    rows_removed: int | None

    @property
    def rebased_over(self) -> Sequence[int]:
        """What others committed between its planning and its landing. A compaction reserves ids in a version of its
        own, which is one of these."""
        if not self.planned_on or naming.is_detached(self.version):
            return range(0)
        return range(self.planned_on + 1, self.version)


def version_infos(location: Location, since: int = 0) -> list[VersionInfo]:
    """Those after `since`, oldest first. Reads every manifest once. What cleanup removes meanwhile is left out, as it
    would be by a later call; what is damaged is an error that names it."""
    return list(_infos(location, since))


def version_info(snapshot: Snapshot) -> VersionInfo:
    """One version, by its own manifest and the one before; where that is gone or damaged, which rows are new nobody
    can tell."""
    try:
        number = _before(snapshot)
        before = load_at(snapshot.location, number).manifest if number else None
    except (Corrupt, NotFound, Unsupported):
        before = None
    return _info(snapshot.location, snapshot.manifest, before)


def _before(snapshot: Snapshot) -> Version | None:
    if not naming.is_detached(snapshot.version):
        return Version(snapshot.version - 1) if snapshot.version > 1 else None
    made_by = load_transaction(snapshot.location, snapshot.manifest)
    return made_by.read_version if made_by and made_by.read_version else None


def _infos(location: Location, since: int) -> Iterator[VersionInfo]:
    before: Manifest | None = None
    for version in list_versions(location).numbers:
        if version < since:
            continue
        try:
            manifest = load_at(location, version).manifest
        except NotFound:
            continue
        if version > since:
            yield _info(location, manifest, before if before and before.version == version - 1 else None)
        before = manifest


def _info(location: Location, manifest: Manifest, before: Manifest | None) -> VersionInfo:
    made_by = load_transaction(location, manifest)
    changed = rows_changed(made_by.operation if made_by else None, before, manifest)
    return VersionInfo(
        version=manifest.version,
        timestamp=manifest.timestamp,
        operation=made_by.operation.name if made_by else "Unknown",
        read_version=made_by.read_version if made_by else None,
        planned_on=made_by.planned_on if made_by else None,
        uuid=made_by.uuid if made_by else None,
        together=tuple(part.uuid for part in parts_of(made_by)) if made_by else (),
        properties=made_by.properties if made_by else {},
        rows=manifest.row_count(),
        rows_added=changed.added if changed else None,
        rows_removed=changed.removed if changed else None,
    )
