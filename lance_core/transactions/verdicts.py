"""Verdicts: the results of conflict rules."""

import enum
from collections.abc import Callable

from lance_core.format.operations import Operation


class Verdict(enum.IntEnum):
    """Ordered by severity: the worst verdict wins."""

    COMPATIBLE = 0
    REBASE = 1
    RETRY = 2
    INCOMPATIBLE = 3


Rule = Callable[[Operation, Operation], Verdict]
"""A function of our operation and of one that was committed before it."""


def retry_if(condition: object) -> Verdict:
    return Verdict.RETRY if condition else Verdict.COMPATIBLE


def incompatible_if(condition: object) -> Verdict:
    return Verdict.INCOMPATIBLE if condition else Verdict.COMPATIBLE
