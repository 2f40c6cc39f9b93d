"""Segment reader: the files of one segment of a full-text index, with checks against the format.

A segment has partitions, each with its own token set, documents and posting lists. Everything that is read goes into
the page cache of the process, which bounds the memory of all indices together; what was evicted is read again. The
files are not trusted: a contradiction raises `Corrupt`, and no number in a file leads to more memory than its bytes
allow. Start with `TextSegment`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileReader
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.row_sets import Ids
from lance_core.index.index_type import Segment
from lance_core.index.page_cache import PAGE_CACHE, PageCache, SegmentPages
from lance_core.index.segment_files import read_all_rows
from lance_core.index.text.list_elements import ELEMENTS_MAX, Elements
from lance_core.index.text.parameters import TextParameters, granularity_of
from lance_core.index.text.positions import TokenPositions, decode_listed_positions, decode_shared_positions
from lance_core.index.text.posting_decoder import (
    BLOCK_DOCUMENTS,
    LARGE_BLOCK_DOCUMENTS,
    DamagedList,
    Documents,
    Ints,
    Tail,
    decode_posting_list,
)
from lance_core.index.text.token_set import ArrowTokenSet, FstTokenSet, SortedTokens, TokenSet
from lance_core.storage.lru_cache import LruCache

METADATA_FILE = "metadata.lance"
TOKEN, TOKEN_ID = "_token", "_token_id"
TRANSDUCER = "_token_fst_bytes"
ROW_NUMBER, TOKEN_COUNT, ELEMENT = "_rowid", "_num_tokens", "_doc_index_0"
NESTED_ELEMENT = "_doc_index_1"
POSTING, LENGTH = "_posting", "_length"
POSITIONS, SHARED_POSITIONS, POSITION_OFFSETS = "_position", "_compressed_position", "_position_block_offset"
_BLOCK_SIZES = {"128": BLOCK_DOCUMENTS, "256": LARGE_BLOCK_DOCUMENTS}
_DOCUMENTS_PAGE, _TOKENS_PAGE, _LISTED_PAGE = -1, -2, -3
_POSTINGS_PAGE, _POSITIONS_PAGE, _WEIGHTS_PAGE, _PAGES_PER_TOKEN = 0, 1, 2, 3
_DOCUMENTS_MAX = (1 << 31) - 1
_NOT_FOUND = -1
_READ_ONCE_BYTES = 32 << 20
_FOUND_CACHED_MAX = 512
"""Numbers of tokens that a partition keeps, since a walk through a transducer takes as long as a search."""

Page = TypeVar("Page")


@dataclass(frozen=True, slots=True)
class PostingList:
    """Documents that contain a token, ascending, and the number of its occurrences in each."""

    documents: Documents
    frequencies: npt.NDArray[np.unsignedinteger[Any]]

    @property
    def size(self) -> int:
        return self.documents.nbytes + self.frequencies.nbytes


@dataclass(frozen=True, slots=True)
class PartitionDocuments:
    """Documents of a partition: the number of the row of each, and the number of its tokens."""

    row_numbers: Ids
    lengths: npt.NDArray[np.uint32]
    token_count: int
    elements: Elements | None = None
    """Place of each document in the list of its row; `None` if rows are documents."""

    @property
    def size(self) -> int:
        return self.row_numbers.nbytes + self.lengths.nbytes + (0 if self.elements is None else self.elements.nbytes)


class TextSegment:
    """Open segment of a full-text index."""

    def __init__(self, segment: Segment, cache: PageCache = PAGE_CACHE) -> None:
        """Open a segment. Everything that is read goes into `cache`."""
        self.path = segment.metadata.qualified_path
        self._segment = segment
        metadata = segment.files.open(METADATA_FILE).metadata
        path = f"{self.path}/{METADATA_FILE}"
        block_size = metadata.get("posting_block_size", "128")
        if block_size not in _BLOCK_SIZES:
            raise Unsupported(
                f"{path}: posting blocks of {block_size} documents cannot be read; rebuild the index with "
                "block_size=128"
            )
        self._parameters = _metadata_value(metadata, "params", path)
        numbers = _json_numbers(_metadata_value(metadata, "partitions", path), path)
        self._partitions = tuple(TextPartition(segment, number, cache) for number in numbers)

    def recorded_parameters(self) -> TextParameters:
        """Return the parameters of the analyzer in the files of the segment, with the granularity in its details."""
        granularity = granularity_of(self._segment.metadata)
        parameters = TextParameters.from_json(self._parameters, path=f"{self.path}/{METADATA_FILE}")
        return replace(parameters, document_granularity=granularity)

    @property
    def partitions(self) -> "tuple[TextPartition, ...]":
        return self._partitions

    def open_lists(self, number: int) -> FileReader:
        """Open the posting lists of a partition."""
        return self._segment.files.open(f"part_{number}_invert.lance", (LENGTH,))


def open_once(segment: Segment) -> TextSegment:
    """Open a segment that is read once, so that it does not evict what searches keep."""
    return TextSegment(segment, PageCache(_READ_ONCE_BYTES))


class TextPartition:
    """Partition of a segment: a token set, documents and posting lists that belong together."""

    def __init__(self, segment: Segment, number: int, cache: PageCache) -> None:
        self._segment = segment
        self.number = number
        self._prefix = f"part_{number}_"
        self._pages: SegmentPages[Any] = SegmentPages(cache)
        self._found: LruCache[str, int] = LruCache(_FOUND_CACHED_MAX)

    @cached_property
    def _postings_file(self) -> FileReader:
        file = self._open("invert.lance", (POSTING, LENGTH))
        _check_types(
            file, {POSTING: (pa.list_(pa.large_binary()),), LENGTH: (pa.uint32(),)}, self._path("invert.lance")
        )
        return file

    @cached_property
    def _block(self) -> int:
        """Number of documents of a full posting block."""
        size = self._text_metadata(self._postings_file, "posting_block_size", "128")
        if size not in _BLOCK_SIZES:
            raise Unsupported(f"{self._path('invert.lance')}: posting blocks of {size} documents cannot be read")
        return _BLOCK_SIZES[size]

    @cached_property
    def _tail(self) -> Tail:
        codec = self._text_metadata(self._postings_file, "posting_tail_codec", Tail.FIXED.value)
        try:
            return Tail(codec)
        except ValueError as error:
            raise Unsupported(f"{self._path('invert.lance')}: posting_tail_codec={codec!r} cannot be read") from error

    @property
    def documents(self) -> PartitionDocuments:
        return self._cached(_DOCUMENTS_PAGE, self._read_documents)

    @property
    def tokens(self) -> TokenSet:
        return self._cached(_TOKENS_PAGE, self._read_tokens)

    def find(self, term: str) -> int | None:
        """Return the number of a token; `None` if the partition does not have it."""
        number = self._found.get(term)
        if number is None:
            found = self.tokens.find(term)
            number = _NOT_FOUND if found is None else found
            self._found.put(term, number)
        return None if number == _NOT_FOUND else number

    def list_tokens(self) -> SortedTokens:
        """Return all tokens."""
        return self._cached(_LISTED_PAGE, lambda: self.tokens.list_tokens())

    def postings(self, tokens: Sequence[int]) -> list[PostingList]:
        """Return the posting lists of tokens."""
        return self._lists(tokens, _POSTINGS_PAGE, self._read_postings)

    @property
    def has_positions(self) -> bool:
        names = self._postings_file.schema.names
        return SHARED_POSITIONS in names or POSITIONS in names

    def positions_of(self, tokens: Sequence[int]) -> list[TokenPositions]:
        """Return the positions of tokens in the documents of their posting lists."""
        return self._lists(tokens, _POSITIONS_PAGE, self._read_positions)

    def cached_weights(self, token: int, create: Callable[[], Page], is_valid: Callable[[Page], bool]) -> Page:
        """Return what a caller derives from the posting list of a token, from the page cache if it is valid."""
        number = token * _PAGES_PER_TOKEN + _WEIGHTS_PAGE
        value: Page | None = self._pages.get(number)
        if value is None or not is_valid(value):
            value = create()
            self._pages.put(number, value, value.size)  # type: ignore[attr-defined]
        return value

    def _cached(self, number: int, read: Callable[[], Page]) -> Page:
        page: Page | None = self._pages.get(number)
        if page is None:
            page = read()
            self._pages.put(number, page, page.size)  # type: ignore[attr-defined]
        return page

    def _lists(self, tokens: Sequence[int], kind: int, read: Callable[[list[int]], Iterator[Page]]) -> list[Page]:
        found: dict[int, Page] = {}
        for token in tokens:
            page = self._pages.get(token * _PAGES_PER_TOKEN + kind)
            if page is not None:
                found[token] = page
        missing = sorted(set(tokens) - found.keys())
        if missing:
            for token, page in zip(missing, read(missing), strict=True):
                found[token] = page
                self._pages.put(token * _PAGES_PER_TOKEN + kind, page, page.size)  # type: ignore[attr-defined]
        return [found[token] for token in tokens]

    def _read_documents(self) -> PartitionDocuments:
        path = self._path("docs.lance")
        expected: dict[str, tuple[pa.DataType, ...]] = {ROW_NUMBER: (pa.uint64(),), TOKEN_COUNT: (pa.uint32(),)}
        if granularity_of(self._segment.metadata) == "list_element":
            expected[ELEMENT] = (pa.uint32(),)
        file = self._open("docs.lance", tuple(expected))
        _check_types(file, expected, path)
        if NESTED_ELEMENT in file.schema.names:
            raise Unsupported(f"{path}: elements of nested lists are documents of their own, which cannot be searched")
        if file.row_count > _DOCUMENTS_MAX:
            raise Unsupported(f"{path}: has {file.row_count} documents; up to {_DOCUMENTS_MAX} can be read")
        rows = read_all_rows(file, list(expected))
        if any(column.null_count for column in rows.columns):
            raise Corrupt("a value is missing", path=path, field=ROW_NUMBER)
        lengths = rows[TOKEN_COUNT].to_numpy()
        total = int(lengths.sum(dtype=np.int64))
        recorded = self._text_metadata(file, "total_tokens", str(total))
        if recorded != str(total):
            raise Corrupt(f"records {recorded} tokens; its documents have {total}", path=path, field="total_tokens")
        elements = rows[ELEMENT].to_numpy() if ELEMENT in expected else None
        if elements is not None and int(elements.max(initial=0)) >= ELEMENTS_MAX:
            raise Unsupported(f"{path}: a list has more than {ELEMENTS_MAX:,} texts, which cannot be searched")
        return PartitionDocuments(rows[ROW_NUMBER].to_numpy(), lengths, total, elements)

    def _read_tokens(self) -> TokenSet:
        path, count = self._path("tokens.lance"), self._postings_file.row_count
        file = self._open("tokens.lance", ())
        if TRANSDUCER in file.schema.names:
            _check_types(file, {TRANSDUCER: (pa.large_binary(), pa.binary())}, path)
            values = read_all_rows(file, [TRANSDUCER])[TRANSDUCER]
            if len(values) != 1 or values.null_count:
                raise Corrupt(f"has {len(values)} token sets instead of one", path=path, field=TRANSDUCER)
            return FstTokenSet(values[0].as_py(), count=count, path=path)
        _check_types(file, {TOKEN: (pa.string(), pa.large_string()), TOKEN_ID: (pa.uint32(),)}, path)
        rows = read_all_rows(file, [TOKEN, TOKEN_ID])
        return ArrowTokenSet.of_columns(rows[TOKEN], rows[TOKEN_ID], count=count, path=path)

    def _read_postings(self, tokens: list[int]) -> Iterator[PostingList]:
        path, documents = self._path("invert.lance"), len(self.documents.lengths)
        for lists, lengths in self._take([POSTING, LENGTH], tokens):
            for row, length in enumerate(lengths.to_pylist()):
                data, offsets = _values_of(lists, row, path)
                try:
                    found, frequencies = decode_posting_list(
                        data, offsets, length or 0, self._tail, documents, self._block
                    )
                except DamagedList as error:
                    raise Corrupt(str(error), path=path, field=POSTING) from error
                yield PostingList(found, _narrow(frequencies))

    def _read_positions(self, tokens: list[int]) -> Iterator[TokenPositions]:
        path = self._path("invert.lance")
        lists = self.postings(tokens)
        schema = self._postings_file.schema
        is_shared = SHARED_POSITIONS in schema.names and pa.types.is_large_binary(schema.field(SHARED_POSITIONS).type)
        listed = SHARED_POSITIONS if SHARED_POSITIONS in schema.names else POSITIONS
        columns = [SHARED_POSITIONS, POSITION_OFFSETS] if is_shared else [listed]
        expected: dict[str, tuple[pa.DataType, ...]]
        if is_shared:
            expected = {POSITION_OFFSETS: (pa.list_(pa.uint32()),)}
            self._check_codec()
        else:
            expected = {listed: (pa.list_(pa.list_(pa.large_binary())),)}
        _check_types(self._postings_file, expected, path)
        numbers = iter(lists)
        for batch in self._take(columns, tokens):
            for row in range(len(batch[0])):
                frequencies = next(numbers).frequencies.astype(np.uint32)
                try:
                    if is_shared:
                        yield _shared_positions(batch, row, frequencies, path, self._block)
                    else:
                        yield _listed_positions(batch, row, frequencies, path)
                except DamagedList as error:
                    raise Corrupt(str(error), path=path, field=columns[0]) from error

    def _check_codec(self) -> None:
        for key, known in (("positions_layout", "shared_stream_v2"), ("positions_codec", "packed_delta_v1")):
            value = self._text_metadata(self._postings_file, key, known)
            if value != known:
                raise Unsupported(f"{self._path('invert.lance')}: {key}={value!r} cannot be read")

    def _take(self, columns: list[str], tokens: list[int]) -> Iterator[tuple[pa.Array, ...]]:
        file = self._postings_file
        if tokens[-1] >= file.row_count:
            raise Corrupt(f"has {file.row_count} posting lists", path=self._path("invert.lance"), field=POSTING)
        for batch in file.take(columns, np.array(tokens, dtype=np.int64)):
            yield tuple(batch.column(name) for name in columns)

    def _open(self, name: str, columns: Sequence[str]) -> FileReader:
        return self._segment.files.open(self._prefix + name, columns)

    def _path(self, name: str) -> str:
        return f"{self._segment.metadata.qualified_path}/{self._prefix}{name}"

    def _text_metadata(self, file: FileReader, key: str, default: str) -> str:
        return str(file.metadata.get(key, default))


def _shared_positions(
    batch: tuple[pa.Array, ...], row: int, frequencies: npt.NDArray[np.uint32], path: str, block: int
) -> TokenPositions:
    data = batch[0][row].as_buffer()
    offsets = batch[1][row].values
    if data is None or offsets is None or offsets.null_count:
        raise Corrupt("a value is missing", path=path, field=SHARED_POSITIONS)
    places = offsets.to_numpy().astype(np.int64)
    return decode_shared_positions(np.frombuffer(data, dtype=np.uint8), places, frequencies, block)


def _listed_positions(
    batch: tuple[pa.Array, ...], row: int, frequencies: npt.NDArray[np.uint32], path: str
) -> TokenPositions:
    documents = batch[0][row].values
    if documents is None or documents.null_count:
        raise Corrupt("a value is missing", path=path, field=POSITIONS)
    edges = documents.offsets.to_numpy().astype(np.int64)
    data, offsets = _binary_parts(documents.values, path)
    return decode_listed_positions(data, offsets, edges, frequencies)


def _values_of(lists: pa.ListArray, row: int, path: str) -> tuple[npt.NDArray[np.uint8], Ints]:
    values = lists[row].values
    if values is None:
        raise Corrupt("a posting list is missing", path=path, field=POSTING)
    return _binary_parts(values, path)


def _binary_parts(values: pa.LargeBinaryArray, path: str) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Return the bytes of binary values that follow each other, and the offsets of the values."""
    if values.null_count:
        raise Corrupt("a value is missing", path=path, field=POSTING)
    _, offsets, data = values.buffers()
    if not len(values) or offsets is None:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    numbers = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data if data is not None else b"", dtype=np.uint8), numbers


