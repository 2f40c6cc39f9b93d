"""What others committed, as far as a change that comes after it has to know.

A version holds more than its transaction tells: who made it and when, and where a compaction noted its rows went.
`CommittedTransaction.of` brings that together. Pure, like its neighbours.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format import index_metadata
from lance_core.format.fragment_reuse import reuse_entry
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Rewrite
from lance_core.format.transaction import Transaction


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction that is part of the history, with the version it made."""

    version: Version
    transaction: Transaction | None
    """None where a writer left no record of what it did, or the version is gone."""
    writer: str = ""
    """The library that made it."""
    committed_at: datetime | None = None
    """By its writer's clock."""

    @classmethod
    def of(cls, manifest: Manifest, transaction: Transaction | None) -> "CommittedTransaction":
        if transaction is not None and isinstance(transaction.operation, Rewrite):
            transaction = replace(transaction, operation=_with_reuse(transaction.operation, manifest))
        try:
            at = manifest.timestamp
        except Corrupt:
            at = None  # only people ask
        return cls(manifest.version, transaction, manifest.writer, at)

    @property
    def operation(self) -> str:
        return self.transaction.operation.name if self.transaction else "unrecorded change"

    @property
    def description(self) -> str:
        """Which version it is, who made it, and when."""
        by = f" by {self.writer}" if self.writer else ""
        at = f" at {self.committed_at:%Y-%m-%d %H:%M:%S} UTC" if self.committed_at else ""
        return f"the {self.operation} of version {self.version}" + (f" (committed{by}{at})" if by or at else "")


def _with_reuse(operation: Rewrite, manifest: Manifest) -> Rewrite:
    """The transaction does not carry where the rows went; the version does, if this compaction noted it."""
    entry = reuse_entry(index_metadata.decode_section(manifest.index_section, path=manifest.path))
    covered = entry.covers if entry else None
    if entry is None or covered is None:
        return operation
    new = BitMap(fragment.id for group in operation.groups for fragment in group.new)
    return replace(operation, fragment_reuse=entry) if new and new <= covered else operation
