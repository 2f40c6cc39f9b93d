"""Row addresses: decides whether addresses of one version still belong to the same rows in a later one.

A change whose values the caller assigned to addresses cannot be replanned for rows that moved meanwhile, since the
caller does not know their new addresses. Rows that others add, delete or change in place do not matter.
"""

from collections.abc import Container

from lance_core.errors import IncompatibleConflict
from lance_core.format import operations as op
from lance_core.format.operations import Merge, Operation, UpdateMode
from lance_core.transactions.footprint import touched_fragments
from lance_core.versions.snapshot import Snapshot, read_history


def check_addresses_stay(base: Snapshot, pinned: Snapshot, fragments: Container[int] | None = None) -> None:
    """Raise if a commit between the pinned version and `base` has moved rows of these fragments; `None` means all."""
    if base.version == pinned.version:
        return
    history = read_history(base.location, pinned.version, base=base)
    for commit in history.others if history else ():
        operation = commit.transaction.operation if commit.transaction else None
        if commit.version <= base.version and _moves_rows(operation, fragments):
            raise address_conflict(base, operation, commit.version, "rows were moved to other addresses")


def address_conflict(base: Snapshot, theirs: Operation | None, version: int, reason: str) -> IncompatibleConflict:
    """Return the error for addresses that are no longer valid. `reason` is what happened to the rows."""
    name = "another change" if theirs is None else theirs.name
    return IncompatibleConflict(
        f"{base.location.uri}: the columns refer to rows by address, but by version {version} ({name}) {reason}. "
        "Read the rows again and repeat the merge, without a compaction or update running meanwhile",
        ours=Merge.name,
        theirs=name,
        version=version,
        rule="addresses_stay",
    )


def _moves_rows(operation: Operation | None, fragments: Container[int] | None) -> bool:
    """Return whether the operation may move or replace existing rows. An unknown operation may."""
    match operation:
        case op.Append() | op.Delete() | op.CreateIndex() | op.Merge() | op.Project() | op.DataReplacement():
            return False
        case op.ReserveFragments() | op.UpdateConfig() | op.UpdateBases() | op.UpdateMemWalState():
            return False
        case op.Update():
            moves = bool(operation.new) and operation.mode is not UpdateMode.REWRITE_COLUMNS
            return moves and _touches(operation, fragments)
        case op.Rewrite():
            return _touches(operation, fragments)
        case _:
            return True


def _touches(operation: Operation, fragments: Container[int] | None) -> bool:
    return fragments is None or any(number in fragments for number in touched_fragments(operation))
