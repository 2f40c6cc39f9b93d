"""Type widening compared with the exact ranges of the types."""

import numpy as np
import pyarrow as pa
import pytest

from lance_core.expressions.widening import is_widening

INTEGERS = tuple(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = (pa.float16(), pa.float32(), pa.float64())
MANTISSA_BITS = {16: 11, 32: 24, 64: 53}


@pytest.mark.parametrize("wide", INTEGERS, ids=str)
@pytest.mark.parametrize("narrow", INTEGERS, ids=str)
def test_an_integer_type_is_wider_if_its_range_is(narrow: pa.DataType, wide: pa.DataType) -> None:
    inner, outer = (np.iinfo(arrow.to_pandas_dtype()) for arrow in (narrow, wide))
    assert is_widening(narrow, wide) is (outer.min <= inner.min and inner.max <= outer.max)


@pytest.mark.parametrize("wide", FLOATS, ids=str)
@pytest.mark.parametrize("narrow", INTEGERS, ids=str)
def test_a_float_type_is_wider_if_it_represents_every_integer(narrow: pa.DataType, wide: pa.DataType) -> None:
    largest = np.iinfo(narrow.to_pandas_dtype()).max
    assert is_widening(narrow, wide) is (largest < 2 ** MANTISSA_BITS[wide.bit_width])
