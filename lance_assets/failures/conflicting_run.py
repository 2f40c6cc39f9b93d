"""Who made a version that was in the way, for whoever has to speak to them: the run, its asset and its partition, which
the version's own transaction names. What others wrote into it is theirs, and may be anything."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import dagster as dg

from lance_assets.ledger.version_metadata import run_id_of
from lance_assets.provenance.properties import ASSET_KEY, PARTITION
from lance_core import LanceError, Table

_TEXT_MAX = 200


@runtime_checkable
class Openable(Protocol):
    def open(self, version: int | None = None) -> Table: ...


@dataclass(frozen=True, slots=True)
class ConflictingRun:
    version: int
    run_id: str | None
    asset: str | None
    partition: str | None

    @property
    def sentence(self) -> str:
        if self.run_id is None:
            return f"Version {self.version} names no run of Dagster that wrote it."
        of = f" of {self.asset}" if self.asset else ""
        where = f", partition {self.partition}" if self.partition else ""
        return f"Version {self.version} was written by run {self.run_id}{of}{where}."

    @property
    def metadata(self) -> dict[str, dg.MetadataValue]:
        value = dg.MetadataValue
        shown = {
            "lance/their_run": value.dagster_run(self.run_id) if self.run_id else None,
            "lance/their_asset": value.text(self.asset) if self.asset else None,
            "lance/their_partition": value.text(self.partition) if self.partition else None,
        }
        return {name: each for name, each in shown.items() if each is not None}


def run_that_committed(table: object, version: int) -> ConflictingRun | None:
    """None where nobody can tell: the version is gone, or its place is not known here."""
    if version < 1 or not isinstance(table, Openable):
        return None
    try:
        made_by = table.open(version).transaction()
    except (LanceError, OSError):  # it is for a message only
        return None
    properties = made_by.properties if made_by else {}
    asset, partition = (properties.get(name, "")[:_TEXT_MAX] or None for name in (ASSET_KEY, PARTITION))
    return ConflictingRun(version, run_id_of(properties), asset, partition)
