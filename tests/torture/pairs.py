"""T-PAIR: every ordered pair of changes planned on one version, done, and compared with the two orders; see
`tests/histories/pairs.py`. And of every pair of raw operations what pylance says, and makes of it; see
`tests/lance_core/transactions/square.py`, which also lists where ours is stricter, and why.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.histories.changes import CHANGES
from tests.histories.pairs import Pairs
from tests.lance_core.transactions.moves import MOVES
from tests.lance_core.transactions.square import made
from tests.torture.report import Report


@dataclass(frozen=True, slots=True)
class Size:
    every: int = 1
    """Of all pairs, one in so many."""
    begin: int = 0
    beside_pylance: tuple[str, ...] = tuple(MOVES)
    """Operations that were first; each other one comes after them."""


PR = Size(every=19, beside_pylance=())
NIGHTLY = Size()


def shares(size: Size, count: int) -> Sequence[Size]:
    return [
        replace(
            size,
            every=size.every * count,
            begin=size.begin + size.every * at,
            beside_pylance=size.beside_pylance[at::count],
        )
        for at in range(count)
    ]


def run(size: Size) -> Report:
    begun = time.perf_counter()
    pairs = [(first, second) for first in CHANGES for second in CHANGES][size.begin :: size.every]
    found: list[str] = []
    told: dict[str, str] = {}
    for stable in (False, True):
        tried = Pairs(stable=stable)
        found += filter(None, (tried.broken(first, second) for first, second in pairs))
        kind = "stable row ids" if stable else "row addresses"
        told[f"refused, though it would do after the other, {kind}"] = f"{len(tried.refused):,}"
    tried_beside = 0
    for stable in (False, True) if size.beside_pylance else ():
        with tempfile.TemporaryDirectory() as directory:
            square = made(Path(directory, "t"), stable=stable)
            for theirs in size.beside_pylance:
                found += square.differences(theirs, all_of_them=True)
                tried_beside += len(square.of_pylance)
    told["operations beside pylance"] = f"{tried_beside:,}"
    return Report("pairs", 2 * len(pairs) + tried_beside, time.perf_counter() - begun, tuple(found), told)
