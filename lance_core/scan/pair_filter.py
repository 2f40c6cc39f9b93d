"""Pair filter: decides which rows of a table may be results of which queries, by a condition over both.

It is asked for pairs that are near enough, so that few of all pairs are evaluated. Rows of the frame with the same
values share an evaluation. Start with `PairFilter.of`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.expressions.pair_condition import Mask, PairCondition

PAIRS_AT_A_TIME = 1 << 17
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PairFilter:
    """Condition over the row of each query and the rows of the table."""

    condition: PairCondition
    left: pa.Table
    """Distinct rows of the queries, with the columns that the condition reads."""
    groups: Ints
    """Index in `left` for each query."""
    group_count: int

    @classmethod
    def of(cls, condition: PairCondition, left: pa.Table) -> "PairFilter":
        """Return the filter for queries of which each has a row in `left`."""
        left = left.select(condition.left.names).cast(condition.left)
        first, groups = _distinct_rows(left)
        return cls(condition, left.take(pa.array(first)), groups, len(first))

    @property
    def columns(self) -> list[str]:
        """Columns of the table that the condition reads."""
        return list(self.condition.right.names)

    def mask_of(self, rows: pa.RecordBatch, queries: Ints, positions: Ints) -> Mask:
        """Return which pairs of a query and a row of the table meet the condition."""
        groups = self.groups[queries]
        used = np.flatnonzero(np.bincount(positions, minlength=rows.num_rows))
        if self.group_count * len(used) > len(queries):
            return self._evaluate(groups, rows, positions)
        every = np.repeat(np.arange(self.group_count), len(used))
        passes = self._evaluate(every, rows, np.tile(used, self.group_count)).reshape(self.group_count, len(used))
        return np.asarray(passes[groups, np.searchsorted(used, positions)])

    def _evaluate(self, groups: Ints, rows: pa.RecordBatch, positions: Ints) -> Mask:
        right = pa.Table.from_batches([rows]).select(self.columns)
        parts = [np.empty(0, dtype=np.bool_)]
        for start in range(0, len(groups), PAIRS_AT_A_TIME):
            of_left, of_right = (each[start : start + PAIRS_AT_A_TIME] for each in (groups, positions))
            sides = self.left.take(pa.array(of_left)), right.take(pa.array(of_right))
            parts.append(self.condition.mask(*sides, len(of_left)))
        return np.concatenate(parts)


def _distinct_rows(table: pa.Table) -> tuple[Ints, Ints]:
    """Return the first of each set of equal rows, and the number of the set of each row. Rows with values of nested
    types count as different."""
    if not table.num_columns or any(pa.types.is_nested(field.type) for field in table.schema):
        rows = np.arange(table.num_rows)
        return rows, rows
    codes = []
    for column in table.columns:
        encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
        codes.append(encoded.indices.to_numpy(zero_copy_only=False))
    _, first, groups = np.unique(np.column_stack(codes), axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), groups.astype(np.int64).ravel()
