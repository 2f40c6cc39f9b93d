"""The one home of argument checks: whatever callers hand in beside rows is looked at here, whichever verb takes it,
before anything is written. An error after the files would come too late, and one of Python's own says too little.

A check returns the argument as the work goes on with it, or raises an `InvalidInput` that names the argument (`what`),
shows what it was and says what it may be. Nothing here looks at a table: whether there is such a column or version is
asked where the table is at hand. SQL is judged in `expressions/`, the names of tags and branches in `format/refs.py`.
"""

import operator
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInput
from lance_core.format.base_path import BasePath
from lance_core.format.config_keys import SET_BY_THE_LIBRARY
from lance_core.format.hash_chain import PARENT
from lance_core.format.ids import Version
from lance_core.format.ingest_records import FOLLOWS, INGESTED

NOT_TURNED_ON = (
    "the table has none: they are given out from the first version on, and are not turned on later. Create a new table "
    "with stable_row_ids=True from this one's rows: Table.create(uri, table.to_batches(), stable_row_ids=True)"
)
_SHOWN_MAX = 80
Kind = TypeVar("Kind", bound=Enum)


# Numbers


def version_number(number: int) -> Version:
    if (version := _whole(number)) is None:
        raise InvalidInput(f"versions are whole numbers, not {_shown(number)}")
    if version < 1:
        raise InvalidInput(f"versions count from 1; there is no version {version}")
    return Version(version)


def whole_number(number: int, what: str, *, at_least: int, too_small: str) -> int:
    """`too_small` says why it cannot be less."""
    if (whole := _whole(number)) is None:
        raise InvalidInput(f"{what}={_shown(number)}: it is a whole number")
    if whole < at_least:
        raise InvalidInput(f"{what}={whole}: {too_small}")
    return whole


def numbers(given: Iterable[int], what: str) -> tuple[int, ...]:
    """Ids of fragments, each once."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput(f"{what}={_shown(given)}: it is several whole numbers")
    found = [whole_number(number, what, at_least=0, too_small="they count from 0") for number in given]
    return tuple(dict.fromkeys(found))


def file_limits(rows_max: int, bytes_max: int) -> None:
    for number, what in ((rows_max, "max_rows_per_file"), (bytes_max, "max_bytes_per_file")):
        whole_number(
            number, what, at_least=1, too_small="max_rows_per_file= and max_bytes_per_file= must both be positive"
        )


def duration(length: timedelta, what: str) -> timedelta:
    if not isinstance(length, timedelta):
        raise InvalidInput(f"{what}={_shown(length)}: it is a datetime.timedelta, such as timedelta(days=14)")
    return length


def moment(time: datetime, what: str) -> datetime:
    if not isinstance(time, datetime):
        raise InvalidInput(f"{what}={_shown(time)}: it is a datetime.datetime with its time zone")
    if time.tzinfo is None:
        raise InvalidInput(f"{time} has no time zone; say which one it is in, for UTC with tzinfo=timezone.utc")
    return time


# Words


def flag(value: bool, what: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{what}={_shown(value)}: it is True or False")
    return bool(value)


def text(value: str, what: str) -> str:
    if not is_text(value):
        raise InvalidInput(f"{what}={_shown(value)}: it is a text")
    return value


def choice(kind: type[Kind], value: object, what: str) -> Kind:
    """By the value of one of them."""
    for each in kind:
        if isinstance(value, str) and each.value == value:
            return each
    known = ", ".join(str(each.value) for each in kind)
    raise InvalidInput(f"{what}={_shown(value)}: choose one of {known}")


def data_type(value: pa.DataType, what: str) -> pa.DataType:
    if not isinstance(value, pa.DataType):
        raise InvalidInput(f"{what}={_shown(value)}: it is a pyarrow type, such as pa.int64()")
    return value


def schema(value: pa.Schema, what: str) -> pa.Schema:
    if not isinstance(value, pa.Schema):
        raise InvalidInput(f"{what}={_shown(value)}: it is a pyarrow schema")
    return value


def uri(place: str | os.PathLike[str]) -> str:
    """What is in it is judged when it is opened."""
    try:
        found: object = os.fspath(place)
    except TypeError:
        found = None
    if not isinstance(found, str):
        raise InvalidInput(f"the URI of a table is a text or a path, not a {type(place).__name__}")
    return found


# Several


def names(given: object, what: str) -> tuple[str, ...]:
    """A text alone is refused, since its letters would be taken for names."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection):
        raise InvalidInput(f"{what}={_shown(given)}: it is a list of names")
    return tuple(text(name, f"a name in {what}") for name in given)


