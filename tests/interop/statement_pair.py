"""Statement pair: one change of a table as the statements that make each library do it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StatementPair:
    """Python statements of one step, for either library."""

    ours: str
    theirs: str


def same_call(call: str, *, branch: str | None = None) -> StatementPair:
    """Return a call that both libraries spell alike, on the newest version of the table or of a branch."""
    if branch is not None:
        return StatementPair(f"on({branch!r}).{call}", f"on({branch!r}).{call}")
    return StatementPair(f"table.{call}", f"dataset.{call}")
