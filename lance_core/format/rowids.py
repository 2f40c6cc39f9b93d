"""Sequences of stable row ids, as fragments carry them, and the index from an id to where its row is now.

What lives here: `RowIdSequence`, one id for every physical row of a fragment, and `RowIdIndex`, over many fragments.
Both hold runs of consecutive ids, so that a range of a million rows costs as much as one row; ids are expanded only
where somebody asks for them (`to_numpy`). What never lives here: reading deletion files or manifests, and giving out
new ids. Start at `RowIdSequence.decode`; below the two classes follow the arithmetic of runs, then the wire forms of a
segment. `row_versions.py` holds the sequences that lie beside this one and uses both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format._pb import rowids_pb2
from lance_core.format.ids import FragmentId, RowId

Ids = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Positions = npt.NDArray[np.integer]
"""Row numbers within a fragment, from 0."""

ROWS_MAX = 2**32
"""A fragment cannot have more rows: the other half of a row address is its id."""
_END_MAX = 2**64 - 1


class BadSegment(ValueError):
    """A segment contradicts itself. Whoever decodes says in which file and field."""


@dataclass(frozen=True, slots=True, eq=False)
class RowIdSequence:
    """
    >>> RowIdSequence.of([5, 6, 7, 9]).delete(np.array([1])).to_numpy().tolist()
    [5, 7, 9]
    """

    _starts: Ids
    """The first id of each run, in row order."""
    _lengths: Counts
    _segments: Counts
    """The segment that each run is written in; never decreasing."""

    @classmethod
    def decode(cls, data: bytes, *, rows: int, path: str, field: str = "row_ids") -> "RowIdSequence":
        """The sequence of a fragment that has `rows` physical rows."""
        sequence = cls.decode_partial(data, rows_max=rows, path=path, field=field)
        if len(sequence) != rows:
            raise Corrupt(f"holds {len(sequence)} row ids for {rows} rows", path=path, field=field)
        return sequence

    @classmethod
    def decode_partial(cls, data: bytes, *, rows_max: int, path: str, field: str = "row_ids") -> "RowIdSequence":
        """The sequence of a fragment whose last rows may still wait for their ids, as an upsert proposes it."""
        try:
            segments = rowids_pb2.RowIdSequence.FromString(data).segments
        except DecodeError as error:
            raise Corrupt("not a row id sequence", path=path, field=field) from error
        parts = []
        left = min(rows_max, ROWS_MAX)
        for number, segment in enumerate(segments):
            try:
                starts, lengths = decode_segment(segment, rows_max=left)
            except BadSegment as error:
                raise Corrupt(str(error), path=path, field=f"{field}.segments[{number}]") from error
            left -= int(lengths.sum())
            parts.append(cls(starts, lengths, np.full(len(starts), number, dtype=np.int64)))
        sequence = parts[0] if len(parts) == 1 else cls._side_by_side(parts)
        if (twice := sequence.first_repeated()) is not None:
            raise Corrupt(f"row id {twice} is there twice", path=path, field=field)
        return sequence

    @classmethod
    def of(cls, ids: npt.ArrayLike) -> "RowIdSequence":
        """The ids of rows in their order, to be written as one segment."""
        starts, lengths = _runs(np.asarray(ids, dtype=np.uint64))
        return cls(starts, lengths, np.zeros(len(starts), dtype=np.int64))

    @classmethod
    def of_range(cls, start: RowId, count: int) -> "RowIdSequence":
        """`count` consecutive ids."""
        if count < 0 or start < 0 or start + count > _END_MAX:
            raise InvalidInput(f"{count} row ids cannot follow from {start}: ids have 64 bits")
        starts, lengths = _one_run(start, count)
        return cls(starts, lengths, np.zeros(len(starts), dtype=np.int64))

    @classmethod
    def concat(cls, sequences: Sequence["RowIdSequence"]) -> "RowIdSequence":
        """One after another. A range that goes on where a range ended becomes one with it; else segments stay apart."""
        parts: list[RowIdSequence] = []
        for sequence in sequences:
            if not len(sequence._starts):
                continue
            first = 0
            if parts:
                joins = parts[-1]._is_range(-1) and sequence._is_range(0) and parts[-1]._goes_on_in(sequence)
                first = int(parts[-1]._segments[-1]) + (0 if joins else 1)
            renumbered = sequence._segments - sequence._segments[0] + first
            parts.append(cls(sequence._starts, sequence._lengths, renumbered))
        whole = cls._side_by_side(parts)
        return cls._joined(whole._starts, whole._lengths, whole._segments)

    def followed_by(self, start: RowId, count: int) -> "RowIdSequence":
        """With `count` fresh ids for the rows that wait for theirs, written as one segment."""
        if not count:
            return self
        together = RowIdSequence.concat([self, RowIdSequence.of_range(start, count)])
        return self._joined(together._starts, together._lengths, np.zeros_like(together._segments))

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def to_numpy(self) -> Ids:
        return _expanded(self._starts, self._lengths)

    def slice(self, start: int, stop: int) -> "RowIdSequence":
        """Rows `start` up to `stop`, which must be there."""
        if not 0 <= start <= stop <= len(self):
            raise InvalidInput(f"rows {start} to {stop} of {len(self)}")
        run, skip, lengths = clipped(self._lengths, start, stop)
        return RowIdSequence(self._starts[run] + skip.astype(np.uint64), lengths, self._segments[run])

    def take(self, positions: Positions) -> "RowIdSequence":
        """The ids at these positions, in their order, to be written as one segment."""
        ends = np.cumsum(self._lengths)
        rows = checked(positions, len(self))
        run = np.searchsorted(ends, rows, side="right")
        within = rows - (ends - self._lengths)[run]
        return RowIdSequence.of(self._starts[run] + within.astype(np.uint64))

    def delete(self, positions: Positions) -> "RowIdSequence":
        """Without the rows at these positions (ascending and distinct, as a deletion vector has them)."""
        run, skip, lengths = without(self._lengths, checked(positions, len(self)))
        return self._joined(self._starts[run] + skip.astype(np.uint64), lengths, self._segments[run])

    def first_repeated(self) -> RowId | None:
        """An id that is there twice; in a fragment none may be."""
        if len(self._starts) < 2:
            return None
        found = _overlap(*_sorted(self._starts, self._lengths)[:2])
        return None if found is None else found[1]

    def encode(self) -> bytes:
        """Each segment in the form that the reference writer would choose for it."""
        if not len(self._starts):
            return rowids_pb2.RowIdSequence(segments=[_range(0, 0)]).SerializeToString()
        first_runs = np.flatnonzero(np.diff(self._segments)) + 1
        pieces = zip(np.split(self._starts, first_runs), np.split(self._lengths, first_runs), strict=True)
        return rowids_pb2.RowIdSequence(segments=[_segment(*piece) for piece in pieces]).SerializeToString()

    @classmethod
    def _side_by_side(cls, parts: Sequence["RowIdSequence"]) -> "RowIdSequence":
        if not parts:
            return cls.of(())
        starts = np.concatenate([part._starts for part in parts])
        lengths = np.concatenate([part._lengths for part in parts])
        return cls(starts, lengths, np.concatenate([part._segments for part in parts]))

    @classmethod
    def _joined(cls, starts: Ids, lengths: Counts, segments: Counts) -> "RowIdSequence":
        """Runs of one segment that meet become one."""
        meets = (segments[1:] == segments[:-1]) & _follows(starts[1:], _lasts(starts[:-1], lengths[:-1]))
        if not meets.any():
            return cls(starts, lengths, segments)
        kept = np.flatnonzero(np.concatenate([[True], ~meets]))
        return cls(starts[kept], np.add.reduceat(lengths, kept), segments[kept])

    def _is_range(self, end: int) -> bool:
        """Of the first (0) or the last (-1) segment: is it one run?"""
        return int(np.count_nonzero(self._segments == self._segments[end])) == 1

    def _goes_on_in(self, other: "RowIdSequence") -> bool:
        return bool(_follows(other._starts[:1], _lasts(self._starts[-1:], self._lengths[-1:]))[0])


@dataclass(frozen=True, slots=True, eq=False)
class FragmentRowIds:
    """What the index is told of one fragment."""

    fragment_id: FragmentId
    row_ids: RowIdSequence
    deleted: npt.NDArray[np.uint32] | None = None
    """Offsets, ascending and distinct."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the rows of some ids are, in the order asked for. Where `known` is false the rest says nothing."""

    known: npt.NDArray[np.bool_]
    fragment_ids: Ids
    offsets: Ids

    @property
    def addresses(self) -> Ids:
        return (self.fragment_ids << np.uint64(32)) | self.offsets


