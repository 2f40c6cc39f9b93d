"""Chunk table: locates the chunks of a page of version 2.1 or later, so that a few rows are read without the rest of
the page.

Most pages divide their values into chunks of a few KiB. The first buffer of the page has a word for each chunk, with
its size and the number of its values; the second one has the chunks, and others are needed for every row. Lists are
left out, since the values of a row can be in several chunks. Start with `chunked_page_of`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_core.format._pb import columns_pb2
from lance_core.format.column_metadata import parse_encoding

_ITEM_LAYERS = frozenset((1, 3))
"""Layers of values without and with nulls. The others are those of lists."""
_VALUES_MASK = 0xF
_VALUES_BITS = 4
_SIZE_UNIT = 8

Span = tuple[int, int]
"""Position and size."""


@dataclass(frozen=True, slots=True)
class ChunkedPage:
    """Page whose rows can be located by its chunk table."""

    table: Span
    chunks: Span
    rows: int
    word_bytes: int

    def spans_of(self, table: bytes, rows: npt.NDArray[np.int64]) -> list[Span] | None:
        """Return the chunks that contain these rows of the page, ascending; `None` if the table contradicts itself."""
        words = np.frombuffer(table, dtype=f"<u{self.word_bytes}").astype(np.int64)
        if len(table) != self.table[1] or not len(words):
            return None
        sizes = ((words >> _VALUES_BITS) + 1) * _SIZE_UNIT
        counts = np.left_shift(1, words & _VALUES_MASK)
        rest = self.rows - int(counts[:-1].sum())  # the last word has 0 for the values that are left
        if rest < 1 or (words[-1] & _VALUES_MASK and counts[-1] != rest) or int(sizes.sum()) != self.chunks[1]:
            return None
        counts[-1] = rest
        numbers = np.unique(np.searchsorted(np.cumsum(counts), rows, side="right"))
        starts = self.chunks[0] + np.concatenate([[0], np.cumsum(sizes)[:-1]])
        return [(int(starts[number]), int(sizes[number])) for number in numbers]


def chunked_page_of(page: columns_pb2.ColumnMetadata.Page) -> ChunkedPage | None:
    """Return where the chunks of a page are; `None` if its rows cannot be located by them."""
    if page.encoding.WhichOneof("style") != "direct" or len(page.buffer_offsets) < 2:
        return None
    parsed = parse_encoding(page.encoding.direct.encoding)
    if not isinstance(parsed, columns_pb2.PageLayout) or parsed.WhichOneof("layout") != "mini_block":
        return None
    layout = parsed.mini_block
    if layout.repetition_index_depth or layout.num_items != page.length or not _ITEM_LAYERS.issuperset(layout.layers):
        return None
    table, chunks = ((page.buffer_offsets[number], page.buffer_sizes[number]) for number in (0, 1))
    return ChunkedPage(table, chunks, page.length, 4 if layout.has_large_chunks else 2)


__all__ = ["ChunkedPage", "chunked_page_of"]
