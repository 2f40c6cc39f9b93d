"""What versions say of where they come from, read from their tables.

A table names other tables, and anyone can write that: they are opened with what is meant for all stores, not with what
is meant for the store of the first. That one of them is gone, or cannot be reached, is an answer and no error.
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
"""Versions from this number on are beside the line."""


def ancestry_of(
    table: Table,
    access: Access | None = None,
    *,
    depth_max: int = DEPTH_MAX,
    versions_max: int = VERSIONS_MAX,
    parents: bool = False,
) -> Ancestry:
    """Of the version that a table is at, across tables. `access` says how the others are reached; with `parents`, each
    version comes from the one before it as well.

    >>> import pyarrow as pa, tempfile
    >>> table = Table.create(tempfile.mkdtemp() + "/t", pa.table({"id": [1]}))
    >>> restored = table.append(pa.table({"id": [2]})).table.restore(1).table
    >>> [line.name.version for line in ancestry_of(restored).lines()]
    [3, 1]
    """
    tables = AncestryReader(table, access or Access(), parents)
    return build_ancestry(
        VersionName(table.uri, table.version), tables.read_origin, depth_max=depth_max, versions_max=versions_max
    )


@dataclass(slots=True)
class AncestryReader:
    """Each opened once for each of its versions that is asked for."""

    first: Table
    access: Access = field(repr=False)
    parents: bool = False

    def read_origin(self, name: VersionName) -> Origin | Unknown:
        if "://" not in name.uri and not os.path.isabs(name.uri):
            return Unknown(name, "the record names no absolute place")
        try:
            found = origin_of(self._open(name), name)
        except NotFound as error:
            return Unknown(name, str(error))
        except (LanceError, OSError) as error:
            return Unknown(name, f"it cannot be read: {error}")
        if not self.parents or found.parent is None:
            return found
        before = InputVersion(VersionName(name.uri, found.parent), AncestryKind.FOLLOWS)
        return replace(found, sources=(*found.sources, before))

    def _open(self, name: VersionName) -> Table:
        if name == VersionName(self.first.uri, self.first.version):
            return self.first
        access = elsewhere(self.access, own=self.first.uri, other=name.uri)
        options, manifests = access.storage_options, access.manifest_store
        try:
            return Table.open(name.uri, version=name.version, storage_options=options, manifest_store=manifests)
        except NotFound as error:
            if not Table.exists(name.uri, options, manifest_store=manifests):
                raise NotFound("there is no table in that place") from error
            has = str(error).rpartition("it has ")[2]
            raise NotFound(f"this version is gone; the table has {has}") from error


def origin_of(table: Table, name: VersionName | None = None) -> Origin:
    """Of the version that a table is at. `name` is what it is called by who asks."""
    made_by = table.transaction()
    operation = made_by.operation if made_by else None
    return build_origin(name or VersionName(table.uri, table.version), table.version_info(), operation)


def build_origin(name: VersionName, info: VersionInfo, operation: Operation | None) -> Origin:
    """`operation` may be left out where it is neither of those that name another version."""
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
    )


def parent_of(info: VersionInfo) -> int | None:
    """On a line each version follows the one before it, but for the first, which may be a clone's or a branch's."""
    if info.version >= FIRST_DETACHED:
        return info.read_version or None
    return info.version - 1 if info.version > 1 and info.operation != Clone.name else None
