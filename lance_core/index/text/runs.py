"""Runs: the sorted postings of a portion of the documents of a partition, and their merge in ranges of terms.

A run has its distinct terms in ascending order of their bytes, and for each term its documents, frequencies and
positions. Runs hold ascending ranges of documents, so that a merged posting list is the lists of the runs, one after
the other. Runs that exceed the memory budget are written to temporary files, from which the merge reads what it needs.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.index.text.analyzer import Tokens
from lance_core.index.text.bit_packing import Ints, ranges, starts_of
from lance_core.index.text.posting_encoder import Numbers, PostingLists

_KEY_BITS = 64
POSTINGS_PER_RANGE = 1 << 18


@dataclass(frozen=True, slots=True)
class Run:
    """Postings of consecutive documents."""

    terms: pa.LargeStringArray
    """Distinct terms, ascending."""
    lists: PostingLists

    @property
    def nbytes(self) -> int:
        lists = self.lists
        arrays = (lists.lengths, lists.documents, lists.frequencies, lists.positions)
        return int(self.terms.nbytes) + sum(each.nbytes for each in arrays if each is not None)


def run_of_tokens(tokens: Tokens, documents: Numbers, *, with_position: bool) -> Run:
    """Return the postings of tokens, whose `documents` are ascending."""
    order = np.asarray(pc.array_sort_indices(tokens.terms)).astype(np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    first = int(documents[0]) if len(documents) else 0
    terms, numbers = rank[tokens.term_numbers], (documents - first).astype(np.int64)
    positions = tokens.positions if with_position else None
    terms, numbers, positions = _sorted_tokens(terms, numbers, positions)
    is_new = np.ones(len(terms), dtype=np.bool_)
    is_new[1:] = (terms[1:] != terms[:-1]) | (numbers[1:] != numbers[:-1])
    at = np.flatnonzero(is_new)
    frequencies = np.diff(np.append(at, len(terms))).astype(np.int32)
    lengths = np.bincount(terms[at], minlength=len(order)).astype(np.int64)
    used = np.flatnonzero(lengths)
    documents = (numbers[at] + first).astype(np.int32)
    sorted_terms = tokens.terms.take(pa.array(order[used])).cast(pa.large_string())
    return Run(sorted_terms, PostingLists(lengths[used], documents, frequencies, positions))


def _sorted_tokens(terms: Ints, documents: Ints, positions: Numbers | None) -> tuple[Ints, Ints, Numbers | None]:
    """Sort tokens by term, document and position: as one integer each, if these fit into it."""
    columns = [terms, documents] if positions is None else [terms, documents, positions.astype(np.int64)]
    bits = [int(column.max(initial=0)).bit_length() for column in columns]
    if sum(bits) > _KEY_BITS - 1:
        order = np.lexsort(columns[::-1])
        return terms[order], documents[order], None if positions is None else positions[order]
    keys = columns[0]
    for column, width in zip(columns[1:], bits[1:], strict=True):
        keys = (keys << width) | column
    keys.sort()
    found = None
    if positions is not None:
        found = (keys & ((1 << bits[2]) - 1)).astype(np.int32)
        keys >>= bits[2]
    return keys >> bits[1], keys & ((1 << bits[1]) - 1), found


@dataclass(slots=True)
class RunBuffer:
    """Runs of a partition, in ascending order of their documents."""

    budget: int
    _runs: list[Run] = field(default_factory=list)
    _size: int = 0
    _directory: tempfile.TemporaryDirectory[str] | None = None
    _spilled: list[Run] = field(default_factory=list)

    def add(self, run: Run) -> None:
        self._runs.append(run)
        self._size += run.nbytes
        if self._size > self.budget:
            self._spill()

    def merged(self) -> "MergedRuns":
        return MergedRuns([*self._spilled, *self._runs])

    def close(self) -> None:
        """Delete the temporary files."""
        self._runs, self._spilled = [], []
        if self._directory is not None:
            self._directory.cleanup()

    def _spill(self) -> None:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="lance-postings-")
        prefix = Path(self._directory.name, str(len(self._spilled)))
        self._spilled.append(_spill(MergedRuns(self._runs), prefix))
        self._runs, self._size = [], 0


def _spill(merged: "MergedRuns", prefix: Path) -> Run:
    """Write merged runs to files, and return the run whose arrays are mapped to them."""
    columns = ("documents", "frequencies", "positions")
    paths = {name: prefix.with_suffix(f".{name}") for name in columns}
    files = {name: path.open("wb") for name, path in paths.items()}
    has_positions = False
    try:
        for lists in merged.ranges():
            for name in columns:
                values = getattr(lists, name)
                if values is not None:
                    has_positions |= name == "positions"
                    files[name].write(values.data)
    finally:
        for file in files.values():
            file.close()
    mapped = {name: _mapped(paths[name]) for name in columns}
    lists = PostingLists(
        merged.lengths, mapped["documents"], mapped["frequencies"], mapped["positions"] if has_positions else None
    )
    return Run(merged.terms, lists)


def _mapped(path: Path) -> Numbers:
    return np.memmap(path, dtype=np.int32, mode="r") if path.stat().st_size else np.zeros(0, dtype=np.int32)


class MergedRuns:
    """Merged postings of several runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.terms: pa.LargeStringArray = _distinct([run.terms for run in runs])
        self.lengths: Ints = np.zeros(len(self.terms), dtype=np.int64)
        self._sources = [_MergeSource.of(run, self.terms) for run in runs]
        for source in self._sources:
            self.lengths[source.numbers] += source.lists.lengths

    def ranges(self) -> Iterator[PostingLists]:
        """Yield the lists of all terms, some of them at a time."""
        borders = starts_of(self.lengths)
        for start, end in _portions(borders):
            yield self._merge(start, end)

    def _merge(self, start: int, end: int) -> PostingLists:
        """Return the lists of the terms in a range."""
        lengths = self.lengths[start:end]
        slices = [source.within(start, end) for source in self._sources]
        slices = [each for each in slices if len(each.numbers)]
        if len(slices) == 1:
            return slices[0].lists
        next_posting = starts_of(lengths)[:-1].copy()
        documents = np.empty(int(lengths.sum()), dtype=np.int32)
        frequencies = np.empty_like(documents)
        places = []
        for each in slices:
            at = ranges(next_posting[each.numbers], each.lists.lengths)
            next_posting[each.numbers] += each.lists.lengths
            documents[at], frequencies[at] = each.lists.documents, each.lists.frequencies
            places.append(at)
        merged = PostingLists(lengths, documents, frequencies, None)
        if not slices or any(each.lists.positions is None for each in slices):
            return merged
        first = starts_of(frequencies.astype(np.int64))
        positions = np.empty(int(first[-1]), dtype=np.int32)
        for each, at in zip(slices, places, strict=True):
            assert each.lists.positions is not None
            positions[ranges(first[at], each.lists.frequencies.astype(np.int64))] = each.lists.positions
        return replace(merged, positions=positions)


