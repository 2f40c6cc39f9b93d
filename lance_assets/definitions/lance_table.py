"""A Lance table in a Dagster project: `lance_table(...)` declares it, `.defs` is what the project merges.

    writes (executable, Spark) ──► ledger (external, one partition a version) ──► whatever reads the table
                                     │ checks, asked about each version       └─► profile (figures of each version)

Only declarations are here. What a write does is in `writes/`, how versions get onto the ledger in `ledger/recording.py`
and `discovery/sensor.py`, what is asked of them in `checks/`, what is computed of them in `profiles/`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import dagster as dg
from dagster_shared.libraries import DagsterLibraryRegistry

from lance_assets.checks.asset_checks import asset_checks
from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import check_unique_names
from lance_assets.definitions.uniqueness import register_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger.ledger import Ledger
from lance_assets.maintenance import (
    Maintenance,
    maintenance_asset,
    maintenance_key,
    maintenance_schedule,
    maintenance_sensor,
)
from lance_assets.profiles import Profile, profile_asset, profile_key
from lance_assets.profiles.profile_step import Automation
from lance_assets.resources.lance import Access, LanceResource
from lance_assets.writes import Write, Writes, write_asset, write_key
from lance_assets.writes.dependencies import ordering_input
from lance_core import InvalidInput
from lance_core.tasks.version_stamp import VersionStamp

# Not in `lance_assets/__init__.py`, which Spark's workers load.
DagsterLibraryRegistry.register("lance-assets", VersionStamp.of_this_process().lance_assets, is_dagster_package=False)

_DEFAULT_DESCRIPTION = "A Lance table: one partition for each of its versions, a fact that is recorded, not run."


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
    branches: tuple[Ledger, ...] = ()
    """Of the branches that are followed."""
    maintenance: Maintenance | None = None
    checks: tuple[Check, ...] = ()
    profile: Profile | None = None
    automation: Automation | None = None
    freshness: dg.FreshnessPolicy | None = None

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

    @property
    def ins(self) -> dict[str, dg.AssetIn]:
        """The same for `ins=`, with nothing loaded: Dagster's `deps=` does not take the key of a branch."""
        return ordering_input(self.dep)

    def access(self) -> Access:
        """How to reach its store, looked up now."""
        return self.ledger.access()

    def branch(self, name: str) -> "LanceTable":
        """The branch as a table to read from, to depend on, and whose key and partitions are asked for. It is declared
        already, by the table that follows it."""
        ledger = self.ledger_of(name)
        view = Writes(ledger.label, view=True)
        return replace(
            self,
            ledger=ledger,
            writes=view,
            branches=(),
            discover=False,
            maintenance=None,
            checks=(),
            profile=None,
        )

    def ledger_of(self, branch: str | None) -> Ledger:
        for ledger in (self.ledger, *self.branches):
            if ledger.branch == branch:
                return ledger
        names = ", ".join(str(each.branch) for each in self.branches) or "none"
        raise InvalidInput(
            f"the Lance table {self.ledger.label!r} follows no branch {branch!r}; it follows {names}. Say "
            f"branches=[{branch!r}] where it is declared"
        )

    def add_write(self, write: Write) -> None:
        """One more write, as long as nobody has read `defs` or `spec`; `@lance_write` does it for a function."""
        self.writes.check_accepts(write)
        self.ledger_of(write.branch)
        self.writes.add(write)

    def write_key(self, name: str) -> dg.AssetKey:
        """The asset key of one of its writes."""
        for write in self.writes:
            if write.name == name:
                return write_key(self.ledger, write)
        names = ", ".join(write.name for write in self.writes) or "none"
        raise InvalidInput(f"the Lance table {self.ledger.label!r} has no write {name!r}; it has {names}")

    @property
    def maintenance_key(self) -> dg.AssetKey:
        """The asset key of its maintenance."""
        if self.maintenance is None:
            raise InvalidInput(
                f"the Lance table {self.ledger.label!r} has no maintenance; say maintenance=Maintenance(...) where it "
                "is declared"
            )
        return maintenance_key(self.ledger)

    @property
    def profile_key(self) -> dg.AssetKey:
        """The asset key of its profile."""
        return profile_key(self.ledger)

    @property
    def spec(self) -> dg.AssetSpec:
        return self._spec(self.ledger, self.ledger.shown_uri)

    @property
    def defs(self) -> dg.Definitions:
        """Needs a resource `spark`, which the project gives, if there are writes or a maintenance."""
        kinds = {
            "discover": self.discover,
            "profile": self.profile,
            "checks": self.checks,
            "maintain": self.maintenance,
        }
        place = register_table(self.ledger, [kind for kind, there in kinds.items() if there])
        ledgers = (self.ledger, *self.branches)
        writes = [
            write_asset(self.ledger_of(write.branch), write, group=self.group, checks=self.checks)
            for write in self.writes.freeze()
        ]
        profiles = [self._profile(ledger, self.profile) for ledger in ledgers] if self.profile else []
        name = f"lance_discover__{self.ledger.table_slug}"
        sensors = [discovery_sensor(name, ledgers, checks=checks_by_ledger([self]))] if self.discover else []
        declared = dg.Definitions(
            assets=[*(self._spec(ledger, place) for ledger in ledgers), *writes, *profiles],
            asset_checks=[asset_checks(ledger, self.checks) for ledger in ledgers] if self.checks else [],
            sensors=sensors,
        )
        return dg.Definitions.merge(declared, self._maintenance_definitions) if self.maintenance else declared

    def _profile(self, ledger: Ledger, how: Profile) -> dg.AssetsDefinition:
        return profile_asset(ledger, how, group=self.group, checks=self.checks, automation=self.automation)

    @property
    def _maintenance_definitions(self) -> dg.Definitions:
        ledger, policy = self.ledger, self.maintenance
        assert policy is not None
        writes = [write_key(ledger, write) for write in self.writes.freeze()]
        return dg.Definitions(
            assets=[maintenance_asset(ledger, policy, group=self.group, checks=self.checks)],
            sensors=[maintenance_sensor(ledger, policy, writes)] if policy.interval_s else [],
            schedules=[maintenance_schedule(ledger, policy, writes)] if policy.every else [],
        )

    def _spec(self, ledger: Ledger, shown_uri: str) -> dg.AssetSpec:
        about = self.description or _DEFAULT_DESCRIPTION
        writes = [write_key(self.ledger, write) for write in self.writes.freeze() if write.branch == ledger.branch]
        return dg.AssetSpec(
            key=ledger.key,
            deps=[*writes, *([self.maintenance_key] if self.maintenance and ledger.branch is None else [])],
            partitions_def=ledger.partitions,
            group_name=self.group,
            kinds={"lance"},
            description=about if ledger.branch is None else f"The branch {ledger.branch}. {about}",
            owners=self.owners,
            tags=self.tags,
            metadata={
                "dagster/uri": shown_uri,
                "dagster/table_name": ".".join(ledger.key.path),
                "dagster/storage_kind": "lance",
            },
            freshness_policy=self.freshness if ledger.branch is None else None,
        )


