"""What every kind of index can do, and the words in which it is asked. A kind is one module beside this one.

    write(files, column, ...)      from rows, and from segments that are there, to the files of a new segment
    open(segment, ...).search(leaf)    which rows of what it has indexed make a condition true
    examine(segment, ...)              what is in its files, and whether that holds together; for `fsck`

That is all. Which fragments a segment covers, whose rows moved or are deleted, what becomes of NOT, AND and OR, and
what is done where no index knows anything, are nobody's business here: `coverage.py`, `row_remap.py`, `access_path.py`.

A kind stores rows by numbers, of which it knows only that they are 64 bits: row ids or addresses, as its version says.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.expressions.tree import Call, Comparison, In, IsNull, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet, RowsUnder
from lance_core.index.segment_files import SegmentSink, SegmentSource

VALUE, ROW = "value", "row"
"""The columns that a kind is built from: the values, and the number of each row, in the order of a scan."""


@dataclass(frozen=True, slots=True)
class RangeCondition:
    """Two bounds of one column. A kind that does not answer it (`IndexType.answers`) is asked for each of them."""

    low: Comparison
    high: Comparison

    @property
    def path(self) -> tuple[str, ...]:
        return self.low.path


Condition: TypeAlias = Comparison | In | IsNull | Like | Call
"""On one column, as a filter has it."""

Leaf: TypeAlias = Condition | RangeCondition
"""What is asked of a kind: a condition on one column. Never NOT, which is what is neither true nor null; nor `!=`."""


class Certainty(enum.Enum):
    EXACT = "exact"
    """These rows, and no others."""
    AT_MOST = "at most"
    """No others than these; each has to be looked at."""


@dataclass(frozen=True, slots=True)
class MatchedRows:
    rows: RowSet
    certainty: Certainty


class RowRemap(Protocol):
    """What became of rows since a segment was written."""

    def of(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Their numbers now, and which of them are still there to be found by this segment."""

    def of_set(self, rows: RowSet) -> RowSet:
        """The same of a set."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One that is there, as a kind sees it."""

    metadata: IndexMetadata
    files: SegmentSource
    rows_under: RowsUnder

    @property
    def details(self) -> bytes:
        return bytes(self.metadata.message.index_details.value)


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A segment that goes into a new one."""

    segment: Segment
    moves: RowRemap


@dataclass(frozen=True, slots=True)
class Examined:
    """What the files of a segment say, looked through from end to end. For those who doubt it."""

    rows: RowSet
    """Every number that is in them; of zones, every row of each."""
    has_all: bool
    """Whether a row that was indexed is among them whatever its value was. Of a row with an empty list, or with a text
    of two letters, some kinds have nothing."""
    problems: tuple[str, ...] = ()
    """What contradicts itself: "page 7 begins below the end of page 6". A few of each sort are enough."""


class Searcher(Protocol):
    """A segment that is open. It may keep what it has read; two threads may ask at once."""

    def search(self, leaf: Leaf) -> MatchedRows | None:
        """None for what it cannot answer. A condition on a column of another type than it was built on has been kept
        away before."""


class IndexOptions(Protocol):
    """What a user may choose for a kind: a frozen value of the kind's own."""


class IndexType(Protocol):
    @property
    def name(self) -> str:
        """As users and pylance say it: `BTREE`."""

    @property
    def type_url(self) -> str: ...

    @property
    def newest(self) -> int:
        """The highest version of its files that can be read."""

    def version(self, *, stable_row_ids: bool) -> int:
        """What is written."""

    def supports(self, column: pa.Field) -> bool:
        """Whether it can be built on such a column."""

    @property
    def supported_types(self) -> str:
        """Which types it can be built on, for messages."""

    def options(self, given: Mapping[str, object]) -> IndexOptions:
        """Raises `InvalidInput` that names what may be given."""

    def options_of(self, segment: Segment) -> IndexOptions:
        """Those that a segment was built with, as far as it says."""

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        """What a segment can be expected to answer, from its metadata alone: for `explain`, and to open none in
        vain."""

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        """The files of a segment that has all these rows, those of `parts` as far as their `moves` let them stay; what
        the index section says of it (`index_details`, without the URL)."""

    def open(self, segment: Segment, column: pa.Field) -> Searcher: ...

    def examine(self, segment: Segment, column: pa.Field) -> Examined:
        """Reads all of its files, a portion at a time, and believes none of them: what is wrong with them is told, and
        only what cannot be read at all is raised. `rows_under` does not cut anything off here, so that a row which
        cannot be there is seen."""
