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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.coordination import progress
from lance_core.coordination.leases import release
from lance_core.dml import new_columns, settings
from lance_core.dml.column_files import PositionedBatch
from lance_core.dml.column_fill import ColumnTarget, FilledFragment, keep_valid, plan_fill, resolve_target
from lance_core.dml.computed_column import (
    DECLARATION_KEY,
    ComputedColumn,
    Declaration,
    ErrorPolicy,
    Function,
    declared_columns,
    in_order,
    resolve_all,
)
from lance_core.dml.freshness import known_fresh, record_fresh, unchanged_since
from lance_core.dml.replaced_columns import fill_fragment
from lance_core.dml.row_computation import compute_rows, function_of
from lance_core.dml.stale_rows import Freshness, InspectedRows, find_stale_rows, total
from lance_core.errors import Corrupt, InvalidInput, StorageError
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Merge, Operation, Update
from lance_core.progress import report
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.table.base import Committed
from lance_core.tasks.columns.resumed_fill import load_existing, record_filled
from lance_core.tasks.driver import TableRef, WriteOptions, run_change, run_over_partitions
from lance_core.tasks.partitioning import Runner
from lance_core.versions.snapshot import Snapshot, load_at

FRAGMENTS_PER_SLOT = 8
"""Fragments that each worker gets in one job, so that a bound and the progress are checked now and then."""
ERRORS_MAX = 1_000
"""Number of failed rows of one fragment that a report names."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one run. A run may exceed the number of rows by a batch for each worker."""

    rows_max: int | None = None
    seconds_max: float | None = None

    def check(self) -> "Bounds":
        if self.rows_max is not None:
            validation.check_integer(self.rows_max, "rows_max", at_least=1, too_small="it must be at least 1")
        seconds: object = self.seconds_max
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise InvalidInput(f"seconds_max={self.seconds_max!r}: it must be a positive number of seconds")
        return self


@dataclass(frozen=True, slots=True)
class FailedRow:
    """Row for which the function raised."""

    row_address: int
    error: str


@dataclass(frozen=True, slots=True)
class FillReport:
    """Result of one run for one column."""

    declaration: Declaration
    committed: Committed
    before: Freshness
    """State of the rows before the run."""
    computed: int
    """Rows for which the function was called, by this run or by one that was killed before its commit."""
    failed: tuple[FailedRow, ...]
    seconds: float

    @property
    def remaining(self) -> int:
        """Stale rows after the run."""
        return max(0, self.before.stale - self.computed)

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
    runner: Runner,
) -> tuple[FillReport, ...]:
    """Fill computed columns, each in a version of its own, in the order of their inputs. A column whose inputs are left
    stale by a bound is filled for the rows that have them."""
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
            fill_computed_column(table, column, recompute=recompute, bounds=bounds, options=own, runner=runner)
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
    """Compute the stale rows of one column whose inputs are resolved; `recompute` takes all rows for stale."""
    started = time.monotonic()
    declaration = declare(table, column, options)
    run = _FillRun(column, declaration, recompute, bounds, runner, started)
    committed = run_change(table, options, "compute_columns", run.plan, operation=Update.name)
    run.finish(table, committed)
    counts = total(run.freshness.values())
    return FillReport(
        declaration, committed, counts, sum(run.computed.values()), run.failed_rows(), time.monotonic() - started
    )


