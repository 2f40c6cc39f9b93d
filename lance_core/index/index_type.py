"""Index type interface: the methods that every scalar index type implements, and the conditions that it answers.

    write(sink, build)                       writes a new segment from rows and from existing segments
    open(segment, ...).search(leaf)          returns the indexed rows that make a condition true
    examine(segment, ...)                    reports what the files contain and whether they are consistent, for `fsck`

Each implementation is one module of this package. An index type does not know which fragments a segment covers, which
rows moved or are deleted (`coverage.py`, `row_remap.py`), how NOT, AND and OR are evaluated (`access_path.py`), or
what happens where no index answers.

An index type treats row numbers as opaque 64-bit integers: row ids or row addresses, depending on its file version.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import InvalidInput, LanceError
from lance_core.expressions.tree import Call, Comparison, In, IsNull, Like
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import Ids, RowSet, RowsUnder
from lance_core.index.segment_files import SegmentSink, SegmentSource

VALUE, ROW = "value", "row"
"""Columns of the batches that an index is built from: the value and the number of each row, in scan order."""


@dataclass(frozen=True, slots=True)
class RangeCondition:
    """Lower and upper bound of one column. If an index type does not answer it (`IndexType.answers`), it is searched
    with each bound separately."""

    low: Comparison
    high: Comparison

    @property
    def path(self) -> tuple[str, ...]:
        return self.low.path


Condition: TypeAlias = Comparison | In | IsNull | Like | Call
"""Condition on one column, as it occurs in a filter."""

Leaf: TypeAlias = Condition | RangeCondition
"""Condition on one column that an index type is searched with; never NOT, which selects what is neither true nor
NULL, and never `!=`."""


class Certainty(enum.Enum):
    """Precision of a search result."""

    EXACT = "exact"
    """Exactly the rows that match."""
    AT_MOST = "at most"
    """A superset of the rows that match; each row has to be re-checked."""


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Result of a search."""

    rows: RowSet
    certainty: Certainty


class RowRemap(Protocol):
    """Translation of the row numbers in a segment to the current ones."""

    def remap(self, rows: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Return the current numbers of the rows, and a mask of the rows that this segment may still return."""

    def remap_set(self, rows: RowSet) -> RowSet:
        """Return the current numbers of the rows of a set that this segment may still return."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Existing segment, as its index type sees it."""

    metadata: IndexMetadata
    files: SegmentSource
    rows_under: RowsUnder

    @property
    def details(self) -> bytes:
        return bytes(self.metadata.message.index_details.value)


@dataclass(frozen=True, slots=True)
class MergeInput:
    """Existing segment that is merged into a new one."""

    segment: Segment
    row_remap: RowRemap


@dataclass(frozen=True, slots=True)
class SegmentExamination:
    """Contents of the files of a segment, all of which were read. For `fsck`."""

    rows: RowSet
    """All row numbers in the files; for zones, every row of each zone."""
    lists_every_row: bool
    """True if the files list every indexed row, whatever its value. Some index types list no row that has an empty
    list, or a text of two letters."""
    problems: tuple[str, ...] = ()
    """Contradictions, such as "page 7 begins below the end of page 6"; at most a few of each category."""


@runtime_checkable
class CountedRows(Protocol):
    """Rows that an index is built from whose number is known without reading them."""

    @property
    def row_count(self) -> int:
        """Number of the rows, or a little more."""


class IncompatibleSegments(LanceError):
    """Segments cannot be merged from their files; the new segment is built from the rows of the table."""


class Searcher(Protocol):
    """Open segment. It may cache what it has read; two threads may search at the same time."""

    def search(self, leaf: Leaf) -> MatchedRows | None:
        """Return the matching rows, or `None` for a condition that it cannot answer. The caller ensures that the
        condition is on a column of the type that the segment was built on."""


class IndexOptions(Protocol):
    """Build options of an index type: a frozen value of a class of its own."""


@dataclass(frozen=True, slots=True)
class SegmentBuild:
    """Rows and existing segments that a new segment is built from, with its options."""

    column: pa.Field
    rows: Iterable[pa.RecordBatch]
    """Values and row numbers, in scan order."""
    inputs: Sequence[MergeInput]
    """Existing segments, of which the new one contains the rows that their `row_remap` retains."""
    options: IndexOptions


class IndexType(Protocol):
    """Scalar index type, such as BTREE."""

    @property
    def name(self) -> str:
        """Name that users and pylance use: `BTREE`."""

    @property
    def type_url(self) -> str: ...

    @property
    def max_readable_version(self) -> int:
        """Highest version of the files that can be read."""

    @property
    def written_version(self) -> int:
        """Version of the files that are written."""

    def supports(self, column: pa.Field) -> bool:
        """Return whether an index can be built on the column."""

    @property
    def supported_types(self) -> str:
        """Column types that an index can be built on, for messages."""

    def parse_options(self, parameters: Mapping[str, object]) -> IndexOptions:
        """Return the options that a user passed; raise `InvalidInput` with the names of the valid ones."""

    def options_of(self, segment: Segment) -> IndexOptions:
        """Return the options that a segment was built with, to the extent that it records them."""

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        """Return how precisely a segment can answer, from its metadata alone, or `None` if it cannot. `explain` uses
        it, and so does a search, which opens no segment that cannot answer."""

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        """Write the files of a segment. Return its `index_details` for the index section, without the type URL."""

    def open(self, segment: Segment, column: pa.Field) -> Searcher: ...

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        """Read all files of the segment a portion at a time and trust none of them. Report contradictions, and raise
        only if a file cannot be read at all. Implementations do not drop rows by `rows_under` here, so that impossible
        rows are reported."""


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of an index type that has none."""


class TypeWithoutOptions:
    """Base of the index types that have no options."""

    name: str

    def parse_options(self, parameters: Mapping[str, object]) -> NoOptions:
        if parameters:
            raise InvalidInput(f"{self.name} has no option {min(parameters)!r}; it has no options")
        return NoOptions()

    def options_of(self, segment: Segment) -> NoOptions:
        return NoOptions()
