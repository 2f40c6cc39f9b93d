"""One table, one ledger: two tables of a project that are at the same place are refused when the second is merged.

Dagster refuses two assets of one key. That two ledgers stand for one directory it cannot know: each would have every
version, and the checks and the upkeep of both would be at work on it.
"""

import gc
import os
from typing import Protocol
from weakref import ReferenceType, ref

from lance_core import InvalidInput


class Placed(Protocol):
    """A `Ledger`."""

    @property
    def label(self) -> str: ...
    @property
    def shown_uri(self) -> str: ...


class ShownUri(str):
    """What definitions hold of a place: as long as they are there, so is this."""

    label: str


_taken: dict[str, ReferenceType[ShownUri]] = {}
"""Who is where. The definitions of a project are loaded by one process."""


def take_place(ledger: Placed) -> ShownUri:
    """For the definitions of this table, which are to hold it."""
    where = place_of(ledger.shown_uri)
    other = _live(where)
    if other is not None and other.label != ledger.label:
        del other
        gc.collect()  # definitions that nobody has any more may be waiting for it
        other = _live(where)
    if other is not None and other.label != ledger.label:
        raise InvalidInput(
            f"the Lance tables {other.label!r} and {ledger.label!r} of this project are at the same place, "
            f"{ledger.shown_uri}: every version would be on both ledgers. Declare the table once, with the writes of "
            "both; other modules import it, and have .dep, .key and .write_key(...) of it"
        )
    taken = ShownUri(ledger.shown_uri)
    taken.label = ledger.label
    _taken[where] = ref(taken)
    return taken


def place_of(shown_uri: str) -> str:
    """
    >>> place_of("file:///lake/orders.lance/") == place_of("/lake/x/../orders.lance")
    True
    """
    local = shown_uri.removeprefix("file://")
    return os.path.normpath(local) if "://" not in local else local.rstrip("/")


def _live(where: str) -> ShownUri | None:
    found = _taken.get(where)
    return None if found is None else found()
