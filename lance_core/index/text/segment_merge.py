"""Segment merge: the postings of an existing segment as runs of a new one, without the rows that it no longer covers.

The lists of a partition are read a portion of its terms at a time. Their documents keep their order, so that they
become consecutive documents of the new partition.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.index.index_type import IncompatibleSegments, MergeInput
from lance_core.index.row_remap import Unchanged
from lance_core.index.text.bit_packing import Ints, starts_of
from lance_core.index.text.builder import TextBuilder
from lance_core.index.text.parameters import TextParameters
from lance_core.index.text.posting_encoder import PostingLists
from lance_core.index.text.runs import Run
from lance_core.index.text.segment_reader import TextPartition, TextSegment

COPIED_TOKENS_MIN = 1 << 20
"""Number of tokens from which a partition that was just written, as a piece of the new segment, becomes a partition of
it. Smaller ones are merged."""
_TERMS_PER_PORTION = 1 << 12


def add_segment(builder: TextBuilder, merge_input: MergeInput) -> None:
    """Add the documents of a segment under their current row numbers. Raise `IncompatibleSegments` if its terms or
    positions are not those of the new segment."""
    opened = TextSegment(merge_input.segment)
    parameters = builder.analyzer.parameters
    if TextParameters.from_json(opened.parameters, path=opened.path) != parameters:
        raise IncompatibleSegments(f"{opened.path}: its texts were analyzed with other parameters")
    for number, partition in enumerate(opened.partitions):
        documents = partition.documents
        if isinstance(merge_input.row_remap, Unchanged) and documents.token_count >= COPIED_TOKENS_MIN:
            builder.writer.copy_partition(merge_input.segment.files, number)
            continue
        if parameters.with_position and not partition.has_positions:
            raise IncompatibleSegments(f"{opened.path}: it has no positions")
        rows, retained = merge_input.row_remap.remap(documents.row_numbers)
        builder.add_runs(
            _runs(partition, retained, builder.next_document, with_position=parameters.with_position),
            rows[retained],
            documents.lengths[retained].astype(np.int64),
        )


def _runs(
    partition: TextPartition, retained: npt.NDArray[np.bool_], first_document: int, *, with_position: bool
) -> Iterator[Run]:
    """Yield the postings of a partition, with its documents numbered from `first_document` on."""
    numbers = (np.cumsum(retained) - 1 + first_document).astype(np.int32)
    tokens = partition.list_tokens()
    for start in range(0, len(tokens.numbers), _TERMS_PER_PORTION):
        chosen = tokens.numbers[start : start + _TERMS_PER_PORTION].tolist()
        terms = tokens.terms.slice(start, len(chosen)).cast(pa.large_string())
        postings = partition.postings(chosen)
        documents = np.concatenate([each.documents for each in postings]).astype(np.int64)
        frequencies = np.concatenate([each.frequencies.astype(np.int32) for each in postings])
        positions = None
        if with_position:
            positions = np.concatenate([each.values for each in partition.positions_of(chosen)]).astype(np.int32)
        lengths = np.array([len(each.documents) for each in postings], dtype=np.int64)
        is_kept = retained[documents]
        if not is_kept.all():
            lengths, frequencies, documents, positions = _kept(lengths, frequencies, documents, positions, is_kept)
        has_rows = lengths > 0
        lists = PostingLists(lengths[has_rows], numbers[documents], frequencies, positions)
        yield Run(terms.filter(pa.array(has_rows)), lists)


def _kept(
    lengths: Ints,
    frequencies: npt.NDArray[np.int32],
    documents: Ints,
    positions: npt.NDArray[np.int32] | None,
    is_kept: npt.NDArray[np.bool_],
) -> tuple[Ints, npt.NDArray[np.int32], Ints, npt.NDArray[np.int32] | None]:
    """Return the postings of the mask."""
    kept_before = np.append(0, np.cumsum(is_kept))[starts_of(lengths)]
    if positions is not None:
        positions = positions[np.repeat(is_kept, frequencies)]
    return np.diff(kept_before), frequencies[is_kept], documents[is_kept], positions
