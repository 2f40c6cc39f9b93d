"""Mutation of bytes: random damage anywhere, or structured changes as an attacker makes them.

A protobuf message is parsed into fields by its wire format alone, changed somewhere at any depth, and encoded again
with correct lengths, so that the decoder meets the change and not merely the first broken length. All randomness comes
from the given `Random`. Start reading at `mutate_message`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_VARINT, _FIXED64, _LENGTH, _START, _END, _FIXED32 = range(6)
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_NESTING_DEPTH_MAX = 200
"""Twice the depth that message readers accept, and no deeper than Python can build."""
_NUMBERS = (
    0, 1, 2, 3, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53, 2**62, 2**63 - 1,
    2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1,
)  # fmt: skip
_TEXTS = (
    b"", b"\0", b"..", b"../x", b"/x", b"x" * 5000, b"\xff\xfe", "\u202e".encode(), b"lance.blob.v2", b"struct",
    b"fixed_size_list:int32:2147483647", b"fixed_size_list:" * 40 + b"int8", b"decimal:128:38:-200", b"-1", b"2.99",
    b"0.1", b"9" * 400, b"timestamp:us:Nowhere/None", b"large_list", b"map", b"null", b"dict:string:int8:true", b"json",
    b"__lance_frag_reuse", b"arrow.uuid", b"ARROW:extension:name", b"lance-schema:unenforced-primary-key", b"true",
)  # fmt: skip


@dataclass(frozen=True)
class Field:
    """Field of a message in wire format. `content` is a number, bytes, or the fields of a nested message."""

    number: int
    wire: int
    content: "int | bytes | tuple[Field, ...]"


def encode_varint(number: int, *, padded: int = 0) -> bytes:
    number &= 2**64 - 1
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    result.append(number)
    if padded:
        result[-1] |= 128
        result += b"\x80" * (padded - 1) + b"\0"
    return bytes(result)


def parse_message(data: bytes, depth: int = 0) -> tuple[Field, ...] | None:
    """Return the fields of a message; `None` if the bytes are not a message."""
    fields, at = [], 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29 or at < 0:
            return None
        content: int | bytes | tuple[Field, ...]
        if wire == _VARINT:
            content, at = _read_varint(data, at)
        elif wire in _SIZES:
            content, at = data[at : at + _SIZES[wire]], at + _SIZES[wire]
        elif wire == _LENGTH:
            length, at = _read_varint(data, at)
            content, at = data[at : at + length], at + length
            if content and depth < 8 and (inner := parse_message(content, depth + 1)) is not None:
                content = inner
        else:
            return None
        if at < 0 or at > len(data):
            return None
        fields.append(Field(number, wire, content))
    return tuple(fields)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < len(data):
            return 0, -1
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    return 0, -1


def encode_fields(fields: Sequence[Field]) -> bytes:
    return b"".join(map(_encode_field, fields))


def _encode_field(field: Field) -> bytes:
    tag = encode_varint(field.number << 3 | field.wire)
    match field.content:
        case int(number):
            return tag + encode_varint(number)
        case bytes(data):
            return tag + (encode_varint(len(data)) if field.wire == _LENGTH else b"") + data
        case fields:
            data = encode_fields(fields)
            return tag + encode_varint(len(data)) + data


def mutate_message(data: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Mutate a message. Foreign parts are taken from `others`."""
    fields = parse_message(data)
    if fields is None or not fields or draw.random() < 0.05:
        return damage_bytes(data, draw, others)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        changed = _mutate_one_field(fields, draw, others)
        if _nesting_depth(changed) <= _NESTING_DEPTH_MAX:
            fields = changed
    result = encode_fields(fields)
    return damage_bytes(result, draw, others) if draw.random() < 0.03 else result


def _nesting_depth(fields: Sequence[Field]) -> int:
    """Return the nesting depth of the messages."""
    count, level = 0, tuple(fields)
    while level:
        count += 1
        level = tuple(inner for field in level if isinstance(field.content, tuple) for inner in field.content)
    return count


