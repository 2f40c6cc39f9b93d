"""`lance_table()`: declares a Lance table in a Dagster project; `.defs` are the definitions that the project merges.

    writes (executable, Spark) ──► ledger (external, one partition per version) ──► assets that read the table
                                     │ checks, evaluated on each version       └──► profile (statistics per version)

This module contains declarations only. `writes/` implements the writes, `ledger/recording.py` and
`discovery/sensor.py` record versions on the ledger, `checks/` evaluates them, and `profiles/` computes statistics.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

import dagster as dg
from dagster_shared.libraries import DagsterLibraryRegistry

from lance_assets.checks.asset_checks import asset_checks
from lance_assets.checks.check import Check
from lance_assets.checks.evaluate import check_unique_names
from lance_assets.common.code_location import CodeLocation, code_reference, find_declaration
from lance_assets.definitions.declared_tables import remember_table
from lance_assets.definitions.operator_job import operator_job as build_operator_job
from lance_assets.definitions.uniqueness import register_table
from lance_assets.discovery.sensor import discovery_sensor
from lance_assets.ledger.dynamic_partitions import begin_incarnation
from lance_assets.ledger.ledger import BRANCH, Ledger
from lance_assets.ledger.partition_keys import partition_key
from lance_assets.maintenance import (
    Maintenance,
    Scrub,
    maintenance_asset,
    maintenance_key,
    maintenance_schedule,
    maintenance_sensor,
    scrub_asset,
    scrub_key,
    scrub_schedule,
)
from lance_assets.profiles import Profile, profile_asset, profile_key
from lance_assets.profiles.profile_step import Automation
from lance_assets.resources.lance import Access, Creation, LanceResource
from lance_assets.writes import Write, Writes, write_asset, write_key
from lance_assets.writes.asset_options import REFUSED_BY_TABLES, one_of_synonyms, refuse_options
from lance_assets.writes.asset_options import freshness_policy as resolve_freshness
from lance_assets.writes.computed_writes import SparkComputedColumn
from lance_assets.writes.dependencies import Dependency, ordering_input
from lance_core import InvalidInput
from lance_core.tasks.columns.computed_fill import in_order
from lance_core.tasks.driver import NewTableOptions
from lance_core.tasks.version_stamp import VersionStamp

# Spark's workers load `lance_assets/__init__.py`, so the registration is here.
DagsterLibraryRegistry.register("lance-assets", VersionStamp.of_this_process().lance_assets, is_dagster_package=False)

_DEFAULT_DESCRIPTION = "A Lance table with one partition per version. Versions are recorded here, not materialized."


@dataclass(frozen=True)
class LanceTable(dg.AssetDep):  # type: ignore[misc]  # mypy knows no dataclass with a named tuple as its base
    """Declared Lance table, returned by `lance_table`. Merge `.defs` into your project.

    It is a dependency on its newest version: `@dg.asset(deps=[orders])`.
    """

    ledger: Ledger
    writes: Writes
    group: str
    discover: bool
    description: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    branches: tuple[Ledger, ...] = ()
    """Ledgers of the followed branches."""
    maintenance: Maintenance | None = None
    scrub: Scrub | None = None
    checks: tuple[Check, ...] = ()
    profile: Profile | None = None
    automation: Automation | None = None
    freshness: dg.FreshnessPolicy | None = None
    kinds: frozenset[str] = frozenset({"lance"})
    upstream: tuple[Dependency, ...] = ()
    """Assets that the table depends on besides its writes."""
    definition_metadata: Mapping[str, object] = field(default_factory=dict)
    has_operator_job: bool = True
    declared_at: CodeLocation | None = field(default=None, compare=False)
    """Location of the declaration, to which the assets without a function of the user refer."""

    # Without its partition mapping, an asset with this dependency would depend on every version.
    def __new__(cls, ledger: Ledger, *_fields: object, **_more: object) -> Self:
        table: Self = super().__new__(cls, ledger.key, partition_mapping=dg.LastPartitionMapping())
        return table

    def __getnewargs__(self) -> tuple[Ledger]:
        """Return the arguments of `__new__`, for copies."""
        return (self.ledger,)

    @property
    def key(self) -> dg.AssetKey:
        """Asset key of the ledger."""
        return self.ledger.key

    @property
    def uri(self) -> str:
        """URI of the table."""
        return self.ledger.uri

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """Partitions of the ledger, one per version."""
        return self.ledger.partitions

    @property
    def dep(self) -> dg.AssetDep:
        """Dependency on the newest version, for `deps=` of an asset. The table itself is one, too."""
        return dg.AssetDep(self.key, partition_mapping=self.partition_mapping)

    @property
    def ins(self) -> dict[str, dg.AssetIn]:
        """The same dependency for `ins=`. It loads nothing; Dagster's `deps=` does not accept the key of a branch."""
        return ordering_input(self.dep)

    def access(self) -> Access:
        """Return the arguments for access to the table, with the current values of `EnvVar`s."""
        return self.ledger.access()

    def branch(self, name: str) -> "LanceTable":
        """Return a followed branch as a table to read, to depend on, or to take the key and partitions of.

        Do not merge its `.defs`: the definitions of this table include the branch.
        """
        ledger = self.ledger_of(name)
        view = Writes(ledger.label, view=True)
        return replace(  # type: ignore[type-var]  # see the class
            self,
            ledger=ledger,
            writes=view,
            branches=(),
            discover=False,
            maintenance=None,
            scrub=None,
            checks=(),
            profile=None,
        )

    def ledger_of(self, branch: str | None) -> Ledger:
        """Return the ledger of a followed branch; `None` is the main branch."""
        for ledger in (self.ledger, *self.branches):
            if ledger.branch == branch:
                return ledger
        names = ", ".join(str(ledger.branch) for ledger in self.branches) or "none"
        raise InvalidInput(
            f"the Lance table {self.ledger.label!r} follows no branch {branch!r}; it follows {names}. Add "
            f"branches=[{branch!r}] to its declaration"
        )

    def record_again(self, instance: dg.DagsterInstance | None = None) -> str:
        """Give all versions of the table new partitions, and return the prefix of the new keys.

        Call this once after the directory of the table was restored from a backup and then written: the partitions of
        the lost versions keep their events and are retired, and the next runs and ticks of the sensor record every
        version under a new key. `instance` is the Dagster instance; without it, the instance of `DAGSTER_HOME` is used.
        """
        table = self.ledger.open()
        with nullcontext(instance) if instance else dg.DagsterInstance.get() as opened:
            incarnation = begin_incarnation(opened, self.ledger, self.ledger.identity_of(table))
        return partition_key(1, incarnation).partition(".")[0]

    def add_write(self, write: Write) -> None:
        """Add a write, as `@lance_write` does for a function. Raise `InvalidInput` after `defs` or `spec` was read."""
        self.writes.check_accepts(write)
        self.ledger_of(write.branch)
        self.writes.add(write)

    def write_key(self, name: str) -> dg.AssetKey:
        """Return the asset key of the write with this name."""
        for write in self.writes:
            if write.name == name:
                return write_key(self.ledger, write)
        names = ", ".join(write.name for write in self.writes) or "none"
        raise InvalidInput(f"the Lance table {self.ledger.label!r} has no write {name!r}; it has {names}")

    @property
    def maintenance_key(self) -> dg.AssetKey:
        """Asset key of the maintenance."""
        if self.maintenance is None:
            raise InvalidInput(
                f"the Lance table {self.ledger.label!r} has no maintenance; add maintenance=Maintenance(...) to its "
                "declaration"
            )
        return maintenance_key(self.ledger)

    @property
    def scrub_key(self) -> dg.AssetKey:
        """Asset key of the scrub."""
        if self.scrub is None:
            raise InvalidInput(
                f"the Lance table {self.ledger.label!r} has no scrub; add scrub=Scrub(...) to its declaration"
            )
        return scrub_key(self.ledger)

    @property
    def profile_key(self) -> dg.AssetKey:
        """Asset key of the profile."""
        return profile_key(self.ledger)

    @property
    def spec(self) -> dg.AssetSpec:
        """Asset specification of the ledger."""
        return self._spec(self.ledger, self.ledger.shown_uri)

    @property
    def defs(self) -> dg.Definitions:
        """Definitions of the table. Writes and maintenance need a resource `spark` in the project."""
        features = {
            "discover": self.discover,
            "profile": self.profile,
            "checks": self.checks,
            "maintain": self.maintenance,
            "scrub": self.scrub,
            "operate": self.has_operator_job,
        }
        uri = register_table(self.ledger, [kind for kind, feature in features.items() if feature])
        ledgers = (self.ledger, *self.branches)
        writes = [
            write_asset(self.ledger_of(write.branch), write, group=self.group, checks=self.checks)
            for write in _with_column_dependencies(self.ledger, self.writes.freeze())
        ]
        profiles = [self._profile(ledger, self.profile) for ledger in ledgers] if self.profile else []
        name = f"lance_discover__{self.ledger.table_slug}"
        sensors = [discovery_sensor(name, ledgers, checks=checks_by_ledger([self]))] if self.discover else []
        declared = dg.Definitions(
            assets=[*(self._spec(ledger, uri) for ledger in ledgers), *writes, *profiles],
            asset_checks=[asset_checks(ledger, self.checks) for ledger in ledgers] if self.checks else [],
            sensors=sensors,
            jobs=[build_operator_job(ledgers, self.checks)] if self.has_operator_job else [],
        )
        optional = [self._maintenance_definitions] if self.maintenance else []
        optional += [self._scrub_definitions] if self.scrub else []
        return dg.Definitions.merge(declared, *optional) if optional else declared

    def _profile(self, ledger: Ledger, profile: Profile) -> dg.AssetsDefinition:
        return profile_asset(
            ledger,
            profile,
            group=self.group,
            checks=self.checks,
            automation=self.automation,
            declared_at=self.declared_at,
        )

    @property
    def _maintenance_definitions(self) -> dg.Definitions:
        ledger, policy = self.ledger, self.maintenance
        assert policy is not None
        writes = [write_key(ledger, write) for write in self.writes.freeze()]
        return dg.Definitions(
            assets=[
                maintenance_asset(ledger, policy, group=self.group, checks=self.checks, declared_at=self.declared_at)
            ],
            sensors=[maintenance_sensor(ledger, policy, writes)] if policy.interval_s else [],
            schedules=[maintenance_schedule(ledger, policy, writes)] if policy.every else [],
        )

    @property
    def _scrub_definitions(self) -> dg.Definitions:
        assert self.scrub is not None
        return dg.Definitions(
            assets=[scrub_asset(self.ledger, self.scrub, group=self.group, declared_at=self.declared_at)],
            schedules=[scrub_schedule(self.ledger, self.scrub)] if self.scrub.every else [],
        )

    def _spec(self, ledger: Ledger, shown_uri: str) -> dg.AssetSpec:
        description = self.description or _DEFAULT_DESCRIPTION
        writes = [write_key(self.ledger, write) for write in self.writes.freeze() if write.branch == ledger.branch]
        upstream = [*self.upstream, *([self.maintenance_key] if self.maintenance else [])]
        return dg.AssetSpec(
            key=ledger.key,
            deps=[*writes, *(upstream if ledger.branch is None else [])],
            partitions_def=ledger.partitions,
            group_name=self.group,
            kinds=set(self.kinds),
            description=description if ledger.branch is None else f"Branch {ledger.branch}. {description}",
            owners=self.owners,
            tags=self.tags,
            metadata={
                **code_reference(self.declared_at),
                **self.definition_metadata,
                "dagster/uri": shown_uri,
                "dagster/table_name": ".".join(ledger.key.path),
                "dagster/storage_kind": "lance",
                **({BRANCH: ledger.branch} if ledger.branch else {}),
            },
            freshness_policy=self.freshness if ledger.branch is None else None,
        )


