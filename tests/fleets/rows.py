"""Rows and conditions of the fleet tables: one column for each index type. Both engines use this module, so it imports
only pyarrow, and uses only the API of its release 22."""

from collections.abc import Iterable

import pyarrow as pa

ITEM = pa.field("item", pa.string())
VECTOR_WIDTH = 4
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("other", pa.int64()),
        pa.field("key", pa.int64()),
        pa.field("shade", pa.string()),
        pa.field("tags", pa.list_(ITEM)),
        pa.field("phrase", pa.string()),
        pa.field("zone", pa.int64()),
        pa.field("code", pa.int64()),
        pa.field("words", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), VECTOR_WIDTH)),
    ]
)
SHADES = ("red", "green", "blue", None)
INDEXED = {
    "key": "BTREE",
    "shade": "BITMAP",
    "tags": "LABEL_LIST",
    "phrase": "NGRAM",
    "zone": "ZONEMAP",
    "code": "BLOOMFILTER",
}
"""Column -> index type that both engines build."""
FOREIGN = {"words": "INVERTED", "vector": "IVF_FLAT"}
"""Column -> index type that only pylance builds."""
FILTERS = {
    "key": (
        "key = 21",
        "key = 2100021",
        "key between 30 and 90",
        "key is null",
        "key != 30",
        "key in (0, 33, 66, 300)",
    ),
    "shade": ("shade = 'red'", "shade is null", "shade != 'blue'"),
    "tags": ("array_has_any(tags, ['t1', 't4'])", "array_has(tags, 't2')"),
    "phrase": ("contains(phrase, 'number 17')", "contains(phrase, 'revision 1')"),
    "zone": ("zone = 40", "zone >= 70 and zone < 90", "zone = 2000040"),
    "code": ("code = 31", "code = 2000031", "code in (5, 55)"),
}
REVISED = 2_000_000
"""Added to the numbers of a row with each revision."""


def rows(ids: Iterable[int], revision: int = 0) -> pa.Table:
    """Return the rows of these ids. A revision changes every column except `id`."""
    numbers, shift = list(ids), revision * REVISED
    columns = {
        "id": numbers,
        "other": [number + shift for number in numbers],
        "key": [None if number % 17 == 5 else 3 * number + shift + (100_000 if revision else 0) for number in numbers],
        "shade": [SHADES[(number + revision) % len(SHADES)] for number in numbers],
        "tags": [[f"t{number % 7}", f"t{(number + revision) % 5}"] for number in numbers],
        "phrase": [f"row number {number} of revision {revision}" for number in numbers],
        "zone": [number + shift for number in numbers],
        "code": [number + shift for number in numbers],
        "words": [f"w{number % 11} of r{revision}" for number in numbers],
        "vector": [[float(number + shift), float(number % 5), 1.0, 0.0] for number in numbers],
    }
    return pa.table(columns, schema=SCHEMA)
