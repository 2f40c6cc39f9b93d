"""Partition values: parses partition keys as values of their column, and refuses keys that are the same value. Pure.

Partitions whose keys are equal as values of the column, such as "1" and "01" as integers, would be one set of rows
under two names, and each would silently replace the rows of the other. Start with `partition_values`.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation

import pyarrow as pa

from lance_assets.common.sql_literals import Value, sql_literal
from lance_core import InvalidInput

_BOOLEANS = {"true": True, "false": False}
_DECIMAL_DIGITS_MAX = 76


def is_text(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    return bool(
        pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type)
    )


def partition_values(
    keys: Sequence[str], field: pa.Field, all_keys: Callable[[], Iterable[str]], *, subject: str
) -> list[str]:
    """Return the values of these keys as literals of the column's type.

    Raise `InvalidInput` if a key is not a value of the type, or is the same value as another one of `all_keys`.
    """
    if is_text(field.type):
        return [sql_literal(key, field.name) for key in keys]
    parse = _parser_for(field, subject)
    owners: dict[Value, str] = {}
    for key in keys:
        value = parse(key)
        if value is None or not _fits(value, field.type):
            raise InvalidInput(
                f"{subject}: the partition {key!r} cannot be converted to {field.type}, the type of its column "
                f"{field.name!r}"
            )
        _check_single_owner(owners.setdefault(value, key), key, field, subject)
    for key in all_keys():
        _check_single_owner(owners.get(parse(key), key), key, field, subject)
    return [_typed_literal(value, field) for value in owners]


def _check_single_owner(owner: str, key: str, field: pa.Field, subject: str) -> None:
    if owner != key:
        raise InvalidInput(
            f"{subject}: the partitions {owner!r} and {key!r} are the same value of the column {field.name!r}, which "
            f"is {field.type}, so each would replace the rows of the other; remove one of them, or use a column of text"
        )


def _parser_for(field: pa.Field, subject: str) -> Callable[[str], Value]:
    """Return a function that parses a key. It returns `None` for text that is not a value of the type."""
    for accepts, parse in _PARSERS:
        if accepts(field.type):
            return parse
    raise InvalidInput(
        f"{subject}: the column {field.name!r} is {field.type}, but partition columns must be text, whole numbers, "
        "booleans, dates or decimals"
    )


def _parse_integer(key: str) -> int | None:
    try:
        return int(key)
    except ValueError:
        return None


def _parse_boolean(key: str) -> bool | None:
    return _BOOLEANS.get(key.lower())


def _parse_date(key: str) -> date | None:
    try:
        return date.fromisoformat(key)
    except ValueError:
        return None


def _parse_decimal(key: str) -> Decimal | None:
    try:
        value = Decimal(key)
    except InvalidOperation:
        return None
    return value if value.is_finite() and abs(value.adjusted()) <= _DECIMAL_DIGITS_MAX else None


def _fits(value: Value, data_type: pa.DataType) -> bool:
    """Return whether the type can hold the value without rounding it."""
    try:
        pa.scalar(value, data_type)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _typed_literal(value: Value, field: pa.Field) -> str:
    if isinstance(value, Decimal):
        return f"arrow_cast('{value:f}', 'Decimal{field.type.bit_width}({field.type.precision}, {field.type.scale})')"
    return sql_literal(value, field.name)


_PARSERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str], Value]], ...] = (
    (pa.types.is_integer, _parse_integer),
    (pa.types.is_boolean, _parse_boolean),
    (pa.types.is_date, _parse_date),
    (pa.types.is_decimal, _parse_decimal),
)
