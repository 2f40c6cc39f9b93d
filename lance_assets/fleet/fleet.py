"""Fleet declaration: `lance_fleet(...)` declares the maintenance of all tables below a prefix; the project merges
`.defs`.

A fleet is one asset that maintains all tables (`fleet_run.py`), a schedule for it, and an asset check that fails if a
table could not be maintained. The tables need not be declared; for those that are, versions are recorded on their
ledgers, and a policy of their own takes precedence.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import dagster as dg

from lance_assets.checks.check import Check
from lance_assets.definitions.lance_table import LanceTable
from lance_assets.definitions.uniqueness import normalized_uri
from lance_assets.failures.error_translation import translate_errors
from lance_assets.fleet.fleet_run import FleetRun, Member
from lance_assets.fleet.report import FleetReport, TableOutcome
from lance_assets.ledger.ledger import Ledger, check_name, check_uri, shown_uri
from lance_assets.maintenance.maintenance_step import maintenance_key
from lance_assets.maintenance.policy import Maintenance
from lance_assets.provenance.run_provenance import properties_of_run, run_intent
from lance_assets.resources.lance import Access, LanceResource
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, session_of
from lance_assets.spark.jobs import SparkRunner
from lance_core import InvalidInput, find_tables
from lance_core.tasks.partitioning import Runner

_CHECK = "every_table_is_looked_after"
_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class ProjectTable:
    """Table of the project that belongs to the fleet."""

    ledger: Ledger
    writes: frozenset[dg.AssetKey]
    policy: Maintenance | None
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Location prefix of the fleet's tables, and the names that are derived from the fleet's name."""

    name: str
    levels: tuple[str, ...]
    uri: str
    storage: LanceResource

    def __post_init__(self) -> None:
        for part in (*self.levels, self.name):
            check_name(part, subject="a Lance fleet's name and key prefix")
        check_uri(self.uri, f"the Lance fleet {self.label!r}", missing="the location below which its tables are")

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey([*self.levels, self.name])

    @property
    def label(self) -> str:
        return "/".join((*self.levels, self.name))

    @property
    def slug(self) -> str:
        """Label as a Dagster name, which may contain letters, digits and underscores only."""
        return "_".join((*self.levels, self.name))

    @property
    def pool(self) -> str:
        return f"lance/{self.label}"

    @property
    def shown_uri(self) -> str:
        return shown_uri(self.uri)

    def access(self) -> Access:
        return self.storage.access()


@dataclass(frozen=True, slots=True)
class LanceFleet:
    """Fleet of tables, created by `lance_fleet`; merge `.defs` into the project."""

    prefix: Prefix
    policy: Maintenance
    policies: Mapping[str, Maintenance]
    declared: tuple[ProjectTable, ...]
    exclude: tuple[str, ...]
    orphans: bool
    group: str
    description: str | None = None
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> dg.AssetKey:
        return self.prefix.key

    @property
    def defs(self) -> dg.Definitions:
        """Definitions of the fleet. The project provides the resource `spark`."""
        return dg.Definitions(assets=[self._asset], schedules=[self._schedule] if self.policy.every else [])

    def path_of(self, uri: str) -> str:
        """Return the path of a table relative to the prefix. Scheme and trailing slashes may be spelled differently
        in both."""
        return normalized_uri(uri).removeprefix(f"{normalized_uri(self.prefix.shown_uri)}/")

    def policy_of(self, path: str) -> Maintenance:
        """Return the policy of the first pattern that matches the relative path, or the policy for all tables."""
        return next((policy for pattern, policy in self.policies.items() if fnmatchcase(path, pattern)), self.policy)

    @property
    def _asset(self) -> dg.AssetsDefinition:
        @dg.asset(
            key=self.key,
            group_name=self.group,
            kinds={"spark", "lance"},
            description=self.description or f"Maintains the Lance tables below {self.prefix.shown_uri}.",
            owners=self.owners,
            tags=self.tags,
            metadata={"dagster/uri": self.prefix.shown_uri},
            required_resource_keys={SPARK_RESOURCE_KEY},
            check_specs=[
                dg.AssetCheckSpec(_CHECK, asset=self.key, description="Every table of the fleet was maintained.")
            ],
            pool=self.prefix.pool,
        )
        def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]  # the annotation that Dagster accepts
            with translate_errors(self.prefix, retry_number=context.retry_number):
                report = self._build_run(context).run()
                return dg.MaterializeResult(metadata=report.metadata, check_results=[_check_result(report)])

        return asset

    def _build_run(self, context: dg.AssetExecutionContext) -> FleetRun:
        started = time.monotonic()
        access = self.prefix.access()
        listing = find_tables(self.prefix.uri, storage_options=access["storage_options"], exclude=self.exclude)
        declared = {normalized_uri(table.ledger.shown_uri): table for table in self.declared}
        members = []
        for uri in dict.fromkeys([*map(normalized_uri, listing.tables), *declared]):
            table = declared.get(uri)
            policy = (table.policy if table else None) or self.policy_of(self.path_of(uri))
            if table is None:
                members.append(Member(uri, policy, access))
            else:
                keys = table.writes | {maintenance_key(table.ledger)}
                members.append(Member(uri, policy, table.ledger.access(), table.ledger, keys, table.checks))
        intent = run_intent(context.instance, context.run, self.key, None)

        def runner() -> Runner:
            return SparkRunner(session_of(getattr(context.resources, SPARK_RESOURCE_KEY)))

        return FleetRun(
            context=context,
            members=members,
            skipped=listing.skipped,
            intent=intent,
            properties=properties_of_run(context.run, self.key, None, intent, ()),
            runner=runner,
            orphans=self.orphans,
            prefix=self.prefix.shown_uri,
            started=started,
        )

    @property
    def _schedule(self) -> dg.ScheduleDefinition:
        assert self.policy.every is not None, "a schedule needs policy.every"
        return dg.ScheduleDefinition(
            name=f"lance_fleet__{self.prefix.slug}",
            cron_schedule=self.policy.every,
            execution_timezone=self.policy.timezone,
            target=dg.AssetSelection.assets(self.key),
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description=f"Launches the maintenance of the Lance tables below {self.prefix.shown_uri}.",
        )


