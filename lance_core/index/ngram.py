"""NGRAM: for each trigram of letters and digits, the rows whose text has it. What holds a piece of text has all of the
piece's trigrams, so it is among the rows that these have in common; whether it does is to be looked at.

What a trigram is, `trigrams.py` knows. The file is one row a trigram; those that are asked for are read, and some of
them kept (`page_cache.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt, InvalidInput
from lance_core.expressions.tree import Call, Comparison, Like, Op
from lance_core.format import treemap
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import HALF_BITS, LOWER_HALF, Ids, RowSet, bitmap_of
from lance_core.index.index_type import (
    ROW,
    VALUE,
    Certainty,
    IndexOptions,
    Leaf,
    MatchedRows,
    MergeInput,
    Segment,
    SegmentExamination,
)
from lance_core.index.page_cache import SegmentPages
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import is_plain, is_text
from lance_core.index.trigrams import NULL_TOKEN, TOKEN_SHIFT, Pairs, required_tokens, token_pairs, token_text

_FILE = "ngram_postings.lance"
_TOKENS, _LISTS = "tokens", "posting_list"
_SCHEMA = pa.schema(
    [
        pa.field(_TOKENS, pa.uint32()),
        pa.field(_LISTS, pa.binary(), nullable=False, metadata={"lance-encoding:compression": "none"}),
    ]
)
_HOLDING = frozenset({"contains", "starts_with", "ends_with"})
_PAIRS_AT_ONCE = 1 << 24
_BYTES_AT_ONCE = 1 << 26
_TOKENS_ASKED = 32
"""Of a long text so many say as much as all."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class NGramOptions:
    pass


class NGram:
    name = "NGRAM"
    type_url = "/lance.table.NGramIndexDetails"
    max_readable_version = 0
    supported_types = "text"

    def written_version(self, *, stable_row_ids: bool) -> int:
        return 0

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_text(column.type)

    def parse_options(self, given: Mapping[str, object]) -> IndexOptions:
        if given:
            raise InvalidInput(f"{self.name} has no option {min(given)!r}; it has none")
        return NGramOptions()

    def options_of(self, segment: Segment) -> IndexOptions:
        return NGramOptions()

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        return Certainty.AT_MOST if _asked(leaf) else None

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        gathered = _TokenBuilder()
        for part in parts:
            opened = _Opened.of(part.segment)
            for tokens, lists in opened.all():
                gathered.add_lists(tokens, lists, part, path=opened.path)
        for batch in rows:
            gathered.add(batch[VALUE], batch[ROW].to_numpy(zero_copy_only=False))
        file = files.create(_FILE, _SCHEMA)
        for written in gathered.batches():
            file.write(written)
        file.finish()
        return b""

    def open(self, segment: Segment, column: pa.Field) -> "NGramSearcher":
        return NGramSearcher(_Opened.of(segment), segment)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        """A text without three letters in a row is nowhere."""
        opened = _Opened.of(segment)
        problems = []
        if opened.tokens.null_count:
            problems.append(f"{opened.tokens.null_count} of its lists have no token")
        numbers = opened.numbers
        for at in np.flatnonzero(numbers[1:] <= numbers[:-1])[:_SHOWN]:
            problems.append(f"{token_text(int(numbers[at + 1]))!r} stands behind {token_text(int(numbers[at]))!r}")
        rows = RowSet()
        for _, lists in opened.all():
            found = [rows]
            for data in lists.to_pylist():
                try:
                    found.append(
                        treemap.decode(data or b"", segment.rows_under, path=opened.path, keep_impossible_rows=True)
                    )
                except Corrupt as error:
                    problems = [*problems, error.what][:_SHOWN]
            rows = RowSet.union(found)
        return SegmentExamination(rows, lists_every_row=False, problems=tuple(problems))


NGRAM = NGram()