@refuse_options(REFUSED_BY_TABLES, subject="lance_table")
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
    computed: Sequence[SparkComputedColumn] = (),
    automation: Automation | None = None,
    freshness: timedelta | dg.FreshnessPolicy | None = None,
    branches: Sequence[str] = (),
    maintenance: Maintenance | None = None,
    scrub: Scrub | None = None,
    storage: LanceResource | None = None,
    storage_options: Mapping[str, str] | None = None,
    stable_row_ids: bool = True,
    storage_version: str | None = None,
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    kinds: Collection[str] = ("lance",),
    deps: Sequence[Dependency] = (),
    metadata: Mapping[str, object] | None = None,
    group_name: str | None = None,
    automation_condition: Automation | dg.AutomationCondition[Any] | None = None,
    freshness_policy: timedelta | dg.FreshnessPolicy | None = None,
    operator_job: bool = True,
    samples: bool = False,
    columns: Mapping[str, str] | None = None,
) -> LanceTable:
    """Declare a Lance table. It need not exist yet: the first write creates it.

    `storage` configures access to the object store, or `storage_options` alone; a relative `uri` is resolved against
    its root. Each branch of `branches` gets its own ledger, `name@branch`, even before the branch exists. `maintenance`
    configures when the table is compacted and cleaned up; without it, do both yourself. `scrub` adds the asset
    `name_scrub`, which compares a share of the files with their checksums in each run. `discover=False` leaves the
    versions of other writers to a sensor of yours, such as `lance_discovery`, which covers many tables.

    The write that creates the table gives it stable row ids, on which change feeds and row lineage depend, and the
    storage version; `stable_row_ids=False` leaves them out. Both stay as they are in a table that exists already.

    `computed` columns are filled by assets of their own, which compute the rows that are new or have changed
    (`SparkComputedColumn`); a column that reads another is filled after it.

    `checks` are evaluated on each version when it is recorded, and on the newest version when they are launched.
    `profile` adds the asset `name_profile`, which computes statistics of any version; `Profile(...)` configures it,
    and `False` leaves it out. With `automation="on_missing"`, Dagster's automation sensor materializes the profile
    for each new version; it has to be switched on, and becomes slow with thousands of versions. `freshness` is the
    largest age of the newest version, as a `timedelta` or a Dagster freshness policy.

    `group_name`, `automation_condition` and `freshness_policy`, the names of `@dg.asset`, are other names of `group`,
    `automation` and `freshness`. `deps` are assets that the table depends on besides its writes, such as a pipeline
    outside of Dagster that writes it. `operator_job` adds the job `lance_operate__<table>`, which tags, promotes, rolls
    back and publishes versions.

    `columns` has descriptions of columns, which events show with the schema; without one, that of the field's metadata
    is shown. With `samples=True`, the event of each version that a run commits has its ten newest rows, which Dagster
    then stores.
    """
    subject = f"the Lance table {name!r}"
    group = one_of_synonyms(group, group_name, ("group", "group_name"), subject)
    automation = _validate_automation(
        one_of_synonyms(automation, automation_condition, ("automation", "automation_condition"), subject), name
    )
    policy = one_of_synonyms(freshness, freshness_policy, ("freshness", "freshness_policy"), subject)
    prefix = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    if storage is not None and storage_options is not None:
        raise InvalidInput(
            f"the Lance table {name!r}: pass either storage= or storage_options=; storage= can contain storage options"
        )
    storage = storage or LanceResource(storage_options=dict(storage_options or {}))
    creation = _validate_creation(stable_row_ids, storage_version, name)
    ledger = Ledger(
        name,
        prefix,
        storage.resolve_uri(uri) if uri else uri,
        storage,
        column_descriptions=dict(columns or {}),
        has_samples=samples,
        declared_creation=creation,
    )
    branch_ledgers = tuple(map(ledger.for_branch, branches))
    keys = [branch_ledger.key for branch_ledger in branch_ledgers]
    if duplicates := [
        branch_ledger
        for branch_ledger in branch_ledgers
        if keys.count(branch_ledger.key) > 1 or branch_ledger.branch in (None, "", "main")
    ]:
        raise InvalidInput(
            f"the Lance table {ledger.label!r}: branches={list(branches)} would declare {duplicates[0].label!r} twice; "
            "list each branch once, without the main branch, and no two that differ only by a slash and a dot"
        )
    profile_options = _profile_options(profile, ledger.label)
    reserved = {
        name: "the table itself",
        **({f"{name}_profile": "the asset of its profiles"} if profile_options else {}),
    }
    if maintenance is not None:
        reserved[maintenance_key(ledger).path[-1]] = "the asset of its maintenance"
    if scrub is not None:
        reserved[scrub_key(ledger).path[-1]] = "the asset of its scrub"
    table = LanceTable(
        ledger=ledger,
        writes=Writes(ledger.label, [*writes, *_ordered_columns(ledger, computed)], reserved=reserved),
        group=group or name,
        discover=discover,
        description=description,
        owners=tuple(owners),
        tags=dict(tags or {}),
        branches=branch_ledgers,
        maintenance=maintenance,
        scrub=scrub,
        checks=_validate_checks(checks, ledger.label),
        profile=profile_options,
        automation=automation,
        freshness=resolve_freshness(policy, f"the Lance table {ledger.label!r}"),
        kinds=frozenset(kinds),
        upstream=tuple(deps),
        definition_metadata=dict(metadata or {}),
        has_operator_job=operator_job,
        declared_at=find_declaration(),
    )
    if automation and not table.profile:
        raise InvalidInput(f"the Lance table {ledger.label!r}: automation= needs a profile, but profile=False")
    for write in writes:
        table.ledger_of(write.branch)
    remember_table(ledger)
    return table


