"""Literal coercion: casts a literal that is compared with a column to the type of the column, or rejects it.

DataFusion would widen the column instead, which changes results (`f32 = 0.1` matches nothing as doubles) and keeps
indices from being used. Lance narrows the literal. If Lance rejects a comparison, this module rejects it only if its
meaning would be a guess (a string against a number), and accepts it if it has one possible meaning (an ISO date in
quotes against a date, `1.5` against a decimal). Start at `coerce_literal`.
"""

import decimal
from collections.abc import Callable

import pyarrow as pa

_WIDEST_DECIMAL = 76
_NARROW_DECIMAL = 38
_HALF_MAX = 65504


class InvalidExpression(Exception):
    """Rejected expression. The message says why, and what to write instead. It does not leave this package."""


def coerce_literal(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    """Return the value as it is compared with a column of type `target`, or raise `InvalidExpression`."""
    if pa.types.is_dictionary(target):
        target = target.value_type
    if not value.is_valid or value.type == target or pa.types.is_null(value.type):
        return value
    for accepts, convert in _RULES:
        if accepts(target):
            return convert(value, target)
    return value


def _to_boolean(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    raise InvalidExpression(f"{_display(value)} is not a boolean; write true or false")


def _to_integer(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if pa.types.is_integer(value.type) or pa.types.is_decimal(value.type):
        return value
    if pa.types.is_floating(value.type):
        number = value.as_py()
        if number.is_integer() and abs(number) < 2**53:
            return pa.scalar(int(number), pa.int64())
        raise InvalidExpression(
            f"{number} is not an integer, but the column holds {target}; compare with an integer, or cast"
        )
    raise _not_a_number(value, target)


def _to_floating(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(value.type):
        return value
    if not (pa.types.is_floating(value.type) or pa.types.is_integer(value.type)):
        raise _not_a_number(value, target)
    if pa.types.is_float16(target) and pa.types.is_integer(value.type) and abs(value.as_py()) > _HALF_MAX:
        raise InvalidExpression(f"{_display(value)} is out of the range of {target}; cast the column")
    return value.cast(target, safe=False)


def _to_text(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if _is_text(value.type):
        return value.cast(target)
    raise InvalidExpression(f"{_display(value)} is not a string, but the column holds {target}; put it in quotes")


def _to_bytes(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if not _is_bytes(value.type):
        raise InvalidExpression(
            f"{_display(value)} is not a binary value; write the bytes in hexadecimal, as in X'0aff'"
        )
    if pa.types.is_fixed_size_binary(target):
        data = value.as_py()
        if len(data) != target.byte_width:
            raise InvalidExpression(
                f"the value has {len(data)} bytes, but the column holds {target.byte_width}; write all bytes"
            )
        return pa.scalar(data, target)
    return value.cast(target)


def _to_decimal(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if pa.types.is_integer(value.type) or pa.types.is_decimal(value.type):
        return value
    try:
        number = decimal.Decimal(repr(value.as_py()) if pa.types.is_floating(value.type) else value.as_py())
    except (decimal.InvalidOperation, TypeError, ValueError) as error:
        raise InvalidExpression(
            f"{_display(value)} is not a number, but the column holds {target}; write a number"
        ) from error
    return to_exact_decimal(number, target)


def to_exact_decimal(number: decimal.Decimal, target: pa.DataType) -> pa.Scalar:
    """Return the number in the type of the column if that is exact, otherwise in a decimal type with all its digits."""
    if not number.is_finite():
        raise InvalidExpression(f"{number} is not finite, but the column holds {target}; write a finite number")
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if scale <= target.scale and precision + target.scale - scale <= target.precision:
        return pa.scalar(number, target)
    if precision > _WIDEST_DECIMAL:
        raise InvalidExpression(f"{number} has more than {_WIDEST_DECIMAL} digits, which no decimal type can hold")
    wide = pa.types.is_decimal256(target) or precision > _NARROW_DECIMAL
    return pa.scalar(number, (pa.decimal256 if wide else pa.decimal128)(precision, scale))


def _to_date(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if pa.types.is_integer(value.type) or pa.types.is_floating(value.type):
        raise InvalidExpression(f"{_display(value)} is not a date; write date '2020-01-31'")
    return value


def _to_time(value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
    if pa.types.is_integer(value.type):
        bits = pa.int32() if pa.types.is_time32(target) else pa.int64()
        try:
            return value.cast(bits).cast(target)
        except pa.ArrowInvalid as error:
            raise InvalidExpression(f"{_display(value)} is not a time of day; write time '12:30:00'") from error
    return value


def _not_a_number(value: pa.Scalar, target: pa.DataType) -> InvalidExpression:
    return InvalidExpression(
        f"{_display(value)} is not a number, but the column holds {target}; write it without quotes, or cast"
    )


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(arrow)
        or pa.types.is_large_binary(arrow)
        or pa.types.is_binary_view(arrow)
        or pa.types.is_fixed_size_binary(arrow)
    )


def _display(value: pa.Scalar) -> str:
    return repr(value.as_py())


_RULES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Scalar, pa.DataType], pa.Scalar]], ...] = (
    (pa.types.is_boolean, _to_boolean),
    (pa.types.is_integer, _to_integer),
    (pa.types.is_floating, _to_floating),
    (_is_text, _to_text),
    (_is_bytes, _to_bytes),
    (pa.types.is_decimal, _to_decimal),
    (pa.types.is_date, _to_date),
    (pa.types.is_time, _to_time),
)