def lance_table(
    name: str,
    *,
    uri: str,
    writes: Sequence[Write] = (),
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    discover: bool = True,
    checks: Sequence[Check] = (),
    profile: bool | Profile = True,
    automation: Automation | None = None,
    freshness: timedelta | dg.FreshnessPolicy | None = None,
    branches: Sequence[str] = (),
    maintenance: Maintenance | None = None,
    storage: LanceResource | None = None,
    storage_options: Mapping[str, str] | None = None,
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> LanceTable:
    """Declare a table; it need not exist yet, the first write creates it.

    `storage` says how its store is reached, or `storage_options` alone; a `uri` without a scheme is below its root.
    Each branch of `branches` gets a ledger of its own, `name@branch`, also before the branch is there.
    `maintenance` says when the table is compacted and cleaned up; without it, that is yours to do.
    `discover=False` leaves finding the versions of other writers to a sensor of yours (`lance_discovery`, which
    looks after many tables at once).

    `checks` are asked about each version where it is recorded, and about the newest when they are launched. `profile`
    adds the asset `name_profile`, which computes figures of any version; `Profile(...)` says how, `False` leaves it
    out. `automation="on_missing"` lets it be materialized for each new version, by Dagster's automation sensor, which
    has to be switched on; with thousands of versions that sensor takes long. `freshness` is how old the newest version
    may be, as a time or as a policy of Dagster's.
    """
    prefix = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    if storage is not None and storage_options is not None:
        raise InvalidInput(f"the Lance table {name!r}: give storage= or storage_options=, which it holds too")
    storage = storage or LanceResource(storage_options=dict(storage_options or {}))
    ledger = Ledger(name, prefix, storage.resolve_uri(uri) if uri else uri, storage)
    followed = tuple(map(ledger.for_branch, branches))
    keys = [each.key for each in followed]
    if twice := [each for each in followed if keys.count(each.key) > 1 or not each.branch or each.branch == "main"]:
        raise InvalidInput(
            f"the Lance table {ledger.label!r}: branches={list(branches)} would give {twice[0].label!r} twice; name "
            "branches besides the main line, each once, and not two that differ in a slash and a dot alone"
        )
    how = _profile_options(profile, ledger.label)
    taken = {name: "the table itself", **({f"{name}_profile": "the asset of its profiles"} if how else {})}
    if maintenance is not None:
        taken[maintenance_key(ledger).path[-1]] = "the asset of its maintenance"
    table = LanceTable(
        ledger=ledger,
        writes=Writes(ledger.label, writes, reserved=taken),
        group=group or name,
        discover=discover,
        description=description,
        owners=tuple(owners),
        tags=dict(tags or {}),
        branches=followed,
        maintenance=maintenance,
        checks=_validate_checks(checks, ledger.label),
        profile=how,
        automation=_validate_automation(automation, ledger.label),
        freshness=_freshness_policy(freshness, ledger.label),
    )
    if automation and not table.profile:
        raise InvalidInput(f"the Lance table {ledger.label!r}: automation= is of the profile, and profile=False")
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
        checks=checks_by_ledger(tables),
    )


