"""NGRAM index: stores for each trigram of letters and digits a posting list, the rows whose text contains it.

A text that contains a piece of text contains all of its trigrams, so it is among the rows that their posting lists
have in common; these rows must be re-checked. `trigrams.py` defines what a trigram is. The file has one row per
trigram; a search reads the posting lists that it needs and caches some of them (`page_cache.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt
from lance_core.expressions.tree import Call, Comparison, Like, Op
from lance_core.format import treemap
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF, Ids, RowSet, bitmap_of
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    Leaf,
    MatchedRows,
    MergeInput,
    Segment,
    SegmentBuild,
    SegmentExamination,
    TypeWithoutOptions,
)
from lance_core.index.page_cache import SegmentPages
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import is_plain, is_text
from lance_core.index.trigrams import NULL_TOKEN, TOKEN_SHIFT, Pairs, required_tokens, token_pairs, token_text

_FILE = "ngram_postings.lance"
_TOKENS, _POSTINGS = "tokens", "posting_list"
_SCHEMA = pa.schema(
    [
        pa.field(_TOKENS, pa.uint32()),
        pa.field(_POSTINGS, pa.binary(), nullable=False, metadata={"lance-encoding:compression": "none"}),
    ]
)
_SUBSTRING_FUNCTIONS = frozenset({"contains", "starts_with", "ends_with"})
_BUFFERED_PAIRS_MAX = 1 << 24
_BATCH_BYTES_MAX = 1 << 26
_TOKENS_SEARCHED_MAX = 32
"""Number of trigrams of a long text that are searched: this many are as selective as all of them."""
_PROBLEMS_SHOWN_MAX = 3


class NGram(TypeWithoutOptions):
    name = "NGRAM"
    type_url = "/lance.table.NGramIndexDetails"
    max_readable_version = 0
    written_version = 0
    supported_types = "text"

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_text(column.type)

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return Certainty.AT_MOST if _searched_tokens(leaf) else None

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        builder = _TokenBuilder()
        for merge_input in build.inputs:
            opened = _OpenPostings.of(merge_input.segment)
            for tokens, posting_lists in opened.read_all():
                builder.add_lists(tokens, posting_lists, merge_input, path=opened.path)
        for batch in build.rows:
            builder.add(batch[VALUE], batch[ROW].to_numpy(zero_copy_only=False))
        file = sink.create(_FILE, _SCHEMA)
        for encoded in builder.batches():
            file.write(encoded)
        file.finish()
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "NGramSearcher":
        return NGramSearcher(_OpenPostings.of(segment), segment)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        """Read all posting lists and report contradictions. A text without three consecutive letters is in no list."""
        opened = _OpenPostings.of(segment)
        problems = []
        if opened.tokens.null_count:
            problems.append(f"{opened.tokens.null_count} of its posting lists have no token")
        numbers = opened.numbers
        for at in np.flatnonzero(numbers[1:] <= numbers[:-1])[:_PROBLEMS_SHOWN_MAX]:
            problems.append(f"{token_text(int(numbers[at + 1]))!r} comes after {token_text(int(numbers[at]))!r}")
        rows = RowSet()
        for _, posting_lists in opened.read_all():
            found = [rows]
            for data in posting_lists.to_pylist():
                try:
                    found.append(
                        treemap.decode(data or b"", segment.rows_under, path=opened.path, keep_impossible_rows=True)
                    )
                except Corrupt as error:
                    problems = [*problems, error.what][:_PROBLEMS_SHOWN_MAX]
            rows = RowSet.union(found)
        return SegmentExamination(rows, lists_every_row=False, problems=tuple(problems))


NGRAM = NGram()


@dataclass(frozen=True, slots=True)
class _OpenPostings:
    """Open file of a segment, with all tokens and no posting lists."""

    file: FileReader
    path: str
    tokens: pa.Array

    @classmethod
    def of(cls, segment: Segment) -> "_OpenPostings":
        path = f"{segment.metadata.qualified_path}/{_FILE}"
        file = segment.files.open(_FILE)
        for column in _SCHEMA:
            if column.name not in file.schema.names:
                raise Corrupt("the column is missing", path=path, field=column.name)
            if file.schema.field(column.name).type != column.type:
                raise Corrupt(
                    f"has type {file.schema.field(column.name).type} instead of {column.type}",
                    path=path,
                    field=column.name,
                )
        return cls(file, path, read_all_rows(file, [_TOKENS])[_TOKENS].combine_chunks())

    @property
    def numbers(self) -> npt.NDArray[np.uint32]:
        found: npt.NDArray[np.uint32] = self.tokens.drop_null().to_numpy()
        return found

    def read_all(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield all tokens with their posting lists, in batches."""
        if self.file.row_count:
            for batch in self.file.read([_TOKENS, _POSTINGS], 0, self.file.row_count):
                yield batch.column(0), batch.column(1)


