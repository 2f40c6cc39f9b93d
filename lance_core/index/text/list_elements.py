"""List elements: the texts of a list column as documents of their own, if the index scores each element by itself.

A search identifies such a document by one integer, which is made of the table position of the row and the place of the
element in its list.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import Unsupported
from lance_core.index.text.bit_packing import Ints

DOCUMENT_INDEX = "_doc_index"
DOCUMENT_INDEX_TYPE = pa.list_(pa.field("item", pa.uint32(), nullable=False))
"""Place of the element that matched. It is a list, since lists can be nested."""
_ELEMENT_BITS = 24
ELEMENTS_MAX = 1 << _ELEMENT_BITS

Elements = npt.NDArray[np.uint32]


def split_lists(lists: pa.Array) -> tuple[pa.Array, Ints, Elements]:
    """Return the texts in lists, with the number of the list and the place of each.

    >>> texts, rows, elements = split_lists(pa.array([["a", None, "b"], None, ["c"]]))
    >>> texts.to_pylist(), rows.tolist(), elements.tolist()
    (['a', None, 'b', 'c'], [0, 0, 0, 2], [0, 1, 2, 0])
    """
    rows = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)
    places = np.arange(len(rows)) - np.searchsorted(rows, rows)
    if int(places.max(initial=0)) >= ELEMENTS_MAX:
        raise Unsupported(f"a list has more than {ELEMENTS_MAX:,} texts, which cannot be documents of their own")
    return lists.flatten(), rows, places.astype(np.uint32)


def document_keys(positions: Ints, elements: Elements) -> Ints:
    """Return the keys of documents from the positions of their rows; negative ones for rows without a position.

    >>> document_keys(np.array([5, -1]), np.array([3, 0], dtype=np.uint32)).tolist()
    [83886083, -1]
    """
    keys: Ints = np.where(positions < 0, positions, (positions << _ELEMENT_BITS) | elements.astype(np.int64))
    return keys


def positions_of_keys(keys: Ints) -> Ints:
    """Return the table positions of the rows of documents."""
    positions: Ints = keys >> _ELEMENT_BITS
    return positions


def elements_of_keys(keys: Ints) -> Elements:
    """Return the places of documents in their lists."""
    return (keys & (ELEMENTS_MAX - 1)).astype(np.uint32)


def as_document_index(elements: Elements) -> pa.Array:
    """Return the places of documents as a column of a result."""
    offsets = pa.array(np.arange(len(elements) + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(elements), type=DOCUMENT_INDEX_TYPE)
