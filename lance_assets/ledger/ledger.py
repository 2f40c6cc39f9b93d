"""Ledger: the Dagster asset whose partitions are the versions of one branch, with all names derived from it.

A `Ledger` holds the location of the table and its names in Dagster; it holds no versions. `recorded_data_versions`
reads from Dagster's event storage which versions are on it. `recording.py` records versions, and `discovery/sensor.py`
finds the versions of other writers. Names and URIs are checked here, when the table is declared. Each retained version
is a partition: Dagster's pages handle a hundred thousand of them, but its automation conditions become slow with a few
thousand, so `retention_advice` tells the owner which settings remove versions.
"""

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg

from lance_assets.resources.lance import Access, Creation, LanceResource, creation_of, table_exists
from lance_core import InvalidInput, NotFound, Table
from lance_core.tasks.credentials import contains_secret

SOFT_CAP = 2_000
"""Number of versions from which each event contains the advice."""
WARNING_THRESHOLD = 10_000
"""Number of versions from which every recording logs a warning."""
_WRITTEN_PREFIX = "lance/"
BRANCH = "lance/branch"
"""Metadata of the asset of a branch's ledger: the name of the branch."""

_DATA_VERSION = "dagster/data_version"
_PARTITIONS_PER_QUERY = 500
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Ledger of one branch of a table."""

    name: str
    prefix: tuple[str, ...]
    uri: str
    """URI to open the table with. Since `check_uri` excludes credentials, it may be displayed."""
    storage: LanceResource = field(default_factory=LanceResource)
    branch: str | None = None
    """Branch of this ledger; `None` is the main branch. Each followed branch has a ledger of its own, `orders@dev`."""
    declared_creation: Creation = field(default_factory=Creation)
    """Row ids and storage version with which a write creates the table."""
    column_descriptions: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of columns, which events show with the schema."""
    has_samples: bool = False
    """True if the events of runs have sample rows."""

    def __post_init__(self) -> None:
        for part in (*self.prefix, self.name):
            check_name(part, subject="a Lance table's name and key prefix")
        check_uri(
            self.uri, f"the Lance table {self.label!r}", missing="the location of the table, which need not exist yet"
        )

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey([*self.prefix, self._title])

    @property
    def label(self) -> str:
        return "/".join((*self.prefix, self._title))

    @property
    def table_slug(self) -> str:
        """The table's label as a name with letters, digits and underscores only. All branches of a table share it."""
        return "_".join((*self.prefix, self.name))

    @property
    def slug(self) -> str:
        """The ledger's label as a name with letters, digits and underscores only, unique to this ledger."""
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
        """Partition set with the identities of the tables (`dynamic_partitions.py`).

        Table names never contain `#`, so no other ledger has this set.
        """
        return f"{self.partition_set}#tables"

    @property
    def claim_set(self) -> str:
        """Partition set of the claims (`recording_lock.py`)."""
        return f"{self.partition_set}#claims"

    @property
    def pool(self) -> str:
        """Pool that the writes share. Dagster 1.12 allows letters, digits, underscores and slashes only."""
        return f"lance/{self.label}" if self.branch is None else f"lance/{self.slug}"

    @property
    def run_tag(self) -> str:
        """Run tag with the partition that the run committed, or found already committed; the last one of several.

        Dagster's tags have at most one slash, so dots separate the prefix.
        """
        return f"{_WRITTEN_PREFIX}{'.'.join((*self.prefix, self._title)).replace('@', '_at_')}"

    @property
    def shown_uri(self) -> str:
        return shown_uri(self.uri)

    @property
    def description(self) -> str:
        """Noun for the table or branch in messages."""
        return "table" if self.branch is None else f"branch {self.branch!r} of a table"

    def access(self) -> Access:
        return self.storage.access(self.branch)

    def creation(self) -> Creation:
        """Return the arguments for the creation of the table; none if it exists."""
        return creation_of(self.uri, self.access(), self.declared_creation)

    def open(self, version: int | None = None) -> Table:
        return Table.open(self.uri, version=version, **self.access())

    def exists(self) -> bool:
        """Return whether the table exists and has the branch of this ledger."""
        if not table_exists(self.uri, self.access()):
            return False
        if self.branch is None:
            return True
        try:
            self.open()
        except NotFound:
            return False
        return True

    def identity_of(self, table: Table) -> str | None:
        """Return the identity of this branch, which differs from that of any other table or branch at its location.

        A branch that is deleted and created again gets a new identity. `None` if the table has no identity.
        """
        if self.branch is None:
            return table.id
        branch = table.branches.list().get(self.branch)
        return branch.lineage[-1][1] if branch and branch.lineage else None

    def for_branch(self, branch: str) -> "Ledger":
        return replace(self, branch=branch)

    @property
    def _title(self) -> str:
        """Last part of the asset key. Slashes in a branch name become dots, since a slash separates levels of a key."""
        return self.name if self.branch is None else f"{self.name}@{self.branch.replace('/', '.')}"


