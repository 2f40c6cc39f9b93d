"""What callers hand in beside rows, checked before anything is written: an error after the files would come too late.

Nothing here looks at a table.
"""

import operator
from collections.abc import Mapping

from lance_core.errors import InvalidInput
from lance_core.format.ids import Version
from lance_core.identity import TABLE_ID
from lance_core.transactions.arrivals import NOT_TURNED_ON


def version_number(number: int) -> Version:
    try:
        version = operator.index(number)
    except TypeError as error:
        raise InvalidInput(f"versions are whole numbers, not {number!r}") from error
    if version < 1:
        raise InvalidInput(f"versions count from 1; there is no version {version}")
    return Version(version)


def check(*, intent: object = None, retries: int = 1) -> None:
    if intent is not None and not _is_text(intent):
        raise InvalidInput(f"intent={intent!r}: an intent is a text")
    if retries < 1:
        raise InvalidInput(f"retries={retries}: at least one attempt is needed")


def same_row_ids(asked: bool | None, has: bool, *, what: str) -> None:
    """Row ids are decided when a table is created."""
    if asked is None or asked == has:
        return
    if asked:
        raise InvalidInput(f"{what}: stable row ids were asked for, and {NOT_TURNED_ON}")
    raise InvalidInput(f"{what} has stable row ids, which are not turned off; create a new table without them")


def texts(given: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """`what` is the name of the argument."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what}= maps texts to texts, and is not a {type(given).__name__}")
    for key, value in given.items():
        for text in (key, value):
            if not _is_text(text):
                raise InvalidInput(f"{what}= maps texts to texts; of {key!r}, {text!r} is none")
    return dict(given)


def config(given: Mapping[str, str] | None) -> dict[str, str]:
    """Keys for the config of a table, less the one that says which table it is."""
    if TABLE_ID in (checked := texts(given, "config")):
        raise InvalidInput(
            f"the config key {TABLE_ID} says which table this is; creating the table sets it, and nobody by hand"
        )
    return checked


def _is_text(thing: object) -> bool:
    try:
        return isinstance(thing, str) and thing.encode() is not None
    except UnicodeEncodeError:
        return False
