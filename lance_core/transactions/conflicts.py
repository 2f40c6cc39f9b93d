"""May a change stand beside one that was committed first? The answer for every pair of operations, as one
table.

Ours is the row, the already committed one is the column; the table is not symmetric: an Append after an
Overwrite must not stand, an Overwrite after an Append may. Each rule is a small function `(ours, theirs) ->
Verdict` with a sentence on why. A pair that is not in the table is refused, never assumed harmless.
`CONFLICTS.md` beside this file is printed from the table.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lance_core.format.ids import Version
from lance_core.format.operations import Append, Operation, Overwrite, ReserveFragments, Rewrite
from lance_core.format.transaction import Transaction


class Verdict(enum.IntEnum):
    """Ordered: of several findings the worst one wins."""

    COMPATIBLE = 0
    REBASE = 1
    RETRY = 2
    INCOMPATIBLE = 3


Rule = Callable[[Operation, Operation], Verdict]


def compatible(ours: Operation, theirs: Operation) -> Verdict:
    """Neither touches what the other relies on; ids are given out at commit."""
    return Verdict.COMPATIBLE


def incompatible(ours: Operation, theirs: Operation) -> Verdict:
    """The rows would join a table they were not written for."""
    return Verdict.INCOMPATIBLE


def both_replace(ours: Operation, theirs: Operation) -> Verdict:
    """Whoever comes second has not seen what it would replace; a config key set by both needs a person."""
    assert isinstance(ours, Overwrite)
    assert isinstance(theirs, Overwrite)
    both = ours.config_upserts.keys() & theirs.config_upserts.keys()
    return Verdict.INCOMPATIBLE if both else Verdict.RETRY


def same_fragments(ours: Operation, theirs: Operation) -> Verdict:
    """Fragments that both wrote anew would hold their rows twice; and of two that say where rows went, the second has
    to say it for the first too."""
    assert isinstance(ours, Rewrite)
    assert isinstance(theirs, Rewrite)
    meet = _rewritten(ours) & _rewritten(theirs)
    return Verdict.RETRY if meet or ours.fragment_reuse is not None else Verdict.COMPATIBLE


def _rewritten(operation: Rewrite) -> set[int]:
    return {fragment.id for group in operation.groups for fragment in group.old}


def unjudged(ours: Operation, theirs: Operation) -> Verdict:
    """This pair is not in the table yet: the work has to be done again on the version that has theirs."""
    return Verdict.RETRY


RULES: Mapping[str, Mapping[str, Rule]] = {
    Append.name: {
        Append.name: compatible,
        Overwrite.name: incompatible,
        Rewrite.name: compatible,
        ReserveFragments.name: compatible,
    },
    Overwrite.name: {
        Append.name: compatible,
        Overwrite.name: both_replace,
        Rewrite.name: compatible,
        ReserveFragments.name: compatible,
    },
    Rewrite.name: {
        Append.name: compatible,
        Overwrite.name: incompatible,
        Rewrite.name: same_fragments,
        ReserveFragments.name: compatible,
    },
    ReserveFragments.name: {
        Append.name: compatible,
        Overwrite.name: incompatible,
        Rewrite.name: compatible,
        ReserveFragments.name: compatible,
    },
}


@dataclass(frozen=True, slots=True)
class Landed:
    """A transaction that is part of the history, with the version it made."""

    version: Version
    transaction: Transaction | None
    """None where a writer left no record of what it did."""

    @property
    def operation(self) -> str:
        return self.transaction.operation.name if self.transaction else "unrecorded change"


@dataclass(frozen=True, slots=True)
class Finding:
    """The worst verdict, the rule that gave it, and the committed change it is about."""

    verdict: Verdict
    rule: str
    theirs: Landed | None

    @property
    def blocks(self) -> bool:
        return self.verdict >= Verdict.RETRY


def judge(ours: Transaction, others: Sequence[Landed]) -> Finding:
    """Ours against everything committed since the version it was planned on, oldest first."""
    worst = Finding(Verdict.COMPATIBLE, compatible.__name__, None)
    for theirs in others:
        rule: Rule = unjudged
        verdict = Verdict.RETRY
        if theirs.transaction is not None:
            operation = theirs.transaction.operation
            rule = RULES.get(ours.operation.name, {}).get(operation.name, unjudged)
            verdict = rule(ours.operation, operation)
        if verdict > worst.verdict:
            worst = Finding(verdict, rule.__name__, theirs)
    return worst


def grid() -> str:
    """The table as Markdown."""
    columns = list(dict.fromkeys(name for row in RULES.values() for name in row))
    lines = [
        "# Who may stand beside whom",
        "",
        "Printed from `conflicts.py`; a test keeps it current. Row: the change being committed.",
        "Column: the one that was first. A pair that is not here is refused (`unjudged`).",
        "",
        "| ours \\ theirs | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| {ours} | " + " | ".join(row[theirs].__name__ if theirs in row else "unjudged" for theirs in columns) + " |"
        for ours, row in RULES.items()
    ]
    rules = dict.fromkeys(rule for row in RULES.values() for rule in row.values())
    lines += ["", *(f"- `{rule.__name__}`: {rule.__doc__}" for rule in (*rules, unjudged)), ""]
    return "\n".join(lines)