def recorded_data_versions(
    instance: dg.DagsterInstance, ledger: Ledger, partitions: Collection[str]
) -> Mapping[str, str]:
    """Return the data version of the newest event of each of these partitions, by partition.

    It is empty for an event without a data version. Partitions without an event are left out."""
    keys, data_versions = list(partitions), dict[str, str]()
    for start in range(0, len(keys), _PARTITIONS_PER_QUERY):
        data_versions |= _query_data_versions(instance, ledger, keys[start : start + _PARTITIONS_PER_QUERY])
    return data_versions


def _query_data_versions(instance: dg.DagsterInstance, ledger: Ledger, partitions: Sequence[str]) -> dict[str, str]:
    records_filter = dg.AssetRecordsFilter(asset_key=ledger.key, asset_partitions=partitions)
    data_versions: dict[str, str] = {}
    cursor = None
    while True:
        page = instance.fetch_materializations(records_filter, limit=2 * len(partitions), cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                data_versions.setdefault(event.partition, (event.tags or {}).get(_DATA_VERSION, ""))
        if not page.has_more or len(data_versions) == len(partitions):
            return data_versions
        cursor = page.cursor


def latest_partition(instance: dg.DagsterInstance, ledger: Ledger) -> str | None:
    """Return the partition of the latest event, which Dagster shows as the state of the asset.

    Versions are recorded in order (`002-version-order.md`), so the ledger is complete up to this one."""
    records = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=ledger.key), limit=1).records
    event = records[0].asset_materialization if records else None
    return event.partition if event else None


def shown_uri(uri: str) -> str:
    """Return the URI for display: a local path becomes absolute."""
    return uri if "://" in uri else os.path.abspath(os.path.expanduser(uri))


def check_name(name: str, *, subject: str) -> None:
    if not _PLAIN_NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a valid name: {subject} may have letters, digits and underscores only")


def check_uri(uri: str, subject: str, *, missing: str) -> None:
    """Raise `InvalidInput` for a URI without text or with credentials, which every page of the table would display.

    `missing` says which location to give if there is none.
    """
    if not uri:
        raise InvalidInput(f"{subject} has no uri; give {missing}")
    _, is_remote, rest = uri.partition("://")
    if not is_remote:
        return
    if uri.lower().startswith("s3+ddb://"):
        raise InvalidInput(
            f"the uri of {subject} contains its manifest store; use uri='s3://bucket/path' and "
            "storage=LanceResource(manifest_store='dynamodb://table')"
        )
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0] or "?" in rest or "#" in rest or contains_secret(uri):
        raise InvalidInput(
            f"the uri of {subject} contains credentials or parameters, and Dagster displays it to every user; "
            "use the plain location as uri= and pass the rest as storage_options= with dagster.EnvVar values"
        )


def retention_advice(ledger: Ledger, retained: int) -> str | None:
    """Return the advice for a ledger that retains too many versions; `None` below the soft cap."""
    if retained < SOFT_CAP:
        return None
    far = "" if retained < WARNING_THRESHOLD else "far "
    return (
        f"{ledger.label} retains {retained:,} versions, each of them a partition, {far}above the {SOFT_CAP:,} up to "
        "which Dagster stays fast. Remove versions that are no longer needed: lower keep_versions= and keep_for= in "
        "the table's maintenance=Maintenance(...), declare one if it has none, or run Table.cleanup(older_than=..., "
        "keep=...). Tagged versions stay; the sensor retires the partitions of removed versions"
    )


def growth_warning(ledger: Ledger, before: int, after: int) -> str | None:
    """Return the warning for a recorder that increased the number of versions from `before` to `after`.

    Return `None` unless the number crosses the soft cap or has reached the warning threshold.
    """
    crosses_cap = before < SOFT_CAP <= after
    return retention_advice(ledger, after) if crosses_cap or (before < after and after >= WARNING_THRESHOLD) else None
