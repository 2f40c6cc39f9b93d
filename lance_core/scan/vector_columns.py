"""Vector columns: columns of vectors (fixed-size lists of numbers), and of multivectors (lists of vectors).

The distance of a multivector from a query of several vectors is the sum, over the vectors of the query, of the distance
of the nearest vector of the row (MaxSim). Start with `vector_type_of`.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]
_NUMBERS = (pa.float16(), pa.float32(), pa.float64(), pa.uint8())


def vector_type_of(arrow: pa.DataType) -> pa.FixedSizeListType | None:
    """Return the type of the vectors of a column; `None` if it has no vectors that can be compared."""
    vector = arrow.value_type if pa.types.is_list(arrow) else arrow
    if not pa.types.is_fixed_size_list(vector) or isinstance(vector.value_type, pa.BaseExtensionType):
        return None
    return vector if vector.value_type in _NUMBERS else None


def is_multivector(arrow: pa.DataType) -> bool:
    """Return whether each value of a vector column is a list of vectors."""
    return bool(pa.types.is_list(arrow))


def vector_field(column: pa.Field) -> pa.Field:
    """Return the field of the vectors of a vector column: for multivectors, that of their elements."""
    vector = vector_type_of(column.type)
    assert vector is not None
    return column.with_type(vector)


def flatten_vectors(column: pa.Array) -> tuple[pa.FixedSizeListArray, npt.NDArray[np.int64] | None]:
    """Return the vectors of a vector column that are not null, and the index of the value of each; `None` in place of
    the indices if each value is one vector."""
    if not is_multivector(column.type):
        if not column.null_count:
            return column, None
        return column.drop_null(), np.flatnonzero(np.asarray(column.is_valid()))
    vectors = column.flatten()
    owners = np.asarray(pc.list_parent_indices(column), dtype=np.int64)
    if vectors.null_count:
        vectors, owners = vectors.drop_null(), owners[np.asarray(vectors.is_valid())]
    return vectors, owners


def nearest_of_each(distances: Floats, owners: npt.NDArray[np.int64], count: int) -> Floats:
    """Return the smallest distance of the vectors of each of `count` values; NaN for values without a vector that has
    a distance. The owners are ascending."""
    nearest = np.full(count, np.nan)
    if len(owners):
        starts = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
        nearest[owners[starts]] = np.fmin.reduceat(distances, starts)
    return nearest
