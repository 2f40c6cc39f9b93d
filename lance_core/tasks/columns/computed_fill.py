"""Computed fill: computes the stale rows of a computed column in workers, and commits their values as one version.

    declare    adds the column and its fingerprints as nulls, and stores the declaration with it
    inspect    reads the inputs of fragments that are not known to be fresh, and compares fingerprints
    compute    calls the function for the stale rows; each fragment with one gets a file with the column
    record     each worker records a fragment that it has filled, for the run after a killed driver
    commit     one version; after a conflict, only fragments with other rows or inputs are computed again

A bound on rows or seconds ends a run early: it commits what it has computed, and the next run continues. Other writers
may append, delete, update, upsert and compact meanwhile. Start with `fill_computed_column`.
"""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.commit.write_protocol import Planned
from lance_core.coordination import progress
from lance_core.dml import new_columns, settings
from lance_core.dml.call_settings import BlobForm, CallSettings, CallUnit, InputFormat, RetriedError
from lance_core.dml.column_fill import FilledFragment, keep_valid, plan_fill, read_field_ids, resolve_target
from lance_core.dml.column_sources import with_column_sources
from lance_core.dml.computed_column import (
    DECLARATION_KEY,
    ComputedColumn,
    Declaration,
    ErrorPolicy,
    Function,
    declared_columns,
    fingerprint_columns,
    in_order,
    resolve_all,
)
from lance_core.dml.freshness import known_fresh, measure_freshness, record_fresh, unchanged_since
from lance_core.dml.function_calls import assigned_devices, device_addresses
from lance_core.dml.stale_rows import Freshness, total
from lance_core.errors import Corrupt, InvalidInput, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Merge, Operation, Update
from lance_core.progress import report
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.base import Committed
from lance_core.tasks.columns.fill_errors import append_entries, errors_target, remove_superseded, skipped_rows
from lance_core.tasks.columns.fill_task import ErrorsTarget, FailedRow, FillTask, FragmentResult, RowIds, decode_result
from lance_core.tasks.columns.resumed_fill import FileLease, load_existing, releasing_lease
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_partitions
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot, load_at

Positions = npt.NDArray[np.int64]
FRAGMENTS_PER_SLOT = 8
"""Fragments that each worker gets in one job, so that a bound and the progress are checked now and then."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one run. A run may exceed the number of rows by one for each worker."""

    rows_max: int | None = None
    """Rows for which the function is called, also if it fails."""
    seconds_max: float | None = None

    def check(self) -> "Bounds":
        if self.rows_max is not None:
            validation.check_integer(self.rows_max, "rows_max", at_least=1, too_small="it must be at least 1")
        seconds: object = self.seconds_max
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise InvalidInput(f"seconds_max={self.seconds_max!r}: it must be a positive number of seconds")
        return self


@dataclass(frozen=True, slots=True)
class FillReport:
    """Result of one run for one column."""

    declaration: Declaration
    committed: Committed
    before: Freshness
    """State of the rows before the run."""
    after: Freshness
    """State of the rows after the run, those that it has not reached included."""
    computed: int
    """Rows that got a value, from this run or from one that was killed before its commit."""
    failed: tuple[FailedRow, ...]
    """Rows for which the function raised, at most a thousand of each fragment."""
    failed_count: int
    seconds: float
    errors_uri: str | None = None
    """Side table with the failed rows of this run and of earlier ones; `None` if there are none."""
    failed_total: int = 0
    """Failed rows of this run and of earlier ones that have no value yet, as `Table.failed_rows` returns them."""

    @property
    def remaining(self) -> int:
        """Stale rows after the run."""
        return self.after.stale

    @property
    def rows_by_code(self) -> dict[str, int]:
        """Rows whose value belongs to their inputs, by the version of the code that computed it."""
        return {self.declaration.code: self.after.rows - self.after.stale, **self.after.older_code}

    @property
    def seconds_left(self) -> float | None:
        """Estimated time for the remaining rows; `None` if nothing was computed."""
        return self.remaining * self.seconds / self.computed if self.computed else None