class NGramSearcher:
    """Searcher for one segment of an NGRAM index."""

    def __init__(self, opened: _OpenPostings, segment: Segment) -> None:
        if opened.tokens.null_count:
            raise Corrupt("a value is missing", path=opened.path, field=_TOKENS)
        self._opened = opened
        self._segment = segment
        self._order = np.argsort(opened.numbers, kind="stable")
        self._sorted = opened.numbers[self._order]
        self._cache: SegmentPages[RowSet] = SegmentPages()

    def search(self, leaf: Leaf) -> MatchedRows | None:
        tokens = _searched_tokens(leaf)
        if not tokens:
            return None
        first, last = (np.searchsorted(self._sorted, tokens, side=side) for side in ("left", "right"))
        if (first == last).any():  # One of the trigrams occurs in no row.
            return MatchedRows(RowSet(), Certainty.AT_MOST)
        if (last - first > 1).any():
            raise Corrupt("a token occurs twice", path=self._opened.path, field=_TOKENS)
        shortest, *others = sorted(self._posting_lists(self._order[first].tolist()), key=len)
        rows = shortest
        for other in others:
            rows = rows & other
        return MatchedRows(rows, Certainty.AT_MOST)

    def _posting_lists(self, positions: Sequence[int]) -> list[RowSet]:
        """Return the posting lists in these rows of the file, from the page cache if they are in it."""
        cached = {position: rows for position in positions if (rows := self._cache.get(position)) is not None}
        missing = np.array(sorted(set(positions) - cached.keys()), dtype=np.int64)
        if len(missing):
            read = [
                data for batch in self._opened.file.take([_POSTINGS], missing) for data in batch.column(0).to_pylist()
            ]
            for position, data in zip(missing.tolist(), read, strict=True):
                cached[position] = treemap.decode(data or b"", self._segment.rows_under, path=self._opened.path)
                self._cache.put(position, cached[position], len(data or b""))
        return [cached[position] for position in positions]


