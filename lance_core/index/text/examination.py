"""Examination of a text segment for `fsck`: reads its terms, documents, posting lists and positions, and reports
contradictions."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from lance_core.errors import LanceError
from lance_core.format.row_sets import RowSet
from lance_core.index.index_type import IncompatibleSegments, Segment, SegmentExamination
from lance_core.index.segment_files import SegmentSource
from lance_core.index.text.bit_packing import Ints
from lance_core.index.text.segment_reader import TextPartition, open_once
from lance_core.index.text.stored_lists import StoredLists

_ListReader = Callable[[Ints], tuple[Ints, Ints]]

_TERMS_AT_A_TIME = 1 << 12
_PROBLEMS_MAX = 3


def examine(segment: Segment) -> SegmentExamination:
    """Read all files of a segment. A row whose text has no terms is not listed."""
    problems: list[str] = []
    rows, listed, repeated = RowSet(), 0, 0
    opened = open_once(segment)
    for partition in opened.partitions:
        documents = partition.documents
        numbers, elements = documents.row_numbers, documents.elements
        rows |= RowSet.of(numbers)
        if elements is None:
            listed += len(numbers)
        elif len(numbers):
            order = np.lexsort((elements, numbers))
            same = (numbers[order][1:] == numbers[order][:-1]) & (elements[order][1:] == elements[order][:-1])
            repeated += int(np.count_nonzero(same))
        problems += [str(error) for error in _errors(partition, segment.files, opened.path)][:_PROBLEMS_MAX]
    if len(rows) < listed:
        problems.append(f"{listed - len(rows):,} rows are listed more than once")
    if repeated:
        problems.append(f"{repeated:,} elements of lists are listed more than once")
    return SegmentExamination(rows, lists_every_row=False, problems=tuple(dict.fromkeys(problems)))


def _errors(partition: TextPartition, files: SegmentSource, path: str) -> Iterator[LanceError | str]:
    """Yield the errors of a partition: of its terms, of each portion of its posting lists, and of its lengths."""
    try:
        numbers = partition.list_tokens().numbers
        read = _reader_of(partition, files, path)
    except LanceError as error:
        yield error
        return
    lengths = np.zeros(len(partition.documents.lengths), dtype=np.int64)
    is_complete = True
    for start in range(0, len(numbers), _TERMS_AT_A_TIME):
        try:
            documents, frequencies = read(np.sort(numbers[start : start + _TERMS_AT_A_TIME]).astype(np.int64))
            lengths += np.bincount(documents, frequencies, minlength=len(lengths)).astype(np.int64)
        except LanceError as error:
            is_complete = False
            yield error
    different = np.flatnonzero(lengths != partition.documents.lengths)
    if is_complete and len(different):
        number = int(different[0])
        expected = partition.documents.lengths[number]
        yield f"document {number} has {expected} tokens, and its posting lists have {lengths[number]} of it"


def _reader_of(partition: TextPartition, files: SegmentSource, path: str) -> _ListReader:
    """Return the function that reads all lists of some terms: their documents and frequencies."""
    try:
        stored = StoredLists.of(partition, files, path, with_position=partition.has_positions)
    except IncompatibleSegments:
        return partial(_read_one_by_one, partition)

    def read(numbers: Ints) -> tuple[Ints, Ints]:
        lists = stored.read(numbers)
        return lists.documents.astype(np.int64), lists.frequencies.astype(np.int64)

    return read


def _read_one_by_one(partition: TextPartition, numbers: Ints) -> tuple[Ints, Ints]:
    """Read lists of an older layout."""
    chosen = numbers.tolist()
    if partition.has_positions:
        partition.positions_of(chosen)
    lists = partition.postings(chosen)
    documents = np.concatenate([each.documents for each in lists]).astype(np.int64)
    return documents, np.concatenate([each.frequencies for each in lists]).astype(np.int64)
