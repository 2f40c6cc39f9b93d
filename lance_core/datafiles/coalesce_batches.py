"""Batch coalescing: concatenates small batches before they are written. The overhead of a batch equals thousands of
rows, and some sources deliver a thousand rows per batch."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

_ROWS, _BYTES = 16_384, 1 << 23


def coalesce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, in larger batches.

    Large batches are not copied. Batches with dictionaries are passed on unchanged, since Arrow cannot always
    concatenate dictionaries.
    """
    group: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        batch_size = batch.nbytes
        is_large = batch.num_rows >= _ROWS or batch_size >= _BYTES
        fits = group and batch.schema.equals(group[0].schema, check_metadata=True)
        if group and (is_large or not fits):
            yield _concat(group)
            group, rows, size = [], 0, 0
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch_size
        if rows >= _ROWS or size >= _BYTES or any(map(_holds_dictionaries, batch.schema.types)):
            yield _concat(group)
            group, rows, size = [], 0, 0
    if group:
        yield _concat(group)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _holds_dictionaries(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return pa.types.is_dictionary(arrow) or any(
        _holds_dictionaries(arrow.field(at).type) for at in range(arrow.num_fields)
    )


__all__ = ["coalesce"]
