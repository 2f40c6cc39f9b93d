"""Tensors: converts columns to tensors of PyTorch.

The module imports torch, so others load it on first use. Start with `tensor_of`.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import torch

from lance_core.errors import InvalidInput


def tensor_of(column: pa.Array, name: str) -> Any:
    """Return a column as a tensor: numbers and booleans, and fixed-size lists of them as rows of a matrix. Columns of
    other types, such as text, are lists of Python values. A null of floats is NaN."""
    if pa.types.is_fixed_size_list(column.type) and _is_number(column.type.value_type):
        if column.null_count:
            raise InvalidInput(
                f"column {name!r} has nulls, which a tensor cannot hold; leave these rows out, or read them in another "
                "form"
            )
        return tensor_of(column.flatten(), name).reshape(len(column), column.type.list_size)
    if not _is_number(column.type):
        return column.to_pylist()
    if column.null_count and not pa.types.is_floating(column.type):
        raise InvalidInput(
            f"column {name!r} has nulls, which a tensor of {column.type} cannot hold; leave these rows out, or read "
            "them in another form"
        )
    return torch.from_numpy(np.array(column.to_numpy(zero_copy_only=False)))


def _is_number(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_boolean(arrow))