@dataclass(frozen=True, slots=True)
class _MergeSource:
    """Run, with the numbers of its terms among the merged ones."""

    numbers: Ints
    lists: PostingLists
    first_posting: Ints
    first_position: Ints | None

    @classmethod
    def of(cls, run: Run, terms: pa.LargeStringArray) -> "_MergeSource":
        numbers = np.asarray(pc.index_in(run.terms, terms)).astype(np.int64)
        lists = run.lists
        first = starts_of(lists.lengths)
        if lists.positions is None:
            return cls(numbers, lists, first, None)
        totals = [
            np.add.reduceat(
                _part(lists.frequencies, int(first[low]), int(first[high])),
                first[low:high] - first[low],
                dtype=np.int64,
            )
            for low, high in _portions(first)
        ]
        return cls(numbers, lists, first, starts_of(np.concatenate(totals) if totals else numbers))

    def within(self, start: int, end: int) -> "_MergeSource":
        """Return the part with the terms of a range, numbered from its start."""
        low, high = np.searchsorted(self.numbers, [start, end])
        begin, end_of_part = int(self.first_posting[low]), int(self.first_posting[high])
        positions = None
        if self.first_position is not None and self.lists.positions is not None:
            positions = _part(self.lists.positions, int(self.first_position[low]), int(self.first_position[high]))
        lists = PostingLists(
            self.lists.lengths[low:high],
            _part(self.lists.documents, begin, end_of_part),
            _part(self.lists.frequencies, begin, end_of_part),
            positions,
        )
        return _MergeSource(self.numbers[low:high] - start, lists, self.first_posting, None)


def _portions(borders: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges of lists that have about as many postings each, from the first posting of every list."""
    start = 0
    while start < len(borders) - 1:
        end = int(np.searchsorted(borders, borders[start] + POSTINGS_PER_RANGE, side="right")) - 1
        end = max(start + 1, end)
        yield start, end
        start = end


def _part(values: Numbers, start: int, end: int) -> Numbers:
    """Return a part of an array. That of a mapped file is read, since pages of mapped files count as memory."""
    if isinstance(values, np.memmap) and values.filename is not None:
        return np.fromfile(values.filename, dtype=np.int32, count=end - start, offset=start * values.itemsize)
    return values[start:end]


def _distinct(arrays: Sequence[pa.LargeStringArray]) -> pa.LargeStringArray:
    """Return the distinct terms of all runs, ascending."""
    if len(arrays) == 1:
        return arrays[0]
    terms = pc.unique(pa.chunked_array(arrays, pa.large_string()))
    return terms.take(pc.array_sort_indices(terms))
