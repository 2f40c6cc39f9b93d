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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.coordination import progress
from lance_core.coordination.leases import release
from lance_core.dml import new_columns, settings
from lance_core.dml.column_files import PositionedBatch
from lance_core.dml.column_fill import FilledFragment, keep_valid, plan_fill, read_field_ids, resolve_target
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
from lance_core.dml.freshness import known_fresh, measure_freshness, record_fresh, unchanged_since
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

Positions = npt.NDArray[np.int64]
FRAGMENTS_PER_SLOT = 8
"""Fragments that each worker gets in one job, so that a bound and the progress are checked now and then."""
ERRORS_MAX = 1_000
"""Number of failed rows of one fragment that a report names."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one run. A run may exceed the number of rows by one for each worker."""

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
class _FragmentResult:
    """Numbers of one fragment."""

    before: Freshness
    """State of the rows before the run."""
    computed: int = 0
    stale_left: int = 0
    failed: tuple[FailedRow, ...] = ()
    failed_count: int = 0

    def encode(self) -> bytes:
        numbers = {
            "before": self.before.to_dict(),
            "computed": self.computed,
            "stale_left": self.stale_left,
            "failed": [[each.row_address, each.error] for each in self.failed],
            "failed_count": self.failed_count,
        }
        return json.dumps(numbers).encode()

    @classmethod
    def decode(cls, data: bytes) -> "_FragmentResult":
        numbers = json.loads(data)
        return cls(
            Freshness(**numbers["before"]),
            numbers["computed"],
            numbers["stale_left"],
            tuple(FailedRow(address, error) for address, error in numbers["failed"]),
            numbers["failed_count"],
        )