class RowIdIndex:
    """Where the live row of an id is. An old place of a moved row is deleted there, and so not found.

    >>> old = FragmentRowIds(FragmentId(3), RowIdSequence.of([10, 11, 12]), np.array([1], dtype=np.uint32))
    >>> new = FragmentRowIds(FragmentId(4), RowIdSequence.of([11]))
    >>> places = RowIdIndex([old, new], path="_versions/2.manifest").find([11, 12, 99])
    >>> places.fragment_ids.tolist()[:2], places.offsets.tolist()[:2], places.known.tolist()
    ([4, 3], [0, 2], [True, True, False])
    """

    def __init__(self, fragments: Sequence[FragmentRowIds], *, path: str) -> None:
        """Costs nothing yet. `path` is the manifest's, for errors."""
        self._fragments = tuple(fragments)
        self._path = path

    def find(self, ids: npt.ArrayLike) -> Places:
        starts, lengths, fragment, offsets = self._live
        wanted = np.asarray(ids, dtype=np.uint64)
        if not len(starts):
            nowhere = np.zeros(len(wanted), dtype=np.uint64)
            return Places(nowhere.astype(np.bool_), nowhere, nowhere)
        run = np.maximum(np.searchsorted(starts, wanted, side="right") - 1, 0)
        within = wanted - starts[run]
        known = (wanted >= starts[run]) & (within < lengths[run].astype(np.uint64))
        return Places(known, self._fragment_ids[fragment[run]], offsets[run].astype(np.uint64) + within)

    def __len__(self) -> int:
        """Live rows."""
        return int(self._live[1].sum())

    @cached_property
    def _fragment_ids(self) -> Ids:
        return np.array([each.fragment_id for each in self._fragments], dtype=np.uint64)

    @cached_property
    def _live(self) -> tuple[Ids, Counts, Counts, Counts]:
        """Live runs by first id: first id, length, number of the fragment, first offset in it."""
        sequences = [each.row_ids for each in self._fragments]
        starts = np.concatenate([np.empty(0, dtype=np.uint64), *(each._starts for each in sequences)])
        lengths = np.concatenate([np.empty(0, dtype=np.int64), *(each._lengths for each in sequences)])
        run_counts = np.array([len(each._starts) for each in sequences], dtype=np.int64)
        row_edges = np.concatenate([[0], np.cumsum(lengths)])
        fragment_edges = row_edges[np.concatenate([[0], np.cumsum(run_counts)])]
        run, skip, lengths = without(lengths, self._deleted(fragment_edges))
        fragment = np.repeat(np.arange(len(sequences)), run_counts)[run]
        offsets = row_edges[run] + skip - fragment_edges[fragment]
        starts, lengths, order = _sorted(starts[run] + skip.astype(np.uint64), lengths)
        fragment, offsets = fragment[order], offsets[order]
        if (twice := _overlap(starts, lengths)) is not None:
            number, row_id = twice
            one, other = sorted(int(self._fragment_ids[each]) for each in fragment[number : number + 2])
            raise Corrupt(
                f"row id {row_id} is live twice, in fragment {one} and in fragment {other}; no lookup by id can be "
                "trusted until one of the rows is deleted by its address",
                path=self._path,
                field=f"fragments[id={other}].row_ids",
            )
        return starts, lengths, fragment, offsets

    def _deleted(self, fragment_edges: Counts) -> Counts:
        """Row numbers counted through all fragments."""
        deleted = [np.empty(0, dtype=np.int64)]
        for number, each in enumerate(self._fragments):
            if each.deleted is None or not len(each.deleted):
                continue
            rows = int(fragment_edges[number + 1] - fragment_edges[number])
            if each.deleted[-1] >= rows:
                raise Corrupt(
                    f"row {each.deleted[-1]} is deleted, but there are {rows}",
                    path=self._path,
                    field=f"fragments[id={each.fragment_id}].deletion_file",
                )
            deleted.append(each.deleted + fragment_edges[number])
        return np.concatenate(deleted)


