"""Row lineage of a fragment: its stable row ids, and the versions in which its rows were created or last changed, one
of each for each physical row.

    RowIdSequence    ids as runs of consecutive ids (`id_runs.py`), so that a range of a million rows costs as much as
                     one row; they are expanded only on request (`to_numpy`)
    RowVersions      runs of rows with the same version. On the wire the span of a run is a segment like those of row
                     ids, and only its number of values counts: after a compaction spans overlap and start anywhere. A
                     fragment that stores no sequence has version 1 in every row, whichever version wrote it

This module never reads deletion files or manifests, and decides neither ids nor versions. The wire forms are in
`id_segments.py`, and the lookup of a row by its id is in `row_id_index.py`. Start with `RowIdSequence.decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format import size_guard
from lance_core.format._pb import rowids_pb2
from lance_core.format.id_runs import (
    END_MAX,
    Counts,
    Ids,
    Positions,
    check_positions,
    clip_runs,
    expand_runs,
    find_overlap,
    is_successor,
    last_ids,
    one_run,
    remove_positions,
    runs_of,
    sort_by_first_id,
)
from lance_core.format.id_segments import InvalidSegment, decode_segment, encode_segment, range_segment
from lance_core.format.ids import RowId, Version

ROWS_MAX = 2**32
"""The maximum number of rows in a fragment: a row address has 32 bits for the row, and 32 for the fragment id."""
Versions = npt.NDArray[np.uint64]
UNRECORDED = Version(1)
"""The version of rows whose fragment stores no sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class RowIdSequence:
    """Row ids in row order.

    >>> RowIdSequence.of([5, 6, 7, 9]).delete(np.array([1])).to_numpy().tolist()
    [5, 7, 9]
    """

    starts: Ids
    """The first id of each run, in row order."""
    lengths: Counts
    segments: Counts
    """The number of the wire segment that holds each run, in non-decreasing order."""

    @classmethod
    def decode(cls, data: bytes, *, rows: int, path: str, field: str = "row_ids") -> "RowIdSequence":
        """Return the sequence of a fragment that has `rows` physical rows."""
        sequence = cls.decode_partial(data, rows_max=rows, path=path, field=field)
        if len(sequence) != rows:
            raise Corrupt(f"holds {len(sequence)} row ids for {rows} rows", path=path, field=field)
        return sequence

    @classmethod
    def decode_partial(cls, data: bytes, *, rows_max: int, path: str, field: str = "row_ids") -> "RowIdSequence":
        """Return the sequence of a fragment whose last rows may have no ids yet, as an upsert proposes it."""
        size_guard.check_message(data, path=path)
        try:
            segments = rowids_pb2.RowIdSequence.FromString(data).segments
        except DecodeError as error:
            raise Corrupt("is not a row id sequence", path=path, field=field) from error
        parts = []
        rows_left = min(rows_max, ROWS_MAX)
        for number, segment in enumerate(segments):
            try:
                starts, lengths = decode_segment(segment, rows_max=rows_left)
            except InvalidSegment as error:
                raise Corrupt(str(error), path=path, field=f"{field}.segments[{number}]") from error
            rows_left -= int(lengths.sum())
            parts.append(cls(starts, lengths, np.full(len(starts), number, dtype=np.int64)))
        sequence = parts[0] if len(parts) == 1 else cls._concatenate(parts)
        if (repeated := sequence.first_repeated()) is not None:
            raise Corrupt(f"holds row id {repeated} twice", path=path, field=field)
        return sequence

    @classmethod
    def of(cls, ids: npt.ArrayLike) -> "RowIdSequence":
        """Return the sequence of these ids, which is encoded as one segment."""
        starts, lengths = runs_of(np.asarray(ids, dtype=np.uint64))
        return cls(starts, lengths, np.zeros(len(starts), dtype=np.int64))

    @classmethod
    def of_range(cls, start: RowId, count: int) -> "RowIdSequence":
        """Return `count` consecutive ids."""
        if count < 0 or start < 0 or start + count > END_MAX:
            raise InvalidInput(f"{count} row ids cannot start at {start}: a row id has 64 bits")
        starts, lengths = one_run(start, count)
        return cls(starts, lengths, np.zeros(len(starts), dtype=np.int64))

    @classmethod
    def concat(cls, sequences: Sequence["RowIdSequence"]) -> "RowIdSequence":
        """Concatenate sequences. A range that continues the preceding range is merged with it; all other segments
        stay separate."""
        parts: list[RowIdSequence] = []
        for sequence in sequences:
            if not len(sequence.starts):
                continue
            first = 0
            if parts:
                is_continuation = (
                    parts[-1]._is_single_run(-1) and sequence._is_single_run(0) and parts[-1]._continues_in(sequence)
                )
                first = int(parts[-1].segments[-1]) + (0 if is_continuation else 1)
            renumbered = sequence.segments - sequence.segments[0] + first
            parts.append(cls(sequence.starts, sequence.lengths, renumbered))
        whole = cls._concatenate(parts)
        return cls._merge_adjacent_runs(whole.starts, whole.lengths, whole.segments)

    def with_appended_range(self, start: RowId, count: int) -> "RowIdSequence":
        """Append `count` fresh ids for the rows that have none yet. The result is encoded as one segment."""
        if not count:
            return self
        combined = RowIdSequence.concat([self, RowIdSequence.of_range(start, count)])
        return self._merge_adjacent_runs(combined.starts, combined.lengths, np.zeros_like(combined.segments))

    def __len__(self) -> int:
        return int(self.lengths.sum())

    def to_numpy(self) -> Ids:
        return expand_runs(self.starts, self.lengths)

    def slice(self, start: int, stop: int) -> "RowIdSequence":
        """Return rows `start` up to `stop`, which must exist."""
        if not 0 <= start <= stop <= len(self):
            raise InvalidInput(f"rows {start} to {stop} were requested from a sequence of {len(self)} rows")
        run, skip, lengths = clip_runs(self.lengths, start, stop)
        return RowIdSequence(self.starts[run] + skip.astype(np.uint64), lengths, self.segments[run])

    def delete(self, positions: Positions) -> "RowIdSequence":
        """Remove the rows at these positions, which are ascending and distinct, as in a deletion vector."""
        run, skip, lengths = remove_positions(self.lengths, check_positions(positions, len(self)))
        return self._merge_adjacent_runs(self.starts[run] + skip.astype(np.uint64), lengths, self.segments[run])

    def first_repeated(self) -> RowId | None:
        """Return an id that occurs twice, or `None`. The ids of a fragment must be distinct."""
        if len(self.starts) < 2:
            return None
        overlapping = find_overlap(*sort_by_first_id(self.starts, self.lengths)[:2])
        return None if overlapping is None else overlapping[1]

    def encode(self) -> bytes:
        """Encode each segment in the form that the reference writer would choose for it."""
        if not len(self.starts):
            return rowids_pb2.RowIdSequence(segments=[range_segment(0, 0)]).SerializeToString()
        first_runs = np.flatnonzero(np.diff(self.segments)) + 1
        pieces = zip(np.split(self.starts, first_runs), np.split(self.lengths, first_runs), strict=True)
        return rowids_pb2.RowIdSequence(segments=[encode_segment(*piece) for piece in pieces]).SerializeToString()

    @classmethod
    def _concatenate(cls, parts: Sequence["RowIdSequence"]) -> "RowIdSequence":
        if not parts:
            return cls.of(())
        starts = np.concatenate([part.starts for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(starts, lengths, np.concatenate([part.segments for part in parts]))

    @classmethod
    def _merge_adjacent_runs(cls, starts: Ids, lengths: Counts, segments: Counts) -> "RowIdSequence":
        """Merge adjacent runs of the same segment if the second continues the first."""
        continues = (segments[1:] == segments[:-1]) & is_successor(starts[1:], last_ids(starts[:-1], lengths[:-1]))
        if not continues.any():
            return cls(starts, lengths, segments)
        kept = np.flatnonzero(np.concatenate([[True], ~continues]))
        return cls(starts[kept], np.add.reduceat(lengths, kept), segments[kept])

    def _is_single_run(self, end: int) -> bool:
        """Return whether the first (0) or the last (-1) segment is a single run."""
        return int(np.count_nonzero(self.segments == self.segments[end])) == 1

    def _continues_in(self, other: "RowIdSequence") -> bool:
        return bool(is_successor(other.starts[:1], last_ids(self.starts[-1:], self.lengths[-1:]))[0])


def encode_range(start: RowId, count: int) -> bytes:
    """Encode consecutive ids, the form of the ids of new rows.

    >>> encode_range(RowId(5), 3) == RowIdSequence.of_range(RowId(5), 3).encode()
    True
    """
    ids = rowids_pb2.U64Segment.Range(start=start, end=start + count)
    return rowids_pb2.RowIdSequence(segments=[rowids_pb2.U64Segment(range=ids)]).SerializeToString()


@dataclass(frozen=True, slots=True, eq=False)
class RowVersions:
    """Row versions in row order.

    >>> RowVersions.of([4, 4, 7]).runs
    ((2, 4), (1, 7))
    """

    _lengths: Counts
    _versions: Versions
    """The version of each run; adjacent runs differ."""

    @classmethod
    def decode(cls, data: bytes | None, *, rows: int, path: str, field: str) -> "RowVersions":
        """Return the versions of a fragment that has `rows` physical rows. `data` is `None` if the fragment stores no
        sequence."""
        if rows > ROWS_MAX:
            raise Corrupt(f"declares {rows} rows; a fragment has at most {ROWS_MAX}", path=path, field=field)
        if data is None:
            return cls.of_one(rows, UNRECORDED)
        size_guard.check_message(data, path=path)
        try:
            runs = rowids_pb2.RowDatasetVersionSequence.FromString(data).runs
        except DecodeError as error:
            raise Corrupt("is not a row version sequence", path=path, field=field) from error
        lengths = []
        left = rows
        for number, run in enumerate(runs):
            try:
                _, span_lengths = decode_segment(run.span, rows_max=left)
            except InvalidSegment as error:
                raise Corrupt(str(error), path=path, field=f"{field}.runs[{number}].span") from error
            lengths.append(int(span_lengths.sum()))
            left -= lengths[-1]
        if sum(lengths) != rows:
            raise Corrupt(f"holds {sum(lengths)} row versions for {rows} rows", path=path, field=field)
        versions = np.array([run.version for run in runs], dtype=np.uint64)
        return cls._merge_equal_runs(np.array(lengths, dtype=np.int64), versions)

    @classmethod
    def of(cls, versions: npt.ArrayLike) -> "RowVersions":
        """Return the sequence of one version for each row."""
        values = np.asarray(versions, dtype=np.uint64)
        return cls._merge_equal_runs(np.ones(len(values), dtype=np.int64), values)

    @classmethod
    def of_one(cls, rows: int, version: Version) -> "RowVersions":
        """Return the sequence that has the same version in all rows."""
        return cls._merge_equal_runs(np.array([rows], dtype=np.int64), np.array([version], dtype=np.uint64))

    @classmethod
    def concat(cls, parts: Sequence["RowVersions"]) -> "RowVersions":
        """Concatenate sequences, as a compaction concatenates the rows."""
        lengths = np.concatenate([np.empty(0, dtype=np.int64), *(part._lengths for part in parts)])
        return cls._merge_equal_runs(
            lengths, np.concatenate([np.empty(0, dtype=np.uint64), *(part._versions for part in parts)])
        )

    def __len__(self) -> int:
        return int(self._lengths.sum())

    @property
    def runs(self) -> tuple[tuple[int, Version], ...]:
        """The number of rows and the version of each run, in row order."""
        return tuple(zip(self._lengths.tolist(), map(Version, self._versions.tolist()), strict=True))

    def to_numpy(self) -> Versions:
        return np.repeat(self._versions, self._lengths)

    def slice(self, start: int, stop: int) -> "RowVersions":
        """Return rows `start` up to `stop`, which must exist."""
        if not 0 <= start <= stop <= len(self):
            raise InvalidInput(f"rows {start} to {stop} were requested from a sequence of {len(self)} rows")
        run, _, lengths = clip_runs(self._lengths, start, stop)
        return RowVersions(lengths, self._versions[run])

    def delete(self, positions: Positions) -> "RowVersions":
        """Remove the rows at these positions, which are ascending and distinct, as in a deletion vector."""
        run, _, lengths = remove_positions(self._lengths, check_positions(positions, len(self)))
        return RowVersions._merge_equal_runs(lengths, self._versions[run])

    def with_version_at(self, positions: Positions, version: Version) -> "RowVersions":
        """Set this version at these positions, for example after a column was rewritten for some rows."""
        versions = self.to_numpy()
        versions[check_positions(positions, len(self))] = version
        return RowVersions.of(versions)

    def with_version_in(self, positions: BitMap, version: Version) -> "RowVersions":
        """Return the row versions with this version at the positions in a bitmap. Consecutive positions, such as those
        of all rows, are not expanded to an array."""
        if not positions:
            return self
        start, stop = positions.min(), positions.max() + 1
        if len(positions) < stop - start:
            return self.with_version_at(np.frombuffer(positions.to_array(), dtype=np.uint32), version)
        same = RowVersions.of_one(stop - start, version)
        return RowVersions.concat([self.slice(0, start), same, self.slice(stop, len(self))])

    def encode(self) -> bytes:
        """Encode each run with the range of the rows that it covers."""
        ends = np.cumsum(self._lengths)
        runs = [
            rowids_pb2.RowDatasetVersionRun(
                span=rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=end - rows, end=end)),
                version=version,
            )
            for rows, end, version in zip(self._lengths.tolist(), ends.tolist(), self._versions.tolist(), strict=True)
        ]
        return rowids_pb2.RowDatasetVersionSequence(runs=runs).SerializeToString()

    @classmethod
    def _merge_equal_runs(cls, lengths: Counts, versions: Versions) -> "RowVersions":
        """Drop empty runs and merge adjacent runs of the same version."""
        filled = lengths > 0
        if not filled.all():
            lengths, versions = lengths[filled], versions[filled]
        changes = versions[1:] != versions[:-1]
        if changes.all():
            return cls(lengths, versions)
        first = np.flatnonzero(np.concatenate([[True], changes]))
        return cls(np.add.reduceat(lengths, first), versions[first])
