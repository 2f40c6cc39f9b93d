"""The ledger of a table: the one Dagster asset whose partitions are the table's versions, and every name made from it.

A `Ledger` says where the table is and what Dagster calls it; it holds no versions. Recording them is `recording.py`,
finding those of others is `discovery/sensor.py`. What is wrong with a declaration is said here, when it is declared.
"""

import hashlib
import os
import re
from dataclasses import dataclass, field, replace

import dagster as dg

from lance_assets.resources.lance import Access, LanceResource
from lance_core import InvalidInput, NotFound, Table

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Ledger:
    name: str
    prefix: tuple[str, ...]
    uri: str
    """As it is opened; checked to carry no credentials, so it may be shown."""
    storage: LanceResource = field(default_factory=LanceResource)
    branch: str | None = None
    """A branch that is followed has a ledger of its own, `orders@dev`."""

    def __post_init__(self) -> None:
        for part in (*self.prefix, self.name):
            check_name(part, subject="a Lance table's name and key prefix")
        check_uri(self.uri, f"the Lance table {self.label!r}", missing="the directory that it is, or will be")

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey([*self.prefix, self._title])

    @property
    def label(self) -> str:
        return "/".join((*self.prefix, self._title))

    @property
    def table_slug(self) -> str:
        """The label, where Dagster takes letters, digits and underscores only. Branches share their table's."""
        return "_".join((*self.prefix, self.name))

    @property
    def slug(self) -> str:
        """The same, no two ledgers alike."""
        if self.branch is None:
            return self.table_slug
        digest = hashlib.sha256(self.branch.encode(errors="surrogatepass")).hexdigest()[:6]
        return f"{self.table_slug}__{re.sub(r'[^A-Za-z0-9_]', '_', self.branch)}_{digest}"

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        return dg.DynamicPartitionsDefinition(name=self.partition_set)

    @property
    def partition_set(self) -> str:
        return f"lance/{self.label}"

    @property
    def table_set(self) -> str:
        """What `incarnations.py` remembers. The sign is in no name of a table, so this set is no other table's."""
        return f"{self.partition_set}#tables"

    @property
    def claim_set(self) -> str:
        """What `recording_claims.py` holds."""
        return f"{self.partition_set}#claims"

    @property
    def pool(self) -> str:
        return f"lance/{self.label}"

    @property
    def run_tag(self) -> str:
        """On a run: the version that it made, or found landed; of several the last. Dagster's tags have one slash, so
        that the prefix is set off by dots."""
        return f"lance/{'.'.join((*self.prefix, self._title)).replace('@', '_at_')}"

    @property
    def shown_uri(self) -> str:
        return shown_uri(self.uri)

    @property
    def description(self) -> str:
        return "table" if self.branch is None else f"branch {self.branch!r} of a table"

    def access(self) -> Access:
        return self.storage.access(self.branch)

    def open(self, version: int | None = None) -> Table:
        return Table.open(self.uri, version=version, **self.access())

    def exists(self) -> bool:
        """Of a branch: whether the table has it."""
        if not self.storage.exists(self.uri):
            return False
        if self.branch is None:
            return True
        try:
            self.open()
        except NotFound:
            return False
        return True

    def identity_of(self, table: Table) -> str | None:
        """What tells this line of versions from another that was, or will be, at its place. A branch that is made anew
        is another one."""
        if self.branch is None:
            return table.id
        branch = table.branches.list().get(self.branch)
        return branch.lineage[-1][1] if branch and branch.lineage else None

    def for_branch(self, branch: str) -> "Ledger":
        return replace(self, branch=branch)

    @property
    def _title(self) -> str:
        """A slash would be a level of the asset's key, and is a dot there."""
        return self.name if self.branch is None else f"{self.name}@{self.branch.replace('/', '.')}"


def shown_uri(uri: str) -> str:
    """Of a folder on disk the whole path."""
    return uri if "://" in uri else os.path.abspath(os.path.expanduser(uri))


def check_name(name: str, *, subject: str) -> None:
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} will not do: {subject} may have letters, digits and underscores only")


def check_uri(uri: str, subject: str, *, missing: str) -> None:
    """Credentials in a URI would be shown on every page that names the table."""
    if not uri:
        raise InvalidInput(f"{subject} has no uri; give {missing}")
    _, is_remote, rest = uri.partition("://")
    if not is_remote:
        return
    if uri.lower().startswith("s3+ddb://"):
        raise InvalidInput(
            f"the uri of {subject} names where its versions are reserved; give it as "
            "uri='s3://bucket/path', and storage=LanceResource(manifest_store='dynamodb://table')"
        )
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0] or "?" in rest or "#" in rest:
        raise InvalidInput(
            f"the uri of {subject} carries credentials or parameters, and it is shown to everyone; "
            "give the plain location as uri= and the rest as storage_options= with dagster.EnvVar values"
        )
