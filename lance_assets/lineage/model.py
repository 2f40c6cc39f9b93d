"""What one version says of where it comes from. Values only; pure."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from lance_assets.provenance.properties import ASSET_KEY, CODE_LOCATION, INTENT, PARTITION, RUN_ID, parse_inputs
from lance_core.operations import Clone, Operation, Restore

_SOURCES_MAX = 10_000


@dataclass(frozen=True, slots=True, order=True)
class VersionName:
    """A version of a table, as the command line names it."""

    uri: str
    version: int

    def __str__(self) -> str:
        return f"{self.uri}@{self.version}"


class AncestryKind(Enum):
    """How a version has another one for an ancestor."""

    READ = "read"
    """What made it read the other."""
    RESTORED = "restored"
    """It is the other once more."""
    FORKED = "begins as"
    """It is the first of a clone or a branch, of the other."""
    FOLLOWS = "follows"
    """The other is the version before it. Asked for only by who wants that too: it is so of nearly all."""


@dataclass(frozen=True, slots=True)
class InputVersion:
    name: VersionName
    kind: AncestryKind


@dataclass(frozen=True, slots=True)
class Origin:
    """None where the version does not say."""

    name: VersionName
    operation: str
    timestamp: datetime
    rows: int
    rows_added: int | None
    rows_removed: int | None
    parent: int | None
    """The version before it, of the same table. That of a detached one is what it was made upon."""
    planned_on: int | None
    rebased_over: Sequence[int]
    uuid: str | None
    properties: Mapping[str, str]
    sources: tuple[InputVersion, ...] = ()
    together: tuple[str, ...] = ()
    """The uuids of the appends that share this version."""
    unreadable_inputs: str | None = None
    """What it has for inputs, where nobody can read that."""

    @property
    def run_id(self) -> str | None:
        return self.properties.get(RUN_ID)

    @property
    def asset(self) -> str | None:
        return self.properties.get(ASSET_KEY)

    @property
    def partition(self) -> str | None:
        return self.properties.get(PARTITION)

    @property
    def code_location(self) -> str | None:
        return self.properties.get(CODE_LOCATION)

    @property
    def intent(self) -> str | None:
        return self.properties.get(INTENT)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A version that is named, and of which nothing can be learned."""

    name: VersionName
    reason: str


def sources_of(uri: str, properties: Mapping[str, str], operation: Operation | None) -> tuple[InputVersion, ...]:
    """The ancestors that a version of the table at `uri` names, other than the version before it."""
    found = [
        InputVersion(VersionName(place, version), AncestryKind.READ)
        for place, version in parse_inputs(properties).versions
    ]
    match operation:
        case Restore(version=version):
            found.insert(0, InputVersion(VersionName(uri, version), AncestryKind.RESTORED))
        case Clone() as clone:
            found.insert(0, InputVersion(VersionName(_cloned_uri(clone), clone.ref_version), AncestryKind.FORKED))
    return tuple(found[:_SOURCES_MAX])


def _cloned_uri(clone: Clone) -> str:
    """The table, or the branch of it, that was cloned. Some writers name the main line, and the branch beside it."""
    line = f"tree/{clone.ref_name}"
    if clone.ref_name is None or clone.ref_path.rstrip("/").endswith(f"/{line}"):
        return clone.ref_path
    return posixpath.join(clone.ref_path, line)
