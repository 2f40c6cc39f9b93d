"""A Lance table in a Dagster project: `lance_table(...)` declares it, `.defs` is what the project merges.

    writes (executable, Spark) ──► ledger (external, one partition a version) ──► whatever reads the table

Only declarations are here. What a write does is in `writes/`, how versions get onto the ledger in `recording.py` and
`discovery.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg
from dagster_shared.libraries import DagsterLibraryRegistry

from lance_assets.discovery import discovery_sensor
from lance_assets.ledger import Ledger
from lance_assets.storage import Access, LanceResource
from lance_assets.writes import Write, write_asset, write_key
from lance_core import InvalidInput
from lance_core.tasks.stamp import Stamp

# Not in `lance_assets/__init__.py`, which Spark's workers load.
DagsterLibraryRegistry.register("lance-assets", Stamp.of_this_process().lance_assets, is_dagster_package=False)

_TABLE = "A Lance table: one partition for each of its versions, a fact that is recorded, not run."


@dataclass(frozen=True, slots=True)
class LanceTable:
    """Made by `lance_table`; merge `.defs` into your project."""

    ledger: Ledger
    writes: tuple[Write, ...]
    group: str
    discover: bool
    description: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    branches: tuple[Ledger, ...] = ()
    """Of the branches that are followed."""

    @property
    def key(self) -> dg.AssetKey:
        return self.ledger.key

    @property
    def uri(self) -> str:
        return self.ledger.uri

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        return self.ledger.partitions

    @property
    def dep(self) -> dg.AssetDep:
        """For `deps=` of an asset that reads the newest version. Without a mapping it would depend on every version."""
        return dg.AssetDep(self.key, partition_mapping=dg.LastPartitionMapping())

    def access(self) -> Access:
        """How to reach its store, looked up now."""
        return self.ledger.access()

    def branch(self, name: str) -> "LanceTable":
        """The branch as a table to read from, to depend on, and whose key and partitions are asked for. It is declared
        already, by the table that follows it."""
        return replace(self, ledger=self.ledger_of(name), writes=(), branches=(), discover=False)

    def ledger_of(self, branch: str | None) -> Ledger:
        for ledger in (self.ledger, *self.branches):
            if ledger.branch == branch:
                return ledger
        names = ", ".join(str(each.branch) for each in self.branches) or "none"
        raise InvalidInput(
            f"the Lance table {self.ledger.label!r} follows no branch {branch!r}; it follows {names}. Say "
            f"branches=[{branch!r}] where it is declared"
        )

    def write_key(self, name: str) -> dg.AssetKey:
        """The asset key of one of its writes."""
        for write in self.writes:
            if write.name == name:
                return write_key(self.ledger, write)
        names = ", ".join(write.name for write in self.writes) or "none"
        raise InvalidInput(f"the Lance table {self.ledger.label!r} has no write {name!r}; it has {names}")

    @property
    def spec(self) -> dg.AssetSpec:
        return self._spec(self.ledger)

    @property
    def defs(self) -> dg.Definitions:
        """Needs a resource `spark`, which the project gives, if there are writes."""
        ledgers = (self.ledger, *self.branches)
        writes = [write_asset(self.ledger_of(write.branch), write, group=self.group) for write in self.writes]
        sensors = [discovery_sensor(f"lance_discover__{self.ledger.word}", ledgers)] if self.discover else []
        return dg.Definitions(assets=[*map(self._spec, ledgers), *writes], sensors=sensors)

    def _spec(self, ledger: Ledger) -> dg.AssetSpec:
        about = self.description or _TABLE
        return dg.AssetSpec(
            key=ledger.key,
            deps=[write_key(self.ledger, write) for write in self.writes if write.branch == ledger.branch],
            partitions_def=ledger.partitions,
            group_name=self.group,
            kinds={"lance"},
            description=about if ledger.branch is None else f"The branch {ledger.branch}. {about}",
            owners=self.owners,
            tags=self.tags,
            metadata={"dagster/uri": ledger.shown_uri, "dagster/table_name": ".".join(ledger.key.path)},
        )


def lance_table(
    name: str,
    *,
    uri: str,
    writes: Sequence[Write] = (),
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    discover: bool = True,
    branches: Sequence[str] = (),
    storage: LanceResource | None = None,
    storage_options: Mapping[str, str] | None = None,
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> LanceTable:
    """Declare a table; it need not exist yet, the first write creates it.

    `storage` says how its store is reached, or `storage_options` alone; a `uri` without a scheme is below its root.
    Each branch of `branches` gets a ledger of its own, `name@branch`, also before the branch is there.
    `discover=False` leaves finding the versions of other writers to a sensor of yours (`lance_discovery`, which
    looks after many tables at once).
    """
    prefix = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    if storage is not None and storage_options is not None:
        raise InvalidInput(f"the Lance table {name!r}: give storage= or storage_options=, which it holds too")
    storage = storage or LanceResource(storage_options=dict(storage_options or {}))
    ledger = Ledger(name, prefix, storage.place(uri) if uri else uri, storage)
    followed = tuple(map(ledger.of_branch, branches))
    keys = [each.key for each in followed]
    if twice := [each for each in followed if keys.count(each.key) > 1 or not each.branch or each.branch == "main"]:
        raise InvalidInput(
            f"the Lance table {ledger.label!r}: branches={list(branches)} would give {twice[0].label!r} twice; name "
            "branches besides the main line, each once, and not two that differ in a slash and a dot alone"
        )
    names = [write.name for write in writes]
    for each in names:
        if names.count(each) > 1 or each == name:
            what = "the table itself and a write" if each == name else f"{names.count(each)} writes"
            raise InvalidInput(f"the Lance table {ledger.label!r}: {what} are called {each!r}; give each its own name")
    table = LanceTable(
        ledger=ledger,
        writes=tuple(writes),
        group=group or name,
        discover=discover,
        description=description,
        owners=tuple(owners),
        tags=dict(tags or {}),
        branches=followed,
    )
    for write in writes:
        table.ledger_of(write.branch)
    return table


def lance_discovery(group: str, tables: Sequence[LanceTable], *, interval_s: int = 30) -> dg.SensorDefinition:
    """One sensor for many tables declared with `discover=False`."""
    twice = [table.ledger.label for table in tables if table.discover]
    if twice:
        raise InvalidInput(
            f"{', '.join(twice)} would be looked at twice; declare with discover=False what shares a sensor"
        )
    return discovery_sensor(
        f"lance_discover__{group}",
        [ledger for table in tables for ledger in (table.ledger, *table.branches)],
        interval_s=interval_s,
    )
