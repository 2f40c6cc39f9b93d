"""Dictionary normalization: represents nulls of dictionary columns in a form that Arrow can concatenate.

Storage version 2.0 returns a null as a null value of the dictionary. Arrow cannot concatenate chunks if one of them
has such a value, so rows of several files could be read but neither combined nor taken. Here a null is always a
missing index.
"""

import pyarrow as pa
import pyarrow.compute as pc


def nulls_as_missing_indices(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all nulls of its dictionary columns as missing indices."""
    for position, column in enumerate(batch.columns):
        if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
            batch = batch.set_column(position, batch.schema.field(position), _array_with_missing_indices(column))
    return batch


def _array_with_missing_indices(array: pa.DictionaryArray) -> pa.DictionaryArray:
    values = array.dictionary
    is_null = values.is_null().take(array.indices)
    indices = pc.if_else(pc.fill_null(is_null, True), pa.scalar(None, array.indices.type), array.indices)
    removed_before = pc.cumulative_sum(pc.cast(values.is_null(), pa.int64())).take(indices)
    new_indices = pc.subtract(pc.cast(indices, pa.int64()), removed_before)
    return pa.DictionaryArray.from_arrays(new_indices.cast(array.indices.type), values.drop_null())
