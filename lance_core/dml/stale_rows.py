"""Stale rows: finds the rows whose computed value does not belong to their inputs, and why.

    new              no value was computed, or the function skipped the row
    inputs changed   the inputs differ from those of the computation
    older code       the inputs are the same, but an earlier version of the code computed the value

Only inputs and fingerprints are read. This module runs in workers and writes nothing. Start with `find_stale_rows`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.row_fingerprints import Hashes, fingerprint_rows
from lance_core.dml.blob_inputs import blob_names, hash_column
from lance_core.dml.column_files import PositionedBatch, read_live_rows
from lance_core.dml.computed_column import Declaration
from lance_core.format.fragment import Fragment
from lance_core.scan.system_columns import ROW_ADDRESS
from lance_core.versions.snapshot import Snapshot

Mask = npt.NDArray[np.bool_]
Reasons = npt.NDArray[np.int16]
FRESH, NEW, INPUTS_CHANGED, OLDER_CODE = range(4)
"""States of a row. A row of an earlier version of the code has `OLDER_CODE` plus the number of that version."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """Numbers of rows by the state of a computed column."""

    rows: int = 0
    new: int = 0
    """Rows without a computed value."""
    inputs_changed: int = 0
    older_code: Mapping[str, int] = field(default_factory=dict)
    """Rows of each earlier version of the code; for SQL, of each version with its expression."""
    uninspected: int = 0
    """Rows that a bounded run has not reached. They count as stale."""

    @property
    def stale(self) -> int:
        return self.new + self.inputs_changed + sum(self.older_code.values()) + self.uninspected

    @property
    def fresh_share(self) -> float:
        """Share of the rows whose value is up to date; 1 for an empty table."""
        return 1 - self.stale / self.rows if self.rows else 1.0

    def __add__(self, other: "Freshness") -> "Freshness":
        versions = {*self.older_code, *other.older_code}
        older = {name: self.older_code.get(name, 0) + other.older_code.get(name, 0) for name in sorted(versions)}
        return Freshness(
            self.rows + other.rows,
            self.new + other.new,
            self.inputs_changed + other.inputs_changed,
            older,
            self.uninspected + other.uninspected,
        )

    def __sub__(self, other: "Freshness") -> "Freshness":
        older = {name: count - other.older_code.get(name, 0) for name, count in self.older_code.items()}
        return Freshness(
            self.rows - other.rows,
            self.new - other.new,
            self.inputs_changed - other.inputs_changed,
            {name: count for name, count in older.items() if count},
            self.uninspected - other.uninspected,
        )

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "older_code": dict(self.older_code)}


@dataclass(frozen=True, slots=True)
class InspectedRows:
    """Live rows of a batch with their inputs and their states."""

    inputs: PositionedBatch
    """Inputs that are not blobs."""
    reasons: Reasons
    """State of each row: `FRESH`, or the reason why it has no value that belongs to its inputs and the present code."""
    earlier: tuple[str, ...]
    """Earlier versions of the code, by number."""
    _source: "_FingerprintSource"
    _fingerprints: Hashes | None
    """Present fingerprints; `None` if those of new rows are not known yet."""

    def fingerprints_at(self, positions: npt.NDArray[np.int64]) -> Hashes:
        """Return the present fingerprints of some rows. The blobs of new rows are read now."""
        if self._fingerprints is not None:
            return self._fingerprints[positions]
        return self._source.select(positions).fingerprints()

    @property
    def stale(self) -> Mask:
        mask: Mask = self.reasons != FRESH
        return mask

    @property
    def freshness(self) -> Freshness:
        return count_reasons(self.reasons, self.earlier)


def count_reasons(reasons: Reasons, earlier: Sequence[str]) -> Freshness:
    """Return the numbers of rows by state."""
    counts = np.bincount(reasons, minlength=OLDER_CODE).tolist()
    older = {earlier[number]: count for number, count in enumerate(counts[OLDER_CODE:]) if count}
    return Freshness(len(reasons), counts[NEW], counts[INPUTS_CHANGED], older)


@dataclass(frozen=True, slots=True)
class _FingerprintSource:
    """Columns from which the fingerprints of rows are made."""

    base: Snapshot
    fragment: Fragment
    column: Declaration
    rows: PositionedBatch
    """Columns that are not blobs."""
    hashed: tuple[str, ...]
    """Blob columns, whose content is hashed."""

    def select(self, positions: npt.NDArray[np.int64]) -> "_FingerprintSource":
        batch = self.rows.batch.take(pa.array(positions))
        return replace(self, rows=PositionedBatch(batch, self.rows.offsets[positions]))

    def subject(self) -> pa.RecordBatch:
        """Return the columns, with the hashes of blobs in place of the blobs."""
        names = list(self.column.fingerprinted)
        if not self.hashed:
            return self.rows.batch.select(names)
        arrays = [
            hash_column(self.base, self.fragment, name, self.rows.offsets)
            if name in self.hashed
            else self.rows.batch.column(name)
            for name in names
        ]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def fingerprints(self) -> Hashes:
        return fingerprint_rows(self.subject(), self.column.code.encode())


def find_stale_rows(base: Snapshot, fragment: Fragment, column: Declaration) -> Iterator[InspectedRows]:
    """Inspect the live rows of a fragment. The blobs of rows with a value are read, to compare their content."""
    stored = base.manifest.schema
    blobs = set(blob_names(stored, (*column.inputs, *column.fingerprinted)))
    has_fingerprints = column.fingerprint in stored.arrow.names
    plain = [name for name in dict.fromkeys((*column.inputs, *column.fingerprinted)) if name not in blobs]
    names = [*plain, *([column.fingerprint] if has_fingerprints else [])]
    hashed = tuple(name for name in column.fingerprinted if name in blobs)
    inputs = [name for name in column.inputs if name not in blobs]
    if not names:
        names = [ROW_ADDRESS]
    for rows in read_live_rows(base, fragment, names, stored):
        source = _FingerprintSource(base, fragment, column, rows, hashed)
        count = rows.batch.num_rows
        reasons, present = np.full(count, NEW, dtype=np.int16), None
        if has_fingerprints:
            recorded = rows.batch.column(column.fingerprint)
            # The blobs of rows without a value are not read: these rows are stale in any case.
            known = np.flatnonzero(recorded.is_valid()) if hashed else np.arange(count)
            part = source.select(known) if len(known) < count else source
            reasons[known], some = _compare(recorded.take(pa.array(known)), part.subject(), column)
            present = some if len(known) == count else None
        yield InspectedRows(
            PositionedBatch(rows.batch.select(inputs), rows.offsets), reasons, column.earlier, source, present
        )


def _compare(recorded: pa.Array, subject: pa.RecordBatch, column: Declaration) -> tuple[Reasons, Hashes]:
    """Return the states and the present fingerprints of rows."""
    present = fingerprint_rows(subject, column.code.encode())
    is_new = recorded.is_null().to_numpy(zero_copy_only=False)
    numbers = recorded.fill_null(0).to_numpy(zero_copy_only=False)
    is_other = (numbers != present) & ~is_new
    reasons = np.where(is_new, NEW, np.where(is_other, INPUTS_CHANGED, FRESH)).astype(np.int16)
    for number, code in enumerate(column.earlier):
        unexplained = reasons == INPUTS_CHANGED
        if not unexplained.any():
            break
        reasons[unexplained & (numbers == fingerprint_rows(subject, code.encode()))] = OLDER_CODE + number
    return reasons, present


def total(parts: Iterable[Freshness]) -> Freshness:
    """Return the sum."""
    return sum(parts, Freshness())
