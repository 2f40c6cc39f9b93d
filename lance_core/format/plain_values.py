"""Plain values: locates numbers, or lists of them, that a page of a data file stores unchanged, one after the other.

A reader can compute the position of a row in such a page. From storage version 2.1 on, lists of numbers of 256 bytes
and more are stored so if none of them is null, and others in columns that ask for it. Start with `plain_page_of`.
"""

from dataclasses import dataclass

from lance_core.format._pb import columns_pb2

STRUCTURAL_ENCODING, FULL_ZIP = "lance-encoding:structural-encoding", "fullzip"
"""Entry in the metadata of a field with which a writer asks for such pages."""
_ALL_VALID_LAYER = 1
"""Layer of values without nulls."""


@dataclass(frozen=True, slots=True)
class PlainPage:
    """Page that consists of its values."""

    position: int
    """Position of the first value in the file."""
    rows: int
    items: int
    """Numbers of a list; 1 if the values are no lists."""
    item_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.items * self.item_bytes


def plain_page_of(layout: columns_pb2.FullZipLayout, page: columns_pb2.ColumnMetadata.Page) -> PlainPage | None:
    """Return the place of the values of a page; `None` if they are compressed, or if anything lies between them."""
    lists = layout.value_compression.fixed_size_list
    is_list = layout.value_compression.HasField("fixed_size_list")
    numbers = lists.values.flat if is_list else layout.value_compression.flat
    items = lists.items_per_value if is_list else 1
    bits = items * numbers.bits_per_value
    is_plain = (
        len(page.buffer_offsets) == 1
        and list(layout.layers) == [_ALL_VALID_LAYER]
        and not (layout.bits_of_repetition or layout.bits_of_definition or layout.bits_per_offset)
        and not (lists.has_validity or numbers.HasField("compression"))
        and bits > 0
        and not numbers.bits_per_value % 8
        and layout.bits_per_value == bits
        and layout.num_items == layout.num_visible_items == page.length
        and page.buffer_sizes[0] * 8 == page.length * bits
    )
    if not is_plain:
        return None
    return PlainPage(page.buffer_offsets[0], page.length, items, numbers.bits_per_value // 8)
