"""Distributed build of a full-text segment: workers share the rows, then the terms.

    pieces    workers analyze whole fragments                         segments with partitions of up to 1 M documents
    merge     workers write ranges of terms of several partitions     ranges, each as a segment
    join      one worker writes the documents and copies the ranges   the segment

A search visits each partition, so that more than a few are merged, as long as together they have no more documents and
positions than one may have. Small segments are merged by one worker or by the driver. After a conflict, pieces of
unchanged fragments are used again. Start with `TextBuild.build`; `003-merged-term-ranges.md` gives the reasons.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.format.index_metadata import IndexMetadata
from lance_core.index.build import IndexSpec
from lance_core.index.coverage import Coverage
from lance_core.index.text.builder import DOCUMENTS_MAX, POSITIONS_MAX
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.partition_merge import TermRange, sample_terms
from lance_core.index.text.segment_reader import open_once
from lance_core.maintenance.index_maintenance import IndexWork
from lance_core.tasks.driver import TASKS_PER_SLOT, partition_count, run_over_partitions
from lance_core.tasks.indices.index_segments import MergePartialSegments, SegmentBuild, decode_values
from lance_core.tasks.indices.text_tasks import (
    SAMPLES_PER_PARTITION,
    JoinTermRanges,
    PartitionGroup,
    PartitionRef,
    WritePiece,
    WriteTermRange,
)
from lance_core.tasks.partial_results import PartialResults
from lance_core.tasks.partitioning import LocalRunner, PartitionFunction, Runner
from lance_core.versions.snapshot import Snapshot

DRIVER_MERGE_TOKENS_MAX = 1 << 18
"""Maximum number of tokens of the segments that the driver merges itself, since a job would take longer."""
COPIED_PARTITIONS_MAX = 4
"""Maximum number of partitions that are copied instead of merged. A merge encodes all postings once more, and a
search of a few partitions takes hardly longer than one of a single partition."""
RANGE_TOKENS = 1 << 21
"""Minimum number of tokens of a range that gets a task of its own. One worker merges segments of up to two ranges."""


@dataclass(slots=True)
class TextBuild:
    """Jobs that build a segment of one full-text index. The driver keeps it across replans."""

    runner: Runner
    track_temporary: Callable[[Snapshot, Sequence[bytes]], None]
    """Registers the encoded metadata of segments that are deleted when the change ends."""
    _spec: IndexSpec | None = None
    _pieces: PartialResults = field(default_factory=PartialResults)

    def build(self, base: Snapshot, work: IndexWork) -> IndexMetadata:
        """Build the segment. Its files are complete, and nothing is committed."""
        if self._spec != work.spec:
            self._spec, self._pieces = work.spec, PartialResults()
        count = self.runner.slots
        if count > COPIED_PARTITIONS_MAX:
            count = partition_count(work.fragments, count)
        results = self._pieces.over_fragments(base, work.fragments, count, WritePiece(work.spec), self.runner)
        written = [encoded for _, encoded in sorted(results.items())]
        pieces = tuple(encoded[0] for encoded in written)
        self.track_temporary(base, pieces)
        target = SegmentBuild.of(base, work)
        partitions = [*_partitions_of_pieces(written), *_existing_partitions(base, work, len(pieces))]
        all_fragments = tuple(fragment.encode() for fragment in base.manifest.fragments)
        tokens = sum(each.tokens for each in partitions)
        if tokens <= 2 * RANGE_TOKENS:
            runner = LocalRunner() if tokens <= DRIVER_MERGE_TOKENS_MAX else self.runner
            return _run_one(base, all_fragments, MergePartialSegments(target, pieces), runner)
        options = work.spec.options
        assert isinstance(options, TextParameters)
        tasks_max = self.runner.slots * TASKS_PER_SLOT
        groups = plan_groups(partitions, tasks_max, with_position=options.with_position)
        tasks = tuple((group, terms) for group in groups for terms in group.ranges)
        fragments = all_fragments if work.merged else ()
        merged = run_over_partitions(
            base, (fragments,) * len(tasks), WriteTermRange(target, pieces, tasks), self.runner
        )
        ranges = tuple(encoded for _, (encoded,) in sorted(merged.items()))
        self.track_temporary(base, ranges)
        return _run_one(base, fragments, JoinTermRanges(target, pieces, groups, ranges), self.runner)


@dataclass(frozen=True, slots=True)
class CountedPartition:
    """Partition of a segment that is merged."""

    ref: PartitionRef
    documents: int
    tokens: int
    sample: pa.Array
    """Terms that divide the postings of its segment into about equal parts."""
    is_current: bool
    """True if its rows are those of the table, so that its files can be copied."""


def plan_groups(
    partitions: Sequence[CountedPartition], tasks: int, *, with_position: bool
) -> tuple[PartitionGroup, ...]:
    """Return groups of consecutive partitions that become one, each with the ranges of terms that tasks write."""
    if len(partitions) <= COPIED_PARTITIONS_MAX and all(each.is_current for each in partitions):
        return tuple(PartitionGroup((each.ref,), ()) for each in partitions)
    groups = list(_group(partitions, with_position=with_position))
    merged = [group for group in groups if not _is_copied(group)]
    per_group = -(-tasks // max(1, len(merged)))
    return tuple(
        PartitionGroup(tuple(each.ref for each in group), () if _is_copied(group) else _ranges(group, per_group))
        for group in groups
    )


def _group(partitions: Sequence[CountedPartition], *, with_position: bool) -> Iterator[list[CountedPartition]]:
    group: list[CountedPartition] = []
    for each in partitions:
        together = [*group, each]
        positions = sum(part.tokens for part in together) if with_position else 0
        if group and (sum(part.documents for part in together) > DOCUMENTS_MAX or positions > POSITIONS_MAX):
            yield group
            together = [each]
        group = together
    if group:
        yield group


def _is_copied(group: Sequence[CountedPartition]) -> bool:
    return len(group) == 1 and group[0].is_current


def _ranges(group: Sequence[CountedPartition], count_max: int) -> tuple[TermRange, ...]:
    tokens = sum(part.tokens for part in group)
    count = max(1, min(count_max, tokens // RANGE_TOKENS))
    terms = pa.concat_arrays([part.sample for part in group])
    terms = terms.take(pc.array_sort_indices(terms))
    places = np.linspace(0, len(terms), count + 1)[1:-1].astype(np.int64)
    bounds: list[str] = list(dict.fromkeys(terms.take(pa.array(places)).to_pylist()))
    return tuple(TermRange(low, high) for low, high in zip([None, *bounds], [*bounds, None], strict=True))


def _partitions_of_pieces(written: Sequence[Sequence[bytes]]) -> Iterator[CountedPartition]:
    for segment, (_, samples, counts) in enumerate(written):
        terms = decode_values(samples)
        for number, documents, tokens in decode_values(counts).to_numpy().reshape(-1, 3).tolist():
            yield CountedPartition(PartitionRef(segment, number), documents, tokens, terms, is_current=True)


def _existing_partitions(base: Snapshot, work: IndexWork, first: int) -> Iterator[CountedPartition]:
    """Yield the partitions of the existing segments that are merged, in the order in which the tasks open them."""
    coverage = Coverage(base)
    uuids = {segment.metadata.uuid for segment in work.merged}
    existing = [segment for segment in coverage.segments if segment.metadata.uuid in uuids]
    for segment, each in enumerate(existing, first):
        opened = open_once(coverage.segment_of(each.metadata))
        for partition in opened.partitions:
            terms = sample_terms(partition, opened, SAMPLES_PER_PARTITION)
            documents = partition.documents
            ref = PartitionRef(segment, partition.number)
            yield CountedPartition(ref, len(documents.lengths), documents.token_count, terms, is_current=False)


def _run_one(
    base: Snapshot, fragments: tuple[bytes, ...], function: PartitionFunction, runner: Runner
) -> IndexMetadata:
    ((encoded,),) = run_over_partitions(base, (fragments,), function, runner).values()
    return IndexMetadata.decode(encoded)
