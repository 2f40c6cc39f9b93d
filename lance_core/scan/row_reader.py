"""Reading rows of fragments with a plan's columns: live ones of a piece, those of a piece that match, or some by their
offsets.

Where there is a condition, its columns are read first. What else is wanted is then read for the rows that match alone
if they are few, else of the batches that have any, and not at all if there are none. In small fragments all is read at
once. Which pieces, and in which order, is not decided here.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS
from lance_core.datafiles.fragment_reader import FragmentReader
from lance_core.datafiles.open_fragment import LiveRows, rows_without_columns
from lance_core.expressions import METADATA_COLUMNS
from lance_core.format.fragment import Fragment
from lance_core.format.schema import TableSchema
from lance_core.scan.morsels import PICKED_SHARE, LiveFragment, Morsel, manifest_path
from lance_core.scan.plan import ScanPlan
from lance_core.scan.selection import Offsets
from lance_core.scan.system_columns import ROW_COLUMNS, SystemColumns
from lance_core.versions.location import Location

_PICKED_AT_ONCE = 1024
"""So few rows are picked with all of their columns before any is looked at."""


class _LocatedRows(Protocol):
    """Rows that know where they are; asked only where somebody wants to know."""

    @property
    def count(self) -> int: ...

    @property
    def offsets(self) -> Offsets: ...


@dataclass(frozen=True, slots=True)
class _Hits:
    count: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class _Masked:
    """Rows of a piece, and which of them match."""

    piece: Morsel
    rows: LiveRows
    mask: pa.BooleanArray
    count: int
    rest: pa.RecordBatch | None = None
    """The columns that are not the condition's, where they were read with them."""

    @property
    def offsets(self) -> Offsets:
        offsets: Offsets = self.rows.offsets[np.asarray(self.mask)]
        return offsets

    def mask_between(self, first: int, stop: int) -> pa.BooleanArray:
        begin = self.rows.live_before(first)
        return self.mask.slice(begin, self.rows.live_before(stop) - begin)


