"""Function inputs: converts rows to the form in which the function of a computed column receives them.

    arrow     a RecordBatch
    pandas    a DataFrame
    numpy     a dict of arrays by column; a null of numbers is NaN, and fixed-size lists are rows of a matrix
    torch     a dict of tensors by column; columns that are no numbers, such as text, are lists

Start with `convert_inputs`.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.dml.blob_inputs import FunctionInputs
from lance_core.dml.call_settings import InputFormat
from lance_core.errors import MissingDependency

_PACKAGES = {"pandas": "pandas", "torch": "lance_core.datafiles.tensors"}


def convert_inputs(inputs: FunctionInputs, input_format: InputFormat) -> object:
    """Return the inputs of some rows in this form. Blobs are a column of Arrow, a column of objects of pandas or numpy,
    or a list."""
    if not inputs.blobs:
        return convert_batch(inputs.batch, input_format)
    blobs = {name: inputs.column_of_blobs(name) for name in inputs.blobs}
    if input_format == "arrow":
        arrays = {name: pa.array(values, pa.large_binary()) for name, values in blobs.items()}
        columns = [arrays[name] if name in arrays else inputs.batch.column(name) for name in inputs.names]
        return pa.RecordBatch.from_arrays(columns, names=list(inputs.names))
    plain: Any = convert_batch(inputs.batch, input_format)
    if input_format == "pandas":
        pandas = _load("pandas")
        series = {name: pandas.Series(values, dtype=object) for name, values in blobs.items()}
        return pandas.DataFrame({name: series[name] if name in series else plain[name] for name in inputs.names})
    return {
        name: plain[name] if name not in blobs else _objects(blobs[name]) if input_format == "numpy" else blobs[name]
        for name in inputs.names
    }


def _objects(values: Sequence[object]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def convert_batch(batch: pa.RecordBatch, input_format: InputFormat) -> object:
    """Return the batch in this form. Raise `MissingDependency` if its library is not installed in this process.

    >>> rows = pa.record_batch({"id": [1, 2], "title": ["a", None]})
    >>> convert_batch(rows, "numpy")
    {'id': array([1, 2]), 'title': array(['a', None], dtype=object)}
    """
    if input_format == "arrow":
        return batch
    if input_format == "pandas":
        _load("pandas")
        return batch.to_pandas()
    columns = zip(batch.schema.names, batch.columns, strict=True)
    if input_format == "numpy":
        return {name: to_numpy(column) for name, column in columns}
    tensors = _load("torch")
    return {name: tensors.tensor_of(column, name) for name, column in columns}


def to_numpy(column: pa.Array) -> Any:
    """Return a column as an array."""
    if pa.types.is_fixed_size_list(column.type):
        size, values = column.type.list_size, column.values.slice(column.offset * column.type.list_size)
        matrix = values.slice(0, len(column) * size).to_numpy(zero_copy_only=False).reshape(len(column), size)
        if column.null_count and np.issubdtype(matrix.dtype, np.number):
            is_null = column.is_null().to_numpy(zero_copy_only=False)
            matrix = np.where(is_null[:, None], np.float32("nan"), matrix)
        return matrix
    return column.to_numpy(zero_copy_only=False)


def _load(library: str) -> Any:
    try:
        return importlib.import_module(_PACKAGES[library])
    except ImportError as error:
        raise MissingDependency(
            f"input_format={library!r} needs the package {library}, which is not installed where the function runs "
            f"({error}); install it there, or use another input_format="
        ) from error