def keys(given: object, what: str) -> tuple[str, ...]:
    """One name may come alone."""
    return (given,) if isinstance(given, str) else names(given, what)


def fields(given: object, what: str) -> list[pa.Field]:
    if not isinstance(given, Collection) or not all(isinstance(each, pa.Field) for each in given):
        raise InvalidInput(f"{what}={_shown(given)}: they are SQL by name, pyarrow fields, a schema or a function")
    return list(given)


def places(given: object, what: str) -> tuple[str, ...]:
    """Directories that may be read; never a text alone, whose letters could be such, "/" among them."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection):
        raise InvalidInput(f"{what}= is a list of places, each a text, and not a {type(given).__name__}")
    for each in given:
        if not is_text(each) or not each:
            kind = "an empty text" if isinstance(each, str) else f"a {type(each).__name__}"
            raise InvalidInput(f"{what}= is a list of places, each a text; one of these is {kind}")
    return tuple(given)


def bases(given: object) -> tuple[BasePath, ...]:
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    for each in found:
        if not isinstance(each, BasePath):
            raise InvalidInput(f"bases are each a lance_core.operations.BasePath, not a {type(each).__name__}")
    return found


def mapping(given: object, what: str) -> None:
    """Its values are not shown: they may be secrets."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what}= is a mapping, and not a {type(given).__name__}")


def texts(given: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """None stands for none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what}= maps texts to texts, and is not a {type(given).__name__}")
    for key, value in given.items():
        for each in (key, value):
            if not is_text(each):
                raise InvalidInput(f"{what}= maps texts to texts; of {_shown(key)}, {_shown(each)} is none")
    return dict(given)


def entries(given: Mapping[str, str | None], what: str) -> dict[str, str | None]:
    """Of settings: a None deletes."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what} are a mapping of texts to texts, or to None to delete, not {_shown(given)}")
    for key, value in given.items():
        if not is_text(key) or not (value is None or is_text(value)):
            raise InvalidInput(
                f"the entry {_shown(key)}: {_shown(value)} is not of text; keys and values are, and None deletes"
            )
        if not key:
            raise InvalidInput("an entry has an empty key; give it a name")
    return dict(given)


# What verbs have in common


def check(*, intent: str | None = None, retries: int = 1) -> None:
    if intent is not None and not is_text(intent):
        raise InvalidInput(f"intent={_shown(intent)}: an intent is a text")
    whole_number(retries, "retries", at_least=1, too_small="at least one attempt is needed")


def same_row_ids(asked: bool | None, has: bool, *, what: str) -> None:
    """Row ids are decided when a table is created."""
    if asked is None or flag(asked, "stable_row_ids") == has:
        return
    if asked:
        raise InvalidInput(f"{what}: stable row ids were asked for, and {NOT_TURNED_ON}")
    raise InvalidInput(f"{what} has stable row ids, which are not turned off; create a new table without them")


def properties(given: Mapping[str, str] | None) -> dict[str, str]:
    """What a caller notes of a commit."""
    checked = texts(given, "properties")
    if PARENT in checked:
        raise InvalidInput(f"the property {PARENT} says upon which bytes a version was made; a commit sets it itself")
    for name in (INGESTED, FOLLOWS):
        if name in checked:
            raise InvalidInput(f"the property {name} says which files were ingested; ingest sets it itself")
    return checked


def config(given: Mapping[str, str] | None) -> dict[str, str]:
    """Entries for the config of a table."""
    check_config_keys(checked := texts(given, "config"))
    return checked


def check_config_keys(given: Collection[str]) -> None:
    """Without those that the library sets."""
    for key, why in SET_BY_THE_LIBRARY.items():
        if key in given:
            raise InvalidInput(f"the config key {key} {why}")


def is_text(thing: object) -> bool:
    """One that UTF-8 can hold."""
    try:
        return isinstance(thing, str) and thing.encode() is not None
    except UnicodeEncodeError:
        return False


def _whole(number: object) -> int | None:
    """None where it is none; True is no number here."""
    if isinstance(number, bool | np.bool_):
        return None
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


def _shown(thing: object) -> str:
    shown = repr(thing)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"