@dataclass(frozen=True, slots=True)
class _Opened:
    file: FileReader
    path: str
    tokens: pa.Array

    @classmethod
    def of(cls, segment: Segment) -> "_Opened":
        path = f"{segment.metadata.qualified_path}/{_FILE}"
        file = segment.files.open(_FILE)
        for each in _SCHEMA:
            if each.name not in file.schema.names:
                raise Corrupt("the column is missing", path=path, field=each.name)
            if file.schema.field(each.name).type != each.type:
                raise Corrupt(
                    f"is {file.schema.field(each.name).type} where {each.type} belongs", path=path, field=each.name
                )
        return cls(file, path, read_all_rows(file, [_TOKENS])[_TOKENS].combine_chunks())

    @property
    def numbers(self) -> npt.NDArray[np.uint32]:
        found: npt.NDArray[np.uint32] = self.tokens.drop_null().to_numpy()
        return found

    def all(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """The tokens with their lists, some at a time."""
        if self.file.row_count:
            for batch in self.file.read([_TOKENS, _LISTS], 0, self.file.row_count):
                yield batch.column(0), batch.column(1)


class NGramSearcher:
    def __init__(self, opened: _Opened, segment: Segment) -> None:
        if opened.tokens.null_count:
            raise Corrupt("a value is missing", path=opened.path, field=_TOKENS)
        self._opened = opened
        self._segment = segment
        self._order = np.argsort(opened.numbers, kind="stable")
        self._sorted = opened.numbers[self._order]
        self._kept: SegmentPages[RowSet] = SegmentPages()

    def search(self, leaf: Leaf) -> MatchedRows | None:
        tokens = _asked(leaf)
        if not tokens:
            return None
        first, last = (np.searchsorted(self._sorted, tokens, side=side) for side in ("left", "right"))
        if (first == last).any():  # nobody has one of them
            return MatchedRows(RowSet(), Certainty.AT_MOST)
        if (last - first > 1).any():
            raise Corrupt("a token stands there twice", path=self._opened.path, field=_TOKENS)
        lists = sorted(self._lists(self._order[first].tolist()), key=len)
        found = lists[0]
        for other in lists[1:]:
            found = found & other
        return MatchedRows(found, Certainty.AT_MOST)

    def _lists(self, places: Sequence[int]) -> list[RowSet]:
        found = {place: rows for place in places if (rows := self._kept.get(place)) is not None}
        missing = np.array(sorted(set(places) - found.keys()), dtype=np.int64)
        if len(missing):
            read = [each for batch in self._opened.file.take([_LISTS], missing) for each in batch.column(0).to_pylist()]
            for place, data in zip(missing.tolist(), read, strict=True):
                found[place] = treemap.decode(data or b"", self._segment.rows_under, path=self._opened.path)
                self._kept.put(place, found[place], len(data or b""))
        return [found[place] for place in places]


def _asked(leaf: Leaf) -> list[int]:
    """The trigrams that every text has of which it is true; none where nothing is certain."""
    match leaf:
        case Like(pattern=pattern):
            text: object = pattern
        case Comparison(op=Op.EQ, value=value):
            text = value.as_py()
        case Call(function=function, arguments=(value,)) if function in _HOLDING:
            text = value.as_py()
        case _:
            return []
    tokens = required_tokens(text) if isinstance(text, str) else []
    return tokens[:: -(-len(tokens) // _TOKENS_ASKED)] if tokens else []


@dataclass(slots=True)
class _TokenBuilder:
    """Rows by token. Those that are added wait until there are millions of pairs, which are sorted together."""

    _lists: dict[int, dict[int, BitMap]] = field(default_factory=dict)
    """By token, and by the upper half of the rows."""
    _pairs: list[Pairs] = field(default_factory=list)
    """Tokens, each with a place in `_rows`."""
    _rows: list[Ids] = field(default_factory=list)
    _waiting: int = 0
    _placed: int = 0

    def add(self, texts: pa.Array, rows: Ids) -> None:
        step = max(1, len(texts) * _BYTES_AT_ONCE // max(_BYTES_AT_ONCE, texts.nbytes))
        for start in range(0, len(texts), step):
            some = texts.slice(start, step)
            missing = np.flatnonzero(some.is_null().to_numpy(zero_copy_only=False)).astype(np.uint64)
            self._wait(
                np.concatenate([token_pairs(some), missing | (np.uint64(NULL_TOKEN) << TOKEN_SHIFT)]),
                rows[start:][:step],
            )

    def add_lists(self, tokens: pa.Array, lists: pa.Array, part: MergeInput, *, path: str) -> None:
        """Those of a segment, whose rows may be elsewhere now."""
        if tokens.null_count or lists.null_count:
            raise Corrupt("a value is missing", path=path, field=_TOKENS)
        held: list[Ids] = []
        of: list[tuple[int, int]] = []
        count = 0
        for token, data in zip(tokens.to_pylist(), lists, strict=True):
            held.append(treemap.decode(data.as_buffer(), part.segment.rows_under, path=path).ids())
            of.append((token, len(held[-1])))
            count += len(held[-1])
            if count > _PAIRS_AT_ONCE:
                self._move(of, held, part)
                held, of, count = [], [], 0
        if held:
            self._move(of, held, part)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Tokens ascending."""
        self._settle()
        tokens: list[int] = []
        lists: list[bytes] = []
        size = 0
        for token in sorted(self._lists):
            data = treemap.encode(RowSet(dict(sorted(self._lists[token].items()))))
            if lists and size + len(data) > _BYTES_AT_ONCE:
                yield _batch(tokens, lists)
                tokens, lists, size = [], [], 0
            tokens.append(token)
            lists.append(data)
            size += len(data)
        if lists:
            yield _batch(tokens, lists)

    def _move(self, of: Sequence[tuple[int, int]], held: Sequence[Ids], part: MergeInput) -> None:
        now, still = part.row_remap.remap(np.concatenate(held))
        tokens = np.repeat(*(np.array(each, dtype=np.int64) for each in zip(*of, strict=True))).astype(np.uint64)
        rows = now[still]
        self._wait((tokens[still] << TOKEN_SHIFT) | np.arange(len(rows), dtype=np.uint64), rows)

    def _wait(self, pairs: Pairs, rows: Ids) -> None:
        self._pairs.append(pairs + np.uint64(self._placed))
        self._rows.append(rows)
        self._waiting += len(pairs) + len(rows)
        self._placed += len(rows)
        if self._waiting > _PAIRS_AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        if not self._waiting:
            return
        pairs, rows = np.concatenate(self._pairs), np.concatenate(self._rows)
        self._pairs, self._rows, self._waiting, self._placed = [], [], 0, 0
        if not len(pairs):
            return
        pairs.sort()
        distinct = np.ones(len(pairs), dtype=np.bool_)
        distinct[1:] = pairs[1:] != pairs[:-1]
        pairs = pairs[distinct]
        tokens, numbers = pairs >> TOKEN_SHIFT, rows[pairs & np.uint64(LOWER_HALF)]
        upper, lower = numbers >> np.uint64(HALF_BITS), numbers.astype(np.uint32)
        begins = np.ones(len(pairs), dtype=np.bool_)
        begins[1:] = (tokens[1:] != tokens[:-1]) | (upper[1:] != upper[:-1])
        starts = np.flatnonzero(begins)
        ends = [*starts[1:].tolist(), len(pairs)]
        for token, high, start, end in zip(
            tokens[starts].tolist(), upper[starts].tolist(), starts.tolist(), ends, strict=True
        ):
            of_token = self._lists.setdefault(token, {})
            found = bitmap_of(lower[start:end])
            there = of_token.get(high)
            of_token[high] = found if there is None else there | found


def _batch(tokens: Sequence[int], lists: Sequence[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(tokens, pa.uint32()), pa.array(lists, pa.binary())], schema=_SCHEMA)