def compute_columns(
    table: TableRef,
    columns: Sequence[ComputedColumn],
    *,
    recompute: bool,
    bounds: Bounds,
    options: WriteOptions,
    runner_for: Callable[[ComputedColumn], Runner],
) -> tuple[FillReport, ...]:
    """Fill computed columns, each in a version of its own, in the order of their inputs. A row whose input is stale,
    because a bound or an error left it so, is computed from the value that the input has, and again once it changes.
    `runner_for` returns the runner whose tasks have the resources that a column asks for."""
    in_order(columns)
    bounds.check()
    if recompute and bounds != Bounds():
        raise InvalidInput("recompute=True computes all rows in one run; leave out rows_max= and seconds_max=")
    base = table.newest()
    ordered = resolve_all(columns, base.manifest.schema.arrow, what=table.uri)
    reports = []
    for column in ordered:
        own = options
        if options.intent is not None and len(ordered) > 1:
            own = replace(options, intent=f"{options.intent}: {column.name}")
        reports.append(
            fill_computed_column(
                table, column, recompute=recompute, bounds=bounds, options=own, runner=runner_for(column)
            )
        )
    return tuple(reports)


def fill_computed_column(
    table: TableRef,
    column: ComputedColumn,
    *,
    recompute: bool = False,
    bounds: Bounds,
    options: WriteOptions,
    runner: Runner,
) -> FillReport:
    """Compute the stale rows of one column whose inputs are resolved; `recompute` computes all rows."""
    started = time.monotonic()
    declaration = declare(table, column, options)
    run = _FillRun(column, declaration, recompute, bounds, runner, started, options.intent or str(uuid.uuid4()))
    with releasing_lease(run):
        committed = run_change(table, options, "compute_columns", run.plan, operation=Update.name)
        if committed.already_committed:
            present = measure_freshness(table.newest(), declaration)
            return FillReport(declaration, committed, present, present, 0, (), 0, time.monotonic() - started)
        run.finish(table, committed)
    results = run.results.values()
    return FillReport(
        declaration,
        committed,
        before=total(each.before for each in results),
        after=total(each.after for each in results),
        computed=sum(each.computed for each in results),
        failed=tuple(row for each in results for row in each.failed),
        failed_count=sum(each.failed_count for each in results),
        seconds=time.monotonic() - started,
        errors_uri=run.errors.uri if run.errors is not None and run.failed_total else None,
        failed_total=run.failed_total,
    )


def declare(table: TableRef, column: ComputedColumn, options: WriteOptions) -> Declaration:
    """Store the declaration with the column. A column that does not exist is added, with null in every row."""
    declared: list[Declaration] = []

    def add(base: Snapshot) -> Merge | None:
        schema = base.manifest.schema.arrow
        declared[:] = [Declaration.of(column, declared_columns(schema).get(column.name), schema)]
        missing = [each for each in column.schema if each.name not in schema.names]
        if column.name in schema.names:
            resolve_target(base, column.schema, replace=True)  # reports another type
            if column.name not in declared_columns(schema):
                raise InvalidInput(
                    f"{base.location.uri} has a column {column.name!r} that is not computed, whose values a run would "
                    "replace; choose another name, or drop the column first"
                )
        elif column.fingerprint in schema.names:
            raise InvalidInput(
                f"{base.location.uri} has the column {column.fingerprint!r} without {column.name!r}; drop or rename "
                "the two together, or the fingerprints would mark null values as computed"
            )
        described = [
            each.with_metadata({DECLARATION_KEY: declared[0].encode()}) if each.name == column.name else each
            for each in missing
        ]
        if not described:
            return None
        nulls = pa.schema(described)
        return new_columns.add_columns(base, nulls, schema=None, read_columns=None, runtime=SYSTEM_RUNTIME)

    def describe(base: Snapshot) -> Operation | None:
        before = declared_columns(base.manifest.schema.arrow).get(column.name)
        declared[:] = [Declaration.of(column, before, base.manifest.schema.arrow)]
        if before is not None and replace(before, earlier=()) == replace(declared[0], earlier=()):
            declared[:] = [before]
            return None
        changes = {column.name: {DECLARATION_KEY: declared[0].encode()}}
        return settings.set_field_metadata(base, changes, replace=False)

    without_intent = WriteOptions(properties=options.properties, retries=options.retries)
    run_change(table, without_intent, "declare_computed_column", add, operation=Merge.name)
    run_change(table, without_intent, "declare_computed_column", describe, operation="UpdateConfig")
    return declared[0]


