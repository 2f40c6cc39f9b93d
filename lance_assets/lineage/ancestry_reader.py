"""Ancestry reader: reads the origins of versions from their tables.

Any program can write the name of another table into a table. Other tables are therefore opened with the options meant
for all stores, not with the credentials of the first table's store. A version that cannot be read becomes an `Unknown`,
not an error.
"""

import os
from dataclasses import dataclass, field, replace

from lance_assets.lineage.graph import DEPTH_MAX, VERSIONS_MAX, Ancestry, build_ancestry
from lance_assets.lineage.model import AncestryKind, InputVersion, Origin, Unknown, VersionName, sources_of
from lance_assets.provenance.properties import parse_inputs
from lance_core import LanceError, NotFound, Table, VersionInfo
from lance_core.operations import Clone, Operation
from lance_core.shell import Access, elsewhere

FIRST_DETACHED = 2**63
"""Detached versions have numbers from this one on."""


def ancestry_of(
    table: Table,
    access: Access | None = None,
    *,
    depth_max: int = DEPTH_MAX,
    versions_max: int = VERSIONS_MAX,
    parents: bool = False,
) -> Ancestry:
    """Return the ancestry of the version that a table is at, across tables.

    `access` configures how other tables are opened; with `parents`, each version is also followed to its parent.

    >>> import pyarrow as pa, tempfile
    >>> table = Table.create(tempfile.mkdtemp() + "/t", pa.table({"id": [1]}))
    >>> restored = table.append(pa.table({"id": [2]})).table.restore(1).table
    >>> [line.name.version for line in ancestry_of(restored).lines()]
    [3, 1]
    """
    reader = AncestryReader(table, access or Access(), parents)
    return build_ancestry(
        VersionName(table.uri, table.version), reader.read_origin, depth_max=depth_max, versions_max=versions_max
    )


@dataclass(slots=True)
class AncestryReader:
    """Reader of origins across tables. Each version is opened once."""

    first: Table
    access: Access = field(repr=False)
    parents: bool = False

    def read_origin(self, name: VersionName) -> Origin | Unknown:
        """Return the origin of a version, or the reason why it is unknown."""
        if "://" not in name.uri and not os.path.isabs(name.uri):
            return Unknown(name, "the recorded location is not absolute")
        try:
            origin = origin_of(self._open(name), name)
        except NotFound as error:
            return Unknown(name, str(error))
        except (LanceError, OSError) as error:
            return Unknown(name, f"it cannot be read: {error}")
        if not self.parents or origin.parent is None:
            return origin
        parent = InputVersion(VersionName(name.uri, origin.parent), AncestryKind.FOLLOWS)
        return replace(origin, sources=(*origin.sources, parent))

    def _open(self, name: VersionName) -> Table:
        if name == VersionName(self.first.uri, self.first.version):
            return self.first
        access = elsewhere(self.access, own=self.first.uri, other=name.uri)
        options, manifest_store = access.storage_options, access.manifest_store
        try:
            return Table.open(
                name.uri,
                version=name.version,
                storage_options=options,
                manifest_store=manifest_store,
                verify=access.verify,
                trusted=access.trusted,
            )
        except NotFound as error:
            if not Table.exists(name.uri, options, manifest_store=manifest_store):
                raise NotFound("no table exists at this location") from error
            versions = str(error).rpartition("it has ")[2]
            raise NotFound(f"this version no longer exists; the table has {versions}") from error


def origin_of(table: Table, name: VersionName | None = None) -> Origin:
    """Return the origin of the version that a table is at. `name` overrides the name in the result."""
    transaction = table.transaction()
    operation = transaction.operation if transaction else None
    return build_origin(name or VersionName(table.uri, table.version), table.version_info(), operation)


def build_origin(name: VersionName, info: VersionInfo, operation: Operation | None) -> Origin:
    """Return an origin. Only operations that name another version (`Restore`, `Clone`) need `operation`."""
    return Origin(
        name=name,
        operation=info.operation,
        timestamp=info.timestamp,
        rows=info.rows,
        rows_added=info.rows_added,
        rows_removed=info.rows_removed,
        parent=parent_of(info),
        planned_on=info.planned_on or None,
        rebased_over=info.rebased_over,
        uuid=info.uuid,
        properties=info.properties,
        sources=sources_of(name.uri, info.properties, operation),
        together=info.together,
        unreadable_inputs=parse_inputs(info.properties).unparsed,
        action=info.action,
        writer=info.writer,
    )


def parent_of(info: VersionInfo) -> int | None:
    """Return the parent of a version on its branch, or `None`. The first version of a table, clone or branch has no
    parent on its own branch."""
    if info.version >= FIRST_DETACHED:
        return info.read_version or None
    return info.version - 1 if info.version > 1 and info.operation != Clone.name else None
