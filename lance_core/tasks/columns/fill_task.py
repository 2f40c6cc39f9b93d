"""Fill task: computes the stale rows of some fragments in a worker, for `computed_fill.py`.

    FillTask          the work of one task: up to a number of rows, a time and a rate
    FragmentResult    numbers of one fragment, with the files of its failed rows

Start with `FillTask`.
"""

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.dml import failed_rows
from lance_core.dml.blob_inputs import open_inputs
from lance_core.dml.column_files import PositionedBatch, read_rows_at
from lance_core.dml.column_fill import FilledFragment, resolve_target
from lance_core.dml.computed_column import ComputedColumn, Declaration
from lance_core.dml.function_calls import FunctionCalls, Pacer
from lance_core.dml.replaced_columns import fill_fragment
from lance_core.dml.row_computation import RowError, compute_rows
from lance_core.dml.stale_rows import FRESH, Freshness, InspectedRows, count_reasons, find_stale_rows, total
from lance_core.format.fragment import Fragment
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.scan.system_columns import ROW_ID
from lance_core.tasks.columns.resumed_fill import record_filled
from lance_core.tasks.side_table import SideTableTarget
from lance_core.versions.snapshot import Snapshot

Positions = npt.NDArray[np.int64]
RowIds = npt.NDArray[np.int64]
ERRORS_MAX = 1_000
"""Number of failed rows of one fragment that a report names."""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """Row for which the function raised."""

    row_id: int
    """Id of the row; its address in a table without stable row ids."""
    error_type: str
    """Name of the class of the error, with its module."""
    message: str
    """Message, cut to 500 characters; without it if it contains a secret."""
    key: str | None = None
    """JSON object of the columns of `error_keys`."""

    @property
    def error(self) -> str:
        return f"{self.error_type}: {self.message}"


@dataclass(frozen=True, slots=True)
class FragmentResult:
    """Numbers of one fragment."""

    before: Freshness
    """State of the rows before the run."""
    after: Freshness
    """State of the rows after the run."""
    computed: int = 0
    failed: tuple[FailedRow, ...] = ()
    """Failed rows, at most `ERRORS_MAX`."""
    failed_count: int = 0
    entries: tuple[bytes, ...] = ()
    """Encoded fragments of the side table with an entry for each failed row."""

    @classmethod
    def unreached(cls, fragment: Fragment) -> "FragmentResult":
        """Return the result of a fragment that a bounded run has not inspected."""
        uninspected = Freshness(fragment.live_rows, uninspected=fragment.live_rows)
        return cls(uninspected, uninspected)

    @property
    def is_unreached(self) -> bool:
        return self.before.uninspected == self.before.rows > 0

    @property
    def is_untouched(self) -> bool:
        """True if the fragment has stale rows, and the function was called for none."""
        return self.after.stale > 0 and not self.computed and not self.failed_count

    def after_retry(self, retried: "FragmentResult") -> "FragmentResult":
        """Return the result of two passes over the fragment, of which this one computed nothing. The second one may
        have ended before it had inspected all rows again."""
        return replace(retried, before=self.before, after=self.after - (retried.before - retried.after))

    def encode(self) -> bytes:
        numbers = {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "computed": self.computed,
            "failed": [[each.row_id, each.error_type, each.message, each.key] for each in self.failed],
            "failed_count": self.failed_count,
            "entries": [base64.b64encode(each).decode() for each in self.entries],
        }
        return json.dumps(numbers).encode()

    @classmethod
    def decode(cls, data: bytes) -> "FragmentResult":
        numbers = json.loads(data)
        return cls(
            Freshness(**numbers["before"]),
            Freshness(**numbers["after"]),
            numbers["computed"],
            tuple(FailedRow(*failed) for failed in numbers["failed"]),
            numbers["failed_count"],
            tuple(map(base64.b64decode, numbers["entries"])),
        )


def decode_result(encoded: bytes) -> tuple[FilledFragment, FragmentResult]:
    """Return what a worker returned or recorded for a fragment."""
    numbers, _, filled = encoded.partition(b"\n")
    return FilledFragment.decode(filled), FragmentResult.decode(numbers)