class RowReader:
    """What all pieces of a scan, or of a take, share. Used by several threads."""

    def __init__(self, location: Location, plan: ScanPlan) -> None:
        path, schema = manifest_path(location, plan.manifest), plan.table
        self._plan = plan
        self._schema = plan.schema

        def reader(wanted: TableSchema) -> FragmentReader:
            describe = plan.describe_blobs
            return FragmentReader(location.store, location.codec, schema, wanted, path=path, describe_blobs=describe)

        self._first, self._then, self._both = reader(plan.first), reader(plan.then), reader(plan.both)
        self._names_first, self._names_then = plan.first.arrow.names, plan.then.arrow.names
        self._held_first = frozenset(self._names_first)
        self._comes_as_read = self._first.arrow.equals(self._schema) and all(
            len(each.path) == 1 for each in plan.output
        )

    def batches(self, pieces: Sequence[Morsel]) -> list[pa.RecordBatch]:
        if self._plan.predicate is None:
            return [batch for piece in pieces for batch in self.live(piece)]
        masked = self._masked(pieces)
        if self._plan.limit is not None:
            masked = _first_matches(masked, self._plan.offset + self._plan.limit)
        by_piece = (list(group) for _, group in itertools.groupby(masked, key=lambda each: id(each.piece)))
        return [batch for found in by_piece for batch in self._matching(found)]

    def matches(self, pieces: Sequence[Morsel]) -> int:
        return sum(each.count for each in self._masked(pieces))

    def offsets(self, pieces: Sequence[Morsel]) -> list[tuple[Fragment, Offsets]]:
        """Of those that match."""
        return [(each.piece.of.fragment, each.offsets) for each in self._masked(pieces)]

    def live(self, piece: Morsel) -> Iterator[pa.RecordBatch]:
        for rows in self._read(self._first, piece):
            if self._comes_as_read:
                yield rows.batch
            else:
                yield self._shown(piece.of, (rows.batch,), rows)

    def picked(self, of: LiveFragment, offsets: Offsets) -> pa.RecordBatch:
        """These rows, deleted or not."""
        batch = of.opened(self._first).take(offsets)
        return batch if self._comes_as_read else self._shown(of, (batch,), _Hits(len(offsets), offsets))

    def picked_of(self, piece: Morsel, most: int | None) -> Iterator[pa.RecordBatch]:
        """The rows of a piece that were picked, those that match where there is a condition; at most so many."""
        assert piece.picked is not None
        of, offsets = piece.of, piece.picked.offsets
        if self._plan.predicate is None:
            offsets = offsets[:most]
            if len(offsets) and piece.picked.is_dense:
                yield from self._cut_down(piece, offsets)
            elif len(offsets):
                yield self.picked(of, offsets)
            return
        at_once = len(offsets) <= _PICKED_AT_ONCE
        first = of.opened(self._both if at_once else self._first).take(offsets)
        (mask,) = self._plan.predicate.masks([self._with_facts(first, of, offsets)])
        hits = offsets[np.asarray(mask)][:most]
        if not len(hits):
            return
        first = _kept(first, mask).slice(0, len(hits))
        if at_once:
            held = first.select(self._names_first) if self._names_first else first
            parts = [held, first.select(self._names_then)] if self._names_then else [held]
        else:
            parts = [first, of.opened(self._then).take(hits)] if self._names_then else [first]
        yield self._shown(of, parts, _Hits(len(hits), hits))

    def picked_offsets(self, piece: Morsel) -> Offsets:
        """The same rows, by where they are."""
        assert piece.picked is not None
        offsets = piece.picked.offsets
        if self._plan.predicate is None:
            return offsets
        first = piece.of.opened(self._first).take(offsets)
        (mask,) = self._plan.predicate.masks([self._with_facts(first, piece.of, offsets)])
        found: Offsets = offsets[np.asarray(mask)]
        return found

    def _cut_down(self, piece: Morsel, offsets: Offsets) -> Iterator[pa.RecordBatch]:
        wanted = np.zeros(piece.count, dtype=np.bool_)
        wanted[offsets - piece.start] = True
        for rows in self._read(self._first, piece):
            places = rows.offsets
            mask = wanted[places - piece.start]
            if mask.any():
                places = places[mask]
                batch = _kept(rows.batch, pa.array(mask))
                yield batch if self._comes_as_read else self._shown(piece.of, (batch,), _Hits(len(places), places))

    def _with_facts(self, batch: pa.RecordBatch, of: LiveFragment, offsets: Offsets) -> pa.RecordBatch:
        assert self._plan.predicate is not None
        facts = [name for name in self._plan.predicate.columns if name in ROW_COLUMNS]
        return _with_facts(batch, of.facts, facts, offsets) if facts else batch

    def _read(self, reader: FragmentReader, piece: Morsel) -> Iterator[LiveRows]:
        return piece.of.opened(reader).live(piece.of.deletions, piece.start, piece.count)

    def _masked(self, pieces: Sequence[Morsel]) -> list[_Masked]:
        """The condition is evaluated for all of them in one go."""
        predicate = self._plan.predicate
        assert predicate is not None
        facts = [name for name in predicate.columns if name in ROW_COLUMNS]
        read = [(piece, *parts) for piece in pieces for parts in self._read_first(piece)]
        if facts:
            shown = [_with_facts(rows.batch, piece.of.facts, facts, rows.offsets) for piece, rows, _ in read]
        else:
            shown = [rows.batch for _, rows, _ in read]
        masks = predicate.masks(shown)
        return [
            _Masked(piece, rows, mask, mask.true_count, rest)
            for (piece, rows, rest), mask in zip(read, masks, strict=True)
        ]

    def _read_first(self, piece: Morsel) -> Iterator[tuple[LiveRows, pa.RecordBatch | None]]:
        """The condition's columns, and the others where they are read with them."""
        if not self._plan.reads_at_once(piece.of.fragment):
            yield from ((rows, None) for rows in self._read(self._first, piece))
            return
        for rows in self._read(self._both, piece):
            first = rows.batch.select(self._names_first) if self._names_first else rows_without_columns(rows.count)
            yield replace(rows, batch=first), rows.batch.select(self._names_then)

    def _matching(self, found: Sequence[_Masked]) -> Iterator[pa.RecordBatch]:
        """Of one piece."""
        hits = [each for each in found if each.count]
        if not hits:
            return
        of, matches = hits[0].piece.of, sum(each.count for each in hits)
        others: Iterable[pa.RecordBatch | None] = [each.rest for each in hits]
        if self._plan.then.fields and hits[0].rest is None:
            first, stop = int(hits[0].offsets[0]), int(hits[-1].offsets[-1]) + 1
            if matches * PICKED_SHARE <= stop - first or stop - first <= BATCH_ROWS:
                yield self._together(of, found, first, stop, pick=matches * PICKED_SHARE <= stop - first)
                return
            first, stop = hits[0].rows.start, hits[-1].rows.stop
            hits = [each for each in found if first <= each.rows.start < stop]
            others = (rows.batch for rows in self._read(self._then, Morsel(of, first, stop - first)))
        for each, other in zip(hits, others, strict=True):
            parts = [each.rows.batch] if other is None else [each.rows.batch, other]
            if each.count == each.rows.count:
                yield self._shown(of, parts, each.rows)
            elif each.count:
                yield self._shown(of, [_kept(part, each.mask) for part in parts], each)

    def _together(
        self, of: LiveFragment, found: Sequence[_Masked], first: int, stop: int, *, pick: bool
    ) -> pa.RecordBatch:
        """All matches, between these physical rows, in one batch; what comes late is picked, or read and cut down."""
        hits = [each for each in found if each.count]
        offsets = np.concatenate([each.offsets for each in hits])
        held = _joined([_kept(each.rows.batch, each.mask) for each in hits])
        if pick:
            late = of.opened(self._then).take(offsets)
        else:
            mask = pa.concat_arrays([each.mask_between(first, stop) for each in found])
            late = _joined([rows.batch for rows in self._read(self._then, Morsel(of, first, stop - first))])
            late = _kept(late, mask)
        return self._shown(of, (held, late), _Hits(len(offsets), offsets))

    def _shown(self, of: LiveFragment, parts: Sequence[pa.RecordBatch], rows: "_LocatedRows") -> pa.RecordBatch:
        """What is asked for of these rows; `parts` are what was read first and then."""
        arrays = []
        for column in self._plan.output:
            if column.is_stored:
                arrays.append(column.of(parts[0 if column.path[0] in self._held_first else 1]))
            else:
                arrays.append(pa.array(of.facts.of(column.name, rows.offsets)))
        if not arrays:
            return rows_without_columns(rows.count)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _first_matches(masked: Sequence[_Masked], most: int) -> list[_Masked]:
    """So many matches, wherever the ones before them are; of the others nothing more is read."""
    kept = []
    for each in masked:
        if most <= 0:
            break
        if each.count > most:
            mask = np.zeros(each.rows.count, dtype=np.bool_)
            mask[np.flatnonzero(np.asarray(each.mask))[:most]] = True
            each = replace(each, mask=pa.array(mask), count=most)
        kept.append(each)
        most -= each.count
    return kept


def _with_facts(batch: pa.RecordBatch, facts: SystemColumns, names: Sequence[str], offsets: Offsets) -> pa.RecordBatch:
    arrays = [*batch.columns, *(pa.array(facts.of(name, offsets)) for name in names)]
    fields = [*batch.schema, *(METADATA_COLUMNS.field(name) for name in names)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _kept(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    return batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 or not batches[0].num_columns else pa.concat_batches(batches)
