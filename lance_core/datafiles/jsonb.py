"""JSONB: decodes the binary form in which files store JSON columns to JSON text for Arrow.

The layout is big-endian: a 4-byte header (container kind in the top three bits, element count below), one 4-byte entry
per element (type in bits 28-30, length below), then the payloads. An object lists the entries of its keys first.
"""

import json
import struct
from typing import TypeAlias

from lance_core.errors import Corrupt

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_U32 = struct.Struct(">I")
_COUNT = 0x1FFF_FFFF
_ARRAY, _OBJECT, _SCALAR = 0x8000_0000, 0x4000_0000, 0x2000_0000
_LENGTH = 0x0FFF_FFFF


def to_text(data: bytes, *, path: str) -> str:
    """Return the JSON text of one stored value, compact, with keys in stored order."""
    try:
        value = _read_container(memoryview(data))
    except (struct.error, IndexError, ValueError, RecursionError) as error:
        raise Corrupt(f"contains a JSON value that cannot be decoded ({error})", path=path, field="json") from error
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_container(data: memoryview) -> Json:
    (header,) = _U32.unpack_from(data)
    count = header & _COUNT
    kind = header & ~_COUNT
    if kind == _SCALAR:
        return _read_values(data, 1)[0]
    if kind == _ARRAY:
        return _read_values(data, count)
    if kind == _OBJECT:
        values = _read_values(data, 2 * count)
        return {str(key): value for key, value in zip(values[:count], values[count:], strict=True)}
    raise ValueError(f"unknown container {kind:#x}")


def _read_values(data: memoryview, count: int) -> list[Json]:
    if 4 + 4 * count > len(data):
        raise ValueError(f"{count} entries in {len(data)} bytes")
    position = 4 + 4 * count
    values: list[Json] = []
    for index in range(count):
        (entry,) = _U32.unpack_from(data, 4 + 4 * index)
        length = entry & _LENGTH
        values.append(_read_value((entry >> 28) & 0x7, data[position : position + length]))
        position += length
    return values


def _read_value(kind: int, payload: memoryview) -> Json:
    match kind:
        case 0:
            return None
        case 1:
            return str(payload, "utf-8")
        case 2:
            return _read_number(payload)
        case 3:
            return False
        case 4:
            return True
        case 5:
            return _read_container(payload)
    raise ValueError(f"unknown entry type {kind}")


def _read_number(payload: memoryview) -> Json:
    """Decode a number: a type byte, then the number big-endian in as few bytes as it needs."""
    match payload[0]:
        case 0x00:
            return 0
        case 0x10 | 0x20 | 0x30:
            return None  # NaN or infinite: JSON text cannot represent them
        case 0x40:
            return int.from_bytes(payload[1:], "big", signed=True)
        case 0x50:
            return int.from_bytes(payload[1:], "big")
        case 0x60:
            return float(struct.unpack(">d", payload[1:])[0])
    raise ValueError(f"unknown number type {payload[0]:#x}")
