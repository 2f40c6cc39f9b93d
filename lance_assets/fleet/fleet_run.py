"""One round over a fleet: find, survey, plan, compact in one Spark job, keep indices up, clean up, look again.

    find_tables -> survey of each -> plan of each -> compact_many (one job) -> optimize_indices of those that need it
                -> cleanup of each -> survey of those worked

Whatever a table does to whoever reads it is its own trouble: it is told in the report, and the others go on. Only where
the job itself is lost, since some file ends every process that reads it, halves of the tables get jobs of their own.
Surveys and cleanups of several tables are under way at once, since each mostly waits for its store.
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
from lance_core.tasks.compact_many import TABLE_ERRORS, TableCompaction, compact_many
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.index_build import optimize_indices
from lance_core.tasks.partitioning import Runner, Task

_THREADS = 8
_JOB_ERRORS = (PySparkException, Py4JError)
_LOST_JOBS_MAX = 16
"""Jobs, after which it is the cluster and no table."""
_A = TypeVar("_A")


@dataclass(slots=True)
class Member:
    """One table of the fleet, as far as it has come."""

    uri: str
    policy: Maintenance
    access: Access = field(repr=False)
    ledger: Ledger | None = None
    keys: frozenset[dg.AssetKey] = frozenset()
    """What writes it, by assets of this project."""
    checks: tuple[Check, ...] = ()
    report: TableReport = field(init=False)
    table: Table | None = None
    survey: Survey | None = None
    due: Plan | None = None

    def __post_init__(self) -> None:
        self.report = TableReport(self.uri)

    @property
    def is_workable(self) -> bool:
        return self.survey is not None and self.report.fate not in (TableOutcome.DEFERRED, TableOutcome.SKIPPED)

    @property
    def needs_index_replan(self) -> bool:
        """Whether rows were moved from under its indices in this round."""
        return self.is_workable and self.report.compacted and self.survey is not None and bool(self.survey.indices)

    def open(self) -> Table:
        return Table.open(self.uri, **self.access)

    def take_survey(self, now: datetime) -> Survey:
        self.table = self.open()
        return survey_table(self.table, self.policy, now)


@dataclass(frozen=True, slots=True)
class FleetRun:
    context: dg.AssetExecutionContext
    members: Sequence[Member]
    skipped: Mapping[str, str]
    intent: str
    properties: Mapping[str, str]
    runner: Callable[[], Runner]
    """Asked for when there is something for it to do."""
    orphans: bool
    prefix: str
    started: float

    def run(self) -> FleetReport:
        now = datetime.now(UTC)
        self._plan(now)
        seconds = time.monotonic() - self.started
        wanted = [each for each in self.members if each.is_workable and each.due and each.due.compact]
        self.context.log.info(f"{len(self.members)} tables looked at in {seconds:.1f} s, {len(wanted)} to be compacted")
        jobs = self._compact_all(wanted) + self._maintain_indices(now)
        to_clean = [
            each for each in self.members if each.is_workable and each.policy.cleans and self._should_clean(each)
        ]
        # Asked now: a compaction makes versions, beside which others are among the newest no more.
        needed = pins_from_ledgers(self.context.instance) if to_clean else {}
        run_concurrently(lambda each: self._clean(each, needed), to_clean)
        worked = [each for each in self.members if each.report.has_changed]
        run_concurrently(lambda each: _survey_result(each, now), worked)
        for each in worked:
            self._record(each)
        told = [TableReport(uri, TableOutcome.SKIPPED, message=why) for uri, why in self.skipped.items()]
        return FleetReport(self.prefix, [*(each.report for each in self.members), *told], seconds, jobs)

    def _plan(self, now: datetime) -> None:
        run_concurrently(lambda each: _survey(each, now), self.members)
        old = any(each.survey and each.survey.expired_versions for each in self.members)
        needed = pins_from_ledgers(self.context.instance) if old else {}
        busy = active_runs_by_asset(self.context.instance, excluding=self.context.run.run_id)
        for each in self.members:
            if each.survey is None or each.table is None:
                continue
            others = needed.get(each.table.uri, {}).keys() | each.policy.pinned.keys()
            each.due = plan_maintenance(each.survey, each.policy, pinned=others)
            each.report.due = each.due.reasons
            writing = sorted(each.keys & busy.keys())
            if writing and not each.policy.beside_writes:
                each.report.fate = TableOutcome.DEFERRED
                what = f"the run {busy[writing[0]]} is writing it ({writing[0].to_user_string()})"
                each.report.message = f"{what}, and is not finished"

    def _compact_all(self, members: Sequence[Member]) -> int:
        if not members:
            return 0
        runner = _CountingRunner(self.runner())
        left, lost = [list(members)], 0
        while left:
            some = left.pop()
            try:
                self._compact_group(some, runner)
            except _JOB_ERRORS as error:
                lost += 1
                self.context.log.warning(f"the job that compacted {len(some)} tables was lost: {_first_line(error)}")
                if len(some) > 1 and lost <= _LOST_JOBS_MAX:
                    # A table that ends the processes that read it is in one of the halves.
                    left += [some[len(some) // 2 :], some[: len(some) // 2]]
                    continue
                for each in some:
                    each.report.add_failure(
                        StorageError(f"the Spark job that compacted it was lost: {_first_line(error)}")
                    )
        return runner.jobs

    def _compact_group(self, members: Sequence[Member], runner: Runner) -> None:
        wanted = [
            TableCompaction(
                TableRef(each.uri, **each.access), WriteOptions(self.intent, self.properties), each.policy.target_rows
            )
            for each in members
        ]
        for each, outcome in zip(members, compact_many(wanted, runner), strict=True):
            if outcome.committed and (outcome.committed.attempts or outcome.committed.already_committed):
                each.report.compacted, each.report.fate = True, TableOutcome.MAINTAINED
            if outcome.error:
                each.report.add_failure(outcome.error)

    def _maintain_indices(self, now: datetime) -> int:
        """One table after another: each has jobs of its own, of which a small one takes next to nothing."""
        run_concurrently(
            lambda each: _replan_indices(each, now), [each for each in self.members if each.needs_index_replan]
        )
        members = [each for each in self.members if each.is_workable and each.due and each.due.index]
        if not members:
            return 0
        runner, lost = _CountingRunner(self.runner()), 0
        for each in members:
            if lost > _LOST_JOBS_MAX:
                each.report.add_failure(
                    StorageError(f"its indices wait for the next round: {lost} Spark jobs were lost")
                )
                continue
            try:
                self._maintain_indices_of(each, runner)
            except TABLE_ERRORS as error:
                each.report.add_failure(error)
            except _JOB_ERRORS as error:
                lost += 1
                each.report.add_failure(StorageError(f"the Spark job for its indices was lost: {_first_line(error)}"))
        return runner.jobs

    def _maintain_indices_of(self, member: Member, runner: Runner) -> None:
        where, how = (
            TableRef(member.uri, **member.access),
            WriteOptions(self.intent + INDEX_INTENT_SUFFIX, self.properties),
        )
        done = optimize_indices(where, None, "small", options=how, runner=runner)
        if done.attempts or done.already_committed:
            member.report.indexed = True
            if member.report.fate is TableOutcome.IN_SHAPE:
                member.report.fate = TableOutcome.MAINTAINED

    def _should_clean(self, member: Member) -> bool:
        return self.orphans or bool(member.due and member.due.clean)

    def _clean(self, member: Member, ledgers: Pins) -> None:
        report = member.report
        try:
            table = member.open()
            done = clean_up(table, member.policy, pins_of_table(table, member.policy, ledgers))
        except TABLE_ERRORS as error:
            report.add_failure(error)
            return
        report.versions_removed = len(done.versions)
        report.files_removed = len(done.files) + len(done.orphans)
        report.bytes_removed = done.bytes
        report.kept = {str(version): list(why) for version, why in done.kept.items()}
        if report.files_removed and report.fate is TableOutcome.IN_SHAPE:
            report.fate = TableOutcome.MAINTAINED

    def _record(self, member: Member) -> None:
        """On the ledger of a table that has one; the sensor finds whatever is missed here."""
        if member.ledger is None or member.survey is None or member.table is None:
            return
        try:
            record_versions_of_run(self.context, member.ledger, member.checks, member.table, member.survey.version)
            retire_partitions(self.context.instance, member.ledger, member.table)
        except TABLE_ERRORS as error:
            member.report.add_failure(error)


@dataclass(slots=True)
class _CountingRunner:
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
    """What is due for its indices, once it is compacted."""
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


def _figures_of(found: Survey) -> Figures:
    return Figures(
        version=found.version,
        rows=found.rows,
        deleted_rows=found.deleted_rows,
        fragments=found.fragments,
        files=found.files,
        bytes=found.bytes,
        index_rows_uncovered=sum(each.uncovered_rows for each in found.indices),
        index_segments=sum(each.segments for each in found.indices),
    )


def run_concurrently(work: Callable[[_A], None], things: Iterable[_A]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="maintaining") as threads:
        list(threads.map(work, things))