@dataclass(frozen=True, slots=True)
class FillTask:
    """Computes the stale rows of some fragments, up to a number of rows and a time."""

    column: ComputedColumn
    declaration: Declaration
    recompute: bool
    rows_max: tuple[int, ...] | None
    """Number of rows for each task; `None` without a bound."""
    seconds_max: float | None
    seconds_between: float | None
    """Time between two calls of this task, which has an equal share of the rate."""
    job: str
    directory: str
    errors: "ErrorsTarget | None" = None
    """Side table for failed rows; `None` if the first error ends the run."""
    waiting: RowIds = field(default_factory=lambda: np.array([], dtype=np.int64), compare=False)
    """Ids of stale rows that are left as they are."""

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        started, tried = time.monotonic(), 0
        target = resolve_target(partition, self.column.schema, replace=True)
        ends_at = None if self.seconds_max is None else started + self.seconds_max
        calls = _CallsOfTask(self, number)
        for fragment in partition.manifest.fragments:
            rows_left = None if self.rows_max is None else self.rows_max[number] - tried
            work = _FragmentWork(self, partition, fragment, calls, rows_left, ends_at)
            if work.is_exhausted():
                unchanged = FilledFragment.unchanged(fragment, target)
                yield FragmentResult.unreached(fragment).encode() + b"\n" + unchanged.encode()
                continue
            filled = fill_fragment(partition, fragment, target, work.values(), runtime=SYSTEM_RUNTIME)
            tried += work.tried
            encoded = work.result().encode() + b"\n" + filled.encode()
            if work.computed and not self.recompute:
                record_filled(partition.location.own_store, self.directory, filled, encoded)
            yield encoded


@dataclass(frozen=True, slots=True)
class ErrorsTarget:
    """Side table for failed rows, and what its entries say about the run. Picklable."""

    uri: str
    table: SideTableTarget
    run: str

    def write(self, base: Snapshot, rows: list[dict[str, object]]) -> tuple[Fragment, ...]:
        """Write entries into files, which the driver appends."""
        time = datetime.fromtimestamp(SYSTEM_RUNTIME.now_ns() / 1e9, UTC)
        fixed = {"run": self.run, "branch": base.manifest.branch}
        batch = failed_rows.entries_batch([{**row, **fixed} for row in rows], time)
        return self.table.write(base.location.locate_other(self.uri), [batch])


@dataclass(frozen=True, slots=True)
class _Failure:
    """Failed row of a fragment."""

    offset: int
    error: RowError
    fingerprint: int
    """Fingerprint of the inputs and the code that failed."""


@dataclass
class _CallsOfTask:
    """Calls of the function in one task, which loads it at its first stale row."""

    task: FillTask
    number: int
    _calls: FunctionCalls | None = None

    def open(self) -> FunctionCalls:
        if self._calls is None:
            pacer = None
            if self.task.seconds_between is not None:
                assert self.task.column.rate_limit is not None
                # The tasks of a job begin together, so their first calls are spaced, too.
                begins_at = SYSTEM_RUNTIME.elapsed_ns() / 1e9 + self.number / self.task.column.rate_limit
                pacer = Pacer(self.task.seconds_between, begins_at)
            self._calls = FunctionCalls(self.task.column, self.task.job, pacer=pacer)
        return self._calls


