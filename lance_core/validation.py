"""Argument validation: checks of every argument other than rows, before any file is written.

A check returns the normalized argument, or raises an `InvalidInput` that names the argument, shows its value and says
what is accepted. No check reads a table: whether a column or a version exists is checked where the table is open. SQL
is checked in `expressions/`, names of tags and branches in `format/refs.py`. Start at `check_integer` or
`check_names`.
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
from lance_core.format.config_keys import RESERVED_KEYS
from lance_core.format.ids import Version
from lance_core.format.ingest_records import FOLLOWS, INGESTED
from lance_core.format.manifest import PARENT
from lance_core.format.transaction import VERB
from lance_core.format.view_records import VIEW, VIEW_FOLLOWS

STABLE_ROW_IDS_ADVICE = (
    "the table has none: row ids are assigned from the first version on and cannot be turned on later. Create a new "
    "table with stable_row_ids=True from these rows: Table.create(uri, table.to_batches(), stable_row_ids=True)"
)
_DISPLAY_CHARACTERS_MAX = 80
EnumType = TypeVar("EnumType", bound=Enum)


# Numbers and times


def check_version_number(value: int) -> Version:
    if (version := _as_integer(value)) is None:
        raise InvalidInput(f"a version must be an integer, not {_display(value)}")
    if version < 1:
        raise InvalidInput(f"versions count from 1; there is no version {version}")
    return Version(version)


def check_integer(value: int, argument: str, *, at_least: int, too_small: str) -> int:
    """Return the integer. `too_small` is the explanation for a value below `at_least`."""
    if (number := _as_integer(value)) is None:
        raise InvalidInput(f"{argument} must be an integer, not {_display(value)}")
    if number < at_least:
        raise InvalidInput(f"{argument}={number}: {too_small}")
    return number


def check_fragment_ids(value: Iterable[int], argument: str) -> tuple[int, ...]:
    """Return the ids without duplicates."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidInput(f"{argument} must be a list of fragment ids, not {_display(value)}")
    ids = []
    for item in value:
        if (number := _as_integer(item)) is None or number < 0:
            raise InvalidInput(
                f"{argument} has {_display(item)} where a fragment id is expected: Fragment.id, an integer from 0 on"
            )
        ids.append(number)
    return tuple(dict.fromkeys(ids))


def check_batch_size(value: int) -> int:
    """Return the largest number of rows in a batch."""
    return check_integer(value, "batch_size", at_least=1, too_small="a batch has at least one row")


def check_file_limits(rows_max: int, bytes_max: int) -> None:
    for number, argument in ((rows_max, "max_rows_per_file"), (bytes_max, "max_bytes_per_file")):
        check_integer(
            number, argument, at_least=1, too_small="max_rows_per_file= and max_bytes_per_file= must both be positive"
        )


def check_duration(value: timedelta, argument: str) -> timedelta:
    if not isinstance(value, timedelta):
        raise InvalidInput(
            f"{argument} must be a datetime.timedelta, such as timedelta(days=14), not {_display(value)}"
        )
    return value


def check_timestamp(value: datetime, argument: str) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidInput(f"{argument} must be a datetime.datetime with a time zone, not {_display(value)}")
    if value.tzinfo is None:
        raise InvalidInput(f"{argument}={value} has no time zone; add one, for UTC with tzinfo=timezone.utc")
    return value


# Strings, flags and types


