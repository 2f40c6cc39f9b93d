"""Tables found below a prefix and looked after together: `lance_fleet(...)` declares it, `.defs` is what the project
merges.

One asset that makes a round over all of them (`fleet_run.py`), a schedule for it, and a check that is red where a table
could not be looked after. The fleet's tables need not be declared; those that are have their versions recorded, and a
policy of their own counts.
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
from lance_assets.ledger.ledger import Ledger, check_uri, check_name, shown_uri
from lance_assets.maintenance.maintenance_step import maintenance_key
from lance_assets.maintenance.policy import Maintenance
from lance_assets.provenance.run_intents import run_intent
from lance_assets.provenance.run_properties import properties_of_run
from lance_assets.resources.lance import Access, LanceResource
from lance_assets.resources.spark import SPARK_RESOURCE_KEY, session_of
from lance_assets.spark.jobs import SparkRunner
from lance_core import InvalidInput, find_tables
from lance_core.tasks.partitioning import Runner

_CHECK = "every_table_is_looked_after"
_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class ProjectTable:
    """A table of the project that lies in the fleet."""

    ledger: Ledger
    writes: frozenset[dg.AssetKey]
    policy: Maintenance | None
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the tables of a fleet lie below, and every name made of it."""

    name: str
    levels: tuple[str, ...]
    uri: str
    storage: LanceResource

    def __post_init__(self) -> None:
        for part in (*self.levels, self.name):
            check_name(part, subject="a Lance fleet's name and key prefix")
        check_uri(self.uri, f"the Lance fleet {self.label!r}", missing="the place that its tables lie below")

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey([*self.levels, self.name])

    @property
    def label(self) -> str:
        return "/".join((*self.levels, self.name))

    @property
    def word(self) -> str:
        """Where Dagster takes letters, digits and underscores only."""
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
    """Made by `lance_fleet`; merge `.defs` into your project."""

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
        """Needs a resource `spark`, which the project gives."""
        return dg.Definitions(assets=[self._asset], schedules=[self._schedule] if self.policy.every else [])

    def path_of(self, uri: str) -> str:
        """From the prefix, which may be spelt with a scheme or a slash more than what is found below it."""
        return normalized_uri(uri).removeprefix(f"{normalized_uri(self.prefix.shown_uri)}/")

    def policy_of(self, path: str) -> Maintenance:
        """By its path from the prefix: the first pattern that fits, or the one for all."""
        return next((policy for each, policy in self.policies.items() if fnmatchcase(path, each)), self.policy)

    @property
    def _asset(self) -> dg.AssetsDefinition:
        @dg.asset(
            key=self.key,
            group_name=self.group,
            kinds={"spark", "lance"},
            description=self.description or f"Compacts and cleans up the Lance tables below {self.prefix.shown_uri}.",
            owners=self.owners,
            tags=self.tags,
            metadata={"dagster/uri": self.prefix.shown_uri},
            required_resource_keys={SPARK_RESOURCE_KEY},
            check_specs=[dg.AssetCheckSpec(_CHECK, asset=self.key, description="No table of the fleet was left out.")],
            pool=self.prefix.pool,
        )
        def asset(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]  # as Dagster knows it
            with translate_errors(self.prefix, retry_number=context.retry_number):
                report = self._build_run(context).run()
                return dg.MaterializeResult(metadata=report.metadata, check_results=[_check_result(report)])

        return asset

    def _build_run(self, context: dg.AssetExecutionContext) -> FleetRun:
        started = time.monotonic()
        access = self.prefix.access()
        found = find_tables(self.prefix.uri, storage_options=access["storage_options"], exclude=self.exclude)
        declared = {normalized_uri(each.ledger.shown_uri): each for each in self.declared}
        members = []
        for uri in dict.fromkeys([*map(normalized_uri, found.tables), *declared]):
            known = declared.get(uri)
            policy = (known.policy if known else None) or self.policy_of(self.path_of(uri))
            if known is None:
                members.append(Member(uri, policy, access))
            else:
                keys = known.writes | {maintenance_key(known.ledger)}
                members.append(Member(uri, policy, known.ledger.access(), known.ledger, keys, known.checks))
        intent = run_intent(context.instance, context.run, self.key, None)

        def runner() -> Runner:
            return SparkRunner(session_of(getattr(context.resources, SPARK_RESOURCE_KEY)))

        return FleetRun(
            context=context,
            members=members,
            skipped=found.skipped,
            intent=intent,
            properties=properties_of_run(context.run, self.key, None, intent, ()),
            runner=runner,
            orphans=self.orphans,
            prefix=self.prefix.shown_uri,
            started=started,
        )

    @property
    def _schedule(self) -> dg.ScheduleDefinition:
        assert self.policy.every is not None, "a policy by the clock"
        return dg.ScheduleDefinition(
            name=f"lance_fleet__{self.prefix.word}",
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
    """Look after every table below `prefix`, by `policy` and at its `every`.

    `policies` are for tables whose path from the prefix fits a pattern, as `{"raw/*": Maintenance(...)}`; the first
    that fits counts. `tables` are those of the project: a policy of their own comes before both, what the fleet does is
    recorded on their ledgers, and none is touched while a run writes it. What fits a pattern of `exclude` is left out.
    A round cleans every table up, of leftovers that no version names, too; with `orphans=False` those only for which
    a cleanup is due, which spares the others a listing of all their files.
    """
    levels = (key_prefix,) if isinstance(key_prefix, str) else tuple(key_prefix or ())
    if storage is not None and storage_options is not None:
        raise InvalidInput(f"the Lance fleet {name!r}: give storage= or storage_options=, which it holds too")
    storage = storage or LanceResource(storage_options=dict(storage_options or {}))
    if isinstance(exclude, str):
        raise InvalidInput(f"the Lance fleet {name!r}: exclude={exclude!r} is one text; give a list of patterns")
    below = Prefix(name, levels, storage.resolve_uri(prefix) if prefix else prefix, storage)
    return LanceFleet(
        prefix=below,
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
    wrong = [*report.tables_with(TableOutcome.FAILED), *report.tables_with(TableOutcome.SKIPPED)]
    named = "; ".join(f"{table.uri}: {table.message}" for table in wrong[:_NAMED_MAX])
    more = f"; and {len(wrong) - _NAMED_MAX} more" if len(wrong) > _NAMED_MAX else ""
    return dg.AssetCheckResult(
        check_name=_CHECK,
        passed=not wrong,
        # Those that are skipped may be meant to be there.
        severity=dg.AssetCheckSeverity.ERROR if report.tables_with(TableOutcome.FAILED) else dg.AssetCheckSeverity.WARN,
        description=f"{named}{more}" or f"all of {len(report.tables)} tables",
    )