def checked(positions: Positions, rows: int) -> Counts:
    if len(positions) and not (positions.min() >= 0 and positions.max() < rows):
        raise InvalidInput(f"rows {positions.min()} to {positions.max()} of {rows}")
    return positions.astype(np.int64)


def without(lengths: Counts, deleted: Counts) -> tuple[Counts, Counts, Counts]:
    """What stays of runs when rows are deleted: for each piece, its run, how far into it, and its length."""
    ends = np.cumsum(lengths)
    if not len(deleted):
        return np.arange(len(lengths)), np.zeros_like(lengths), lengths
    # Every deleted row ends a piece and starts the next; in order, the n-th start belongs to the n-th end.
    piece_starts = np.sort(np.concatenate([ends - lengths, deleted + 1]), kind="stable")
    piece_ends = np.sort(np.concatenate([ends, deleted]), kind="stable")
    stays = piece_ends > piece_starts
    piece_starts, piece_ends = piece_starts[stays], piece_ends[stays]
    run = np.searchsorted(ends, piece_starts, side="right")
    return run, piece_starts - (ends - lengths)[run], piece_ends - piece_starts


def clipped(lengths: Counts, start: int, stop: int) -> tuple[Counts, Counts, Counts]:
    """What of runs lies between two rows, in the form of `without`."""
    ends = np.cumsum(lengths)
    begins = np.maximum(ends - lengths, start)
    run = np.flatnonzero(np.minimum(ends, stop) > begins)
    return run, (begins - (ends - lengths))[run], (np.minimum(ends, stop) - begins)[run]


