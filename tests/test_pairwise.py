"""Pairwise selection: it covers every pair of values, and is no larger than it must be."""

from itertools import combinations, product

import pytest

from tests.pairwise import pairwise


@pytest.mark.parametrize(
    ("sizes", "count"), [((16, 2, 2), 32), ((2, 2, 2), 4), ((3, 3, 3), 10), ((5, 4, 3, 2), 20), ((3,), 3), ((2, 0), 0)]
)
def test_every_pair_is_covered(sizes: tuple[int, ...], count: int) -> None:
    dimensions = [range(size) for size in sizes]
    selected = pairwise(*dimensions)
    for left, right in combinations(range(len(sizes)), 2):
        pairs = {(combination[left], combination[right]) for combination in selected}
        assert pairs == set(product(dimensions[left], dimensions[right]))
    assert len(selected) == len(set(selected)) == count


def test_selection_is_deterministic() -> None:
    dimensions = (("a", "b", "c"), (None, 1.5), (False, True), "wxyz")
    assert pairwise(*dimensions) == pairwise(*dimensions)
