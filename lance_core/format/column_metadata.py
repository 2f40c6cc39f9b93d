"""Column metadata of a data file of version 2.0 or later: checks the counts by which a decoder allocates memory.

The counts and spans of a page are compared with the size of the file and of the page's own buffers. A contradiction
raises `Corrupt`. Counts that the metadata alone neither proves nor contradicts make a file implausible: a reader then
decodes it in another process. Values are not decoded here, so damaged values remain undetected. Start with
`check_columns`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from lance_core.errors import Corrupt
from lance_core.format import size_guard
from lance_core.format._pb import columns_pb2
from lance_core.format.plain_values import PlainPage, plain_page_of
from lance_core.format.repetition_index import RepetitionPage

_ENCODINGS: Mapping[str, type[Message]] = {
    "/lance.encodings.ArrayEncoding": columns_pb2.ArrayEncoding,
    "/lance.encodings21.PageLayout": columns_pb2.PageLayout,
}
_CACHED_ENCODINGS_MAX = 4096
_CHUNK_VALUES_MAX = 1 << 15
"""A word of the chunk table has four bits for the logarithm of the number of values."""
_CHUNK_BUFFERS_MAX = 64
_LAYERS_MAX = 256
_VALUE_BITS_MAX = 64
_EXPANSION_MAX = 1024
"""Compressed buffers may expand by this factor before a page counts as implausible."""
_FREE_BYTES = 1 << 26
"""Decoded size that is plausible for every page."""
_OFFSETS = np.dtype("<u8")
_OFFSET_BITS = 64
_MISALIGNED = 7
"""Bits of a position that are zero in the files of all writers of 2.1 and later."""


@dataclass(frozen=True, slots=True)
class FileBounds:
    """Properties of the file that all checks compare with."""

    path: str
    end: int
    """End of the part of the file that buffers may occupy."""
    rows: int
    is_2_0: bool


@dataclass(frozen=True, slots=True)
class OffsetsPage:
    """Offsets of version 2.0, of lists or of texts, which a decoder uses without checking them."""

    position: int
    count: int
    null_offset_adjustment: int
    items: int

    @property
    def byte_count(self) -> int:
        return self.count * _OFFSETS.itemsize

    def check(self, data: bytes, *, path: str) -> None:
        """Raise `Corrupt` if the offsets go backwards or beyond the items of the page."""
        ends: npt.NDArray[np.uint64] = np.frombuffer(data, dtype=_OFFSETS)
        adjustment = np.uint64(self.null_offset_adjustment)
        if len(ends) and ends.max() >= adjustment:
            ends = np.where(ends >= adjustment, ends - adjustment, ends)
        if len(ends) != self.count or (len(ends) and (ends[-1] > self.items or bool((ends[1:] < ends[:-1]).any()))):
            raise Corrupt("has offsets that go backwards or beyond their values", path=path, field="columns.offsets")


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """Result of the checks."""

    is_plausible: bool
    offsets_pages: tuple[tuple[int, OffsetsPage], ...] = ()
    """Offsets that remain to be checked, each with the number of the column."""
    repetition_pages: tuple[tuple[int, RepetitionPage], ...] = ()
    """Repetition indices that remain to be checked, each with the number of the column."""
    plain_columns: Mapping[int, tuple[PlainPage, ...]] = field(default_factory=dict)
    """Pages of the columns of numbers that are stored unchanged."""


def check_columns(messages: Sequence[bytes], bounds: FileBounds) -> ColumnFacts:
    """Check the metadata of all columns of a file. Raise `Corrupt` for a contradiction."""
    check = _Check(bounds)
    for number, message in enumerate(messages):
        check.check_column(number, message)
    check.check_list_items()
    return ColumnFacts(
        check.is_plausible, tuple(check.offsets_pages), tuple(check.repetition_pages), check.plain_columns
    )


@dataclass(slots=True)
class _Check:
    """Checks of one file. Unproven counts are recorded in `is_plausible`."""

    bounds: FileBounds
    is_plausible: bool = True
    offsets_pages: list[tuple[int, OffsetsPage]] = field(default_factory=list)
    repetition_pages: list[tuple[int, RepetitionPage]] = field(default_factory=list)
    plain_columns: dict[int, tuple[PlainPage, ...]] = field(default_factory=dict)
    _plain_pages: list[PlainPage] = field(default_factory=list)
    _lengths: list[int] = field(default_factory=list)
    _list_items: dict[int, int] = field(default_factory=dict)
    _number: int = 0

    def check_column(self, number: int, message: bytes) -> None:
        self._number = number
        size_guard.check_message(message, path=self.bounds.path)
        column = _parse(columns_pb2.ColumnMetadata, message)
        if column is None:
            raise self._error("does not parse")
        self._check_spans(column)
        length = 0
        self._plain_pages = []
        for page in column.pages:
            self._check_spans(page)
            length += page.length
            self._check_page(page)
        self._lengths.append(length)
        if not self.bounds.is_2_0 and length != self.bounds.rows:
            self.is_plausible = False
        elif column.pages and len(self._plain_pages) == len(column.pages):
            self.plain_columns[number] = tuple(self._plain_pages)

    def check_list_items(self) -> None:
        """Compare the items that the lists of a column refer to with the length of the column of items."""
        for number, items in self._list_items.items():
            if number + 1 >= len(self._lengths) or self._lengths[number + 1] != items:
                self.is_plausible = False

    def _check_spans(self, holder: columns_pb2.ColumnMetadata | columns_pb2.ColumnMetadata.Page) -> None:
        offsets, sizes = holder.buffer_offsets, holder.buffer_sizes
        if len(offsets) != len(sizes):
            raise self._error("has buffers without sizes")
        end = self.bounds.end
        for offset, size in zip(offsets, sizes, strict=True):
            if offset + size > end:
                raise self._error("has buffers outside the file")
            if offset & _MISALIGNED and not self.bounds.is_2_0:
                self.is_plausible = False

    def _check_page(self, page: columns_pb2.ColumnMetadata.Page) -> None:
        encoding = page.encoding
        if encoding.WhichOneof("style") != "direct":
            if encoding.deferred.position + encoding.deferred.size > self.bounds.end:
                raise self._error("has an encoding outside the file")
            self.is_plausible = False
            return
        parsed = parse_encoding(encoding.direct.encoding)
        if isinstance(parsed, columns_pb2.PageLayout) and not self.bounds.is_2_0:
            self._check_layout(parsed, page)
        elif isinstance(parsed, columns_pb2.ArrayEncoding) and self.bounds.is_2_0:
            if parsed.WhichOneof("encoding") == "list":
                self._check_list(parsed.list, page)
            else:
                self._check_array(parsed, page.length, page)
        elif parsed is None:
            raise self._error("has an encoding that does not parse")
        else:
            self.is_plausible = False

    # Version 2.0

    def _check_list(self, lists: columns_pb2.ListArray, page: columns_pb2.ColumnMetadata.Page) -> None:
        if page.length and lists.null_offset_adjustment <= lists.num_items:
            raise self._error("has lists whose ends cannot be distinguished from those of null lists")
        self._list_items[self._number] = self._list_items.get(self._number, 0) + lists.num_items
        self._check_array(lists.offsets, page.length, page)
        self._add_offsets(lists.offsets, page.length, lists.null_offset_adjustment, lists.num_items, page)

    def _add_offsets(
        self,
        offsets: columns_pb2.ArrayEncoding,
        count: int,
        null_offset_adjustment: int,
        items: int,
        page: columns_pb2.ColumnMetadata.Page,
    ) -> None:
        """Record offsets that have to be checked before they are decoded."""
        while offsets.WhichOneof("encoding") == "nullable":
            offsets = offsets.nullable.no_nulls.values
        flat = offsets.flat
        index = flat.buffer.index
        if (
            offsets.WhichOneof("encoding") != "flat"
            or flat.bits_per_value != _OFFSET_BITS
            or flat.compression
            or flat.buffer.collection
            or index >= len(page.buffer_offsets)
        ):
            self.is_plausible = False
        elif count:
            where = OffsetsPage(page.buffer_offsets[index], count, null_offset_adjustment, items)
            self.offsets_pages.append((self._number, where))

    def _check_array(
        self, encoding: columns_pb2.ArrayEncoding, count: int, page: columns_pb2.ColumnMetadata.Page
    ) -> None:
        """Check that the buffers of an encoding are large enough for `count` values."""
        match encoding.WhichOneof("encoding"):
            case "flat":
                self._check_flat(encoding.flat, count, page)
            case "nullable":
                self._check_nullable(encoding.nullable, count, page)
            case "bitpacked" | "bitpacked_for_non_neg" as name:
                packed = getattr(encoding, name)
                if packed.uncompressed_bits_per_value > _VALUE_BITS_MAX:
                    raise self._error(f"has values of {packed.uncompressed_bits_per_value} bits")
                self._check_bits(packed.buffer, count * packed.compressed_bits_per_value, page)
            case "packed_struct":
                packed_struct = encoding.packed_struct
                bits = sum(inner.flat.bits_per_value for inner in packed_struct.inner)
                self._check_bits(packed_struct.buffer, count * bits, page)
                if any(inner.WhichOneof("encoding") != "flat" for inner in packed_struct.inner):
                    self.is_plausible = False
            case "constant":
                if encoding.constant.num_values > count:
                    self.is_plausible = False
            case "struct":
                pass
            case _:
                self._check_nested(encoding, count, page)

    def _check_nested(
        self, encoding: columns_pb2.ArrayEncoding, count: int, page: columns_pb2.ColumnMetadata.Page
    ) -> None:
        """Check an encoding whose values are encoded in turn."""
        match encoding.WhichOneof("encoding"):
            case "fixed_size_list":
                lists = encoding.fixed_size_list
                self._check_array(lists.items, count * lists.dimension, page)
            case "fixed_size_binary":
                fixed = encoding.fixed_size_binary
                self._check_array(fixed.bytes, count * fixed.byte_width, page)
            case "binary":
                adjustment = encoding.binary.null_adjustment
                self._check_array(encoding.binary.indices, count, page)
                self._check_array(encoding.binary.bytes, max(adjustment - 1, 0), page)
                self._add_offsets(encoding.binary.indices, count, adjustment, max(adjustment - 1, 0), page)
            case "fsst":
                binary = encoding.fsst.binary.binary
                self._check_array(binary.indices, count, page)
                self._check_array(binary.bytes, max(binary.null_adjustment - 1, 0), page)
            case "dictionary":
                self._check_array(encoding.dictionary.indices, count, page)
                self._check_array(encoding.dictionary.items, encoding.dictionary.num_items, page)
            case _:
                self.is_plausible = False

    def _check_nullable(
        self, nullable: columns_pb2.NullableArray, count: int, page: columns_pb2.ColumnMetadata.Page
    ) -> None:
        match nullable.WhichOneof("nullability"):
            case "no_nulls":
                self._check_array(nullable.no_nulls.values, count, page)
            case "some_nulls":
                self._check_array(nullable.some_nulls.validity, count, page)
                self._check_array(nullable.some_nulls.values, count, page)
            case "all_nulls":
                pass
            case _:
                self.is_plausible = False

    def _check_flat(self, flat: columns_pb2.FlatArray, count: int, page: columns_pb2.ColumnMetadata.Page) -> None:
        if not flat.bits_per_value and count:
            raise self._error("has values of 0 bits")
        if flat.compression:
            if flat.bits_per_value * count // 8 > self._plausible_bytes(page):
                self.is_plausible = False
            return
        self._check_bits(flat.buffer, flat.bits_per_value * count, page)

    def _check_bits(
        self, buffer: columns_pb2.BufferReference, bits: int, page: columns_pb2.ColumnMetadata.Page
    ) -> None:
        if buffer.collection:
            self.is_plausible = False
        elif bits and (buffer.index >= len(page.buffer_sizes) or bits > 8 * page.buffer_sizes[buffer.index]):
            raise self._error(f"has a page whose values take {bits} bits, more than its buffer has")

    # Version 2.1 and later

    def _check_layout(self, layout: columns_pb2.PageLayout, page: columns_pb2.ColumnMetadata.Page) -> None:
        match layout.WhichOneof("layout"):
            case "mini_block":
                self._check_mini_block(layout.mini_block, page)
            case "full_zip":
                self._check_full_zip(layout.full_zip, page)
            case "constant":
                constant = layout.constant
                if len(constant.layers) > _LAYERS_MAX or 2 * max(
                    constant.num_repetition_values, constant.num_definition_values
                ) > self._plausible_bytes(page):
                    self.is_plausible = False
            case "blob":
                self._check_layout(layout.blob.inner_layout, page)
            case _:
                self.is_plausible = False

    def _check_mini_block(self, layout: columns_pb2.MiniBlockLayout, page: columns_pb2.ColumnMetadata.Page) -> None:
        sizes = page.buffer_sizes
        if len(sizes) < 2 + bool(layout.dictionary) + (layout.repetition_index_depth > 0):
            raise self._error("has a page with too few buffers")
        if layout.repetition_index_depth and sizes[-1] % _OFFSETS.itemsize:
            raise self._error("has a page with a repetition index of broken numbers")
        chunks = sizes[0] // (4 if layout.has_large_chunks else 2)
        if layout.num_items > chunks * _CHUNK_VALUES_MAX:
            raise self._error(f"has a page of {layout.num_items} items in {chunks} chunks")
        if (
            layout.num_buffers > _CHUNK_BUFFERS_MAX
            or len(layout.layers) > _LAYERS_MAX
            or layout.repetition_index_depth > len(layout.layers)
        ):
            raise self._error("has a page with too many buffers or layers")
        if not layout.repetition_index_depth and layout.num_items != page.length:
            self.is_plausible = False
        if layout.repetition_index_depth:
            where = page.buffer_offsets[-1], sizes[-1]
            index = RepetitionPage(*where, chunks, layout.repetition_index_depth, page.length)
            self.repetition_pages.append((self._number, index))
        if layout.num_dictionary_items > max(layout.num_items, 8 * sizes[2] if len(sizes) > 2 else 0):
            self.is_plausible = False

    def _check_full_zip(self, layout: columns_pb2.FullZipLayout, page: columns_pb2.ColumnMetadata.Page) -> None:
        size = sum(page.buffer_sizes)
        if layout.num_visible_items > layout.num_items or layout.num_items > max(size, page.length):
            raise self._error(f"has a page of {layout.num_items} items in {size} bytes")
        if (
            max(layout.bits_of_repetition, layout.bits_of_definition, layout.bits_per_offset) > _VALUE_BITS_MAX
            or len(layout.layers) > _LAYERS_MAX
            or (layout.num_visible_items and layout.bits_per_value // 8 > self._plausible_bytes(page))
        ):
            self.is_plausible = False
        if (plain := plain_page_of(layout, page)) is not None:
            self._plain_pages.append(plain)

    def _plausible_bytes(self, page: columns_pb2.ColumnMetadata.Page) -> int:
        return max(_FREE_BYTES, _EXPANSION_MAX * sum(page.buffer_sizes))

    def _error(self, what: str) -> Corrupt:
        where = f"columns[{self._number}]"
        return Corrupt(f"{where} {what}", path=self.bounds.path, field=where)


_Message = TypeVar("_Message", bound=Message)


def _parse(kind: type[_Message], data: bytes) -> _Message | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


@functools.lru_cache(maxsize=_CACHED_ENCODINGS_MAX)
def parse_encoding(data: bytes) -> Message | None:
    """Parse the encoding of a page; pages of many files have the same one. Return `None` if it does not parse, and a
    `TypedMessage` if its type is unknown."""
    typed = _parse(columns_pb2.TypedMessage, data)
    if typed is None:
        return None
    kind = _ENCODINGS.get(typed.type_url)
    return typed if kind is None else _parse(kind, typed.value)