def _ordered_columns(ledger: Ledger, computed: Sequence[SparkComputedColumn]) -> list[SparkComputedColumn]:
    """Return the computed columns in the order of their inputs; the asset of each depends on those that it reads."""
    table = ledger.label.rpartition("/")[2]
    named = [column.for_table(table) for column in computed]
    by_column = {column.column: column for column in named}
    declared = [replace(column.computed_column, inputs=column.names_read()) for column in named]
    keys = {column.column: write_key(ledger, column) for column in named}
    ordered = []
    for each in in_order(declared):
        upstream = [keys[name] for name in each.inputs if name in keys and name != each.name]
        column = by_column[each.name]
        ordered.append(column.with_options(deps=[*column.deps, *(key for key in upstream if key not in column.deps)]))
    return ordered


def _with_column_dependencies(ledger: Ledger, writes: Sequence[Write]) -> list[Write]:
    """Return the writes, with the dependencies between computed columns, those of the decorator included."""
    computed = [write for write in writes if isinstance(write, SparkComputedColumn)]
    by_name: dict[str, Write] = {}
    for branch in {write.branch for write in computed}:
        for column in _ordered_columns(ledger, [write for write in computed if write.branch == branch]):
            by_name[column.name] = column
    return [by_name.get(write.name, write) for write in writes]


