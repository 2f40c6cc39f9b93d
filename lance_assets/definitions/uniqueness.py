"""Uniqueness: refuses two tables of a project with the same location or with the same names in Dagster.

Dagster refuses two assets with the same key, but it cannot know that two ledgers have the same directory: each would
hold every version, and the checks and the maintenance of both would run on it. For two sensors with the same name its
error does not say which tables they belong to. The second table is refused when its definitions are built. Start with
`register_table`.
"""

import gc
import os
from collections.abc import Collection
from typing import Protocol
from weakref import ReferenceType, ref

from lance_core import InvalidInput


class DeclaredTable(Protocol):
    """Table with a location and names, such as a `Ledger`."""

    @property
    def label(self) -> str: ...
    @property
    def table_slug(self) -> str: ...
    @property
    def shown_uri(self) -> str: ...


class DeclaredUri(str):
    """URI that the definitions of a table hold. Its registration lasts as long as the definitions exist."""

    label: str


_tables_by_uri: dict[str, ReferenceType[DeclaredUri]] = {}
"""Registered tables by location. One process loads the definitions of a project."""
_tables_by_name: dict[str, ReferenceType[DeclaredUri]] = {}
"""Registered tables by the names of their sensors, schedules and other definitions."""


def register_table(ledger: DeclaredTable, kinds: Collection[str] = ()) -> DeclaredUri:
    """Register a table and return the URI that its definitions must hold.

    `kinds` are the kinds of definitions whose names contain the table's slug, such as "discover". Raises `InvalidInput`
    if another table of the project has the same location or one of the names.
    """
    uri, names = normalized_uri(ledger.shown_uri), [f"lance_{kind}__{ledger.table_slug}" for kind in kinds]
    if other := _other_owner(_tables_by_uri, uri, ledger):
        raise InvalidInput(
            f"the Lance tables {other!r} and {ledger.label!r} of this project have the same location, "
            f"{ledger.shown_uri}: every version would be on both ledgers. Declare the table once, with the writes of "
            "both; other modules import it and use its .dep, .key and .write_key(...)"
        )
    for name in names:
        if other := _other_owner(_tables_by_name, name, ledger):
            raise InvalidInput(
                f"the Lance tables {other!r} and {ledger.label!r} of this project would both have a {name!r}: such "
                "names in Dagster have no slashes, so key_prefix and name of the two become the same. Change the name "
                "or the key_prefix of one of them"
            )
    declared = DeclaredUri(ledger.shown_uri)
    declared.label = ledger.label
    _tables_by_uri[uri] = ref(declared)
    _tables_by_name.update((name, ref(declared)) for name in names)
    return declared


def normalized_uri(shown_uri: str) -> str:
    """Return the URI in a form that is equal for equal locations.

    >>> normalized_uri("file:///lake/orders.lance/") == normalized_uri("/lake/x/../orders.lance")
    True
    """
    local = shown_uri.removeprefix("file://")
    return os.path.normpath(local) if "://" not in local else local.rstrip("/")


def _other_owner(tables: dict[str, ReferenceType[DeclaredUri]], key: str, ledger: DeclaredTable) -> str | None:
    """Return the label of another table that has registered this key; `None` if there is none."""
    if _live_label(tables, key) in (None, ledger.label):
        return None
    gc.collect()  # definitions that are no longer used may exist until their collection
    label = _live_label(tables, key)
    return None if label == ledger.label else label


def _live_label(tables: dict[str, ReferenceType[DeclaredUri]], key: str) -> str | None:
    reference = tables.get(key)
    declared = None if reference is None else reference()
    return None if declared is None else declared.label
