"""Partition merge: several partitions become one, of which each worker writes a range of terms.

    worker    write_range(...)        terms and posting lists between two terms      a segment with one partition
    worker    SegmentWriter.join      all ranges, one after the other                the partition

The documents of all partitions are renumbered in the order of the partitions, so that every range can be written
by itself. `tasks/indices/text_build.py` divides the work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.index.index_type import IncompatibleSegments, MergeInput
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.text.builder import RUNS_BYTES
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.runs import Run, RunBuffer
from lance_core.index.text.segment_merge import stored_runs
from lance_core.index.text.segment_reader import LENGTH, TextPartition, TextSegment, open_once
from lance_core.index.text.segment_writer import PartitionDocuments, SegmentWriter
from lance_core.index.text.stored_lists import StoredLists


@dataclass(frozen=True, slots=True)
class TermRange:
    """Terms from `low` on that come before `high`; `None` stands for no bound."""

    low: str | None = None
    high: str | None = None

    def select(self, terms: pa.Array) -> slice:
        """Return the part of sorted terms that is in the range."""
        first = 0 if self.low is None else _count_before(terms, self.low)
        return slice(first, len(terms) if self.high is None else _count_before(terms, self.high))


def _count_before(terms: pa.Array, bound: str) -> int:
    return int(pc.sum(pc.less(terms, pa.scalar(bound, terms.type))).as_py() or 0)


@dataclass(frozen=True, slots=True)
class MergedPartition:
    """Partition of a segment that is merged with others."""

    source: MergeInput
    partition: TextPartition
    retained: npt.NDArray[np.bool_]
    """Mask of the documents that the merged partition retains."""
    documents: PartitionDocuments
    """The retained documents, with their current row numbers."""

    @classmethod
    def of(cls, source: MergeInput, number: int, parameters: TextParameters) -> "MergedPartition":
        opened = open_once(source.segment)
        if opened.recorded_parameters() != parameters:
            raise IncompatibleSegments(f"{opened.path}: its texts were analyzed with other parameters")
        (partition,) = (each for each in opened.partitions if each.number == number)
        listed = partition.documents
        rows, retained = source.row_remap.remap(listed.row_numbers)
        elements = None if listed.elements is None else listed.elements[retained]
        return cls(source, partition, retained, PartitionDocuments(rows[retained], listed.lengths[retained], elements))

    def runs(self, terms: TermRange, first_document: int, *, with_position: bool) -> Iterator[Run]:
        """Yield the postings of a range of terms, with documents numbered from `first_document` on."""
        segment = self.source.segment
        path = segment.metadata.qualified_path
        stored = StoredLists.of(self.partition, segment.files, path, with_position=with_position)
        within = terms.select(self.partition.list_tokens().terms)
        return stored_runs(stored, self.partition, self.retained, first_document, within)


def documents_of(parts: Sequence[MergedPartition]) -> PartitionDocuments:
    """Return the documents of a merged partition, in their order."""
    documents = [part.documents for part in parts]
    elements = [each.elements for each in documents if each.elements is not None]
    return PartitionDocuments(
        np.concatenate([each.rows for each in documents]),
        np.concatenate([each.lengths for each in documents]),
        np.concatenate(elements) if elements else None,
    )


def write_range(
    sink: SegmentSink, parameters: TextParameters, parts: Sequence[MergedPartition], terms: TermRange
) -> None:
    """Write the terms and posting lists of a range of terms of all parts."""
    buffer, first = RunBuffer(RUNS_BYTES), 0
    writer = SegmentWriter(sink, parameters)
    try:
        for part in parts:
            for run in part.runs(terms, first, with_position=parameters.with_position):
                buffer.add(run)
            first += len(part.documents.rows)
        writer.write_lists(documents_of(parts), buffer.merged())
        writer.finish()
    finally:
        buffer.close()


def sample_terms(partition: TextPartition, segment: TextSegment, count: int) -> pa.Array:
    """Return up to `count` terms that divide the postings of a partition into about equal parts."""
    file = segment.open_lists(partition.number)
    tokens = partition.list_tokens()
    lengths = read_all_rows(file, [LENGTH])[LENGTH].to_numpy().astype(np.int64)[tokens.numbers]
    up_to = np.cumsum(lengths)
    if not len(up_to):
        return pa.array([], pa.string())
    wanted = np.linspace(0, up_to[-1], count + 2)[1:-1]
    places = np.unique(np.minimum(np.searchsorted(up_to, wanted), len(up_to) - 1))
    return tokens.terms.take(pa.array(places)).cast(pa.string())
