"""Row reader: reads rows of fragments with the columns of a plan. It reads all live rows of a morsel, those that match
a filter, or rows at given offsets.

With a filter, the reader materializes late: it reads the columns of the filter first. If few rows match, it then picks
the other columns of these rows; otherwise it reads the batches that contain a match. Without a match it reads nothing
more. Small fragments are read in one pass. `morsels.py` divides fragments into morsels.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.fragment_reader import FragmentReader, shape_of
from lance_core.datafiles.open_fragment import LiveRows, rows_without_columns, split_rows
from lance_core.errors import LanceError
from lance_core.expressions import METADATA_COLUMNS
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.scan.morsels import PICK_ONE_IN, LiveFragment, Morsel, manifest_path
from lance_core.scan.plan import ScanPlan
from lance_core.scan.selection import Offsets
from lance_core.scan.system_columns import SYSTEM_COLUMN_NAMES, SystemColumns
from lance_core.storage.concurrency import SharedThreadPool, requests_max
from lance_core.versions.location import Location

_late_threads = SharedThreadPool("lance-late")
_PICK_ALL_COLUMNS_MAX = 1024
"""Selected rows that are picked with all of their columns before the filter is evaluated."""


class _LocatedRows(Protocol):
    """Rows with their offsets, which are computed only on demand."""

    @property
    def count(self) -> int: ...

    @property
    def offsets(self) -> Offsets: ...


@dataclass(frozen=True, slots=True)
class _RowOffsets:
    count: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class _FilteredRows:
    """Rows of a morsel, and a mask of those that match."""

    morsel: Morsel
    rows: LiveRows
    mask: pa.BooleanArray
    count: int
    late: pa.RecordBatch | None = None
    """Late columns, if they were read together with those of the filter."""

    @property
    def offsets(self) -> Offsets:
        return self.rows.offsets_of(self.mask)

    def mask_between(self, first: int, stop: int) -> pa.BooleanArray:
        """Return the mask of the rows between two physical rows."""
        begin = self.rows.live_before(first)
        return self.mask.slice(begin, self.rows.live_before(stop) - begin)


class RowReader:
    """Reader for the columns of one plan, shared by all morsels of a scan or of a take, and by several threads."""

    def __init__(self, location: Location, plan: ScanPlan) -> None:
        self._location = location
        self._plan = plan
        self._schema = plan.schema
        self._early = self._reader(plan.early)
        self._early_names, self._late_names = plan.early.arrow.names, plan.late.arrow.names
        self._has_system_columns = not all(column.is_stored for column in plan.output)
        self._early_name_set = frozenset(self._early_names)
        self._needs_no_projection = self._early.arrow.equals(self._schema) and all(
            len(each.path) == 1 for each in plan.output
        )

    @cached_property
    def _late(self) -> FragmentReader:
        return self._reader(self._plan.late)

    @cached_property
    def _early_and_late(self) -> FragmentReader:
        return self._reader(self._plan.early_and_late) if self._plan.late.fields else self._early

    def _reader(self, columns: TableSchema) -> FragmentReader:
        plan, location = self._plan, self._location
        return FragmentReader(
            location.store,
            location.codec,
            plan.table,
            columns,
            path=manifest_path(location, plan.manifest),
            describe_blobs=plan.describe_blobs,
        )

    def batches(self, morsels: Sequence[Morsel]) -> list[pa.RecordBatch]:
        """Read the rows of these morsels that match."""
        if self._plan.predicate is None:
            return list(self._all_batches(morsels))
        if self._plan.limit is None and (joined := self._evaluate_joined(morsels, self._early_and_late)) is not None:
            return [self._project_joined(morsels[0].source, rows, mask) for rows, mask in joined if mask.true_count]
        filtered = self._evaluate(morsels)
        if self._plan.limit is not None:
            filtered = _limit_matches(filtered, self._plan.offset + self._plan.limit)
        by_morsel = (list(group) for _, group in itertools.groupby(filtered, key=lambda each: id(each.morsel)))
        store = self._location.own_store
        # Each thread of a scan comes here, so that threads of its own for late columns would be the square of them.
        threads = requests_max(store) if self._plan.late.fields else 1
        late = _late_threads.map(lambda rows: list(self._matching_batches(rows)), by_morsel, threads)
        return [batch for batches in late for batch in batches]

    def count_matches(self, morsels: Sequence[Morsel]) -> int:
        joined = self._evaluate_joined(morsels, self._early)
        if joined is not None:
            return sum(mask.true_count for _, mask in joined)
        return sum(each.count for each in self._evaluate(morsels))

    def matching_offsets(self, morsels: Sequence[Morsel]) -> list[tuple[Fragment, Offsets]]:
        """Return the offsets of the rows that match, by fragment."""
        return [(each.morsel.source.fragment, each.offsets) for each in self._evaluate(morsels)]

    def live_batches(self, morsel: Morsel) -> Iterator[pa.RecordBatch]:
        """Read all live rows of a morsel."""
        return self._all_batches([morsel])

    def _all_batches(self, morsels: Sequence[Morsel]) -> Iterator[pa.RecordBatch]:
        for morsel, rows in self._read_group(self._early, morsels, keeps_fragments=self._has_system_columns):
            if self._needs_no_projection:
                yield rows.batch
            else:
                yield self._project(morsel.source, (rows.batch,), rows)

    def pick(self, source: LiveFragment, offsets: Offsets) -> pa.RecordBatch:
        """Read the rows at these offsets, deleted or not."""
        return self.begin_pick(source, offsets)()

    def pick_all(self, groups: Sequence[tuple[LiveFragment, Offsets]]) -> pa.RecordBatch:
        """Read rows of several fragments, deleted or not, together if that is possible."""
        fragments = [source.fragment for source, _ in groups]
        joined = None
        if len(groups) > 1 and not self._has_system_columns and len(set(map(shape_of, fragments))) == 1:
            with suppress(LanceError):  # reading the fragments one by one shows which of them the error is about
                if (opened := self._early.open_joined(fragments)) is not None:
                    starts = np.cumsum([0, *(fragment.physical_rows for fragment in fragments[:-1])])
                    rows = [offsets + start for (_, offsets), start in zip(groups, starts.tolist(), strict=True)]
                    joined = opened.take(np.concatenate(rows))
        if joined is None:
            return _concat_batches([self.pick(*group) for group in groups])
        if self._needs_no_projection:
            return joined
        source, offsets = groups[0]
        return self._project(source, (joined,), _RowOffsets(joined.num_rows, offsets))

    def begin_pick(self, source: LiveFragment, offsets: Offsets) -> Callable[[], pa.RecordBatch]:
        """Begin to read the same rows, and return the function that waits for them."""
        finish = source.rows_of(self._early).begin_take(offsets)
        if self._needs_no_projection:
            return finish
        return lambda: self._project(source, (finish(),), _RowOffsets(len(offsets), offsets))

    def pick_vectors(self, source: LiveFragment, offsets: Offsets) -> npt.NDArray[np.uint8] | None:
        """Return the bytes of the vectors at these offsets, if the plan has one column of vectors and a file stores
        them unchanged; otherwise `None`."""
        return source.open_with(self._early).take_vectors(offsets) if self._needs_no_projection else None

    def pick_matching(self, morsel: Morsel, rows_max: int | None) -> Iterator[pa.RecordBatch]:
        """Read the selected rows of a morsel that match the filter, at most `rows_max` of them."""
        assert morsel.picked is not None
        source, offsets = morsel.source, morsel.picked.offsets
        if self._plan.predicate is None:
            offsets = offsets[:rows_max]
            if len(offsets) and morsel.picked.is_dense:
                yield from self._read_dense(morsel, offsets)
            elif len(offsets):
                yield self.pick(source, offsets)
            return
        reads_all = len(offsets) <= _PICK_ALL_COLUMNS_MAX
        early = source.open_with(self._early_and_late if reads_all else self._early).take(offsets)
        (mask,) = self._plan.predicate.masks([self._with_system_columns(early, source, offsets)])
        matches = offsets[np.asarray(mask)][:rows_max]
        if not len(matches):
            return
        early = _filter_batch(early, mask).slice(0, len(matches))
        if reads_all:
            early_part = early.select(self._early_names) if self._early_names else early
            parts = [early_part, early.select(self._late_names)] if self._late_names else [early_part]
        else:
            parts = [early, source.open_with(self._late).take(matches)] if self._late_names else [early]
        yield self._project(source, parts, _RowOffsets(len(matches), matches))

    def pick_matching_offsets(self, morsel: Morsel) -> Offsets:
        """Return the offsets of the selected rows of a morsel that match the filter."""
        assert morsel.picked is not None
        offsets = morsel.picked.offsets
        if self._plan.predicate is None:
            return offsets
        early = morsel.source.open_with(self._early).take(offsets)
        (mask,) = self._plan.predicate.masks([self._with_system_columns(early, morsel.source, offsets)])
        matches: Offsets = offsets[np.asarray(mask)]
        return matches

    def _read_dense(self, morsel: Morsel, offsets: Offsets) -> Iterator[pa.RecordBatch]:
        """Read all rows of a morsel, and keep those at these offsets: faster than picking if they are dense."""
        requested = np.zeros(morsel.count, dtype=np.bool_)
        requested[offsets - morsel.start] = True
        for rows in self._read_live(self._early, morsel):
            row_offsets = rows.offsets
            mask = requested[row_offsets - morsel.start]
            if mask.any():
                row_offsets = row_offsets[mask]
                batch = _filter_batch(rows.batch, pa.array(mask))
                yield (
                    batch
                    if self._needs_no_projection
                    else self._project(morsel.source, (batch,), _RowOffsets(len(row_offsets), row_offsets))
                )

    def _with_system_columns(self, batch: pa.RecordBatch, source: LiveFragment, offsets: Offsets) -> pa.RecordBatch:
        assert self._plan.predicate is not None
        names = [name for name in self._plan.predicate.columns if name in SYSTEM_COLUMN_NAMES]
        return _add_system_columns(batch, source.system_columns, names, offsets) if names else batch

    def _read_live(self, reader: FragmentReader, morsel: Morsel) -> Iterator[LiveRows]:
        return morsel.source.open_with(reader).read_live(morsel.source.deletions, morsel.start, morsel.count)

    def _read_group(
        self, reader: FragmentReader, morsels: Sequence[Morsel], *, keeps_fragments: bool
    ) -> Iterator[tuple[Morsel, LiveRows]]:
        """Read the live rows of morsels, small fragments together. Without `keeps_fragments`, rows of several fragments
        may come together."""
        for shape, group in itertools.groupby(
            morsels, key=lambda morsel: shape_of(morsel.source.fragment) if morsel.is_joinable else None
        ):
            together = list(group)
            joined = self._read_joined(reader, together, keeps_fragments) if shape else None
            if joined is None:
                yield from ((morsel, rows) for morsel in together for rows in self._read_live(reader, morsel))
            else:
                yield from joined

    def _read_joined(
        self, reader: FragmentReader, morsels: Sequence[Morsel], keeps_fragments: bool
    ) -> Sequence[tuple[Morsel, LiveRows]] | None:
        try:
            opened = reader.open_joined([morsel.source.fragment for morsel in morsels])
            if opened is None:
                return None
            joined = list(opened.read_live(None))
        except LanceError:
            return None  # reading the fragments one by one shows which of them the error is about
        if not keeps_fragments and opened.all_live:
            return [(morsels[0], rows) for rows in joined]
        parts = [(morsel.count, morsel.source.deletions) for morsel in morsels]
        batches = [rows.batch for rows in joined]
        return [(morsels[number], rows) for number, rows in split_rows(batches, parts)]

    def _evaluate_joined(
        self, morsels: Sequence[Morsel], reader: FragmentReader
    ) -> list[tuple[LiveRows, pa.BooleanArray]] | None:
        """Read the columns of small fragments and evaluate the filter over the rows of all of them; `None` if that
        needs their places, or if more would be read than the filter asks for."""
        assert self._plan.predicate is not None
        reads_late = reader is not self._early
        fragments = [morsel.source.fragment for morsel in morsels]
        if (
            len(morsels) < 2
            or self._has_system_columns
            or not SYSTEM_COLUMN_NAMES.isdisjoint(self._plan.predicate.columns)
            or not all(morsel.is_joinable for morsel in morsels)
            or (reads_late and not all(map(self._plan.reads_all_at_once, fragments)))
            or len(set(map(shape_of, fragments))) > 1
        ):
            return None
        joined = self._read_joined(reader, morsels, keeps_fragments=False)
        if joined is None:
            return None
        rows = [each for _, each in joined]
        batches = [self._early_part(each.batch) if reads_late else each.batch for each in rows]
        return list(zip(rows, self._plan.predicate.masks(batches), strict=True))

    def _early_part(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._early_names) if self._early_names else rows_without_columns(batch.num_rows)

    def _project_joined(self, source: LiveFragment, rows: LiveRows, mask: pa.BooleanArray) -> pa.RecordBatch:
        matches = _filter_batch(rows.batch, mask)
        parts = (self._early_part(matches), matches.select(self._late_names)) if self._late_names else (matches,)
        return self._project(source, parts, _RowOffsets(matches.num_rows, np.empty(0, dtype=np.int64)))

    def _evaluate(self, morsels: Sequence[Morsel]) -> list[_FilteredRows]:
        """Read the early columns of these morsels, and evaluate the filter for all of them in one call."""
        predicate = self._plan.predicate
        assert predicate is not None
        names = [name for name in predicate.columns if name in SYSTEM_COLUMN_NAMES]
        read = list(self._read_early(morsels))
        if names:
            batches = [
                _add_system_columns(rows.batch, morsel.source.system_columns, names, rows.offsets)
                for morsel, rows, _ in read
            ]
        else:
            batches = [rows.batch for _, rows, _ in read]
        masks = predicate.masks(batches)
        return [
            _FilteredRows(morsel, rows, mask, mask.true_count, late)
            for (morsel, rows, late), mask in zip(read, masks, strict=True)
        ]

    def _read_early(self, morsels: Sequence[Morsel]) -> Iterator[tuple[Morsel, LiveRows, pa.RecordBatch | None]]:
        """Read the early columns of morsels, and in small fragments the late ones in the same pass."""
        for reads_all, group in itertools.groupby(
            morsels, key=lambda morsel: self._plan.reads_all_at_once(morsel.source.fragment)
        ):
            reader = self._early_and_late if reads_all else self._early
            for morsel, rows in self._read_group(reader, list(group), keeps_fragments=True):
                if not reads_all:
                    yield morsel, rows, None
                    continue
                early = self._early_part(rows.batch)
                yield morsel, replace(rows, batch=early), rows.batch.select(self._late_names)

    def _matching_batches(self, filtered: Sequence[_FilteredRows]) -> Iterator[pa.RecordBatch]:
        """Read the late columns of the rows of one morsel that match."""
        hits = [each for each in filtered if each.count]
        if not hits:
            return
        source, match_count = hits[0].morsel.source, sum(each.count for each in hits)
        late_batches: Iterable[pa.RecordBatch | None] = [each.late for each in hits]
        if self._plan.late.fields and hits[0].late is None:
            first, stop = int(hits[0].offsets[0]), int(hits[-1].offsets[-1]) + 1
            if match_count * PICK_ONE_IN <= stop - first or stop - first <= BATCH_ROWS:
                yield self._merge_matches(source, filtered, first, stop, pick=match_count * PICK_ONE_IN <= stop - first)
                return
            first, stop = hits[0].rows.start, hits[-1].rows.stop
            hits = [each for each in filtered if first <= each.rows.start < stop]
            late_batches = (rows.batch for rows in self._read_live(self._late, Morsel(source, first, stop - first)))
        for each, late in zip(hits, late_batches, strict=True):
            parts = [each.rows.batch] if late is None else [each.rows.batch, late]
            if each.count == each.rows.count:
                yield self._project(source, parts, each.rows)
            elif each.count:
                yield self._project(source, [_filter_batch(part, each.mask) for part in parts], each)

    def _merge_matches(
        self, source: LiveFragment, filtered: Sequence[_FilteredRows], first: int, stop: int, *, pick: bool
    ) -> pa.RecordBatch:
        """Return all matches between two physical rows in one batch. The late columns are picked, or read
        and filtered."""
        hits = [each for each in filtered if each.count]
        offsets = np.concatenate([each.offsets for each in hits])
        early = _concat_batches([_filter_batch(each.rows.batch, each.mask) for each in hits])
        if pick:
            late = source.open_with(self._late).take(offsets)
        else:
            mask = pa.concat_arrays([each.mask_between(first, stop) for each in filtered])
            late = _concat_batches(
                [rows.batch for rows in self._read_live(self._late, Morsel(source, first, stop - first))]
            )
            late = _filter_batch(late, mask)
        return self._project(source, (early, late), _RowOffsets(len(offsets), offsets))

    def _project(self, source: LiveFragment, parts: Sequence[pa.RecordBatch], rows: "_LocatedRows") -> pa.RecordBatch:
        """Return the columns of the result. `parts` are the batches of the early and of the late columns."""
        arrays = []
        for column in self._plan.output:
            if column.is_stored:
                arrays.append(column.extract_from(parts[0 if column.path[0] in self._early_name_set else 1]))
            else:
                arrays.append(pa.array(source.system_columns.values(column.name, rows.offsets)))
        if not arrays:
            return rows_without_columns(rows.count)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _limit_matches(filtered: Sequence[_FilteredRows], rows_max: int) -> list[_FilteredRows]:
    """Keep the first `rows_max` matches, so that nothing more is read of later rows."""
    limited = []
    for each in filtered:
        if rows_max <= 0:
            break
        if each.count > rows_max:
            mask = np.zeros(each.rows.count, dtype=np.bool_)
            mask[np.flatnonzero(np.asarray(each.mask))[:rows_max]] = True
            each = replace(each, mask=pa.array(mask), count=rows_max)
        limited.append(each)
        rows_max -= each.count
    return limited


def _add_system_columns(
    batch: pa.RecordBatch, system_columns: SystemColumns, names: Sequence[str], offsets: Offsets
) -> pa.RecordBatch:
    arrays = [*batch.columns, *(pa.array(system_columns.values(name, offsets)) for name in names)]
    fields = [*batch.schema, *(METADATA_COLUMNS.field(name) for name in names)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _filter_batch(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)


def _concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 or not batches[0].num_columns else pa.concat_batches(batches)
