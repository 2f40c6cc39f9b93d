"""Lineage model: the origin of one version, as values. Pure."""

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
    """Table URI and version, printed as the command line accepts them."""

    uri: str
    version: int

    def __str__(self) -> str:
        return f"{self.uri}@{self.version}"


class AncestryKind(Enum):
    """Relation of a version to its ancestor."""

    READ = "read"
    """The run that made the version read the ancestor."""
    RESTORED = "restored"
    """The version restores the ancestor."""
    FORKED = "begins as"
    """The version is the first one of a clone or branch of the ancestor."""
    FOLLOWS = "follows"
    """The ancestor is the parent on the same branch; followed only on request, since nearly every version has one."""


@dataclass(frozen=True, slots=True)
class InputVersion:
    """Ancestor of a version, with the relation."""

    name: VersionName
    kind: AncestryKind


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of one version. Fields are `None` where the version does not record them."""

    name: VersionName
    operation: str
    timestamp: datetime
    rows: int
    rows_added: int | None
    rows_removed: int | None
    parent: int | None
    """Preceding version of the same table. For a detached version, the version that it is based on."""
    planned_on: int | None
    rebased_over: Sequence[int]
    uuid: str | None
    properties: Mapping[str, str]
    sources: tuple[InputVersion, ...] = ()
    together: tuple[str, ...] = ()
    """Uuids of the appends that share this version."""
    unreadable_inputs: str | None = None
    """Recorded inputs that cannot be parsed."""
    action: str = ""
    """Action of the writer, such as "upsert"; `operation` is its name in the format."""
    writer: str = ""
    """Library that committed the version, with its release."""

    @property
    def named_action(self) -> str:
        """The action, with the name of the format's operation where that is another one: "upsert (Update)"."""
        if not self.action:
            return self.operation
        is_the_same = self.action.replace(" ", "") == self.operation.lower()
        return self.action if is_the_same else f"{self.action} ({self.operation})"

    @property
    def is_foreign(self) -> bool:
        """True if another library committed the version."""
        return bool(self.writer) and self.writer.partition(" ")[0] != "lance-assets"

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
    """Version that is named but cannot be read."""

    name: VersionName
    reason: str


def sources_of(uri: str, properties: Mapping[str, str], operation: Operation | None) -> tuple[InputVersion, ...]:
    """Return the ancestors that a version of the table at `uri` names, except its parent."""
    sources = [
        InputVersion(VersionName(input_uri, version), AncestryKind.READ)
        for input_uri, version in parse_inputs(properties).versions
    ]
    match operation:
        case Restore(version=version):
            sources.insert(0, InputVersion(VersionName(uri, version), AncestryKind.RESTORED))
        case Clone() as clone:
            sources.insert(0, InputVersion(VersionName(_cloned_uri(clone), clone.ref_version), AncestryKind.FORKED))
    return tuple(sources[:_SOURCES_MAX])


def _cloned_uri(clone: Clone) -> str:
    """Return the URI of the table or branch that was cloned. Some writers record the URI of the main branch and the
    name of the branch separately."""
    branch_path = f"tree/{clone.ref_name}"
    if clone.ref_name is None or clone.ref_path.rstrip("/").endswith(f"/{branch_path}"):
        return clone.ref_path
    return posixpath.join(clone.ref_path, branch_path)
