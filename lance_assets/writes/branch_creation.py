"""Branch creation: checks that the branch of a write exists, and creates it for a write with `create_branch=True`."""

import dagster as dg

from lance_assets.ledger.ledger import Ledger
from lance_core import AlreadyExists, InvalidInput, NotFound, Table


def ensure_branch(ledger: Ledger, *, create: bool, log: dg.DagsterLogManager) -> None:
    """Create the branch of the ledger from the newest version of the main branch, unless it exists.

    Raise `NotFound` if it does not exist and `create` is false, and `InvalidInput` if there is no table yet.
    """
    assert ledger.branch is not None
    if ledger.exists():
        return
    if not ledger.storage.exists(ledger.uri):
        raise InvalidInput(
            f"the branch {ledger.branch!r} needs a table to start from, and there is none at {ledger.shown_uri} yet; "
            "write to its main branch first"
        )
    if not create:
        raise NotFound(
            f"the table at {ledger.shown_uri} has no branch {ledger.branch!r}; declare the write with "
            f"create_branch=True, or call Table.open({ledger.shown_uri!r}).branches.create({ledger.branch!r})"
        )
    main = Table.open(ledger.uri, **ledger.storage.access())
    try:
        main.branches.create(ledger.branch)
    except AlreadyExists:  # another run was first
        return
    log.info(f"{ledger.label}: the branch {ledger.branch!r} was created from version {main.version}")
