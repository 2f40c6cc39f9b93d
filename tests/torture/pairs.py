"""T-PAIR, conflict matrix harness: plans every ordered pair of operations on one version, commits both and compares the
result with the two serial orders; see `tests/histories/operation_pairs.py`. For every pair of raw operations it also
compares our verdict and result with pylance's. `tests/lance_core/transactions/conflict_matrix.py` lists the pairs for
which ours is stricter, and why.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.histories.operation_pairs import OperationPairs
from tests.histories.table_operations import TABLE_OPERATIONS
from tests.lance_core.transactions.conflict_matrix import create_matrix
from tests.lance_core.transactions.example_operations import PLANS
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Run one of this many pairs."""
    first: int = 0
    compared_with_pylance: tuple[str, ...] = tuple(PLANS)
    """Operations that commit first; every other operation follows each of them."""


PR = Size(every=19, compared_with_pylance=())
NIGHTLY = Size()


def split(size: Size, count: int) -> Sequence[Size]:
    return [
        replace(
            size,
            every=size.every * count,
            first=size.first + size.every * at,
            compared_with_pylance=size.compared_with_pylance[at::count],
        )
        for at in range(count)
    ]


def run(size: Size) -> Report:
    started = time.perf_counter()
    pairs = [(first, second) for first in TABLE_OPERATIONS for second in TABLE_OPERATIONS][size.first :: size.every]
    failures: list[str] = []
    figures: dict[str, str] = {}
    for stable in (False, True):
        tried = OperationPairs(stable_row_ids=stable)
        failures += filter(None, (tried.find_problem(first, second) for first, second in pairs))
        kind = "stable row ids" if stable else "row addresses"
        figures[f"rejected, though valid in serial order, {kind}"] = f"{len(tried.rejected):,}"
    compared = 0
    for stable in (False, True) if size.compared_with_pylance else ():
        with tempfile.TemporaryDirectory() as directory:
            square = create_matrix(Path(directory, "t"), stable=stable)
            for theirs in size.compared_with_pylance:
                failures += square.find_differences(theirs, all_of_them=True)
                compared += len(square.operations_of_pylance)
    figures["operations compared with pylance"] = f"{compared:,}"
    return Report("pairs", 2 * len(pairs) + compared, time.perf_counter() - started, tuple(failures), figures)