def decode_segment(message: rowids_pb2.U64Segment, *, rows_max: int) -> tuple[Ids, Counts]:
    """First value and length of each run. Nothing is allocated that the message does not pay for with its bytes."""
    kind = message.WhichOneof("segment")
    if kind == "sorted_array" or kind == "array":
        values = _decode_array(message.sorted_array if kind == "sorted_array" else message.array)
        _check_count(len(values), rows_max)
        if kind == "sorted_array" and not _ascends(values):
            raise BadSegment("a sorted array does not ascend")
        return _runs(values)
    if kind == "range":
        start, end = message.range.start, message.range.end
        _check_count(end - start, rows_max)
        return _one_run(start, end - start)
    if kind == "range_with_holes":
        return _decode_holes(message.range_with_holes, rows_max)
    if kind == "range_with_bitmap":
        return _decode_bitmap(message.range_with_bitmap, rows_max)
    raise BadSegment("a segment is of no kind that is known here")


def _decode_holes(message: rowids_pb2.U64Segment.RangeWithHoles, rows_max: int) -> tuple[Ids, Counts]:
    start, end = message.start, message.end
    holes = _decode_array(message.holes)
    _check_count(end - start - len(holes), rows_max)
    if not _ascends(holes):
        raise BadSegment("the holes of a range do not ascend")
    if len(holes) and not (start <= holes[0] and holes[-1] < end):
        raise BadSegment(f"a hole lies outside of its range {start}..{end}")
    starts = np.concatenate([np.array([start], dtype=np.uint64), holes + np.uint64(1)])
    lengths = (np.concatenate([holes, np.array([end], dtype=np.uint64)]) - starts).astype(np.int64)
    return starts[lengths > 0], lengths[lengths > 0]