def _narrow(numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return the numbers in the smallest type that holds them."""
    largest = int(numbers.max(initial=0))
    if largest < 1 << 8:
        return numbers.astype(np.uint8)
    return numbers.astype(np.uint16) if largest < 1 << 16 else numbers


def _check_types(file: FileReader, columns: dict[str, tuple[pa.DataType, ...]], path: str) -> None:
    for name, types in columns.items():
        if name not in file.schema.names:
            raise Corrupt("the column is missing", path=path, field=name)
        found = file.schema.field(name).type
        if not any(_same_type(found, each) for each in types):
            raise Corrupt(f"has type {found} instead of {types[0]}", path=path, field=name)


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(expected):
        return pa.types.is_list(found) and _same_type(found.value_type, expected.value_type)
    return bool(found == expected)


def _metadata_value(metadata: Any, key: str, path: str) -> str:
    if key not in metadata:
        raise Corrupt("the metadata has no such entry", path=path, field=key)
    return str(metadata[key])


def _json_numbers(text: str, path: str) -> tuple[int, ...]:
    try:
        numbers = json.loads(text)
    except ValueError as error:
        raise Corrupt("is not JSON", path=path, field="partitions") from error
    if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
        raise Corrupt("is not a list of numbers", path=path, field="partitions")
    if len(set(numbers)) != len(numbers):
        raise Corrupt("names a partition twice", path=path, field="partitions")
    return tuple(numbers)
