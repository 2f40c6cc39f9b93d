"""What a rule of conflicts answers."""

import enum
from collections.abc import Callable

from lance_core.format.operations import Operation


class Verdict(enum.IntEnum):
    """Ordered: of several findings the worst one wins."""

    COMPATIBLE = 0
    REBASE = 1
    RETRY = 2
    INCOMPATIBLE = 3


Rule = Callable[[Operation, Operation], Verdict]
"""Of ours, and of what was committed first."""


def retry_if(condition: object) -> Verdict:
    return Verdict.RETRY if condition else Verdict.COMPATIBLE


def incompatible_if(condition: object) -> Verdict:
    return Verdict.INCOMPATIBLE if condition else Verdict.COMPATIBLE