def declare(table: TableRef, column: ComputedColumn, options: WriteOptions) -> Declaration:
    """Store the declaration with the column. A column that does not exist is added, with null in every row."""
    declared: list[Declaration] = []

    def add(base: Snapshot) -> Merge | None:
        schema = base.manifest.schema.arrow
        declared[:] = [Declaration.of(column, declared_columns(schema).get(column.name))]
        missing = [each for each in column.schema if each.name not in schema.names]
        if column.name in schema.names:
            resolve_target(base, column.schema, replace=True)  # reports another type
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
        declared[:] = [Declaration.of(column, before)]
        if before is not None and replace(before, earlier={}) == replace(declared[0], earlier={}):
            declared[:] = [before]
            return None
        changes = {column.name: {DECLARATION_KEY: declared[0].encode()}}
        return settings.set_field_metadata(base, changes, replace=False)

    quiet = WriteOptions(properties=options.properties, retries=options.retries)
    run_change(table, quiet, "declare_computed_column", add, operation=Merge.name)
    run_change(table, quiet, "declare_computed_column", describe, operation="UpdateConfig")
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
    filled: dict[int, FilledFragment] = field(default_factory=dict)
    freshness: dict[int, Freshness] = field(default_factory=dict)
    """State of the rows of each fragment before the run."""
    computed: dict[int, int] = field(default_factory=dict)
    failed: dict[int, tuple[FailedRow, ...]] = field(default_factory=dict)
    job: str = field(default_factory=lambda: str(uuid.uuid4()))
    directory: str = ""
    """Directory of the records of filled fragments; empty before the first plan."""
    lease: str | None = None
    """Lease on the files of an earlier run."""

    def plan(self, base: Snapshot) -> Merge | Update | None:
        """Fill the stale fragments that have no valid file, and return the operation."""
        fragments = base.manifest.fragments
        target = resolve_target(base, self.column.schema, replace=True)
        if not self.directory:
            self._resume(base)
        self._keep_valid(base, target)
        fresh = BitMap() if self.recompute else known_fresh(base, self.declaration)
        todo = []
        for fragment in fragments:
            if fragment.id in fresh:
                self.filled[fragment.id] = FilledFragment.unchanged(fragment, target)
                self.freshness[fragment.id] = Freshness(fragment.live_rows)
            elif fragment.id not in self.filled:
                todo.append(fragment)
        wave = max(1, self.runner.slots) * FRAGMENTS_PER_SLOT
        for first in range(0, len(todo), wave):
            if self._is_exhausted():
                break
            report("compute stale rows", first, len(todo), "fragments")
            self._fill(base, todo[first : first + wave])
        else:
            report("compute stale rows", len(todo), len(todo), "fragments")
        for fragment in todo:
            if fragment.id not in self.filled:
                self.freshness[fragment.id] = Freshness(fragment.live_rows, uninspected=fragment.live_rows)
        return plan_fill(base, target, self.filled)

    def finish(self, table: TableRef, committed: Committed) -> None:
        """Record the fragments without a stale row, and remove the records of filled fragments."""
        at = load_at(table.newest().location, committed.version)
        complete = [number for number in self.filled if self.freshness[number].stale <= self.computed.get(number, 0)]
        # Another writer may have replaced inputs between the plan and the commit, which does not conflict.
        planned = at.manifest.with_fragments(self.filled[number].fragment for number in complete)
        then = Snapshot(at.location, planned, at.scheme)
        record_fresh(at, self.declaration, unchanged_since(then, at, complete, self.declaration.inputs))
        progress.remove_records(at.location.own_store, self.directory)
        if self.lease is not None:
            release(at.location.own_store, self.lease)

    def _resume(self, base: Snapshot) -> None:
        """Load the fragments that an earlier run has filled with the same declaration, if it has not committed them."""
        number = base.manifest.schema.field(self.column.name).id
        key = json.dumps(["computed column", int(number), self.declaration.code, list(self.declaration.inputs)])
        store, self.directory = base.location.own_store, progress.directory_of(key)
        if self.recompute:
            return
        recorded: dict[int, FilledFragment] = {}
        for fragment in progress.completed_fragments(store, self.directory):
            details = progress.recorded_details(store, self.directory, fragment.id)
            with suppress(pa.ArrowException, Corrupt, ValueError, KeyError, TypeError):
                if details is not None:
                    self._add_result(details)
                    recorded[fragment.id] = self.filled.pop(fragment.id)
        self.filled, self.lease = load_existing(store, self.directory, recorded, job="a computed column")

    def _add_result(self, encoded: bytes) -> None:
        """Add what a worker returned or recorded for a fragment."""
        header, _, rest = encoded.partition(b"\n")
        filled, counts = FilledFragment.decode(rest), json.loads(header)
        number = filled.fragment.id
        self.freshness[number] = Freshness(**counts["freshness"])
        self.computed[number] = counts["computed"]
        self.failed[number] = tuple(FailedRow(**each) for each in counts["failed"])
        self.filled[number] = filled

    def failed_rows(self) -> tuple[FailedRow, ...]:
        return tuple(row for _number, rows in sorted(self.failed.items()) for row in rows)

    def _keep_valid(self, base: Snapshot, target: ColumnTarget) -> None:
        """Forget the fragments whose rows or inputs have changed since they were filled."""
        read = {*self.declaration.inputs, self.column.name, self.column.fingerprint}
        self.filled = keep_valid(base, self.filled, target, read)
        for counts in (self.freshness, self.computed, self.failed):
            for number in [each for each in counts if each not in self.filled]:
                counts.pop(number)

    def _is_exhausted(self) -> bool:
        rows, seconds = self.bounds.rows_max, self.bounds.seconds_max
        if rows is not None and sum(self.computed.values()) >= rows:
            return True
        return seconds is not None and time.monotonic() - self.started >= seconds

    def _fill(self, base: Snapshot, fragments: Sequence[Fragment]) -> None:
        rows, seconds = self.bounds.rows_max, self.bounds.seconds_max
        slots = max(1, self.runner.slots)
        task = _FillTask(
            self.column,
            self.declaration,
            self.recompute,
            None if rows is None else -(-(rows - sum(self.computed.values())) // slots),
            None if seconds is None else seconds - (time.monotonic() - self.started),
            self.job,
            self.directory,
        )
        groups = [tuple(each.encode() for each in fragments[number::slots]) for number in range(slots)]
        partitions = tuple(group for group in groups if group)
        results = run_over_partitions(base, partitions, task, self.runner)
        for encoded in (result for each in results.values() for result in each):
            self._add_result(encoded)
        if missing := [fragment.id for fragment in fragments if fragment.id not in self.filled]:
            raise StorageError(f"{base.location.uri}: no worker returned fragment {missing[0]}; run it again")


@dataclass(frozen=True, slots=True)
class _FillTask:
    """Computes the stale rows of some fragments, up to a number of rows and a time."""

    column: ComputedColumn
    declaration: Declaration
    recompute: bool
    rows_max: int | None
    seconds_max: float | None
    job: str
    directory: str

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        started, computed = time.monotonic(), 0
        target = resolve_target(partition, self.column.schema, replace=True)
        for fragment in partition.manifest.fragments:
            rows_left = None if self.rows_max is None else self.rows_max - computed
            seconds_left = None if self.seconds_max is None else self.seconds_max - (time.monotonic() - started)
            work = _FragmentWork(self, partition, fragment, rows_left, seconds_left)
            filled = fill_fragment(partition, fragment, target, work.values(), runtime=SYSTEM_RUNTIME)
            computed += work.computed
            counts = {
                "freshness": total(work.freshness).to_dict(),
                "computed": work.computed,
                "failed": [{"row_address": each.row_address, "error": each.error} for each in work.failed],
            }
            encoded = json.dumps(counts).encode() + b"\n" + filled.encode()
            if work.computed and not self.recompute:
                record_filled(partition.location.own_store, self.directory, filled, encoded)
            yield encoded


@dataclass
class _FragmentWork:
    """Computation of one fragment."""

    task: _FillTask
    base: Snapshot
    fragment: Fragment
    rows_left: int | None
    seconds_left: float | None
    computed: int = 0
    freshness: list[Freshness] = field(default_factory=list)
    failed: list[FailedRow] = field(default_factory=list)

    def values(self) -> Iterator[PositionedBatch]:
        """Yield the values and fingerprints of the stale rows, until a bound is reached. The rest is only counted."""
        column, started = self.task.column, time.monotonic()
        function = function_of(column, self.task.job)
        inspected: Iterable[InspectedRows] = find_stale_rows(
            self.base, self.fragment, self.task.declaration, all_rows=self.task.recompute
        )
        for rows in inspected:
            self.freshness.append(rows.freshness)
            stale = np.flatnonzero(rows.stale)
            if self.rows_left is not None:
                stale = stale[: max(0, self.rows_left - self.computed)]
            is_late = self.seconds_left is not None and time.monotonic() - started >= self.seconds_left
            if not len(stale) or is_late:
                continue
            is_complete = len(stale) == rows.inputs.batch.num_rows
            batch = rows.inputs.batch if is_complete else rows.inputs.batch.take(pa.array(stale))
            offsets = rows.inputs.offsets[stale]
            what = f"{self.base.location.uri}: fragment {self.fragment.id}, rows {offsets[0]} to {offsets[-1]}"
            result = compute_rows(column, function, batch, what)
            self.computed += len(result.positions)
            for position, error in result.errors[: max(0, ERRORS_MAX - len(self.failed))]:
                self.failed.append(FailedRow(int(self.fragment.id) << 32 | int(offsets[position]), error))
            fingerprints = pa.array(rows.fingerprints[stale][result.positions], pa.uint64())
            arrays = [result.values, fingerprints]
            yield PositionedBatch(pa.RecordBatch.from_arrays(arrays, schema=column.schema), offsets[result.positions])


__all__ = [
    "Bounds",
    "ComputedColumn",
    "ErrorPolicy",
    "FailedRow",
    "FillReport",
    "Function",
    "compute_columns",
    "declare",
    "fill_computed_column",
    "in_order",
]
