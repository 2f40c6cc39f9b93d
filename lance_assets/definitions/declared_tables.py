"""Declared tables: finds the table of a name, so that a definition can name a table of another module or YAML file.

The name is looked up when it is used, in a run, since the files of a project are loaded in any order. Start with
`NamedTable`.
"""

from dataclasses import dataclass

import dagster as dg

from lance_assets.ledger.ledger import Ledger
from lance_assets.resources.lance import Access
from lance_core import InvalidInput

_ledgers: dict[str, Ledger] = {}
"""Ledgers of the tables that this process has declared, by label; the last declaration of a label counts."""


def remember_table(ledger: Ledger) -> None:
    """Make a declared table available to `NamedTable`."""
    _ledgers[ledger.label] = ledger


def is_declared(label: str) -> bool:
    """Return whether a table with this label has been declared so far."""
    return label in _ledgers


@dataclass(frozen=True, slots=True)
class NamedTable:
    """Table of this project by its label, which is its asset key as text. It can be declared later."""

    label: str

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey.from_user_string(self.label)

    @property
    def uri(self) -> str:
        return self._ledger.uri

    def access(self) -> Access:
        return self._ledger.access()

    @property
    def dep(self) -> dg.AssetDep:
        """Dependency on the newest version."""
        return dg.AssetDep(self.key, partition_mapping=dg.LastPartitionMapping())

    @property
    def _ledger(self) -> Ledger:
        if self.label not in _ledgers:
            declared = ", ".join(sorted(_ledgers)) or "none"
            raise InvalidInput(
                f"there is no Lance table {self.label!r} in this project; its tables are {declared}. Name one of them, "
                "or give the URI of the table"
            )
        return _ledgers[self.label]
