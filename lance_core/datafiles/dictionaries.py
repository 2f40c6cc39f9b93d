"""Dictionary columns as Arrow can join them.

Storage version 2.0 gives back a null as a value of the dictionary; Arrow joins no pieces of which one has that, so
tables of several files could be read and neither combined nor picked from. Here a null is always a missing index.
"""

import pyarrow as pa
import pyarrow.compute as pc


def with_missing_indices(batch: pa.RecordBatch) -> pa.RecordBatch:
    for place, column in enumerate(batch.columns):
        if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
            batch = batch.set_column(place, batch.schema.field(place), _with_missing_indices(column))
    return batch


def _with_missing_indices(array: pa.DictionaryArray) -> pa.DictionaryArray:
    values = array.dictionary
    is_null = values.is_null().take(array.indices)
    indices = pc.if_else(pc.fill_null(is_null, True), pa.scalar(None, array.indices.type), array.indices)
    moved = pc.cumulative_sum(pc.cast(values.is_null(), pa.int64())).take(indices)
    places = pc.subtract(pc.cast(indices, pa.int64()), moved)
    return pa.DictionaryArray.from_arrays(places.cast(array.indices.type), values.drop_null())
