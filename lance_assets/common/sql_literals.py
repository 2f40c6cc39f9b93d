"""SQL literals: quotes values and names for Lance SQL.

All code of this package that inserts values into a condition uses these functions.
"""

from datetime import date, datetime
from decimal import Decimal
from typing import TypeAlias

from lance_core import InvalidInput

Value: TypeAlias = str | bool | int | float | Decimal | date | datetime | None


def sql_literal(value: Value, name: str) -> str:
    """Return the value as a literal. `name` names the value in errors.

    >>> sql_literal("it's", "x"), sql_literal(3, "x"), sql_literal(date(2026, 1, 2), "x"), sql_literal(None, "x")
    ("'it''s'", '3', "date '2026-01-02'", 'null')
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return "'" + value.replace("'", "''") + "'"
        case int() | Decimal():
            return str(value)
        case float():
            return f"cast('{value!r}' as double)"
        case datetime():
            return f"timestamp '{value.isoformat(sep=' ')}'"
        case date():
            return f"date '{value.isoformat()}'"
        case _:
            raise InvalidInput(
                f"the value of {name!r} is a {type(value).__name__}; pass a str, a number, a bool, a date or a datetime"
            )


def quote_identifier(name: str) -> str:
    """Return the name as a quoted identifier.

    >>> quote_identifier("day"), quote_identifier("a`b")
    ('`day`', '`a``b`')
    """
    return "`" + name.replace("`", "``") + "`"
