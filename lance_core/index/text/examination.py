"""Examination of a text segment for `fsck`: reads its terms, documents, posting lists and positions, and reports
contradictions."""

from collections.abc import Iterator

import numpy as np

from lance_core.errors import LanceError
from lance_core.format.row_sets import RowSet
from lance_core.index.index_type import Segment, SegmentExamination
from lance_core.index.text.segment_reader import TextPartition, TextSegment

_TERMS_AT_A_TIME = 1 << 12
_PROBLEMS_MAX = 3


def examine(segment: Segment) -> SegmentExamination:
    """Read all files of a segment. A row whose text has no terms is not listed."""
    problems: list[str] = []
    rows, listed = RowSet(), 0
    for partition in TextSegment(segment).partitions:
        documents = partition.documents
        rows |= RowSet.of(documents.row_numbers)
        listed += len(documents.row_numbers)
        problems += [str(error) for error in _errors(partition)][:_PROBLEMS_MAX]
    if len(rows) < listed:
        problems.append(f"{listed - len(rows):,} rows are listed more than once")
    return SegmentExamination(rows, lists_every_row=False, problems=tuple(dict.fromkeys(problems)))


def _errors(partition: TextPartition) -> Iterator[LanceError | str]:
    """Yield the errors of a partition: of its terms, of each portion of its posting lists, and of its lengths."""
    try:
        tokens = partition.list_tokens().numbers
    except LanceError as error:
        yield error
        return
    lengths = np.zeros(len(partition.documents.lengths), dtype=np.int64)
    is_complete = True
    for start in range(0, len(tokens), _TERMS_AT_A_TIME):
        chosen = tokens[start : start + _TERMS_AT_A_TIME].tolist()
        try:
            for postings in partition.postings(chosen):
                lengths[postings.documents] += postings.frequencies
            if partition.has_positions:
                partition.positions_of(chosen)
        except LanceError as error:
            is_complete = False
            yield error
    different = np.flatnonzero(lengths != partition.documents.lengths)
    if is_complete and len(different):
        number = int(different[0])
        expected = partition.documents.lengths[number]
        yield f"document {number} has {expected} tokens, and its posting lists have {lengths[number]} of it"
