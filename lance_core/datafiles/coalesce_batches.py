"""Small batches put together before they are written: what a batch costs beside its rows is as much as thousands of
them, and some come with a thousand.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

_ROWS, _BYTES = 16_384, 1 << 23


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order. What is large is not copied, and neither are dictionaries, which Arrow cannot
    always put together."""
    some: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        its_size = batch.nbytes
        is_large = batch.num_rows >= _ROWS or its_size >= _BYTES
        fits = some and batch.schema.equals(some[0].schema, check_metadata=True)
        if some and (is_large or not fits):
            yield _one(some)
            some, rows, size = [], 0, 0
        some.append(batch)
        rows, size = rows + batch.num_rows, size + its_size
        if rows >= _ROWS or size >= _BYTES or any(map(_holds_dictionaries, batch.schema.types)):
            yield _one(some)
            some, rows, size = [], 0, 0
    if some:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _holds_dictionaries(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return pa.types.is_dictionary(arrow) or any(
        _holds_dictionaries(arrow.field(at).type) for at in range(arrow.num_fields)
    )


__all__ = ["coalesce"]
