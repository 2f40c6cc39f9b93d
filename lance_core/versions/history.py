"""Version history: time, operation, author and row counts of each version. Start with `version_infos`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lance_core.errors import Corrupt, NotFound, Unsupported
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import ObjectInfo
from lance_core.transactions.change_summary import action_of, rows_changed
from lance_core.transactions.fold import parts_of
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_at, load_named, load_transaction, versions_of


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One version of a table, described by its manifest and its transaction."""

    version: Version
    timestamp: datetime
    operation: str
    """Name of the operation in the format; `Unknown` if the writer recorded no transaction."""
    action: str
    """Action of the writer, such as "create", "upsert" or "compact". If the writer recorded none, it is derived from
    the operation."""
    writer: str
    """Library that committed the version, with its release; empty if it did not record itself."""
    read_version: Version | None
    """Read version that the transaction records."""
    planned_on: Version | None
    """Version that the change was planned on, usually the read version. When a rebase merged two deletion vectors, the
    format requires the newest version as the read version, and this field keeps the original one."""
    uuid: str | None
    together: tuple[str, ...]
    """Uuids of the appends that a group commit combined into this version, in the order of their rows;
    empty otherwise."""
    properties: Mapping[str, str]
    rows: int
    rows_added: int | None
    """`None` if the number is unknown because the previous version is missing; the same holds for `rows_removed`."""
    rows_removed: int | None

    def __repr__(self) -> str:
        changes = {
            "rows_added": self.rows_added,
            "rows_removed": self.rows_removed,
            "properties": dict(self.properties),
        }
        shown = "".join(f", {name}={value!r}" for name, value in changes.items() if value)
        return (
            f"VersionInfo(version={self.version}, timestamp='{self.timestamp:%Y-%m-%d %H:%M:%S}', "
            f"action={self.action!r}, rows={self.rows}{shown})"
        )

    @property
    def rebased_over(self) -> Sequence[int]:
        """Versions that other writers committed between planning and commit. The version in which a compaction
        reserves its fragment ids is one of them."""
        if not self.planned_on or naming.is_detached(self.version):
            return range(0)
        return range(self.planned_on + 1, self.version)


def version_infos(location: Location, since: int = 0) -> list[VersionInfo]:
    """Return the versions after `since`, oldest first. Every manifest is read once.

    A version that a cleanup removes meanwhile is left out, as a later call would leave it out. A damaged manifest
    raises an error that names it.
    """
    return list(_iterate_infos(location, since))


def version_info(snapshot: Snapshot) -> VersionInfo:
    """Describe one version from its own manifest and the previous one. If the previous one is missing or damaged, the
    numbers of added and removed rows are unknown."""
    try:
        number = _previous_version(snapshot)
        before = load_at(snapshot.location, number).manifest if number else None
    except (Corrupt, NotFound, Unsupported):
        before = None
    transaction = load_transaction(snapshot.location, snapshot.manifest)
    return _describe(snapshot.manifest, transaction, before)


def _previous_version(snapshot: Snapshot) -> Version | None:
    if not naming.is_detached(snapshot.version):
        return Version(snapshot.version - 1) if snapshot.version > 1 else None
    transaction = load_transaction(snapshot.location, snapshot.manifest)
    return transaction.read_version if transaction and transaction.read_version else None


def _iterate_infos(location: Location, since: int) -> Iterator[VersionInfo]:
    store = location.store
    listed = store.list(naming.VERSIONS)
    scheme = versions_of(location, listed).scheme
    numbered = sorted(
        (parsed[0], info) for info in listed if (parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]))
    )

    def load(numbered_manifest: tuple[Version, ObjectInfo]) -> tuple[Manifest, Transaction | None] | None:
        version = numbered_manifest[0]
        try:
            manifest = load_named(location, version, scheme).manifest
        except NotFound:
            return None
        return manifest, load_transaction(location, manifest) if version > since else None

    def size_of(numbered_manifest: tuple[Version, ObjectInfo]) -> int:
        return numbered_manifest[1].size

    before: Manifest | None = None
    wanted = [each for each in numbered if each[0] >= since]
    for loaded in map_requests(store, load, wanted, size_of=size_of):
        if loaded is None:
            continue
        manifest, transaction = loaded
        if manifest.version > since:
            is_next = before is not None and before.version == manifest.version - 1
            yield _describe(manifest, transaction, before if is_next else None)
        before = manifest


def _describe(manifest: Manifest, transaction: Transaction | None, before: Manifest | None) -> VersionInfo:
    row_changes = rows_changed(transaction.operation if transaction else None, before, manifest)
    return VersionInfo(
        version=manifest.version,
        timestamp=manifest.timestamp,
        operation=transaction.operation.name if transaction else "Unknown",
        action=action_of(transaction, is_first=manifest.version == 1),
        writer=manifest.writer if manifest.has_writer else "",
        read_version=transaction.read_version if transaction else None,
        planned_on=transaction.planned_on if transaction else None,
        uuid=transaction.uuid if transaction else None,
        together=tuple(part.uuid for part in parts_of(transaction)) if transaction else (),
        properties=transaction.properties if transaction else {},
        rows=manifest.row_count(),
        rows_added=row_changes.added if row_changes else None,
        rows_removed=row_changes.removed if row_changes else None,
    )
