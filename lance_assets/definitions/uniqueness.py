"""One table, one ledger, one name: two tables of a project that are at the same place, or whose sensors would have the
same name, are refused when the second is merged.

Dagster refuses two assets of one key. That two ledgers stand for one directory it cannot know: each would have every
version, and the checks and the upkeep of both would be at work on it. And of two sensors of one name it says that they
are there, but not which tables they are of.
"""

import gc
import os
from collections.abc import Collection
from typing import Protocol
from weakref import ReferenceType, ref

from lance_core import InvalidInput


class DeclaredTable(Protocol):
    """A `Ledger`."""

    @property
    def label(self) -> str: ...
    @property
    def table_slug(self) -> str: ...
    @property
    def shown_uri(self) -> str: ...


class DeclaredUri(str):
    """What definitions hold of a place: as long as they are there, so is this."""

    label: str


_tables_by_uri: dict[str, ReferenceType[DeclaredUri]] = {}
"""Who is where. The definitions of a project are loaded by one process."""
_tables_by_name: dict[str, ReferenceType[DeclaredUri]] = {}
"""Whose names these are."""


def register_table(ledger: DeclaredTable, kinds: Collection[str] = ()) -> DeclaredUri:
    """For the definitions of this table, which are to hold it. `kinds` are those of what Dagster knows by its word."""
    where, names = normalized_uri(ledger.shown_uri), [f"lance_{kind}__{ledger.table_slug}" for kind in kinds]
    if other := _other_owner(_tables_by_uri, where, ledger):
        raise InvalidInput(
            f"the Lance tables {other!r} and {ledger.label!r} of this project are at the same place, "
            f"{ledger.shown_uri}: every version would be on both ledgers. Declare the table once, with the writes of "
            "both; other modules import it, and have .dep, .key and .write_key(...) of it"
        )
    for name in names:
        if other := _other_owner(_tables_by_name, name, ledger):
            raise InvalidInput(
                f"the Lance tables {other!r} and {ledger.label!r} of this project would both have a {name!r}: such "
                "names of Dagster's have no slashes, so that key_prefix and name of the two read the same there. Give "
                "one of them another name, or another key_prefix"
            )
    taken = DeclaredUri(ledger.shown_uri)
    taken.label = ledger.label
    _tables_by_uri[where] = ref(taken)
    _tables_by_name.update((name, ref(taken)) for name in names)
    return taken


def normalized_uri(shown_uri: str) -> str:
    """
    >>> place_of("file:///lake/orders.lance/") == place_of("/lake/x/../orders.lance")
    True
    """
    local = shown_uri.removeprefix("file://")
    return os.path.normpath(local) if "://" not in local else local.rstrip("/")


def _other_owner(taken: dict[str, ReferenceType[DeclaredUri]], what: str, ledger: DeclaredTable) -> str | None:
    """The label of another table that has it."""
    if (found := _live_label(taken, what)) in (None, ledger.label):
        return None
    del found
    gc.collect()  # definitions that nobody has any more may be waiting for it
    found = _live_label(taken, what)
    return None if found == ledger.label else found


def _live_label(taken: dict[str, ReferenceType[DeclaredUri]], what: str) -> str | None:
    found = taken.get(what)
    holder = None if found is None else found()
    return None if holder is None else holder.label