def _decode_bitmap(message: rowids_pb2.U64Segment.RangeWithBitmap, rows_max: int) -> tuple[Ids, Counts]:
    slots = message.end - message.start
    packed = np.frombuffer(message.bitmap, dtype=np.uint8)
    if slots < 0 or len(packed) != -(-slots // 8):
        raise BadSegment(f"a bitmap of {len(packed)} bytes is not for the range {message.start}..{message.end}")
    if slots % 8 and packed[-1] >> (slots % 8):
        raise BadSegment("a bitmap has bits beyond its range")
    _check_count(int(np.bitwise_count(packed).sum()), rows_max)
    edges = np.diff(np.unpackbits(packed, count=slots, bitorder="little").view(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return starts.astype(np.uint64) + np.uint64(message.start), ends - starts


def _decode_array(message: rowids_pb2.EncodedU64Array) -> Ids:
    kind = message.WhichOneof("array")
    if kind == "u16_array":
        base, data, width = message.u16_array.base, message.u16_array.offsets, 2
    elif kind == "u32_array":
        base, data, width = message.u32_array.base, message.u32_array.offsets, 4
    elif kind == "u64_array":
        base, data, width = 0, message.u64_array.values, 8
    else:
        raise BadSegment("an array is of no kind that is known here")
    if len(data) % width:
        raise BadSegment(f"{len(data)} bytes are no array of {width}-byte values")
    offsets = np.frombuffer(data, dtype=f"<u{width}").astype(np.uint64)
    if len(offsets) and int(offsets.max()) + base > _END_MAX:
        raise BadSegment("an array holds values of more than 64 bits")
    return offsets + np.uint64(base)


def _check_count(count: int, rows_max: int) -> None:
    if count < 0:
        raise BadSegment("a range ends before it starts")
    if count > rows_max:
        raise BadSegment(f"a segment holds {count} values where {rows_max} rows are left")


def _segment(starts: Ids, lengths: Counts) -> rowids_pb2.U64Segment:
    """The smallest form by the reference writer's estimate; of equal ones the first of holes, bitmap, array."""
    lasts = _lasts(starts, lengths)
    if not (starts[1:] > lasts[:-1]).all():
        return rowids_pb2.U64Segment(array=_array(_expanded(starts, lengths)))
    start, end, count = int(starts[0]), int(lasts[-1]) + 1, int(lengths.sum())
    slots = end - start
    if slots == count and end <= _END_MAX:
        return _range(start, end)
    as_holes, as_bitmap, as_array = 4 * (slots - count), -(-slots // 8), 2 * count
    if end > _END_MAX or as_array < min(as_holes, as_bitmap):
        return rowids_pb2.U64Segment(sorted_array=_array(_expanded(starts, lengths)))
    if as_holes <= as_bitmap:
        gaps = lasts[:-1] + np.uint64(1)
        holes = _array(_expanded(gaps, (starts[1:] - gaps).astype(np.int64)))
        message = rowids_pb2.U64Segment.RangeWithHoles(start=start, end=end, holes=holes)
        return rowids_pb2.U64Segment(range_with_holes=message)
    bits = np.zeros(slots, dtype=np.uint8)
    bits[(_expanded(starts, lengths) - starts[0]).astype(np.int64)] = 1
    bitmap = np.packbits(bits, bitorder="little").tobytes()
    return rowids_pb2.U64Segment(
        range_with_bitmap=rowids_pb2.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap)
    )


def _array(values: Ids) -> rowids_pb2.EncodedU64Array:
    base, top = (values.min(), values.max()) if len(values) else (np.uint64(0), np.uint64(_END_MAX))
    offsets = values - base
    if top - base < 2**16:
        u16 = rowids_pb2.EncodedU64Array.U16Array(base=int(base), offsets=offsets.astype("<u2").tobytes())
        return rowids_pb2.EncodedU64Array(u16_array=u16)
    if top - base < 2**32:
        u32 = rowids_pb2.EncodedU64Array.U32Array(base=int(base), offsets=offsets.astype("<u4").tobytes())
        return rowids_pb2.EncodedU64Array(u32_array=u32)
    u64 = rowids_pb2.EncodedU64Array.U64Array(values=values.astype("<u8").tobytes())
    return rowids_pb2.EncodedU64Array(u64_array=u64)


def _range(start: int, end: int) -> rowids_pb2.U64Segment:
    return rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=start, end=end))


def _ascends(values: Ids) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _one_run(start: int, count: int) -> tuple[Ids, Counts]:
    if not count:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    return np.array([start], dtype=np.uint64), np.array([count], dtype=np.int64)


def _runs(ids: Ids) -> tuple[Ids, Counts]:
    if not len(ids):
        return ids, np.empty(0, dtype=np.int64)
    first = np.concatenate([[0], np.flatnonzero(~_follows(ids[1:], ids[:-1])) + 1])
    return ids[first], np.diff(first, append=len(ids))


def _follows(ids: Ids, before: Ids) -> npt.NDArray[np.bool_]:
    """The highest id is followed by none, though its sum with 1 wraps to 0."""
    follows: npt.NDArray[np.bool_] = (ids == before + np.uint64(1)) & (ids != 0)
    return follows


def _lasts(starts: Ids, lengths: Counts) -> Ids:
    """Inclusive, since the end of a run may need a bit more."""
    return starts + (lengths - 1).astype(np.uint64)


def _expanded(starts: Ids, lengths: Counts) -> Ids:
    ends = np.cumsum(lengths)
    rows = int(ends[-1]) if len(ends) else 0
    expanded: Ids = np.arange(rows, dtype=np.uint64)
    expanded += np.repeat(starts - (ends - lengths).astype(np.uint64), lengths)
    return expanded


def _sorted(starts: Ids, lengths: Counts) -> tuple[Ids, Counts, Counts]:
    if _ascends(starts):
        return starts, lengths, np.arange(len(starts))
    order = np.argsort(starts, kind="stable")
    return starts[order], lengths[order], order


def _overlap(starts: Ids, lengths: Counts) -> tuple[int, RowId] | None:
    """Of runs by first id: the first whose next one starts before it ends, and the id that both hold."""
    lasts = _lasts(starts, lengths)
    meeting = np.flatnonzero(starts[1:] <= lasts[:-1])
    return (int(meeting[0]), RowId(int(starts[meeting[0] + 1]))) if len(meeting) else None