@dataclass
class _FillRun:
    """State of one run on the driver, which it keeps across replans."""

    column: ComputedColumn
    declaration: Declaration
    recompute: bool
    bounds: Bounds
    runner: Runner
    started: float
    run: str
    """Name of the run in the entries of failed rows."""
    filled: dict[int, FilledFragment] = field(default_factory=dict)
    results: dict[int, FragmentResult] = field(default_factory=dict)
    """Numbers of each fragment, including those that the run did not reach."""
    job: str = field(default_factory=lambda: str(uuid.uuid4()))
    directory: str = ""
    """Directory of the records of filled fragments; empty before the first plan."""
    lease: FileLease | None = None
    """Lease on the files of an earlier run."""
    errors: ErrorsTarget | None = None
    """Side table for failed rows."""
    failed_total: int = 0
    """Entries of the side table for rows of the column, after the run."""
    field_ids: tuple[int, ...] | None = None
    """Ids of the inputs and of the column in the last plan."""

    @property
    def names(self) -> set[str]:
        """Columns that decide whether what was computed for a fragment is still valid."""
        return {*self.declaration.reads, self.column.name, self.column.fingerprint}

    def plan(self, base: Snapshot) -> Planned | None:
        """Fill the stale fragments that have no valid file, and return the operation."""
        fragments, ids = base.manifest.fragments, read_field_ids(base, self.names)
        target = resolve_target(base, self.column.schema, replace=True)
        if not self.directory:
            self._resume(base, ids)
        if self.field_ids not in (None, ids):
            self.filled = {}
        self.field_ids = ids
        self.filled = keep_valid(base, self.filled, target, self.names)
        self.results = {number: self.results[number] for number in self.filled}
        fresh = BitMap() if self.recompute else known_fresh(base, self.declaration)
        todo = []
        for fragment in fragments:
            if fragment.id in fresh:
                self.filled[fragment.id] = FilledFragment.unchanged(fragment, target)
                is_fresh = Freshness(fragment.live_rows)
                self.results[fragment.id] = FragmentResult(is_fresh, is_fresh)
            elif fragment.id not in self.filled:
                todo.append(fragment)
        if self.column.on_error != "fail":
            self.errors = errors_target(base, self.column, self.run)
        waiting = self._waiting_rows(base)
        self._fill_in_waves(base, todo, waiting)
        self._retry(base, todo, waiting)
        if self.errors is not None:
            append_entries(base, self.errors, (each for result in self.results.values() for each in result.entries))
        for fragment in todo:
            if fragment.id not in self.filled:
                self.results[fragment.id] = FragmentResult.unreached(fragment)
        sources = {self.column.name: self.column.inputs}
        return with_column_sources(base, plan_fill(base, target, self.filled), sources)

    def _waiting_rows(self, base: Snapshot) -> RowIds:
        """Return the rows that a bounded run leaves until all others were tried: those that the present code has
        skipped. A run would otherwise try the same ones each time, and reach no other row."""
        if self.bounds.rows_max is None or self.errors is None or self.column.on_error != "skip":
            return np.array([], dtype=np.int64)
        return skipped_rows(base, self.errors, self.column)

    def _retry(self, base: Snapshot, todo: Sequence[Fragment], waiting: RowIds) -> None:
        """Try the rows that have waited longest, in the fragments that this run has left as they are."""
        if not len(waiting) or self._is_exhausted():
            return
        assert self.bounds.rows_max is not None
        untouched = [fragment for fragment in todo if self.results[fragment.id].is_untouched]
        first = {fragment.id: self.results[fragment.id] for fragment in untouched}
        if untouched:
            self._fill_in_waves(base, untouched, waiting[self.bounds.rows_max - self._tried() :])
        self.results |= {number: result.after_retry(self.results[number]) for number, result in first.items()}

    def _fill_in_waves(self, base: Snapshot, todo: Sequence[Fragment], waiting: RowIds) -> None:
        """Fill the fragments in jobs of some fragments each, until a bound is reached. Fragments that a worker has not
        reached, since its share of the rows was tried, are in a later job."""
        wave, left = max(1, self.runner.slots) * FRAGMENTS_PER_SLOT, list(todo)
        while left and not self._is_exhausted():
            report("compute stale rows", len(todo) - len(left), len(todo), "fragments")
            first, left = left[:wave], left[wave:]
            self._fill(base, first, waiting)
            left += [fragment for fragment in first if self.results[fragment.id].is_unreached]
        if not left:
            report("compute stale rows", len(todo), len(todo), "fragments")

    def finish(self, table: TableRef, committed: Committed) -> None:
        """Record the fragments without a stale row, and remove the records of filled fragments."""
        at = load_at(table.newest().location, committed.version)
        # Another writer may have replaced inputs between the plan and the commit, which does not conflict.
        if read_field_ids(at, self.names) == self.field_ids:
            complete = [number for number in self.filled if not self.results[number].after.stale]
            planned = at.manifest.with_fragments(self.filled[number].fragment for number in complete)
            then = Snapshot(at.location, planned, at.scheme)
            record_fresh(at, self.declaration, unchanged_since(then, at, complete, self.declaration.reads))
        if self.errors is not None:
            self.failed_total = remove_superseded(at, self.errors.uri, self.column.name)
        progress.remove_records(at.location.own_store, self.directory)

    def _resume(self, base: Snapshot, ids: Sequence[int]) -> None:
        """Load the fragments that an earlier run has filled with the same declaration, if it has not committed them. A
        fragment in which it left stale rows is filled again."""
        key = json.dumps(["computed column", list(ids), self.declaration.code, *self.declaration.unread])
        store, self.directory = base.location.own_store, progress.directory_of(key)
        if self.recompute:
            return
        recorded: dict[int, FilledFragment] = {}
        for fragment in progress.completed_fragments(store, self.directory):
            details = progress.recorded_details(store, self.directory, fragment.id)
            with suppress(pa.ArrowException, Corrupt, ValueError, LookupError, TypeError):
                if details is not None:
                    filled, result = decode_result(details)
                    if not result.after.stale:
                        recorded[filled.fragment.id], self.results[filled.fragment.id] = filled, result
        self.filled, self.lease = load_existing(store, self.directory, recorded, job="a computed column")

    def _is_exhausted(self) -> bool:
        rows, seconds = self.bounds.rows_max, self.bounds.seconds_max
        if rows is not None and self._tried() >= rows:
            return True
        return seconds is not None and time.monotonic() - self.started >= seconds

    def _tried(self) -> int:
        """Return the number of rows for which the function was called. Null, the value of a row that failed, counts as
        computed; a skipped row has no value."""
        failed = sum(each.failed_count for each in self.results.values()) if self.column.on_error == "skip" else 0
        return failed + sum(each.computed for each in self.results.values())

    def _fill(self, base: Snapshot, fragments: Sequence[Fragment], waiting: RowIds) -> None:
        seconds = self.bounds.seconds_max
        rows = None if self.bounds.rows_max is None else self.bounds.rows_max - self._tried()
        groups = min(max(1, self.runner.slots), len(fragments), len(fragments) if rows is None else rows)
        task = FillTask(
            self.column,
            self.declaration,
            self.recompute,
            None if rows is None else tuple(rows // groups + (number < rows % groups) for number in range(groups)),
            None if seconds is None else seconds - (time.monotonic() - self.started),
            None if self.column.rate_limit is None else groups / self.column.rate_limit,
            self.job,
            self.directory,
            self.errors,
            waiting,
        )
        partitions = tuple(tuple(each.encode() for each in fragments[number::groups]) for number in range(groups))
        results = run_over_partitions(base, partitions, task, self.runner)
        for encoded in (result for each in results.values() for result in each):
            filled, numbers = decode_result(encoded)
            self.filled[filled.fragment.id], self.results[filled.fragment.id] = filled, numbers
        if missing := [fragment.id for fragment in fragments if fragment.id not in self.filled]:
            raise StorageError(f"{base.location.uri}: no worker returned fragment {missing[0]}; run it again")


__all__ = [
    "BlobForm",
    "Bounds",
    "CallSettings",
    "CallUnit",
    "ComputedColumn",
    "Declaration",
    "ErrorPolicy",
    "FailedRow",
    "FillReport",
    "Freshness",
    "Function",
    "InputFormat",
    "RetriedError",
    "assigned_devices",
    "compute_columns",
    "declare",
    "declared_columns",
    "device_addresses",
    "fill_computed_column",
    "fingerprint_columns",
    "in_order",
]
