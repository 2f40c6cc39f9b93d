"""Committed transactions: what a later change has to know about a commit.

Only the manifest of a version records its writer, its time, and the fragment reuse index, which says where a compaction
moved rows. `CommittedTransaction.of` combines them with the transaction. This module does no I/O.
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
    """A transaction of the history, with the version that it created."""

    version: Version
    transaction: Transaction | None
    """`None` if the writer recorded no transaction, or if the version was removed."""
    writer: str = ""
    """The library that wrote the version."""
    committed_at: datetime | None = None
    """The time by the writer's clock."""

    @classmethod
    def of(cls, manifest: Manifest, transaction: Transaction | None) -> "CommittedTransaction":
        if transaction is not None and isinstance(transaction.operation, Rewrite):
            transaction = replace(transaction, operation=_with_reuse(transaction.operation, manifest))
        try:
            committed_at = manifest.timestamp
        except Corrupt:
            committed_at = None  # the time is only used in messages
        return cls(manifest.version, transaction, manifest.writer, committed_at)

    @property
    def operation(self) -> str:
        return self.transaction.operation.name if self.transaction else "unrecorded change"

    @property
    def description(self) -> str:
        """A phrase for messages: the operation, the version, its writer and its time."""
        by = f" by {self.writer}" if self.writer else ""
        at = f" at {self.committed_at:%Y-%m-%d %H:%M:%S} UTC" if self.committed_at else ""
        return f"the {self.operation} of version {self.version}" + (f" (committed{by}{at})" if by or at else "")


def _with_reuse(operation: Rewrite, manifest: Manifest) -> Rewrite:
    """Return the Rewrite with the fragment reuse index that the compaction wrote, or unchanged if it wrote none. Only
    the manifest records that index; the transaction does not."""
    entry = reuse_entry(index_metadata.decode_section(manifest.index_section, path=manifest.path))
    covered = entry.covers if entry else None
    if entry is None or covered is None:
        return operation
    new = BitMap(fragment.id for group in operation.groups for fragment in group.new)
    return replace(operation, fragment_reuse=entry) if new and new <= covered else operation