def check_flag(value: bool, argument: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{argument} must be True or False, not {_display(value)}")
    return bool(value)


def check_text(value: str, argument: str) -> str:
    if not is_text(value):
        raise InvalidInput(f"{argument} must be a string that UTF-8 can encode, not {_display(value)}")
    return value


def check_choice(enum_type: type[EnumType], value: object, argument: str) -> EnumType:
    """Return the member of the enumeration that has this value."""
    for member in enum_type:
        if isinstance(value, str) and member.value == value:
            return member
    known = ", ".join(str(member.value) for member in enum_type)
    raise InvalidInput(f"{argument} must be one of {known}, not {_display(value)}")


def check_data_type(value: pa.DataType, argument: str) -> pa.DataType:
    if not isinstance(value, pa.DataType):
        raise InvalidInput(f"{argument} must be a pyarrow type, such as pa.int64(), not {_display(value)}")
    return value


def check_schema(value: pa.Schema, argument: str) -> pa.Schema:
    if not isinstance(value, pa.Schema):
        raise InvalidInput(f"{argument} must be a pyarrow schema, not {_display(value)}")
    return value


def check_uri(value: str | os.PathLike[str]) -> str:
    """Return the URI as a string. Its contents are checked when the table is opened."""
    try:
        text: object = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise InvalidInput(f"the URI of a table must be a string or a path, not {type(value).__name__}")
    return text


# Collections


def check_names(value: object, argument: str) -> tuple[str, ...]:
    """Return the names. A single string is rejected, because iterating it would yield its letters as names."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise InvalidInput(f"{argument} must be a list of names, not {_display(value)}")
    return tuple(check_text(name, f"a name in {argument}") for name in value)


def check_key_columns(value: object, argument: str) -> tuple[str, ...]:
    """Return the names of the key columns. A single string is one name."""
    return (value,) if isinstance(value, str) else check_names(value, argument)


def check_fields(value: object, argument: str) -> list[pa.Field]:
    if not isinstance(value, Collection) or not all(isinstance(field, pa.Field) for field in value):
        raise InvalidInput(
            f"{argument} must be a mapping of names to SQL, pyarrow fields, a schema or a function, "
            f"not {_display(value)}"
        )
    return list(value)


def check_locations(value: object, argument: str) -> tuple[str, ...]:
    """Return the locations of directories that may be read. A single string is rejected, because iterating it would
    yield its characters, such as `/`, which is a directory.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise InvalidInput(f"{argument} must be a list of locations (strings), not {type(value).__name__}")
    for location in value:
        if not is_text(location) or not location:
            actual = "an empty string" if isinstance(location, str) else type(location).__name__
            raise InvalidInput(f"{argument} must be a list of locations (strings); one of them is {actual}")
    return tuple(value)


def check_bases(value: object) -> tuple[BasePath, ...]:
    paths = tuple(value) if isinstance(value, Iterable) else (value,)
    for path in paths:
        if not isinstance(path, BasePath):
            raise InvalidInput(f"bases must be lance_core.operations.BasePath values, not {type(path).__name__}")
    return paths


def check_mapping(value: object, argument: str) -> None:
    """Raise unless the argument is a mapping. The message omits its values, which may be secrets."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{argument} must be a mapping, not {type(value).__name__}")


def check_text_mapping(value: Mapping[str, str] | None, argument: str) -> dict[str, str]:
    """Return a copy of the mapping; an empty one for `None`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{argument} must map strings to strings, and is {type(value).__name__}")
    for key, text in value.items():
        for part in (key, text):
            if not is_text(part):
                raise InvalidInput(
                    f"{argument} must map strings to strings; in the entry {_display(key)}, {_display(part)} is not a "
                    "string that UTF-8 can encode"
                )
    return dict(value)


def check_setting_changes(value: Mapping[str, str | None], argument: str) -> dict[str, str | None]:
    """Return a copy of the changed settings. A value of `None` deletes the setting."""
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"{argument} must map strings to strings, or to None to delete an entry, not {_display(value)}"
        )
    for key, text in value.items():
        if not is_text(key) or not (text is None or is_text(text)):
            raise InvalidInput(
                f"the entry {_display(key)}: {_display(text)} is invalid; keys and values must be strings, and None "
                "deletes an entry"
            )
        if not key:
            raise InvalidInput("an entry has an empty key; give it a name")
    return dict(value)


# Arguments that all writers share


def check_intent_and_retries(*, intent: str | None = None, retries: int = 1) -> None:
    if intent is not None and not is_text(intent):
        raise InvalidInput(f"intent must be a string that UTF-8 can encode, not {_display(intent)}")
    check_integer(retries, "retries", at_least=1, too_small="at least one attempt is needed")


def check_stable_row_ids_unchanged(requested: bool | None, current: bool, *, table: str) -> None:
    """Raise if the caller requests another setting of stable row ids than the table was created with."""
    if requested is None or check_flag(requested, "stable_row_ids") == current:
        return
    if requested:
        raise InvalidInput(f"{table}: stable_row_ids=True was requested, but {STABLE_ROW_IDS_ADVICE}")
    raise InvalidInput(f"{table} has stable row ids, which cannot be turned off; create a new table without them")


def check_properties(value: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of the transaction properties, without any that the library sets itself."""
    properties = check_text_mapping(value, "properties")
    if VERB in properties:
        raise InvalidInput(f"the property {VERB} is the verb of the write; only a commit sets it. Remove it")
    if PARENT in properties:
        raise InvalidInput(
            f"the property {PARENT} is the hash of the parent manifest; only a commit sets it. Remove it"
        )
    for name in (INGESTED, FOLLOWS):
        if name in properties:
            raise InvalidInput(f"the property {name} records ingested files; only an ingest sets it. Remove it")
    for name in (VIEW, VIEW_FOLLOWS):
        if name in properties:
            raise InvalidInput(f"the property {name} records a view's source; only a refresh sets it. Remove it")
    return properties


def check_config(value: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of the table config, without any key that the library sets itself."""
    check_config_keys(config := check_text_mapping(value, "config"))
    return config


def check_config_keys(keys: Collection[str]) -> None:
    """Raise if the library reserves one of the keys."""
    for key, why in RESERVED_KEYS.items():
        if key in keys:
            raise InvalidInput(f"the config key {key} {why}")


def is_text(value: object) -> bool:
    """Return whether the value is a string that UTF-8 can encode."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _as_integer(value: object) -> int | None:
    """Return the value as an integer, or `None` if it is not one. A boolean is not an integer here."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _display(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _DISPLAY_CHARACTERS_MAX else f"{text[:_DISPLAY_CHARACTERS_MAX]}…"