@dataclass(frozen=True, slots=True)
class FillReport:
    """Result of one run for one column."""

    declaration: Declaration
    committed: Committed
    before: Freshness
    """State of the rows before the run."""
    computed: int
    """Rows that got a value, from this run or from one that was killed before its commit."""
    remaining: int
    """Stale rows after the run."""
    failed: tuple[FailedRow, ...]
    """Rows for which the function raised, at most a thousand of each fragment."""
    failed_count: int
    seconds: float

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
    """Fill computed columns, each in a version of its own, in the order of their inputs. A row whose input is stale,
    because a bound or an error left it so, is computed from the value that the input has, and again once it changes."""
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
    """Compute the stale rows of one column whose inputs are resolved; `recompute` computes all rows."""
    started = time.monotonic()
    declaration = declare(table, column, options)
    run = _FillRun(column, declaration, recompute, bounds, runner, started)
    committed = run_change(table, options, "compute_columns", run.plan, operation=Update.name)
    if committed.already_committed:
        present = measure_freshness(table.newest(), declaration)
        return FillReport(declaration, committed, present, 0, present.stale, (), 0, time.monotonic() - started)
    run.finish(table, committed)
    results = run.results.values()
    return FillReport(
        declaration,
        committed,
        before=total(each.before for each in results),
        computed=sum(each.computed for each in results),
        remaining=sum(each.stale_left for each in results),
        failed=tuple(row for each in results for row in each.failed),
        failed_count=sum(each.failed_count for each in results),
        seconds=time.monotonic() - started,
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
        declared[:] = [Declaration.of(column, before)]
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
    filled: dict[int, FilledFragment] = field(default_factory=dict)
    results: dict[int, _FragmentResult] = field(default_factory=dict)
    """Numbers of each fragment, including those that the run did not reach."""
    job: str = field(default_factory=lambda: str(uuid.uuid4()))
    directory: str = ""
    """Directory of the records of filled fragments; empty before the first plan."""
    lease: str | None = None
    """Lease on the files of an earlier run."""
    field_ids: tuple[int, ...] | None = None
    """Ids of the inputs and of the column in the last plan."""

    @property
    def names(self) -> set[str]:
        """Columns that decide whether what was computed for a fragment is still valid."""
        return {*self.declaration.inputs, self.column.name, self.column.fingerprint}

    def plan(self, base: Snapshot) -> Merge | Update | None:
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
                self.results[fragment.id] = _FragmentResult(Freshness(fragment.live_rows))
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
                rows = fragment.live_rows
                self.results[fragment.id] = _FragmentResult(Freshness(rows, uninspected=rows), stale_left=rows)
        return plan_fill(base, target, self.filled)

    def finish(self, table: TableRef, committed: Committed) -> None:
        """Record the fragments without a stale row, and remove the records of filled fragments."""
        at = load_at(table.newest().location, committed.version)
        # Another writer may have replaced inputs between the plan and the commit, which does not conflict.
        if read_field_ids(at, self.names) == self.field_ids:
            complete = [number for number in self.filled if not self.results[number].stale_left]
            planned = at.manifest.with_fragments(self.filled[number].fragment for number in complete)
            then = Snapshot(at.location, planned, at.scheme)
            record_fresh(at, self.declaration, unchanged_since(then, at, complete, self.declaration.inputs))
        progress.remove_records(at.location.own_store, self.directory)
        if self.lease is not None:
            release(at.location.own_store, self.lease)

    def _resume(self, base: Snapshot, ids: Sequence[int]) -> None:
        """Load the fragments that an earlier run has filled with the same declaration, if it has not committed them. A
        fragment in which it left stale rows is filled again."""
        key = json.dumps(["computed column", list(ids), self.declaration.code])
        store, self.directory = base.location.own_store, progress.directory_of(key)
        if self.recompute:
            return
        recorded: dict[int, FilledFragment] = {}
        for fragment in progress.completed_fragments(store, self.directory):
            details = progress.recorded_details(store, self.directory, fragment.id)
            with suppress(pa.ArrowException, Corrupt, ValueError, LookupError, TypeError):
                if details is not None:
                    filled, result = _decode_result(details)
                    if not result.stale_left:
                        recorded[filled.fragment.id], self.results[filled.fragment.id] = filled, result
        self.filled, self.lease = load_existing(store, self.directory, recorded, job="a computed column")

    def _is_exhausted(self) -> bool:
        rows, seconds = self.bounds.rows_max, self.bounds.seconds_max
        if rows is not None and self._computed() >= rows:
            return True
        return seconds is not None and time.monotonic() - self.started >= seconds

    def _computed(self) -> int:
        return sum(each.computed for each in self.results.values())

    def _fill(self, base: Snapshot, fragments: Sequence[Fragment]) -> None:
        rows, seconds = self.bounds.rows_max, self.bounds.seconds_max
        groups = min(max(1, self.runner.slots), len(fragments))
        task = _FillTask(
            self.column,
            self.declaration,
            self.recompute,
            None if rows is None else -(-(rows - self._computed()) // groups),
            None if seconds is None else seconds - (time.monotonic() - self.started),
            self.job,
            self.directory,
        )
        partitions = tuple(tuple(each.encode() for each in fragments[number::groups]) for number in range(groups))
        results = run_over_partitions(base, partitions, task, self.runner)
        for encoded in (result for each in results.values() for result in each):
            filled, numbers = _decode_result(encoded)
            self.filled[filled.fragment.id], self.results[filled.fragment.id] = filled, numbers
        if missing := [fragment.id for fragment in fragments if fragment.id not in self.filled]:
            raise StorageError(f"{base.location.uri}: no worker returned fragment {missing[0]}; run it again")


def _decode_result(encoded: bytes) -> tuple[FilledFragment, _FragmentResult]:
    """Return what a worker returned or recorded for a fragment."""
    numbers, _, filled = encoded.partition(b"\n")
    return FilledFragment.decode(filled), _FragmentResult.decode(numbers)


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
            ends_at = None if self.seconds_max is None else started + self.seconds_max
            work = _FragmentWork(self, partition, fragment, rows_left, ends_at)
            filled = fill_fragment(partition, fragment, target, work.values(), runtime=SYSTEM_RUNTIME)
            computed += work.computed
            encoded = work.result().encode() + b"\n" + filled.encode()
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
    ends_at: float | None
    """Time of the monotonic clock after which no row is computed."""
    computed: int = 0
    stale_left: int = 0
    before: list[Freshness] = field(default_factory=list)
    failed: list[FailedRow] = field(default_factory=list)
    failed_count: int = 0

    def result(self) -> _FragmentResult:
        return _FragmentResult(
            total(self.before), self.computed, self.stale_left, tuple(self.failed), self.failed_count
        )

    def values(self) -> Iterator[PositionedBatch]:
        """Yield the values and fingerprints of the stale rows, until a bound is reached. The rest is only counted."""
        for rows in find_stale_rows(self.base, self.fragment, self.task.declaration):
            self.before.append(rows.freshness)
            is_left = rows.stale.copy()
            due = np.arange(len(is_left)) if self.task.recompute else np.flatnonzero(rows.stale)
            while len(due) and not self._is_exhausted():
                count = len(due) if self.rows_left is None else min(len(due), self.rows_left - self.computed)
                values, positions = self._compute(rows, due[:count])
                is_left[positions] = False
                due = due[count:]
                yield values
            self.stale_left += int(is_left.sum())

    def _is_exhausted(self) -> bool:
        if self.rows_left is not None and self.computed >= self.rows_left:
            return True
        return self.ends_at is not None and time.monotonic() >= self.ends_at

    def _compute(self, rows: InspectedRows, due: Positions) -> tuple[PositionedBatch, Positions]:
        """Compute rows of a batch. Return the values, and the positions of the rows that have one."""
        column, inputs = self.task.column, rows.inputs
        is_whole = len(due) == inputs.batch.num_rows
        batch = inputs.batch if is_whole else inputs.batch.take(pa.array(due))
        offsets = inputs.offsets[due]
        what = f"{self.base.location.uri}: fragment {self.fragment.id}, rows {offsets[0]} to {offsets[-1]}"
        result = compute_rows(column, function_of(column, self.task.job), batch, what)
        self.computed += len(result.positions)
        self.failed_count += len(result.errors)
        for position, error in result.errors[: max(0, ERRORS_MAX - len(self.failed))]:
            self.failed.append(FailedRow(int(self.fragment.id) << 32 | int(offsets[position]), error))
        positions = due[result.positions]
        fingerprints = pa.array(rows.fingerprints[positions], pa.uint64())
        values = pa.RecordBatch.from_arrays([result.values, fingerprints], schema=column.schema)
        return PositionedBatch(values, inputs.offsets[positions]), positions


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