def _mutate_one_field(fields: tuple[Field, ...], draw: random.Random, others: Sequence[bytes]) -> tuple[Field, ...]:
    if not fields:
        return _foreign_fields(draw, others)
    at = draw.randrange(len(fields))
    chosen = fields[at]
    if isinstance(chosen.content, tuple) and draw.random() < 0.75:
        inner = _mutate_one_field(chosen.content, draw, others)
        return (*fields[:at], replace(chosen, content=inner), *fields[at + 1 :])
    if draw.random() < 0.15:
        return (*fields[:at], *_foreign_fields(draw, others), *fields[at:])
    return (*fields[:at], *_mutations_of_field(chosen, draw), *fields[at + 1 :])


def _mutations_of_field(field: Field, draw: random.Random) -> tuple[Field, ...]:
    content = field.content
    ways: list[Callable[[], tuple[Field, ...]]] = [
        lambda: (),
        lambda: (field, field),
        lambda: (field,) * draw.choice((3, 40, 400)),
        lambda: (replace(field, number=draw.choice((field.number + 1, max(1, field.number - 1), 1, 15, 16, 2**28))),),
        lambda: (Field(field.number, _VARINT, draw.choice(_NUMBERS)),),
        lambda: (Field(field.number, _LENGTH, draw.choice(_TEXTS)),),
        lambda: (Field(field.number, _FIXED64, b"\xff" * 8),),
        lambda: (Field(field.number, _FIXED32, b"\0" * 4),),
        lambda: (Field(field.number, _LENGTH, draw.randbytes(draw.choice((1, 8, 100)))),),
    ]
    if isinstance(content, int):
        ways += [lambda: (replace(field, content=draw.choice(_NUMBERS)),)] * 6
        ways += [lambda: (replace(field, content=(content + draw.choice((-1, 1, 2**32))) % 2**64),)] * 3
    elif isinstance(content, bytes) and field.wire == _LENGTH:
        ways += [lambda: (replace(field, content=damage_bytes(content, draw)),)] * 4
        ways += [lambda: (replace(field, content=draw.choice(_TEXTS)),)] * 3
    elif isinstance(content, tuple):
        ways += [lambda: (replace(field, content=tuple(reversed(content))),)]
        ways += [lambda: (replace(field, content=(field, *content)),), lambda: (_nest_field(field, draw),)]
    return draw.choice(ways)()


def _nest_field(field: Field, draw: random.Random) -> Field:
    for _ in range(draw.choice((2, 20, 150))):
        field = replace(field, wire=_LENGTH, content=(field,))
    return field


def _foreign_fields(draw: random.Random, others: Sequence[bytes]) -> tuple[Field, ...]:
    """Return a field of another message, or a random one."""
    taken = parse_message(draw.choice(others)) if others and draw.random() < 0.7 else None
    while taken and draw.random() < 0.6:
        inner = [field.content for field in taken if isinstance(field.content, tuple) and field.content]
        if not inner:
            break
        taken = draw.choice(inner)
    return (draw.choice(taken),) if taken else (Field(draw.randrange(1, 40), _VARINT, draw.choice(_NUMBERS)),)


def damage_bytes(data: bytes, draw: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Damage bytes regardless of their structure: change, remove, double or zero them, or append the end of another
    file."""
    result = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        size = len(result)
        at, length = draw.randrange(size + 1), draw.choice((1, 2, 4, 8, 16, 64, size // 2 + 1))
        match draw.randrange(8):
            case 0 | 1:
                if size:
                    result[at % size] = draw.randrange(256)
            case 2:
                result[at : at + length] = bytes(min(length, size - at))
            case 3:
                result[at : at + length] = b"\xff" * min(length, size - at)
            case 4:
                del result[at : at + length]
            case 5:
                result[at:at] = result[at : at + length]
            case 6:
                result[at:at] = draw.randbytes(min(length, 64))
            case _:
                other = draw.choice(others) if others else data
                result[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(result)
