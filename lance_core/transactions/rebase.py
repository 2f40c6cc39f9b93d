"""How a change that may stand is altered to fit the version it will follow.

Append and Overwrite need nothing: ids, row ids and versions are given out when they are applied. Operations
whose deletion vectors or index coverage must be merged get their function here.
"""

from lance_core.format.transaction import Transaction
from lance_core.transactions.conflicts import Finding


def rebase(ours: Transaction, finding: Finding) -> Transaction:
    assert not finding.blocks, "a change that must not stand is not rebased"
    return ours