@dataclass
class _FragmentWork:
    """Computation of one fragment."""

    task: FillTask
    base: Snapshot
    fragment: Fragment
    calls: _CallsOfTask
    rows_left: int | None
    ends_at: float | None
    """Time of the monotonic clock after which no row is computed."""
    computed: int = 0
    tried: int = 0
    """Rows for which the function was called: those with a value, and those that failed."""
    before: list[Freshness] = field(default_factory=list)
    after: list[Freshness] = field(default_factory=list)
    failures: list[_Failure] = field(default_factory=list)

    def result(self) -> FragmentResult:
        """Return the numbers, and write the entries of failed rows. Rows behind the last one that was inspected count
        as such."""
        before, after = total(self.before), total(self.after)
        unseen = self.fragment.live_rows - before.rows
        uninspected = Freshness(unseen, uninspected=unseen)
        entries = list(self._entries())
        errors = self.task.errors
        written = errors.write(self.base, entries) if errors is not None and entries else ()
        failed = [
            FailedRow(each["row_id"], each["error_type"], each["message"], each["key"]) for each in entries[:ERRORS_MAX]
        ]
        return FragmentResult(
            before + uninspected,
            after + uninspected,
            self.computed,
            tuple(failed),
            len(entries),
            tuple(fragment.encode() for fragment in written),
        )

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries of the failed rows, whose ids and keys are read now."""
        column = self.task.column
        failures = {failure.offset: failure for failure in self.failures}
        names = [ROW_ID, column.fingerprint, *column.error_keys]
        for rows in read_rows_at(self.base, self.fragment, np.array(sorted(failures), dtype=np.int64), names):
            for offset, row in zip(rows.offsets.tolist(), rows.batch.to_pylist(), strict=True):
                failure = failures[offset]
                key = {name: row[name] for name in column.error_keys}
                yield {
                    "row_id": row[ROW_ID],
                    "key": json.dumps(key, default=str) if key else None,
                    "column": column.name,
                    "error_type": failure.error.type,
                    "message": failure.error.message,
                    "code_version": column.code_version,
                    # A row that is skipped keeps the fingerprint that it has.
                    "fingerprint": row[column.fingerprint] if column.on_error == "skip" else failure.fingerprint,
                }

    def values(self) -> Iterator[PositionedBatch]:
        """Yield the values and fingerprints of the stale rows, until a bound is reached."""
        for rows in find_stale_rows(self.base, self.fragment, self.task.declaration):
            self.before.append(rows.freshness)
            reasons = rows.reasons.copy()
            due = np.arange(len(reasons)) if self.task.recompute else self._without_waiting(rows)
            while len(due) and not self.is_exhausted():
                count = len(due) if self.rows_left is None else min(len(due), self.rows_left - self.tried)
                values, positions = self._compute(rows, due[:count])
                reasons[positions] = FRESH
                due = due[count:]
                yield values
            self.after.append(count_reasons(reasons, rows.earlier))
            if self.is_exhausted():
                return

    def is_exhausted(self) -> bool:
        if self.rows_left is not None and self.tried >= self.rows_left:
            return True
        return self._is_late()

    def _is_late(self) -> bool:
        return self.ends_at is not None and time.monotonic() >= self.ends_at

    def _without_waiting(self, rows: InspectedRows) -> Positions:
        """Return the positions of the stale rows that are not to be left."""
        stale, waiting = np.flatnonzero(rows.stale), self.task.waiting
        if not len(waiting) or not len(stale):
            return stale
        parts = read_rows_at(self.base, self.fragment, rows.inputs.offsets[stale], [ROW_ID])
        ids = np.concatenate([part.batch.column(ROW_ID).to_numpy().astype(np.int64) for part in parts])
        return stale[~np.isin(ids, waiting)]

    def _compute(self, rows: InspectedRows, due: Positions) -> tuple[PositionedBatch, Positions]:
        """Compute rows of a batch. Return the values, and the positions of the rows that have one."""
        column, inputs = self.task.column, rows.inputs
        is_whole = len(due) == inputs.batch.num_rows
        batch = inputs.batch if is_whole else inputs.batch.take(pa.array(due))
        offsets = inputs.offsets[due]
        received = open_inputs(self.base, self.fragment, batch, offsets, column.inputs, reads_blobs=column.reads_blobs)
        what = f"{self.base.location.uri}: fragment {self.fragment.id}, rows {offsets[0]} to {offsets[-1]}"
        result = compute_rows(self.calls.open(), received, what, self._is_late)
        self.computed += len(result.positions)
        self.tried += len(np.union1d(result.positions, [error.position for error in result.errors]))
        failed = due[[error.position for error in result.errors]] if result.errors else due[:0]
        for error, hash_ in zip(result.errors, rows.fingerprints_at(failed).tolist(), strict=True):
            self.failures.append(_Failure(int(offsets[error.position]), error, hash_))
        positions = due[result.positions]
        fingerprints = pa.array(rows.fingerprints_at(positions), pa.uint64())
        values = pa.RecordBatch.from_arrays([result.values, fingerprints], schema=column.schema)
        return PositionedBatch(values, inputs.offsets[positions]), positions
