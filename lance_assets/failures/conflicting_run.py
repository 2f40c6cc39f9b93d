"""Conflicting run: the Dagster run, asset and partition that committed a conflicting version, for error messages.

They come from the properties of the version's transaction. Any writer can set them, so their values are untrusted.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import dagster as dg

from lance_assets.ledger.version_metadata import run_id_of
from lance_assets.provenance.properties import ASSET_KEY, PARTITION
from lance_core import LanceError, Table

_TEXT_MAX = 200


@runtime_checkable
class Openable(Protocol):
    """Table location that can be opened at a version, such as a `Ledger`."""

    def open(self, version: int | None = None) -> Table: ...


@dataclass(frozen=True, slots=True)
class ConflictingRun:
    """Origin of a conflicting version; `None` where the version does not record it."""

    version: int
    run_id: str | None
    asset: str | None
    partition: str | None

    @property
    def sentence(self) -> str:
        """The origin as a sentence for an error message."""
        if self.run_id is None:
            return f"Version {self.version} does not name the Dagster run that wrote it."
        asset = f" of {self.asset}" if self.asset else ""
        partition = f", partition {self.partition}" if self.partition else ""
        return f"Version {self.version} was written by run {self.run_id}{asset}{partition}."

    @property
    def metadata(self) -> dict[str, dg.MetadataValue]:
        """The origin as Dagster metadata."""
        value = dg.MetadataValue
        metadata = {
            "lance/their_run": value.dagster_run(self.run_id) if self.run_id else None,
            "lance/their_asset": value.text(self.asset) if self.asset else None,
            "lance/their_partition": value.text(self.partition) if self.partition else None,
        }
        return {name: item for name, item in metadata.items() if item is not None}


def run_that_committed(table: object, version: int) -> ConflictingRun | None:
    """Return the origin of a version; `None` if the version was removed or `table` cannot be opened."""
    if version < 1 or not isinstance(table, Openable):
        return None
    try:
        transaction = table.open(version).transaction()
    except (LanceError, OSError):  # the origin serves a message only
        return None
    properties = transaction.properties if transaction else {}
    asset, partition = (properties.get(name, "")[:_TEXT_MAX] or None for name in (ASSET_KEY, PARTITION))
    return ConflictingRun(version, run_id_of(properties), asset, partition)
