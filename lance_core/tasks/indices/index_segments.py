"""Index segment tasks: workers build segments over some fragments, and merge several segments into one.

    small index, one job               BuildSegment            from rows and from existing segments
    large index, first job             BuildPartialSegment     a temporary segment of the fragments of one partition
    then, for a sorted type (BTREE)    WriteValueRange         one range of values of all segments
                                       ConcatenateRanges       all ranges, one after the other
    then, for any other type           MergePartialSegments    by the merge function of the index type

Partial segments and ranges are segments like any other, under uuids that no version references. The driver removes
them, and those that a crash leaves behind are orphan files for cleanup. A task returns the encoded metadata of its
segment. `index_build.py` divides the work among the tasks; read it first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap

from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import reuse_entry
from lance_core.format.index_metadata import IndexMetadata, encode_section
from lance_core.format.manifest import Manifest
from lance_core.index import btree, btree_runs, build
from lance_core.index.btree import BTREE, BTreeOptions
from lance_core.index.btree_pages import COLUMNS, DATA
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import ROW, VALUE, MergeInput
from lance_core.index.ordering import ordering
from lance_core.index.row_remap import Unchanged
from lance_core.index.segment_files import NewSegment
from lance_core.maintenance.index_maintenance import IndexWork, merge_input_of
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import locate
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ExistingSegments:
    """Existing segments that are merged into a new one. A task that merges them gets a snapshot with all fragments of
    the version, since rows of the segments may be in any of them."""

    merged: frozenset[bytes] = frozenset()
    """Uuids of the segments."""
    indices: tuple[bytes, ...] = ()
    """Encoded metadata of the segments and of the fragment reuse index."""

    def merge_inputs(self, base: Snapshot) -> list[MergeInput]:
        if not self.merged:
            return []
        with_indices = Manifest.from_header(
            base.manifest.copy_header(),
            index_section=encode_section(tuple(map(IndexMetadata.decode, self.indices))),
            transaction=None,
            path=base.manifest.path,
        )
        base = replace(base, manifest=with_indices)
        coverage = Coverage(base)
        return [
            merge_input_of(base, coverage, segment)
            for segment in coverage.segments
            if segment.metadata.uuid.bytes in self.merged
        ]


@dataclass(frozen=True, slots=True)
class SegmentBuild:
    """Description of a segment to build, independent of the input of the build."""

    spec: IndexSpec
    covers: bytes
    """Serialized bitmap: ids of the fragments that the segment covers."""
    existing: ExistingSegments

    @classmethod
    def of(cls, base: Snapshot, work: IndexWork) -> "SegmentBuild":
        existing = ExistingSegments()
        if work.merged:
            merged = [segment.metadata for segment in work.merged]
            reuse_index = reuse_entry(base.manifest.indices)
            indices = [*merged, *([] if reuse_index is None else [reuse_index])]
            existing = ExistingSegments(
                frozenset(segment.uuid.bytes for segment in merged), tuple(index.encode() for index in indices)
            )
        return cls(work.spec, work.covers.serialize(), existing)


@dataclass(frozen=True, slots=True)
class BuildSegment:
    """Builds segments of several indices in one job, each in one task. The partition number is the position of the
    target in `targets`."""

    targets: tuple[SegmentBuild, ...]
    fragments_read: tuple[bytes, ...]
    """Serialized bitmap for each target: ids of the fragments whose rows are read."""

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        target, read_ids = self.targets[number], BitMap.deserialize(self.fragments_read[number])
        covers, inputs = BitMap.deserialize(target.covers), target.existing.merge_inputs(partition)
        try:
            segment = build.build_segment(
                partition,
                target.spec,
                _fragments_with_ids(partition, read_ids),
                inputs=inputs,
                covers=covers,
                runtime=SYSTEM_RUNTIME,
            )
        except build.UNREADABLE_ERRORS:
            if not inputs:
                raise
            # An existing segment is unreadable: all covered rows are read from the table instead.
            segment = build.build_segment(
                partition, target.spec, _fragments_with_ids(partition, covers), covers=covers, runtime=SYSTEM_RUNTIME
            )
        yield segment.encode()


@dataclass(frozen=True, slots=True)
class BuildPartialSegment:
    """Builds a segment of one partition. For a sorted type it also returns samples of the values, from which range
    boundaries are chosen."""

    spec: IndexSpec
    sample_every: int

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        fragments = tuple(partition.manifest.fragments)
        covers = BitMap(fragment.id for fragment in fragments)
        segment = build.build_segment(
            without_fsync(partition), self.spec, fragments, covers=covers, runtime=SYSTEM_RUNTIME
        )
        yield segment.encode()
        if is_sorted_type(self.spec):
            samples = btree_runs.range_cuts(Coverage(partition).segment_of(segment), self.sample_every)
            yield encode_values(samples)


@dataclass(frozen=True, slots=True)
class WriteValueRange:
    """Writes the rows between two boundaries, from all partial and existing segments. The partition number is that of
    the range. A single range is the whole index."""

    target: SegmentBuild
    partial_segments: tuple[bytes, ...]
    boundaries: bytes

    def __call__(self, partition: Snapshot, number: int) -> Iterator[bytes]:
        boundaries = decode_values(self.boundaries)
        base = without_fsync(partition) if len(boundaries) else partition
        options = self.target.spec.options
        assert isinstance(options, BTreeOptions)

        def write(files: NewSegment, column: pa.Field, _addresses: bool) -> bytes:
            value_order = ordering(column.type)
            keys = value_order.keys(boundaries)
            low, high = [None, *keys][number], [*keys, None][number]
            rows = btree_runs.merge_range(
                value_order,
                fresh_segments(partition, self.partial_segments),
                self.target.existing.merge_inputs(partition),
                low,
                high,
            )
            btree.write_pages(files, column.type, rows, options)
            return b""

        covers = BitMap.deserialize(self.target.covers)
        yield build.write_segment(base, self.target.spec, write, covers=covers, runtime=SYSTEM_RUNTIME).encode()


@dataclass(frozen=True, slots=True)
class ConcatenateRanges:
    """Writes one segment from all ranges in their order, and streams each of them from the store."""

    target: SegmentBuild
    ranges: tuple[bytes, ...]

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        options = self.target.spec.options
        assert isinstance(options, BTreeOptions)

        def rows() -> Iterator[pa.RecordBatch]:
            for value_range in fresh_segments(partition, self.ranges):
                file = value_range.segment.files.open(DATA)
                for batch in file.read(COLUMNS, 0, file.row_count) if file.row_count else ():
                    yield pa.RecordBatch.from_arrays(batch.columns, names=[VALUE, ROW])

        def write(files: NewSegment, column: pa.Field, _addresses: bool) -> bytes:
            btree.write_pages(files, column.type, rows(), options)
            return b""

        covers = BitMap.deserialize(self.target.covers)
        yield build.write_segment(partition, self.target.spec, write, covers=covers, runtime=SYSTEM_RUNTIME).encode()


@dataclass(frozen=True, slots=True)
class MergePartialSegments:
    """Merges segments with the merge function of their index type. The snapshot has all fragments of the version, which
    limit the number of rows."""

    target: SegmentBuild
    partial_segments: tuple[bytes, ...]

    def __call__(self, partition: Snapshot, _number: int) -> Iterator[bytes]:
        inputs = [*fresh_segments(partition, self.partial_segments), *self.target.existing.merge_inputs(partition)]
        covers = BitMap.deserialize(self.target.covers)
        yield build.build_segment(
            partition, self.target.spec, (), inputs=inputs, covers=covers, runtime=SYSTEM_RUNTIME
        ).encode()


def _fragments_with_ids(base: Snapshot, ids: BitMap) -> list[Fragment]:
    return [fragment for fragment in base.manifest.fragments if fragment.id in ids]


def is_sorted_type(spec: IndexSpec) -> bool:
    """Return whether the index type stores its rows in value order, so that ranges of values can be merged
    separately."""
    return spec.kind.type_url == BTREE.type_url


def fresh_segments(base: Snapshot, segments: Sequence[bytes]) -> list[MergeInput]:
    """Return merge inputs for segments built on this version, or on one in which their fragments were the same."""
    coverage = Coverage(base)
    return [MergeInput(coverage.segment_of(IndexMetadata.decode(encoded)), Unchanged()) for encoded in segments]


def without_fsync(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a location that does not fsync, for temporary segments: a power loss ends the build."""
    location = snapshot.location
    access = location.access
    volatile = locate(
        location.uri,
        storage_options=access.storage_options,
        durable=False,
        bases=access.bases,
        verify=access.verify,
        trusted=access.trusted,
    )
    return replace(snapshot, location=volatile.for_manifest(snapshot.manifest))


def encode_values(values: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([values], names=[VALUE])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode_values(data: bytes) -> pa.Array:
    with pa.ipc.open_stream(data) as reader:
        (batch,) = list(reader)
    return batch.column(0)