def lance_discovery(group: str, tables: Sequence[LanceTable], *, interval_s: int = 30) -> dg.SensorDefinition:
    """Return one discovery sensor for many tables that are declared with `discover=False`."""
    with_own_sensor = [table.ledger.label for table in tables if table.discover]
    if with_own_sensor:
        raise InvalidInput(
            f"{', '.join(with_own_sensor)} would have two discovery sensors; declare the tables of a shared sensor "
            "with discover=False"
        )
    return discovery_sensor(
        f"lance_discover__{group}",
        [ledger for table in tables for ledger in (table.ledger, *table.branches)],
        interval_s=interval_s,
        checks=checks_by_ledger(tables),
    )


def checks_by_ledger(tables: Sequence[LanceTable]) -> Mapping[str, Sequence[Check]]:
    """Return the checks of each ledger by its label."""
    return {ledger.label: table.checks for table in tables for ledger in (table.ledger, *table.branches)}


def _validate_creation(stable_row_ids: bool, storage_version: str | None, name: str) -> Creation:
    try:
        NewTableOptions(stable_row_ids, storage_version).new_table()
    except InvalidInput as error:
        raise InvalidInput(f"the Lance table {name!r}: {error}") from error
    return Creation(stable_row_ids=stable_row_ids, storage_version=storage_version)


def _validate_checks(checks: Sequence[Check], label: str) -> tuple[Check, ...]:
    for check in checks:
        value: object = check
        if not isinstance(value, Check):
            raise InvalidInput(
                f"the Lance table {label!r}: checks= must be checks, such as RowCount(min=1), not {value!r:.100}; "
                "create one from a function with @lance_check(), or from SQL with SqlCheck(name, sql)"
            )
    check_unique_names(checks, label)
    return tuple(checks)


def _profile_options(profile: bool | Profile, label: str) -> Profile | None:
    value: object = profile
    if isinstance(value, Profile):
        return value
    if not isinstance(value, bool):
        raise InvalidInput(
            f"the Lance table {label!r}: profile= must be True, False or a Profile(...), not {value!r:.100}"
        )
    return Profile() if value else None


def _validate_automation(automation: object, label: str) -> Automation | None:
    if automation is None:
        return None
    if automation == "on_missing" or automation == dg.AutomationCondition.on_missing():
        return "on_missing"
    raise InvalidInput(
        f"the Lance table {label!r}: automation= must be 'on_missing' or None, not {automation!r:.100}; other "
        "conditions take minutes over thousands of versions. It applies to the profile; give the condition of a write "
        "to the write"
    )
