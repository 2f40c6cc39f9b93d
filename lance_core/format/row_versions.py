"""Row versions: the table versions in which the rows of a fragment were created or last changed, row by row.

`RowVersions` stores runs of rows with the same version. On the wire the span of a run is a segment like those of row
ids, and only its number of values counts: after a compaction spans overlap and start anywhere. A fragment that stores
no sequence has version 1 in every row, whichever version wrote it. This module never decides which version a row
gets. Start with `RowVersions.decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core.errors import Corrupt, InvalidInput
from lance_core.format import size_guard
from lance_core.format._pb import rowids_pb2
from lance_core.format.id_runs import Counts, Positions, check_positions, clip_runs, remove_positions
from lance_core.format.id_segments import InvalidSegment, decode_segment
from lance_core.format.ids import Version
from lance_core.format.rowids import ROWS_MAX

Versions = npt.NDArray[np.uint64]
UNRECORDED = Version(1)
"""The version of rows whose fragment stores no sequence."""


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
