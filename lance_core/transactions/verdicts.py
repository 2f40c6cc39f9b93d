"""Verdicts: the results of conflict rules."""

import enum
from collections.abc import Callable

from lance_core.format.operations import Operation


class Verdict(enum.IntEnum):
    """Result of a conflict rule. Verdicts are ordered by severity, and the worst one wins."""

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