def _searched_tokens(leaf: Leaf) -> list[int]:
    """Return the trigrams that every matching text has; none if the condition implies no trigram."""
    match leaf:
        case Like(pattern=pattern):
            text: object = pattern
        case Comparison(op=Op.EQ, value=value):
            text = value.as_py()
        case Call(function=function, arguments=(value,)) if function in _SUBSTRING_FUNCTIONS:
            text = value.as_py()
        case _:
            return []
    tokens = required_tokens(text) if isinstance(text, str) else []
    return tokens[:: -(-len(tokens) // _TOKENS_SEARCHED_MAX)] if tokens else []


@dataclass(slots=True)
class _TokenBuilder:
    """Posting lists under construction. Pairs of token and row are buffered until there are millions, which are
    sorted together."""

    _posting_lists: dict[int, dict[int, BitMap]] = field(default_factory=dict)
    """Rows by token, and by the upper half of the row number."""
    _pairs: list[Pairs] = field(default_factory=list)
    """Tokens, each with a position in `_rows`."""
    _rows: list[Ids] = field(default_factory=list)
    _buffered: int = 0
    _buffered_rows: int = 0

    def add(self, texts: pa.Array, rows: Ids) -> None:
        """Add texts with their rows."""
        step = max(1, len(texts) * _BATCH_BYTES_MAX // max(_BATCH_BYTES_MAX, texts.nbytes))
        for start in range(0, len(texts), step):
            piece = texts.slice(start, step)
            missing = np.flatnonzero(piece.is_null().to_numpy(zero_copy_only=False)).astype(np.uint64)
            self._buffer_pairs(
                np.concatenate([token_pairs(piece), missing | (np.uint64(NULL_TOKEN) << TOKEN_SHIFT)]),
                rows[start:][:step],
            )

    def add_lists(self, tokens: pa.Array, lists: pa.Array, merge_input: MergeInput, *, path: str) -> None:
        """Add the posting lists of an existing segment, whose rows may have moved."""
        if tokens.null_count or lists.null_count:
            raise Corrupt("a value is missing", path=path, field=_TOKENS)
        decoded: list[Ids] = []
        lengths: list[tuple[int, int]] = []
        count = 0
        for token, data in zip(tokens.to_pylist(), lists, strict=True):
            decoded.append(treemap.decode(data.as_buffer(), merge_input.segment.rows_under, path=path).ids())
            lengths.append((token, len(decoded[-1])))
            count += len(decoded[-1])
            if count > _BUFFERED_PAIRS_MAX:
                self._remap_lists(lengths, decoded, merge_input)
                decoded, lengths, count = [], [], 0
        if decoded:
            self._remap_lists(lengths, decoded, merge_input)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all posting lists in ascending order of their tokens."""
        self._flush()
        tokens: list[int] = []
        lists: list[bytes] = []
        size = 0
        for token in sorted(self._posting_lists):
            data = treemap.encode(RowSet(dict(sorted(self._posting_lists[token].items()))))
            if lists and size + len(data) > _BATCH_BYTES_MAX:
                yield _batch(tokens, lists)
                tokens, lists, size = [], [], 0
            tokens.append(token)
            lists.append(data)
            size += len(data)
        if lists:
            yield _batch(tokens, lists)

    def _remap_lists(self, lengths: Sequence[tuple[int, int]], decoded: Sequence[Ids], merge_input: MergeInput) -> None:
        """Buffer the rows of posting lists under their current numbers. `lengths` has each token and its list's
        length."""
        current, retained = merge_input.row_remap.remap(np.concatenate(decoded))
        columns = (np.array(column, dtype=np.int64) for column in zip(*lengths, strict=True))
        tokens = np.repeat(*columns).astype(np.uint64)
        rows = current[retained]
        self._buffer_pairs((tokens[retained] << TOKEN_SHIFT) | np.arange(len(rows), dtype=np.uint64), rows)

    def _buffer_pairs(self, pairs: Pairs, rows: Ids) -> None:
        self._pairs.append(pairs + np.uint64(self._buffered_rows))
        self._rows.append(rows)
        self._buffered += len(pairs) + len(rows)
        self._buffered_rows += len(rows)
        if self._buffered > _BUFFERED_PAIRS_MAX:
            self._flush()

    def _flush(self) -> None:
        """Sort the buffered pairs and move them into the posting lists."""
        if not self._buffered:
            return
        pairs, rows = np.concatenate(self._pairs), np.concatenate(self._rows)
        self._pairs, self._rows, self._buffered, self._buffered_rows = [], [], 0, 0
        if not len(pairs):
            return
        pairs.sort()
        is_distinct = np.ones(len(pairs), dtype=np.bool_)
        is_distinct[1:] = pairs[1:] != pairs[:-1]
        pairs = pairs[is_distinct]
        tokens, numbers = pairs >> TOKEN_SHIFT, rows[pairs & np.uint64(LOWER_HALF)]
        upper, lower = numbers >> np.uint64(HALF_BITS), numbers.astype(np.uint32)
        is_start = np.ones(len(pairs), dtype=np.bool_)
        is_start[1:] = (tokens[1:] != tokens[:-1]) | (upper[1:] != upper[:-1])
        starts = np.flatnonzero(is_start)
        ends = [*starts[1:].tolist(), len(pairs)]
        for token, high, start, end in zip(
            tokens[starts].tolist(), upper[starts].tolist(), starts.tolist(), ends, strict=True
        ):
            of_token = self._posting_lists.setdefault(token, {})
            rows_of_token = bitmap_of(lower[start:end])
            existing = of_token.get(high)
            of_token[high] = rows_of_token if existing is None else existing | rows_of_token


def _batch(tokens: Sequence[int], lists: Sequence[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(tokens, pa.uint32()), pa.array(lists, pa.binary())], schema=_SCHEMA)
