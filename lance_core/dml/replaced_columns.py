"""Replaced columns: gives rows of existing columns new values by writing column files, and never moves a row.

    ColumnValues       new values for some rows of a fragment: SQL, a function, or rows joined by key
    fill_fragment      one fragment: the new values between the old ones, written to one more file
    ColumnReplacement  the plan of one process, which keeps finished files when it is replanned

A row has changed if its new value differs from the old one. A fragment without a changed row gets no file, so its
indices stay valid. If every row gets a new value, old values are read only up to the first difference, and all rows
after it count as changed. A table with stable row ids records the changed rows, so it compares all of them unless the
columns are wide, such as a vector, or all rows of a sample change. Columns may be added at the same time, or alone for
the rows that match a condition. Start with `fill_fragment`; `003-replaced-columns.md` has the reasons.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import validation
from lance_core.commit.write_protocol import Planned
from lance_core.datafiles.blob_writing import to_stored
from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.column_layout import is_blob
from lance_core.datafiles.conform import Conversion, conform
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.datafiles.inputs import InputRows
from lance_core.datafiles.row_offsets import consecutive_offsets
from lance_core.datafiles.value_comparison import differing_rows
from lance_core.dml.column_files import PositionedBatch, read_live_rows, write_column_file
from lance_core.dml.column_fill import (
    ColumnTarget,
    FilledFragment,
    keep_valid,
    plan_fill,
    read_field_ids,
    resolve_target,
)
from lance_core.dml.column_sources import with_column_sources, with_condition, with_given_columns
from lance_core.dml.column_values import FunctionValues, JoinedValues, SqlValues
from lance_core.dml.new_columns import NewColumns, add_columns, merge_columns
from lance_core.dml.row_addresses import check_addresses_stay
from lance_core.dml.row_matching import find_matching_rows
from lance_core.dml.row_rewrite import concat_arrays, row_bytes
from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate
from lance_core.format.fragment import Fragment
from lance_core.format.row_sets import bitmap_of
from lance_core.index import lookup
from lance_core.progress import track
from lance_core.runtime import Runtime
from lance_core.scan.column_resolution import check_condition, filterable_schema
from lance_core.scan.parallel import map_in_order
from lance_core.scan.selection import Selection
from lance_core.scan.system_columns import ROW_ADDRESS, ROW_ID
from lance_core.versions.snapshot import Snapshot

_COMPARED_BYTES_MAX = 64
"""Maximum bytes of a row of columns whose old values are all read for comparison alone. Reading the old values of wider
columns, such as vectors, takes longer than writing the new ones."""
_FIRST_COMPARED_ROWS = 8_192
"""Number of rows that are compared before the rest of a fragment is read. If most rows change, one of them differs."""
_SAMPLED_ROWS_MIN = 1 << 16
"""Minimum number of rows of a fragment of which a sample is computed before the rest."""
_STRETCHES, _STRETCH_ROWS = 8, 128
"""Number of stretches of a sample, which are spread over the fragment, and their length."""
_MERGE_BYTES = 4 * 1024**2
Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class ColumnValues(Protocol):
    """New values of columns for rows of a fragment."""

    @property
    def covers_all_rows(self) -> bool:
        """True if every row that is requested gets a value."""

    @property
    def is_thread_safe(self) -> bool:
        """True if the values of several fragments can be computed at the same time."""

    @property
    def are_given(self) -> bool:
        """True if the values are taken from the caller's rows."""

    def declared(self, base: Snapshot) -> pa.Schema | None:
        """Return the columns with their types; `None` if the first values decide."""

    def reads(self, base: Snapshot) -> Sequence[str]:
        """Return the columns of the table from which the values are computed."""

    def compute(
        self, base: Snapshot, fragment: Fragment, offsets: Offsets, stored: Sequence[str] = ()
    ) -> Iterator[PositionedBatch]:
        """Yield the values of live rows at ascending offsets. Rows that are left out get no new value. `stored` are
        replaced columns whose present values the batches have too; values for only some of the rows may leave them
        out."""

    def declare_without_rows(self, base: Snapshot) -> pa.Schema:
        """Return the columns if there is no row to compute."""

    def check_used(self, base: Snapshot) -> None:
        """Raise if a value is meant for a row that does not exist."""

    def sources(self, base: Snapshot, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the columns from which the values of each of the columns `names` are computed, as far as they are
        known."""


@dataclass(frozen=True, slots=True)
class _MergedRows:
    """Live rows with the values that are stored, and a mask of those that changed."""

    rows: PositionedBatch
    changed: Mask

    @classmethod
    def all_changed(cls, rows: PositionedBatch) -> "_MergedRows":
        return cls(rows, np.ones(len(rows.offsets), dtype=np.bool_))

    def add_changed_to(self, rows: BitMap) -> None:
        """Add the offsets of the changed rows to a bitmap."""
        offsets = self.rows.offsets
        if not self.changed.all():
            rows |= bitmap_of(offsets[self.changed].astype(np.uint32))
        elif offsets[-1] - offsets[0] == len(offsets) - 1:  # offsets ascend, so no row between them is missing
            rows.add_range(int(offsets[0]), int(offsets[-1]) + 1)
        else:
            rows |= bitmap_of(offsets.astype(np.uint32))


def fill_fragment(
    base: Snapshot,
    fragment: Fragment,
    target: ColumnTarget,
    assigned: Iterable[PositionedBatch],
    *,
    runtime: Runtime,
    is_complete: bool = False,
    all_change: bool = False,
    only_nulls: bool = False,
    conversion: Conversion = Conversion.CAST,
) -> FilledFragment:
    """Write the columns for a fragment with the `assigned` values, which are those of live rows in ascending order of
    their offsets. `is_complete` says that every live row has one, `all_change` that all of them count as changed, and
    `only_nulls` keeps every existing value that is not null."""
    merge = _ColumnMerge(base, fragment, target, only_nulls, conversion)
    compared = _rows_to_compare(base, target, keeps_values=only_nulls or not is_complete)
    compared = _Compared.NONE if all_change else compared
    merged = merge.take_all(assigned) if compared is _Compared.NONE else merge.merge(assigned, compared)
    first = next((each for each in merged if each.changed.any()), None)
    if first is None:
        return FilledFragment.unchanged(fragment, target)
    changed = BitMap()

    def rows() -> Iterator[PositionedBatch]:
        if compared is not _Compared.NONE:  # rows before the first change equal the stored ones, and are read again
            yield from merge.rows_before(int(first.rows.offsets[0]))
        for each in chain([first], merged):
            each.add_changed_to(changed)
            yield each.rows

    file = write_column_file(base, fragment, rows(), target.columns, runtime=runtime)
    return FilledFragment(fragment, file, bytes(changed.serialize()), target.signature)


class _Compared(Enum):
    """Choice of the rows whose new values are compared with the old ones."""

    ALL = auto()
    UNTIL_CHANGED = auto()
    """Compare rows until one differs. All rows after it count as changed."""
    NONE = auto()
    """Compare no row. Every row counts as changed."""


def _rows_to_compare(base: Snapshot, target: ColumnTarget, *, keeps_values: bool) -> _Compared:
    """Return which rows to compare. If no row keeps its value, the old values only show which rows change. Only a table
    with stable row ids records the changed rows; indices lose whole fragments."""
    if keeps_values:
        return _Compared.ALL
    if any(map(is_blob, target.columns.fields)):
        return _Compared.NONE
    names_changed_rows = base.manifest.has_stable_row_ids and row_bytes(target.columns) <= _COMPARED_BYTES_MAX
    return _Compared.ALL if names_changed_rows else _Compared.UNTIL_CHANGED


def _values_to_compare(base: Snapshot, target: ColumnTarget, *, is_complete: bool) -> Sequence[str]:
    """Return the replaced columns of which every row is compared with its new value. Their values are read together
    with what the new ones are computed from; reading them separately takes longer."""
    compares_all = is_complete and _rows_to_compare(base, target, keeps_values=False) is _Compared.ALL
    return target.replaced.arrow.names if compares_all else ()


class _ColumnMerge:
    """Merges new values with the existing values of a fragment."""

    def __init__(
        self, base: Snapshot, fragment: Fragment, target: ColumnTarget, only_nulls: bool, conversion: Conversion
    ) -> None:
        self._base, self._fragment, self._target = base, fragment, target
        self._only_nulls, self._conversion = only_nulls, conversion
        self._arrow = target.columns.arrow

    def merge(self, assigned: Iterable[PositionedBatch], compared: _Compared) -> Iterator[_MergedRows]:
        """Yield all live rows with their new or existing values. Unless all rows are compared, `assigned` must have
        a value for every row."""
        until_changed = compared is _Compared.UNTIL_CHANGED
        pending = _RowCursor(map(self._conform, assigned))
        if not pending.has_rows:
            return
        if pending.has_stored_values:
            yield from map(self._merge_stored, pending.take_all())
            return
        for existing in self._existing_rows(in_steps=until_changed):
            for rows in _split(existing):
                merged = self._merge_batch(rows, pending.take_until(int(rows.offsets[-1])))
                yield merged
                if until_changed and merged.changed.any():
                    yield from map(_MergedRows.all_changed, pending.take_all())
                    return
        assert not pending.has_rows, f"values for rows that fragment {self._fragment.id} does not have"

    def _merge_stored(self, new: PositionedBatch) -> _MergedRows:
        """Compare values of rows with the stored ones, which were read with them."""
        assert new.stored is not None
        by_name = dict(zip(new.stored.schema.names, new.stored.columns, strict=True))
        return self._merge_batch(PositionedBatch(self._with_nulls(by_name, len(new.offsets)), new.offsets), [new])

    def take_all(self, assigned: Iterable[PositionedBatch]) -> Iterator[_MergedRows]:
        """Yield the new values of all live rows, which count as changed without a comparison."""
        yield from map(_MergedRows.all_changed, _RowCursor(map(self._conform, assigned)).take_all())

    def rows_before(self, offset: int) -> Iterator[PositionedBatch]:
        """Yield the live rows before an offset with their existing values."""
        for existing in self._existing_rows() if offset else ():
            count = int(np.searchsorted(existing.offsets, offset))
            if count:
                yield PositionedBatch(existing.batch.slice(0, count), existing.offsets[:count])
            if count < len(existing.offsets):
                return

    def _existing_rows(self, *, in_steps: bool = False) -> Iterator[PositionedBatch]:
        """Yield the stored values of all live rows; new columns are null. Reads decode ahead of their consumer, so a
        consumer that may stop after a few rows passes `in_steps`, which reads the first rows separately."""
        replaced, count = self._target.replaced.arrow.names, self._fragment.physical_rows
        if replaced:
            first_step = min(_FIRST_COMPARED_ROWS, count) if in_steps else count
            for start, stop in ((0, first_step), (first_step, count)):
                for rows in self._read_rows(replaced, start, stop) if start < stop else ():
                    by_name = dict(zip(replaced, rows.batch.columns, strict=True))
                    yield PositionedBatch(self._with_nulls(by_name, len(rows.offsets)), rows.offsets)
            return
        deleted = load_deletions(self._base.location.store, self._fragment)
        live = consecutive_offsets(0, count) if deleted is None else np.flatnonzero(deleted.live_mask(0, count))
        for start in range(0, len(live), BATCH_ROWS):
            offsets = live[start : start + BATCH_ROWS]
            yield PositionedBatch(self._with_nulls({}, len(offsets)), offsets)

    def _read_rows(self, columns: Sequence[str], start: int, stop: int) -> Iterator[PositionedBatch]:
        """Yield columns of the live rows among the physical rows from `start` to `stop`."""
        schema = self._base.manifest.schema
        return read_live_rows(self._base, self._fragment, columns, schema, start=start, count=stop - start)

    def _with_nulls(self, columns: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        arrays = [columns[each.name] if each.name in columns else pa.nulls(rows, each.type) for each in self._arrow]
        return pa.RecordBatch.from_arrays(arrays, names=self._arrow.names)

    def _conform(self, rows: PositionedBatch) -> PositionedBatch:
        (batch,) = to_stored([rows.batch.select(self._arrow.names)], self._target.columns)
        what = f"{self._base.location.uri}: fragment {self._fragment.id}"
        conformed = conform(batch, self._arrow, conversion=self._conversion, what=what)
        return PositionedBatch(conformed, rows.offsets, rows.stored)

    def _merge_batch(self, existing: PositionedBatch, new: Sequence[PositionedBatch]) -> _MergedRows:
        rows = len(existing.offsets)
        changed = np.zeros(rows, dtype=np.bool_)
        if not new:
            return _MergedRows(existing, changed)
        offsets = new[0].offsets if len(new) == 1 else np.concatenate([each.offsets for each in new])
        positions = self._positions(existing.offsets, offsets)
        arrays = []
        for number, old in enumerate(existing.batch.columns):
            merged = concat_arrays([each.batch.column(number) for each in new])
            if positions is not None:
                is_used = np.asarray(old.is_null())[positions] if self._only_nulls else None
                merged = _replace(old, positions, merged, is_used)
            changed |= differing_rows(old, merged)
            arrays.append(merged)
        if not changed.any():
            return _MergedRows(existing, changed)
        batch = pa.RecordBatch.from_arrays(arrays, names=self._arrow.names)
        return _MergedRows(PositionedBatch(batch, existing.offsets), changed)

    def _positions(self, existing: Offsets, new: Offsets) -> Offsets | None:
        """Return the positions of the new rows among the existing ones; `None` if all existing rows get their new
        values. Creating the positions of all rows would take as long as creating the values."""
        if existing is new and not self._only_nulls:
            return None
        takes_all = len(new) == len(existing) and not self._only_nulls
        positions = None if takes_all else np.searchsorted(existing, new)
        assert positions is None or positions[-1] < len(existing)
        assert np.array_equal(existing if positions is None else existing[positions], new), "a row that does not exist"
        return positions


def _split(rows: PositionedBatch) -> Iterator[PositionedBatch]:
    """Split rows so that the arrays computed from them reuse memory: the kernel maps and zeroes larger arrays."""
    count = len(rows.offsets)
    step = max(1, count * _MERGE_BYTES // max(1, rows.batch.nbytes))
    for start in range(0, count, step):
        yield PositionedBatch(rows.batch.slice(start, step), rows.offsets[start : start + step])


def _replace(old: pa.Array, positions: Offsets, given: pa.Array, is_used: Mask | None) -> pa.Array:
    """Return the old values with those of `given` that are used, at their positions; `None` uses all."""
    if is_used is not None:
        positions, given = positions[is_used], given.filter(pa.array(is_used))
    if not len(positions):
        return old
    if (vectors := _replace_vectors(old, positions, given)) is not None:
        return vectors
    indices = np.arange(len(old))
    indices[positions] = len(old) + np.arange(len(positions))
    return concat_arrays([old, given]).take(pa.array(indices))


def _replace_vectors(old: pa.Array, positions: Offsets, given: pa.Array) -> pa.Array | None:
    """Replace vectors of numbers without nulls many times faster than Arrow takes them; `None` for other arrays."""
    arrow = old.type
    if not pa.types.is_fixed_size_list(arrow) or not pa.types.is_floating(arrow.value_type) or not arrow.list_size:
        return None
    if any(array.null_count or array.flatten().null_count for array in (old, given)):
        return None
    values = old.flatten().to_numpy().reshape(len(old), arrow.list_size).copy()
    values[positions] = given.flatten().to_numpy().reshape(len(given), arrow.list_size)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), arrow.value_type), type=arrow)


class _RowCursor:
    """Position in a stream of rows, which are taken up to an offset at a time."""

    def __init__(self, rows: Iterator[PositionedBatch]) -> None:
        self._rows, self._next = rows, next((each for each in rows if each.batch.num_rows), None)

    @property
    def has_rows(self) -> bool:
        return self._next is not None

    @property
    def has_stored_values(self) -> bool:
        return self._next is not None and self._next.stored is not None

    def take_until(self, last: int) -> list[PositionedBatch]:
        """Return the rows up to an offset, including it."""
        taken = []
        while self._next is not None and int(self._next.offsets[0]) <= last:
            batch, offsets = self._next.batch, self._next.offsets
            count = int(np.searchsorted(offsets, last, side="right"))
            taken.append(PositionedBatch(batch.slice(0, count), offsets[:count]))
            if count < len(offsets):
                self._next = PositionedBatch(batch.slice(count), offsets[count:])
            else:
                self._next = next((each for each in self._rows if each.batch.num_rows), None)
        return taken

    def take_all(self) -> Iterator[PositionedBatch]:
        """Yield the remaining rows."""
        while self._next is not None:
            rows, self._next = self._next, next((each for each in self._rows if each.batch.num_rows), None)
            yield rows


def null_rows(base: Snapshot, fragment: Fragment, target: ColumnTarget, offsets: Offsets) -> Offsets:
    """Return those of the rows in which at least one of the columns is null. Columns that no file of the fragment
    stores are not read."""
    stored = {field_id for file in fragment.files for field_id in file.field_ids}
    is_overlaid = fragment.has_overlays
    for each in (*target.added.fields, *target.replaced.fields):
        if not is_overlaid and stored.isdisjoint(node.id for node in each.walk()):
            return offsets
    names = target.replaced.arrow.names
    is_null = np.zeros(fragment.physical_rows, dtype=np.bool_)
    schema = base.manifest.schema
    for rows in read_live_rows(base, fragment, names, schema, describe_blobs=True):
        for column in rows.batch.columns:
            is_null[rows.offsets] |= np.asarray(column.is_null())
    return offsets[is_null[offsets]]


def parse_condition(base: Snapshot, where: str | None) -> Predicate | None:
    """Return the condition that selects the rows to compute. Raise if it is invalid for this version."""
    if where is None:
        return None
    predicate = Predicate.parse(where, filterable_schema(base.manifest))
    check_condition(base.manifest, predicate.columns, what="where=")
    return predicate


def _matching_rows(
    base: Snapshot, fragments: Sequence[Fragment], predicate: Predicate | None
) -> Iterator[tuple[Fragment, Offsets]]:
    """Yield those of the fragments that have a matching row, in order, and the offsets of these rows. Indices are asked
    for the whole version."""
    if not fragments:
        return
    select = None if predicate is None else lookup.selector_of(base)
    selection = Selection() if select is None or predicate is None else select(predicate)
    partition = Snapshot(base.location, base.manifest.with_fragments(fragments), base.scheme)
    yield from find_matching_rows(partition, predicate, selection)


@dataclass
class ColumnReplacement:
    """Columns that one process writes for the rows that match a condition. `plan` is called again on a newer version
    after a conflict, and writes only the files of fragments that have changed since."""

    values: ColumnValues
    where: str | None
    replace: bool
    runtime: Runtime
    check_base: Callable[[Snapshot], None] = lambda base: None
    """Raises if the values no longer belong to the rows of a version."""
    filled: dict[int, FilledFragment] = field(default_factory=dict)
    declared: pa.Schema | None = None
    """Columns, if the first values have declared them."""
    read_ids: tuple[int, ...] | None = None
    """Ids of the fields that the last plan read."""

    def plan(self, base: Snapshot) -> Planned | None:
        """Write the columns of all fragments that have no valid file, and return the operation."""
        self.check_base(base)
        predicate = parse_condition(base, self.where)
        declared = self.declared or self.values.declared(base)
        target = None if declared is None else self._resolve(base, declared)
        reads = {*self.values.reads(base), *(predicate.columns if predicate is not None else ())}
        ids = read_field_ids(base, reads)
        is_same = target is not None and self.read_ids in (None, ids)
        self.filled = keep_valid(base, self.filled, target, reads) if is_same and target is not None else {}
        self.read_ids = ids
        unfilled = [fragment for fragment in base.manifest.fragments if fragment.id not in self.filled]
        self._fill(base, unfilled, predicate, target)
        if target is None:
            declared = self.values.declare_without_rows(base) if self.declared is None else self.declared
            target = self._resolve(base, declared)
        for fragment in unfilled:
            self.filled.setdefault(fragment.id, FilledFragment.unchanged(fragment, target))
        self.values.check_used(base)
        operation, names = plan_fill(base, target, self.filled), target.columns.arrow.names
        if self.values.are_given:
            return with_given_columns(base, operation, names)
        return with_column_sources(base, operation, with_condition(self.values.sources(base, names), predicate))

    def _fill(
        self, base: Snapshot, fragments: Sequence[Fragment], predicate: Predicate | None, target: ColumnTarget | None
    ) -> None:
        """Fill the fragments that have a matching row."""
        matches = _matching_rows(base, fragments, predicate)
        is_complete = predicate is None and self.values.covers_all_rows
        if target is not None and self.values.is_thread_safe:
            filled = self._fill_in_threads(base, matches, target, is_complete=is_complete)
        else:
            filled = self._fill_in_turn(base, matches, target, is_complete=is_complete)
        pending: FilledFragment | None = None
        for fragment in track(fragments, "compute columns", "fragments"):
            if pending is None:
                pending = next(filled, None)
            if pending is not None and pending.fragment.id == fragment.id:
                self.filled[fragment.id], pending = pending, None

    def _fill_in_threads(
        self, base: Snapshot, matches: Iterable[tuple[Fragment, Offsets]], target: ColumnTarget, *, is_complete: bool
    ) -> Iterator[FilledFragment]:
        stored = _values_to_compare(base, target, is_complete=is_complete)

        def fill(work: tuple[Fragment, Offsets, Runtime]) -> FilledFragment:
            fragment, offsets, runtime = work
            all_change = bool(stored) and self._sample_changes(base, fragment, offsets, target)
            values = self.values.compute(base, fragment, offsets, () if all_change else stored)
            return fill_fragment(
                base, fragment, target, values, runtime=runtime, is_complete=is_complete, all_change=all_change
            )

        return map_in_order(fill, ((*match, self.runtime.with_drawn_uuid()) for match in matches))

    def _sample_changes(self, base: Snapshot, fragment: Fragment, offsets: Offsets, target: ColumnTarget) -> bool:
        """Return whether each row of a sample of a large fragment changes. Its other rows are then not compared."""
        if len(offsets) < _SAMPLED_ROWS_MIN:
            return False
        starts = np.linspace(0, len(offsets) - _STRETCH_ROWS, _STRETCHES).astype(np.int64)
        sample = offsets[(starts[:, None] + np.arange(_STRETCH_ROWS)).ravel()]
        merge = _ColumnMerge(base, fragment, target, False, Conversion.CAST)
        values = self.values.compute(base, fragment, sample, target.replaced.arrow.names)
        return all(bool(each.changed.all()) for each in merge.merge(values, _Compared.ALL))

    def _fill_in_turn(
        self,
        base: Snapshot,
        matches: Iterable[tuple[Fragment, Offsets]],
        target: ColumnTarget | None,
        *,
        is_complete: bool,
    ) -> Iterator[FilledFragment]:
        """Yield the filled fragments. The first values declare the columns if nothing else does."""
        for fragment, offsets in matches:
            stored = () if target is None else _values_to_compare(base, target, is_complete=is_complete)
            values = self.values.compute(base, fragment, offsets, stored)
            if target is None:
                first = next(values, None)
                if first is None:
                    continue
                values, self.declared = chain([first], values), first.batch.schema
                target = self._resolve(base, self.declared)
            yield fill_fragment(base, fragment, target, values, runtime=self.runtime, is_complete=is_complete)

    def _resolve(self, base: Snapshot, declared: pa.Schema) -> ColumnTarget:
        """Return the target. New columns are null in rows that get no value."""
        existing = base.manifest.schema.arrow.names
        if self.where is not None:
            declared = pa.schema([each if each.name in existing else each.with_nullable(True) for each in declared])
        return resolve_target(base, declared, replace=self.replace)


def replaced_columns(
    columns: NewColumns,
    *,
    schema: pa.Schema | None,
    read_columns: Sequence[str] | None,
    replace: bool,
    where: str | None,
    runtime: Runtime,
) -> ColumnReplacement:
    """Return the plan of `{name: SQL}`, or of a function, for the rows that match `where`."""
    schema = None if schema is None else validation.check_schema(schema, "schema")
    read = None if read_columns is None else list(validation.check_names(read_columns, "read_columns"))
    if isinstance(columns, Mapping):
        return ColumnReplacement(SqlValues(columns), where, replace, runtime)
    if callable(columns):
        return ColumnReplacement(FunctionValues(columns, schema, read), where, replace, runtime)
    raise InvalidInput(
        "replace=True and where= need values: pass {name: SQL} or a function. Arrow fields declare new columns, which "
        "are null in every row"
    )


def added_columns(
    base: Snapshot,
    columns: NewColumns,
    *,
    schema: pa.Schema | None,
    read_columns: Sequence[str] | None,
    runtime: Runtime,
) -> Planned | None:
    """Plan new columns for all rows, and record the columns from which they are computed."""
    operation = add_columns(base, columns, schema=schema, read_columns=read_columns, runtime=runtime)
    stored = frozenset(base.manifest.schema.arrow.names)
    added = [name for name in operation.schema.arrow.names if name not in stored]
    sources: Mapping[str, Sequence[str]] = {}
    if isinstance(columns, Mapping):
        sources = SqlValues(columns).sources(base, added)
    elif callable(columns):
        sources = FunctionValues(columns, schema, read_columns).sources(base, added)
    return with_column_sources(base, operation, sources)


def joined_new_columns(base: Snapshot, data: InputRows, on: str | Sequence[str], *, runtime: Runtime) -> Planned | None:
    """Plan new columns that are joined by key, and record the caller's rows as their sources."""
    operation = merge_columns(base, data, on, runtime=runtime)
    keys = validation.check_key_columns(on, "on")
    return with_given_columns(base, operation, [name for name in data.required_schema.names if name not in keys])


def joined_columns(data: InputRows, on: str | Sequence[str], *, replace: bool, runtime: Runtime) -> ColumnReplacement:
    """Return the plan of a merge with the caller's rows. Rows without a match keep the values of replaced columns, and
    have nulls in new ones."""
    keys = validation.check_key_columns(on, "on")
    replacement = ColumnReplacement(JoinedValues(data, keys), None, replace, runtime)
    replacement.check_base = _AddressGuard(replacement, keys).check
    return replacement


@dataclass
class _AddressGuard:
    """Keeps a merge by address from assigning values to other rows after a conflict."""

    replacement: ColumnReplacement
    keys: Sequence[str]
    pinned: Snapshot | None = None

    def check(self, base: Snapshot) -> None:
        by_address = ROW_ADDRESS in self.keys or (ROW_ID in self.keys and not base.manifest.has_stable_row_ids)
        if not by_address:
            return
        if self.pinned is None:
            self.pinned = base
        assigned = {number for number, each in self.replacement.filled.items() if each.file is not None}
        check_addresses_stay(base, self.pinned, assigned)
