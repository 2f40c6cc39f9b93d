"""Sorted unique numbers: the result equals that of numpy."""

import numpy as np
import numpy.typing as npt
import pytest

from lance_core.format.sorted_unique import sorted_unique


@pytest.mark.parametrize("kind", [np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 3000])
def test_the_result_equals_that_of_numpy(count: int, kind: type) -> None:
    some: npt.NDArray[np.generic] = np.random.default_rng(count).integers(0, max(1, count), count).astype(kind)
    for numbers in (some, np.sort(some), np.unique(some), np.unique(some)[::-1]):
        before = numbers.tolist()
        actual = sorted_unique(numbers)
        assert (actual.dtype, actual.tolist()) == (numbers.dtype, np.unique(numbers).tolist())
        assert numbers.tolist() == before
