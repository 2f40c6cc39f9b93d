"""Segment merge: the postings of an existing segment as runs of a new one, without the rows that it no longer covers.

The lists of a partition are read a portion of its terms at a time. Their documents keep their order, so that they
become consecutive documents of the new partition.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.index.index_type import IncompatibleSegments, MergeInput
from lance_core.index.text.bit_packing import Ints, ranges, starts_of
from lance_core.index.text.builder import TextBuilder
from lance_core.index.text.posting_encoder import PostingLists
from lance_core.index.text.runs import Run
from lance_core.index.text.segment_reader import TextPartition, open_once
from lance_core.index.text.stored_lists import StoredLists

_TERMS_PER_PORTION = 1 << 12


def add_segment(builder: TextBuilder, merge_input: MergeInput) -> None:
    """Add the documents of a segment under their current row numbers. Raise `IncompatibleSegments` if its terms or
    positions are not those of the new segment."""
    files = merge_input.segment.files
    opened = open_once(merge_input.segment)
    parameters = builder.analyzer.parameters
    if opened.recorded_parameters() != parameters:
        raise IncompatibleSegments(f"{opened.path}: its texts were analyzed with other parameters")
    for partition in opened.partitions:
        documents = partition.documents
        lists = StoredLists.of(partition, files, opened.path, with_position=parameters.with_position)
        rows, retained = merge_input.row_remap.remap(documents.row_numbers)
        builder.add_runs(
            stored_runs(lists, partition, retained, builder.next_document),
            rows[retained],
            documents.lengths[retained].astype(np.int64),
            None if documents.elements is None else documents.elements[retained],
        )


def stored_runs(
    stored: StoredLists,
    partition: TextPartition,
    retained: npt.NDArray[np.bool_],
    first_document: int,
    within: slice | None = None,
) -> Iterator[Run]:
    """Yield the postings of a partition, with its documents numbered from `first_document` on: those of all terms, or
    of a part of its sorted terms."""
    new_numbers = (np.cumsum(retained) - 1 + first_document).astype(np.int32)
    tokens = partition.list_tokens()
    low, high, _ = (within or slice(None)).indices(len(tokens.numbers))
    for start in range(low, high, _TERMS_PER_PORTION):
        numbers = tokens.numbers[start : min(high, start + _TERMS_PER_PORTION)].astype(np.int64)
        terms = tokens.terms.slice(start, len(numbers)).cast(pa.large_string())
        order = np.argsort(numbers)
        lists = stored.read(numbers[order])
        if (order[1:] < order[:-1]).any():
            lists = _reordered(lists, np.argsort(order))
        is_kept = retained[lists.documents]
        if not is_kept.all():
            lists = _kept(lists, is_kept)
        has_rows = lists.lengths > 0
        renumbered = replace(lists, lengths=lists.lengths[has_rows], documents=new_numbers[lists.documents])
        yield Run(terms.filter(pa.array(has_rows)), renumbered)


def _reordered(lists: PostingLists, order: Ints) -> PostingLists:
    """Return the lists in another order."""
    starts, lengths = starts_of(lists.lengths)[:-1][order], lists.lengths[order]
    at = ranges(starts, lengths)
    positions = lists.positions
    if positions is not None:
        counts = lists.frequencies.astype(np.int64)
        positions = positions[ranges(starts_of(counts)[:-1][at], counts[at])]
    return PostingLists(lengths, lists.documents[at], lists.frequencies[at], positions)


def _kept(lists: PostingLists, is_kept: npt.NDArray[np.bool_]) -> PostingLists:
    """Return the postings of the mask."""
    kept_before = np.append(0, np.cumsum(is_kept))[starts_of(lists.lengths)]
    positions = lists.positions
    if positions is not None:
        positions = positions[np.repeat(is_kept, lists.frequencies)]
    return PostingLists(np.diff(kept_before), lists.documents[is_kept], lists.frequencies[is_kept], positions)
