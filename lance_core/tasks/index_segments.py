"""What workers do for an index: segments of some fragments, and one segment of several.

    Whole of an index that is small         BuildAlone                     from rows, and segments that are there
    of a large one, first                   BuildPiece                     of a part's fragments, for now
    then, where its kind is in order        WriteRange, JoinRanges         each range apart; one after the other
    and where it is not                     JoinPieces                     as its kind merges segments

Pieces and ranges are segments like any other, under uuids that no version ever names; the driver removes them, and what
a crash leaves of them is an orphan for cleanup. What comes back is what the index section says of a segment. Who is
given what is decided in `index_build.py`, which see first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap

from lance_core.format.fragment import Fragment
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
from lance_core.maintenance.index_maintenance import merge_input_of
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import locate
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ExistingSegments:
    """Segments of the version that go into a new one. Whoever reads them is given all fragments of the version, since
    rows may be anywhere."""

    merged: frozenset[bytes] = frozenset()
    """Their uuids."""
    indices: tuple[bytes, ...] = ()
    """They, and the notes of compactions."""

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
            merge_input_of(base, coverage, each)
            for each in coverage.segments
            if each.metadata.uuid.bytes in self.merged
        ]


@dataclass(frozen=True, slots=True)
class SegmentBuild:
    """An index of a version, whatever it is made from."""

    spec: IndexSpec
    covers: bytes
    """Bits of fragments, as are those below."""
    existing: ExistingSegments


@dataclass(frozen=True, slots=True)
class BuildSegment:
    """Several indices at once, each whole by one worker: the part's number is that of the index."""

    targets: tuple[SegmentBuild, ...]
    fragments_read: tuple[bytes, ...]
    """Of the fragments that it is given, those whose rows are read."""

    def __call__(self, part: Snapshot, number: int) -> Iterator[bytes]:
        order, read = self.targets[number], BitMap.deserialize(self.fragments_read[number])
        covers, parts = BitMap.deserialize(order.covers), order.existing.merge_inputs(part)
        try:
            made = build.build_segment(
                part, order.spec, _of(part, read), inputs=parts, covers=covers, runtime=SYSTEM_RUNTIME
            )
        except build.UNREADABLE_ERRORS:
            if not parts:
                raise
            made = build.build_segment(part, order.spec, _of(part, covers), covers=covers, runtime=SYSTEM_RUNTIME)
        yield made.encode()


@dataclass(frozen=True, slots=True)
class BuildPartialSegment:
    """Gives back besides, where its kind is in order, values that ranges can be cut at."""

    spec: IndexSpec
    sample_every: int

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        fragments = tuple(part.manifest.fragments)
        covers = BitMap(fragment.id for fragment in fragments)
        made = build.build_segment(without_fsync(part), self.spec, fragments, covers=covers, runtime=SYSTEM_RUNTIME)
        yield made.encode()
        if is_sorted_type(self.spec):
            cuts = btree_runs.range_cuts(Coverage(part).segment_of(made), self.sample_every)
            yield encode_values(cuts)


@dataclass(frozen=True, slots=True)
class WriteValueRange:
    """The rows from one cut to the next, of all pieces and of segments that are there: the part's number is that of the
    range. Where there is but one range it is the index."""

    target: SegmentBuild
    partial_segments: tuple[bytes, ...]
    boundaries: bytes

    def __call__(self, part: Snapshot, number: int) -> Iterator[bytes]:
        cuts = decode_values(self.boundaries)
        base = without_fsync(part) if len(cuts) else part
        options = self.target.spec.options
        assert isinstance(options, BTreeOptions)

        def write(files: NewSegment, column: pa.Field, _addresses: bool) -> bytes:
            order = ordering(column.type)
            keys = order.keys(cuts)
            low, high = [None, *keys][number], [*keys, None][number]
            rows = btree_runs.merge_range(
                order, fresh_segments(part, self.partial_segments), self.target.existing.merge_inputs(part), low, high
            )
            btree.write_pages(files, column.type, rows, options)
            return b""

        covers = BitMap.deserialize(self.target.covers)
        yield build.write_segment(base, self.target.spec, write, covers=covers, runtime=SYSTEM_RUNTIME).encode()


@dataclass(frozen=True, slots=True)
class ConcatenateRanges:
    """One after the other, as they come from the store."""

    target: SegmentBuild
    ranges: tuple[bytes, ...]

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        options = self.target.spec.options
        assert isinstance(options, BTreeOptions)

        def rows() -> Iterator[pa.RecordBatch]:
            for each in fresh_segments(part, self.ranges):
                file = each.segment.files.open(DATA)
                for batch in file.read(COLUMNS, 0, file.row_count) if file.row_count else ():
                    yield pa.RecordBatch.from_arrays(batch.columns, names=[VALUE, ROW])

        def write(files: NewSegment, column: pa.Field, _addresses: bool) -> bytes:
            btree.write_pages(files, column.type, rows(), options)
            return b""

        covers = BitMap.deserialize(self.target.covers)
        yield build.write_segment(part, self.target.spec, write, covers=covers, runtime=SYSTEM_RUNTIME).encode()


@dataclass(frozen=True, slots=True)
class MergePartialSegments:
    """It is given all fragments of the version, which say how many rows there may be."""

    target: SegmentBuild
    partial_segments: tuple[bytes, ...]

    def __call__(self, part: Snapshot, _number: int) -> Iterator[bytes]:
        parts = [*fresh_segments(part, self.partial_segments), *self.target.existing.merge_inputs(part)]
        covers = BitMap.deserialize(self.target.covers)
        yield build.build_segment(
            part, self.target.spec, (), inputs=parts, covers=covers, runtime=SYSTEM_RUNTIME
        ).encode()


def _of(base: Snapshot, fragments: BitMap) -> list[Fragment]:
    return [fragment for fragment in base.manifest.fragments if fragment.id in fragments]


def is_sorted_type(wanted: IndexSpec) -> bool:
    return wanted.kind.type_url == BTREE.type_url


def fresh_segments(base: Snapshot, segments: Sequence[bytes]) -> list[MergeInput]:
    """From this version, or one in which their fragments were the same."""
    coverage = Coverage(base)
    return [MergeInput(coverage.segment_of(IndexMetadata.decode(each)), Unchanged()) for each in segments]


def without_fsync(part: Snapshot) -> Snapshot:
    """The same; nobody needs what is written to it after a power loss."""
    location = part.location
    access = location.access
    brief = locate(location.uri, storage_options=access.storage_options, durable=False, bases=access.bases)
    return replace(part, location=brief.for_manifest(part.manifest))


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
