"""SQL literals: quotes values and names for Lance SQL.

All code of this package that inserts values into a condition uses these functions.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa

from lance_core import InvalidInput

Value: TypeAlias = str | bool | int | float | Decimal | date | datetime | None
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def sql_literal(value: Value, name: str) -> str:
    """Return the value as a literal. `name` names the value in errors.

    A datetime with a time zone becomes a timestamp in UTC, which denotes the same instant in a column of any time zone;
    in a column without a time zone it is the time in UTC. A datetime without a time zone becomes a local time in the
    time zone of the column.

    >>> sql_literal("it's", "x"), sql_literal(3, "x"), sql_literal(date(2026, 1, 2), "x"), sql_literal(None, "x")
    ("'it''s'", '3', "date '2026-01-02'", 'null')
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return _quoted(value)
        case int() | Decimal():
            return str(value)
        case float():
            return f"cast('{value!r}' as double)"
        case datetime() if value.tzinfo is None:
            return f"timestamp '{value.isoformat(sep=' ')}'"
        case datetime():
            return timestamp_literal(value, pa.timestamp("us", "UTC"))
        case date():
            return f"date '{value.isoformat()}'"
        case _:
            raise InvalidInput(
                f"the value of {name!r} is a {type(value).__name__}; pass a str, a number, a bool, a date or a datetime"
            )


def timestamp_literal(value: datetime, data_type: pa.TimestampType) -> str:
    """Return a literal of exactly this timestamp type. The value has a zone if and only if the type has one.

    The SQL literal `timestamp '... -05:00'` cannot replace it: Lance converts that to UTC, drops the zone, and then
    reads the result as a local time in the zone of the column.

    >>> timestamp_literal(datetime(2026, 1, 2), pa.timestamp("s"))
    "arrow_cast('2026-01-02T00:00:00', 'Timestamp(Second, None)')"
    """
    if data_type.tz is None:
        text, zone = value.isoformat(), "None"
    else:
        text, zone = f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z", f'Some("{data_type.tz}")'
    return f"arrow_cast({_quoted(text)}, {_quoted(f'Timestamp({_UNITS[data_type.unit]}, {zone})')})"


def quote_identifier(name: str) -> str:
    """Return the name as a quoted identifier.

    >>> quote_identifier("day"), quote_identifier("a`b")
    ('`day`', '`a``b`')
    """
    return "`" + name.replace("`", "``") + "`"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
