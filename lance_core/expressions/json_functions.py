"""JSON functions: SQL functions over JSON columns: json_extract, json_exists, json_get_*, json_array_*.

Their results follow the reference implementation, including conversions, rounding and the spelling of numbers. Paths
consist of names and positions (`$.a.b[0]`, `$["odd name"]`); other JSONPath syntax is rejected. The functions
evaluate row by row in Python, so a frequent query is faster with a column of its own.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Step: TypeAlias = str | int
Path: TypeAlias = tuple[Step, ...]
JsonOrMissing: TypeAlias = "Json | Missing"
Scalar: TypeAlias = bool | int | float | str | None
Reader: TypeAlias = Callable[[JsonOrMissing, str], Scalar]


class Missing:
    """Result of a path that the document does not contain."""


@dataclass(frozen=True, slots=True)
class JsonFunction:
    """SQL function of a JSON column and `arguments` strings."""

    name: str
    returns: pa.DataType
    convert: Reader
    """Function that returns the result for the value at the path or key, and for the last argument."""
    by_key: bool = False
    """True if the first argument is a single key instead of a path."""
    arguments: int = 1

    def __call__(self, column: pa.Array, *arguments: pa.Array) -> pa.Array:
        texts = column.flatten()[0].to_pylist()
        columns = [argument.to_pylist() for argument in arguments]
        return pa.array([self._evaluate_row(*row) for row in zip(texts, *columns, strict=True)], self.returns)

    def _evaluate_row(self, text: str | None, *arguments: str | None) -> Scalar:
        if text is None or any(argument is None for argument in arguments):
            return None
        first, last = str(arguments[0]), str(arguments[-1])
        document = json.loads(text, parse_int=_parse_integer)
        value = _value_at_key(document, first) if self.by_key else _value_at(document, parse_path(first))
        return self.convert(value, last)


class UnsupportedPath(ValueError):
    """JSON path with unsupported syntax. The message quotes the path and says what is supported."""


_ROOT = re.compile(r"\$|(?=\[)|(?=[\w\"])|$")
_STEP = re.compile(r"\.?(?:(?P<name>\w+)|\"(?P<quoted>[^\"\\]*)\")|\[\s*(?:(?P<index>\d+)|\"(?P<key>[^\"\\]*)\")\s*\]")


@lru_cache(maxsize=256)
def parse_path(text: str) -> Path:
    """Return the steps of a JSON path.

    >>> parse_path('$.a["odd name"][0]')
    ('a', 'odd name', 0)
    """
    stripped = text.strip()
    root = _ROOT.match(stripped)
    at = root.end() if root else -1
    steps: list[Step] = []
    while 0 <= at < len(stripped):
        step = _STEP.match(stripped, at)
        is_bare = step is not None and stripped[at] not in ".["
        if step is None or (is_bare and at > 0):
            at = -1
            break
        steps.append(int(step["index"]) if step["index"] else step["name"] or step["quoted"] or step["key"] or "")
        at = step.end()
    if at < 0:
        raise UnsupportedPath(f"JSON path {text!r} is not supported; write names and positions, as in '$.a.b[0]'")
    return tuple(steps)


def to_json_text(value: Json) -> str:
    """Return the value as compact JSON with sorted keys and with numbers as Lance spells them."""
    match value:
        case dict():
            pairs = (f"{_quote(key)}:{to_json_text(value[key])}" for key in sorted(value, key=str.encode))
            return f"{{{','.join(pairs)}}}"
        case list():
            return f"[{','.join(map(to_json_text, value))}]"
        case float():
            return _format_float(value)
        case str():
            return _quote(value)
        case _:
            return json.dumps(value)


def _parse_integer(digits: str) -> int | float:
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else float(digits)


def _value_at(value: Json, steps: Path) -> JsonOrMissing:
    for step in steps:
        match step, value:
            case str(), dict() if step in value:
                value = value[step]
            case int(), list() if step < len(value):
                value = value[step]
            case _:
                return Missing()
    return value


def _value_at_key(value: Json, key: str) -> JsonOrMissing:
    return _value_at(value, (int(key),) if isinstance(value, list) and key.isdecimal() else (key,))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _format_float(value: float) -> str:
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if exponent == "-05":
        return f"{value:.{5 + len(mantissa.lstrip('-').replace('.', '')) - 1}f}"
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}" if exponent else text


def _extract(value: JsonOrMissing, _: str) -> str | None:
    return None if isinstance(value, Missing) else to_json_text(value)


def _exists(value: JsonOrMissing, _: str) -> bool:
    return not isinstance(value, Missing)


def _length(value: JsonOrMissing, _: str) -> int | None:
    if isinstance(value, Missing):
        return None
    return len(value) if isinstance(value, list) else 0


def _contains(value: JsonOrMissing, element: str) -> bool:
    if not isinstance(value, list):
        return False
    return any(element in (text, text.strip('"')) for text in map(to_json_text, value))


def _as_string(value: JsonOrMissing, _: str) -> str | None:
    if isinstance(value, list | dict):
        raise _conversion_error(value, "a string")
    if value is None or isinstance(value, Missing):
        return None
    return value if isinstance(value, str) else to_json_text(value)


def _as_float(value: JsonOrMissing, _: str) -> float | None:
    if value is None or isinstance(value, Missing):
        return None
    if (isinstance(value, str) and not _FLOAT.fullmatch(value)) or isinstance(value, list | dict):
        raise _conversion_error(value, "a number")
    return float(value)


def _as_int(value: JsonOrMissing, _: str) -> int | None:
    if isinstance(value, str) and _INT.fullmatch(value):
        value = int(value)
    if not isinstance(value, int):
        number = _as_float(value, _)
        if number is None:
            return None
        if not math.isfinite(number):
            raise _conversion_error(number, "an integer")
        value = int(math.copysign(math.floor(abs(number) + 0.5), number))
    if not -(2**63) <= value < 2**63:
        raise _conversion_error(value, "a 64-bit integer")
    return int(value)


def _as_bool(value: JsonOrMissing, _: str) -> bool | None:
    if value is None or isinstance(value, Missing | bool):
        return None if isinstance(value, Missing) else value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _conversion_error(value, "true or false")


def _conversion_error(value: Json, expected: str) -> ValueError:
    return ValueError(f"the JSON value {to_json_text(value)[:60]} is not {expected}")


_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)

FUNCTIONS = {
    function.name: function
    for function in (
        JsonFunction("json_extract", pa.string(), _extract),
        JsonFunction("json_exists", pa.bool_(), _exists),
        JsonFunction("json_get_string", pa.string(), _as_string, by_key=True),
        JsonFunction("json_get_int", pa.int64(), _as_int, by_key=True),
        JsonFunction("json_get_float", pa.float64(), _as_float, by_key=True),
        JsonFunction("json_get_bool", pa.bool_(), _as_bool, by_key=True),
        JsonFunction("json_array_length", pa.int64(), _length),
        JsonFunction("json_array_contains", pa.bool_(), _contains, arguments=2),
    )
}
