"""Pairwise testing: selects combinations of test parameters in which every pair of values occurs.

The selection is greedy and deterministic. Start at `pairwise`.
"""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

_Value = tuple[int, int]
"""Position of a dimension and position of a value in it."""


def pairwise(*dimensions: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one value per dimension that cover each pair of values of two dimensions.

    >>> pairwise("ab", "xy", (False, True))
    [('a', 'x', False), ('a', 'y', True), ('b', 'x', True), ('b', 'y', False)]
    """
    values = [[(position, index) for index in range(len(dimension))] for position, dimension in enumerate(dimensions)]
    if len(dimensions) < 2:
        return [tuple(combination) for combination in product(*dimensions)]
    uncovered = dict.fromkeys(pair for left, right in combinations(values, 2) for pair in product(left, right))
    selected = []
    while uncovered:
        combination = dict(next(iter(uncovered)))
        for position, candidates in enumerate(values):
            if position not in combination:
                _, index = max(candidates, key=lambda value: len(_pairs_with(value, combination) & uncovered.keys()))
                combination[position] = index
        for pair in combinations(sorted(combination.items()), 2):
            uncovered.pop(pair, None)
        selected.append(tuple(dimension[combination[position]] for position, dimension in enumerate(dimensions)))
    return selected


def _pairs_with(value: _Value, combination: dict[int, int]) -> set[tuple[_Value, _Value]]:
    """Return the pairs of this value and each value of an incomplete combination."""
    return {(min(value, other), max(value, other)) for other in combination.items()}
