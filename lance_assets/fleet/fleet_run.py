"""Fleet run: surveys, plans, compacts, indexes and cleans up all tables of a fleet once.

    find_tables -> survey each table -> plan each -> compact_many (one job) -> optimize_indices where due
                -> clean up each -> survey the changed tables again

An error of one table is reported for that table, and the run continues with the others. If a whole Spark job is lost,
for example because a file crashes every process that reads it, the run compacts each half of its tables in a separate
job. Surveys and cleanups of several tables run concurrently, since each mostly waits for its store.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

import dagster as dg
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lance_assets.checks.check import Check
from lance_assets.fleet.report import Figures, FleetReport, TableOutcome, TableReport
from lance_assets.ledger.ledger import Ledger
from lance_assets.maintenance.active_runs import active_runs_by_asset
from lance_assets.maintenance.downstream_pins import Pins, pins_from_ledgers, pins_of_table
from lance_assets.maintenance.maintenance_actions import (
    INDEX_INTENT_SUFFIX,
    clean_up,
    record_versions_of_run,
    retire_partitions,
    survey_table,
)
from lance_assets.maintenance.plan import Plan, plan_maintenance
from lance_assets.maintenance.policy import Maintenance
from lance_assets.resources.lance import Access
from lance_core import StorageError, Survey, Table
from lance_core.tasks.compaction.compact_many import TABLE_ERRORS, TableCompaction, compact_many
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.indices.index_build import optimize_indices
from lance_core.tasks.partitioning import Runner, Task

_THREADS = 8
_JOB_ERRORS = (PySparkException, Py4JError)
_LOST_JOBS_MAX = 16
"""Number of lost jobs above which the cluster, and not a table, is considered the cause."""
_A = TypeVar("_A")


@dataclass(slots=True)
class Member:
    """One table of the fleet with the state of its maintenance."""

    uri: str
    policy: Maintenance
    access: Access = field(repr=False)
    ledger: Ledger | None = None
    keys: frozenset[dg.AssetKey] = frozenset()
    """Assets of this project that write the table."""
    checks: tuple[Check, ...] = ()
    report: TableReport = field(init=False)
    table: Table | None = None
    survey: Survey | None = None
    due: Plan | None = None

    def __post_init__(self) -> None:
        self.report = TableReport(self.uri)

    @property
    def is_workable(self) -> bool:
        """True if the table was surveyed and is neither deferred nor skipped."""
        return self.survey is not None and self.report.fate not in (TableOutcome.DEFERRED, TableOutcome.SKIPPED)

    @property
    def needs_index_replan(self) -> bool:
        """True if this run moved rows that the table's indices cover."""
        return self.is_workable and self.report.compacted and self.survey is not None and bool(self.survey.indices)

    def open(self) -> Table:
        return Table.open(self.uri, **self.access)

    def take_survey(self, now: datetime) -> Survey:
        self.table = self.open()
        return survey_table(self.table, self.policy, now)


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One run over the tables of a fleet."""

    context: dg.AssetExecutionContext
    members: Sequence[Member]
    skipped: Mapping[str, str]
    intent: str
    properties: Mapping[str, str]
    runner: Callable[[], Runner]
    """Called only if there is work for Spark."""
    orphans: bool
    prefix: str
    started: float

    def run(self) -> FleetReport:
        """Maintain all tables and return the report."""
        now = datetime.now(UTC)
        self._plan(now)
        seconds = time.monotonic() - self.started
        to_compact = [member for member in self.members if member.is_workable and member.due and member.due.compact]
        self.context.log.info(f"planned {len(self.members)} tables in {seconds:.1f} s, {len(to_compact)} to compact")
        jobs = self._compact_all(to_compact) + self._maintain_indices(now)
        to_clean = [
            member
            for member in self.members
            if member.is_workable and member.policy.cleans and self._should_clean(member)
        ]
        # Pins are read after the compactions, whose versions push others out of the newest `keep_versions`.
        pins = pins_from_ledgers(self.context.instance) if to_clean else {}
        run_concurrently(lambda member: self._clean(member, pins), to_clean)
        changed = [member for member in self.members if member.report.has_changed]
        run_concurrently(lambda member: _survey_result(member, now), changed)
        for member in changed:
            self._record(member)
        skipped = [TableReport(uri, TableOutcome.SKIPPED, message=reason) for uri, reason in self.skipped.items()]
        return FleetReport(self.prefix, [*(member.report for member in self.members), *skipped], seconds, jobs)

    def _plan(self, now: datetime) -> None:
        run_concurrently(lambda member: _survey(member, now), self.members)
        has_expired = any(member.survey and member.survey.expired_versions for member in self.members)
        pins = pins_from_ledgers(self.context.instance) if has_expired else {}
        active = active_runs_by_asset(self.context.instance, excluding=self.context.run.run_id)
        for member in self.members:
            if member.survey is None or member.table is None:
                continue
            pinned = pins.get(member.table.uri, {}).keys() | member.policy.pinned.keys()
            member.due = plan_maintenance(member.survey, member.policy, pinned=pinned)
            member.report.due = member.due.reasons
            writing = sorted(member.keys & active.keys())
            if writing and not member.policy.beside_writes:
                member.report.fate = TableOutcome.DEFERRED
                key = writing[0]
                member.report.message = (
                    f"the run {active[key]} is writing it ({key.to_user_string()}) and is not finished"
                )

    def _compact_all(self, members: Sequence[Member]) -> int:
        if not members:
            return 0
        runner = _CountingRunner(self.runner())
        pending, lost = [list(members)], 0
        while pending:
            group = pending.pop()
            try:
                self._compact_group(group, runner)
            except _JOB_ERRORS as error:
                lost += 1
                self.context.log.warning(f"the job that compacted {len(group)} tables was lost: {_first_line(error)}")
                if len(group) > 1 and lost <= _LOST_JOBS_MAX:
                    # The table with the file that crashes its readers is in one of the halves.
                    pending += [group[len(group) // 2 :], group[: len(group) // 2]]
                    continue
                for member in group:
                    member.report.add_failure(
                        StorageError(f"the Spark job that compacted it was lost: {_first_line(error)}")
                    )
        return runner.jobs

    def _compact_group(self, members: Sequence[Member], runner: Runner) -> None:
        compactions = [
            TableCompaction(
                TableRef(member.uri, **member.access),
                WriteOptions(self.intent, self.properties),
                member.policy.target_rows,
            )
            for member in members
        ]
        for member, outcome in zip(members, compact_many(compactions, runner), strict=True):
            if outcome.committed and (outcome.committed.attempts or outcome.committed.already_committed):
                member.report.compacted, member.report.fate = True, TableOutcome.MAINTAINED
            if outcome.error:
                member.report.add_failure(outcome.error)

    def _maintain_indices(self, now: datetime) -> int:
        """Maintain the indices of one table after another; each has Spark jobs of its own, which are cheap for a
        small table."""
        run_concurrently(
            lambda member: _replan_indices(member, now),
            [member for member in self.members if member.needs_index_replan],
        )
        members = [member for member in self.members if member.is_workable and member.due and member.due.index]
        if not members:
            return 0
        runner, lost = _CountingRunner(self.runner()), 0
        for member in members:
            if lost > _LOST_JOBS_MAX:
                member.report.add_failure(
                    StorageError(f"its indices wait for the next run: {lost} Spark jobs were lost")
                )
                continue
            try:
                self._maintain_indices_of(member, runner)
            except TABLE_ERRORS as error:
                member.report.add_failure(error)
            except _JOB_ERRORS as error:
                lost += 1
                member.report.add_failure(StorageError(f"the Spark job for its indices was lost: {_first_line(error)}"))
        return runner.jobs

    def _maintain_indices_of(self, member: Member, runner: Runner) -> None:
        table = TableRef(member.uri, **member.access)
        options = WriteOptions(self.intent + INDEX_INTENT_SUFFIX, self.properties)
        committed = optimize_indices(table, None, "small", options=options, runner=runner)
        if committed.attempts or committed.already_committed:
            member.report.indexed = True
            if member.report.fate is TableOutcome.IN_SHAPE:
                member.report.fate = TableOutcome.MAINTAINED

    def _should_clean(self, member: Member) -> bool:
        return self.orphans or bool(member.due and member.due.clean)

    def _clean(self, member: Member, ledgers: Pins) -> None:
        report = member.report
        try:
            table = member.open()
            cleanup = clean_up(table, member.policy, pins_of_table(table, member.policy, ledgers))
        except TABLE_ERRORS as error:
            report.add_failure(error)
            return
        report.versions_removed = len(cleanup.versions)
        report.files_removed = len(cleanup.files) + len(cleanup.orphans)
        report.bytes_removed = cleanup.bytes
        report.kept = {str(version): list(reasons) for version, reasons in cleanup.kept.items()}
        if report.files_removed and report.fate is TableOutcome.IN_SHAPE:
            report.fate = TableOutcome.MAINTAINED

    def _record(self, member: Member) -> None:
        """Record the new versions on the ledger of the table, if it has one. The sensor records versions missed
        here."""
        if member.ledger is None or member.survey is None or member.table is None:
            return
        try:
            record_versions_of_run(self.context, member.ledger, member.checks, member.table, member.survey.version)
            retire_partitions(self.context.instance, member.ledger, member.table)
        except TABLE_ERRORS as error:
            member.report.add_failure(error)


@dataclass(slots=True)
class _CountingRunner:
    """Runner that counts its jobs."""

    runner: Runner
    jobs: int = 0

    @property
    def slots(self) -> int:
        return self.runner.slots

    def run(self, task: Task, parts: int) -> pa.Table:
        self.jobs += 1
        return self.runner.run(task, parts)


def _survey(member: Member, now: datetime) -> None:
    try:
        member.survey = member.take_survey(now)
        member.report.before = _figures_of(member.survey)
    except TABLE_ERRORS as error:
        member.report.add_failure(error)
        member.report.fate = TableOutcome.SKIPPED


def _replan_indices(member: Member, now: datetime) -> None:
    """Replan the index maintenance of a table that was compacted."""
    try:
        index = plan_maintenance(member.take_survey(now), member.policy).index
    except TABLE_ERRORS as error:
        member.report.add_failure(error)
        return
    if member.due is not None:
        member.due = replace(member.due, index=index)
        member.report.due = member.due.reasons


def _survey_result(member: Member, now: datetime) -> None:
    try:
        member.report.after = _figures_of(member.take_survey(now))
    except TABLE_ERRORS as error:
        member.report.add_failure(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _figures_of(survey: Survey) -> Figures:
    return Figures(
        version=survey.version,
        rows=survey.rows,
        deleted_rows=survey.deleted_rows,
        fragments=survey.fragments,
        files=survey.files,
        bytes=survey.bytes,
        index_rows_uncovered=sum(index.uncovered_rows for index in survey.indices),
        index_segments=sum(index.segments for index in survey.indices),
    )


def run_concurrently(work: Callable[[_A], None], items: Iterable[_A]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="maintaining") as threads:
        list(threads.map(work, items))