def lance_fleet(
    name: str,
    *,
    prefix: str,
    policy: Maintenance | None = None,
    policies: Mapping[str, Maintenance] | None = None,
    tables: Iterable[LanceTable] = (),
    exclude: Sequence[str] = (),
    orphans: bool = True,
    key_prefix: str | Sequence[str] | None = None,
    group: str | None = None,
    storage: LanceResource | None = None,
    storage_options: Mapping[str, str] | None = None,
    description: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> LanceFleet:
    """Declare the maintenance of every table below `prefix`, by `policy`, on the schedule `policy.every`.

    `policies` maps patterns of paths relative to the prefix to policies, such as `{"raw/*": Maintenance(...)}`; the
    first match counts. `tables` are declared tables of the project: their own policy takes precedence over both, the
    fleet records its versions on their ledgers, and it defers a table while a run writes it. Tables whose path
    matches a pattern of `exclude` are left out.

    By default every table is cleaned up, including orphan files. With `orphans=False`, only tables for which a
    cleanup is due are cleaned up, which saves listing all files of the others.
    """
    levels = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    if storage is not None and storage_options is not None:
        raise InvalidInput(f"the Lance fleet {name!r}: give either storage= or storage_options=, not both")
    storage = storage or LanceResource(storage_options=dict(storage_options or {}))
    if isinstance(exclude, str):
        raise InvalidInput(f"the Lance fleet {name!r}: exclude={exclude!r} is a text; give a list of patterns")
    fleet_prefix = Prefix(name, levels, storage.resolve_uri(prefix) if prefix else prefix, storage)
    return LanceFleet(
        prefix=fleet_prefix,
        policy=policy or Maintenance(),
        policies=dict(policies or {}),
        declared=tuple(map(_project_table, tables)),
        exclude=tuple(exclude),
        orphans=orphans,
        group=group or name,
        description=description,
        owners=tuple(owners),
        tags=dict(tags or {}),
    )


def _project_table(table: LanceTable) -> ProjectTable:
    writes = frozenset(table.write_key(write.name) for write in table.writes)
    return ProjectTable(table.ledger, writes, table.maintenance, table.checks)


def _check_result(report: FleetReport) -> dg.AssetCheckResult:
    left_out = [*report.tables_with(TableOutcome.FAILED), *report.tables_with(TableOutcome.SKIPPED)]
    named = "; ".join(f"{table.uri}: {table.message}" for table in left_out[:_NAMED_MAX])
    more = f"; and {len(left_out) - _NAMED_MAX} more" if len(left_out) > _NAMED_MAX else ""
    return dg.AssetCheckResult(
        check_name=_CHECK,
        passed=not left_out,
        # Skipped directories may be there on purpose.
        severity=dg.AssetCheckSeverity.ERROR if report.tables_with(TableOutcome.FAILED) else dg.AssetCheckSeverity.WARN,
        description=f"{named}{more}" or f"all {len(report.tables)} tables",
    )
