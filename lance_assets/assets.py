"""A Lance table in a Dagster project: `lance_table(...)` declares it, `.defs` is what the project merges.

    writes (executable, Spark) ──► ledger (external, one partition a version) ──► whatever reads the table

Only declarations are here. What a write does is in `writes.py`, how versions get onto the ledger in `recording.py` and
`discovery.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg
from dagster_shared.libraries import DagsterLibraryRegistry

from lance_assets.discovery import discovery_sensor
from lance_assets.ledger import Ledger
from lance_assets.places import take_place
from lance_assets.writes import Write, Writes, write_asset, write_key
from lance_core import InvalidInput
from lance_core.tasks.stamp import Stamp

# Not in `lance_assets/__init__.py`, which Spark's workers load.
DagsterLibraryRegistry.register("lance-assets", Stamp.of_this_process().lance_assets, is_dagster_package=False)

_TABLE = "A Lance table: one partition for each of its versions, a fact that is recorded, not run."


@dataclass(frozen=True, slots=True)
class LanceTable:
    """Made by `lance_table`; merge `.defs` into your project."""

    ledger: Ledger
    writes: Writes
    group: str
    discover: bool
    description: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

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

    def options(self) -> Mapping[str, str]:
        """How to reach its store, looked up now."""
        return self.ledger.options()

    def declare(self, write: Write) -> None:
        """One more write, as long as nobody has read `defs` or `spec`; `@lance_write` does it for a function."""
        self.writes.add(write)

    def write_key(self, name: str) -> dg.AssetKey:
        """The asset key of one of its writes."""
        for write in self.writes:
            if write.name == name:
                return write_key(self.ledger, write)
        names = ", ".join(write.name for write in self.writes) or "none"
        raise InvalidInput(f"the Lance table {self.ledger.label!r} has no write {name!r}; it has {names}")

    @property
    def spec(self) -> dg.AssetSpec:
        return dg.AssetSpec(
            key=self.key,
            deps=[write_key(self.ledger, write) for write in self.writes.read()],
            partitions_def=self.partitions,
            group_name=self.group,
            kinds={"lance"},
            description=self.description or _TABLE,
            owners=self.owners,
            tags=self.tags,
            metadata={"dagster/uri": self.ledger.shown_uri, "dagster/table_name": ".".join(self.key.path)},
        )

    @property
    def defs(self) -> dg.Definitions:
        """Needs a resource `spark`, which the project gives, if there are writes."""
        take_place(self.ledger)
        assets = [write_asset(self.ledger, write, group=self.group) for write in self.writes.read()]
        sensors = [discovery_sensor(f"lance_discover__{self.ledger.word}", [self.ledger])] if self.discover else []
        return dg.Definitions(assets=[self.spec, *assets], sensors=sensors)


def lance_table(
    name: str,
    *,
    uri: str,
    writes: Sequence[Write] = (),
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    discover: bool = True,
    storage_options: Mapping[str, str] | None = None,
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> LanceTable:
    """Declare a table; it need not exist yet, the first write creates it.

    `discover=False` leaves finding the versions of other writers to a sensor of yours (`lance_discovery`, which
    looks after many tables at once).
    """
    prefix = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    ledger = Ledger(name, prefix, uri, dict(storage_options or {}))
    return LanceTable(
        ledger=ledger,
        writes=Writes(ledger.label, writes, taken=[name]),
        group=group or name,
        discover=discover,
        description=description,
        owners=tuple(owners),
        tags=dict(tags or {}),
    )


def lance_discovery(group: str, tables: Sequence[LanceTable], *, interval_s: int = 30) -> dg.SensorDefinition:
    """One sensor for many tables declared with `discover=False`."""
    twice = [table.ledger.label for table in tables if table.discover]
    if twice:
        raise InvalidInput(
            f"{', '.join(twice)} would be looked at twice; declare with discover=False what shares a sensor"
        )
    return discovery_sensor(f"lance_discover__{group}", [table.ledger for table in tables], interval_s=interval_s)