def checks_by_ledger(tables: Sequence[LanceTable]) -> Mapping[str, Sequence[Check]]:
    return {ledger.label: table.checks for table in tables for ledger in (table.ledger, *table.branches)}


def _validate_checks(checks: Sequence[Check], label: str) -> tuple[Check, ...]:
    for each in checks:
        given: object = each
        if not isinstance(given, Check):
            raise InvalidInput(
                f"the Lance table {label!r}: checks= are checks, such as RowCount(min=1), not {given!r:.100}; make one "
                "of a function with @lance_check(), of SQL with SqlCheck(name, sql)"
            )
    check_unique_names(checks, label)
    return tuple(checks)


def _profile_options(profile: bool | Profile, label: str) -> Profile | None:
    given: object = profile
    if isinstance(given, Profile):
        return given
    if not isinstance(given, bool):
        raise InvalidInput(f"the Lance table {label!r}: profile= is True, False or a Profile(...), not {given!r:.100}")
    return Profile() if given else None


def _validate_automation(automation: Automation | None, label: str) -> Automation | None:
    given: object = automation
    if given not in (None, "on_missing"):
        raise InvalidInput(
            f"the Lance table {label!r}: automation= is 'on_missing' or nothing, not {given!r:.100}; other conditions "
            "take minutes over thousands of versions"
        )
    return automation


def _freshness_policy(freshness: timedelta | dg.FreshnessPolicy | None, label: str) -> dg.FreshnessPolicy | None:
    given: object = freshness
    if isinstance(given, timedelta):
        if given < timedelta(minutes=1):
            raise InvalidInput(f"the Lance table {label!r}: freshness= is a minute or more, not {given}")
        return dg.FreshnessPolicy.time_window(fail_window=given)
    if given is None or isinstance(given, dg.FreshnessPolicy):
        return given
    raise InvalidInput(f"the Lance table {label!r}: freshness= is a timedelta or a FreshnessPolicy, not {given!r:.100}")
