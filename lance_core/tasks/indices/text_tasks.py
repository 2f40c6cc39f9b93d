"""Text index tasks: workers write pieces of a full-text index, merge ranges of their terms, and join the ranges.

Pieces and ranges are segments like any other, under uuids that no version references. `text_build.py` divides the work
among the tasks; read it first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core.index import build
from lance_core.index.build import IndexSpec, SegmentWriter
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import MergeInput
from lance_core.index.segment_files import NewSegment
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.partition_merge import MergedPartition, TermRange, documents_of, sample_terms, write_range
from lance_core.index.text.segment_reader import open_once
from lance_core.index.text.segment_writer import SegmentWriter as TextSegmentWriter
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.tasks.indices.index_segments import SegmentBuild, encode_values, fresh_segments, without_fsync
from lance_core.versions.snapshot import Snapshot

SAMPLES_PER_PARTITION = 256


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """Partition of one of the segments that are merged: the pieces, then the existing ones."""

    segment: int
    number: int


@dataclass(frozen=True, slots=True)
class PartitionGroup:
    """Partitions that become one, and the ranges of terms into which the work is divided."""

    parts: tuple[PartitionRef, ...]
    ranges: tuple[TermRange, ...]
    """None if the group is a partition of a piece, which is copied."""


@dataclass(frozen=True, slots=True)
class WritePiece:
    """Writes a piece of some fragments. It also returns, for each partition, a sample of the terms, and after them the
    numbers, documents and tokens of the partitions."""

    spec: IndexSpec

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        fragments = tuple(partition.manifest.fragments)
        covers = BitMap(fragment.id for fragment in fragments)
        metadata = build.build_segment(
            without_fsync(partition), self.spec, fragments, covers=covers, runtime=SYSTEM_RUNTIME
        )
        yield metadata.encode()
        opened = open_once(Coverage(partition).segment_of(metadata))
        samples = [sample_terms(each, opened, SAMPLES_PER_PARTITION) for each in opened.partitions]
        yield encode_values(pa.concat_arrays([pa.array([], pa.string()), *samples]))
        counts = [(each.number, len(each.documents.lengths), each.documents.token_count) for each in opened.partitions]
        yield encode_values(pa.array(np.array(counts, dtype=np.int64).reshape(-1)))


@dataclass(frozen=True, slots=True)
class WriteTermRange:
    """Writes one range of terms of one group of partitions. The partition number is the position in `ranges`."""

    target: SegmentBuild
    pieces: tuple[bytes, ...]
    ranges: tuple[tuple[PartitionGroup, TermRange], ...]

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        group, terms = self.ranges[number]
        sources = _sources(partition, self.target, self.pieces)

        def write(sink: NewSegment, column: pa.Field, _addresses: bool) -> bytes:
            parameters = _parameters(self.target, column)
            write_range(sink, parameters, _open_parts(sources, group, parameters), terms)
            return parameters.to_details()

        yield _write(without_fsync(partition), self.target, write)


@dataclass(frozen=True, slots=True)
class JoinTermRanges:
    """Writes the segment: for each group of partitions their documents and all ranges of their terms."""

    target: SegmentBuild
    pieces: tuple[bytes, ...]
    groups: tuple[PartitionGroup, ...]
    ranges: tuple[bytes, ...]
    """Segments of the ranges of all groups, in order."""

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        sources = _sources(partition, self.target, self.pieces)
        written = iter(fresh_segments(partition, self.ranges))

        def write(sink: NewSegment, column: pa.Field, _addresses: bool) -> bytes:
            parameters = _parameters(self.target, column)
            writer = TextSegmentWriter(sink, parameters)
            for group in self.groups:
                parts = _open_parts(sources, group, parameters)
                files = [(next(written).segment.files, 0) for _ in group.ranges]
                if not files:
                    files = [(part.source.segment.files, part.partition.number) for part in parts]
                writer.join(documents_of(parts), files)
            writer.finish()
            return parameters.to_details()

        yield _write(partition, self.target, write)


def _sources(base: Snapshot, target: SegmentBuild, pieces: Sequence[bytes]) -> list[MergeInput]:
    return [*fresh_segments(base, pieces), *target.existing.merge_inputs(base)]


def _open_parts(
    sources: Sequence[MergeInput], group: PartitionGroup, parameters: TextParameters
) -> list[MergedPartition]:
    return [MergedPartition.of(sources[part.segment], part.number, parameters) for part in group.parts]


def _parameters(target: SegmentBuild, column: pa.Field) -> TextParameters:
    options = target.spec.options
    assert isinstance(options, TextParameters)
    return options.for_column(column.type)


def _write(base: Snapshot, target: SegmentBuild, write: SegmentWriter) -> bytes:
    covers = BitMap.deserialize(target.covers)
    return build.write_segment(base, target.spec, write, covers=covers, runtime=SYSTEM_RUNTIME).encode()
