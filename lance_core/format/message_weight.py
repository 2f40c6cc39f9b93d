"""Message weight: estimates the memory that a protobuf message takes once it is parsed, by following its structure.

The weight is the number of small parts and the number of array elements. `size_guard.py` bounds the small parts without
knowing the type of the message. The bound is too high for messages with wide fragments or many row ids, because their
numbers look like parts, so this module counts exactly, by the declared type. It counts what becomes an object or an
array of its own: nested messages, arrays of numbers and repeated texts. A parser keeps a single text, and every unknown
field, as bytes.

If few messages are nested at one depth, they are walked field by field. Many messages, such as the data files of a
million fragments, are walked in numpy: all of them advance by one field at a time. Start with `weigh`.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

SMALL_PART_BYTES = 16
"""A part shorter than this is small."""
_VECTORIZED_MIN = 2048
"""Minimum number of messages that are walked in numpy."""
VISITS_MAX = 8_000_000
"""Maximum number of fields that are walked one by one, which takes a few seconds."""
_VISITS_OF_A_ROUND = 256
"""Fields that are walked one by one in the time of a round in numpy."""
_LONG_ARRAY_BYTES = 64
_VARINT_BYTES_MAX = 10
_DEPTH_MAX = 100
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

_Positions = npt.NDArray[np.int64]


class TooManyParts(Exception):
    """The message has more small parts than the caller allows."""


class Unweighable(Exception):
    """The message takes too many steps to walk, or contains groups, which no writer of the format uses."""


@dataclass(slots=True)
class Weight:
    """Small parts and array elements of a message."""

    small_parts: int = 0
    numbers: int = 0
    """Numbers in arrays, in units of four bytes."""


def is_repeated(declared: FieldDescriptor) -> bool:
    """Return whether a field of a message is repeated. Protobuf 5 has a label only, and protobuf 7 has none."""
    if hasattr(declared, "is_repeated"):
        return bool(declared.is_repeated)
    return bool(declared.label == FieldDescriptor.LABEL_REPEATED)


@dataclass(frozen=True, slots=True)
class _CountedFields:
    """Fields of a message type that take memory of their own, by field number."""

    messages: Mapping[int, Descriptor]
    number_units: Mapping[int, int]
    """Size of an element of an array field, in units of four bytes."""
    texts: frozenset[int]
    """Numbers of the repeated text fields."""

    @classmethod
    def of(cls, descriptor: Descriptor) -> "_CountedFields":
        messages, units, texts = {}, {}, set()
        for declared in descriptor.fields:
            if declared.message_type is not None:
                messages[declared.number] = declared.message_type
            elif is_repeated(declared) and declared.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                texts.add(declared.number)
            elif is_repeated(declared):
                units[declared.number] = 2 if declared.cpp_type in _WIDE_TYPES else 1
        return cls(messages, units, frozenset(texts))


_WIDE_TYPES = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_DOUBLE)


@dataclass(slots=True)
class _Level:
    """Messages of one type at one depth, as positions in the whole message, and the messages in them, by field."""

    counted: _CountedFields
    starts: _Positions
    ends: _Positions
    children: dict[int, list[tuple[_Positions, _Positions]]] = field(default_factory=dict)


def weigh(message: bytes, kind: type[Message], *, small_parts_max: int) -> Weight:
    """Return the weight of a message of the type `kind`. A malformed message is counted up to where its parser stops.

    Raise `TooManyParts` as soon as there are more small parts than `small_parts_max`, and `Unweighable` if the message
    cannot be walked."""
    weigher = _Weigher(message, small_parts_max)
    pending = [(cast(Descriptor, kind.DESCRIPTOR), np.zeros(1, np.int64), np.full(1, len(message), np.int64), 0)]
    while pending:
        descriptor, starts, ends, depth = pending.pop()
        if depth > _DEPTH_MAX:
            raise Unweighable
        level = _Level(_CountedFields.of(descriptor), starts, ends)
        weigher.walk(level)
        if weigher.weight.small_parts > small_parts_max:
            raise TooManyParts
        for number, spans in level.children.items():
            child_starts, child_ends = (np.concatenate(positions) for positions in zip(*spans, strict=True))
            pending.append((level.counted.messages[number], child_starts, child_ends, depth + 1))
    return weigher.weight


class _Weigher:
    """Walks one message and adds up its weight."""

    def __init__(self, message: bytes, small_parts_max: int) -> None:
        self._message, self._small_parts_max = message, small_parts_max
        self._data = np.frombuffer(message + bytes(_VARINT_BYTES_MAX + 1), np.uint8)
        """The padding lets a truncated number be read like any other."""
        self._visits = 0
        self.weight = Weight()

    def walk(self, level: _Level) -> None:
        starts, ends = level.starts, level.ends
        """Count the fields of the messages of a level, and add the nested messages to its children."""
        while len(starts) >= _VECTORIZED_MIN:
            starts, ends = self._advance_all(level, starts, ends)
        spans_by_field: dict[int, array[int]] = {}
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            for number, *span in self._walk_fields(level.counted, start, end):
                spans_by_field.setdefault(number, array("q")).extend(span)
        for number, spans in spans_by_field.items():
            positions = np.frombuffer(spans, np.int64).reshape(-1, 2)
            level.children.setdefault(number, []).append((positions[:, 0], positions[:, 1]))

    def _walk_fields(self, counted: _CountedFields, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Walk the fields of one message, and yield field number, start and end of each message nested in it."""
        data, weight = self._message, self.weight
        while position < end:
            self._count_visits(1)
            tag, position = _read_varint(data, position)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == _DELIMITED:
                length, start = _read_varint(data, position)
                position = start + length
                if position > end:
                    return
                if number in counted.messages:
                    weight.small_parts += length < SMALL_PART_BYTES
                    if length:
                        yield number, start, position
                    elif weight.small_parts > self._small_parts_max:
                        raise TooManyParts
                elif number in counted.number_units:
                    weight.small_parts += length < SMALL_PART_BYTES
                    count = int(np.count_nonzero(self._data[start:position] < 0x80))
                    weight.numbers += count * counted.number_units[number]
                elif number in counted.texts:
                    weight.small_parts += length < SMALL_PART_BYTES
            elif wire_type == _VARINT:
                _, position = _read_varint(data, position)
                weight.numbers += counted.number_units.get(number, 0)
            elif wire_type in _FIXED_BYTES:
                position += _FIXED_BYTES[wire_type]
                weight.numbers += counted.number_units.get(number, 0)
            else:
                raise Unweighable

    def _count_visits(self, visits: int) -> None:
        self._visits += visits
        if self._visits > VISITS_MAX:
            raise Unweighable

    def _advance_all(self, level: _Level, positions: _Positions, ends: _Positions) -> tuple[_Positions, _Positions]:
        """Count the next field of each message. Return the position after it and the end of each message that has more
        fields."""
        self._count_visits(_VISITS_OF_A_ROUND)
        is_inside = positions < ends
        positions, ends = positions[is_inside], ends[is_inside]
        tags, contents = self._read_varints(positions)
        numbers, wire_types = tags >> 3, tags & 7
        values, after = self._read_varints(contents)
        is_delimited = wire_types == _DELIMITED
        is_possible = ~is_delimited | ((values >= 0) & (values <= len(self._message)))  # a sum of others may overflow
        after = np.where(is_delimited & is_possible, after + values, after)
        for wire_type, width in _FIXED_BYTES.items():
            after = np.where(wire_types == wire_type, contents + width, after)
        if np.any((wire_types == 3) | (wire_types == 4) | (wire_types > _FIXED32)):
            raise Unweighable
        is_whole = is_possible & (after <= ends)
        self._count_all(level, numbers, is_delimited & is_whole, after - values, after)
        for number, units in level.counted.number_units.items():
            self.weight.numbers += int(np.count_nonzero((numbers == number) & ~is_delimited)) * units
        return after[is_whole], ends[is_whole]

    def _count_all(
        self,
        level: _Level,
        numbers: _Positions,
        is_counted: npt.NDArray[np.bool_],
        starts: _Positions,
        ends: _Positions,
    ) -> None:
        is_small = ends - starts < SMALL_PART_BYTES
        for number in np.unique(numbers[is_counted]).tolist():
            is_field = is_counted & (numbers == number)
            is_message, units = number in level.counted.messages, level.counted.number_units.get(number, 0)
            if is_message or units or number in level.counted.texts:
                self.weight.small_parts += int(np.count_nonzero(is_field & is_small))
            if is_message:
                level.children.setdefault(number, []).append((starts[is_field], ends[is_field]))
            elif units:
                self.weight.numbers += self._count_numbers(starts[is_field], ends[is_field]) * units

    def _count_numbers(self, starts: _Positions, ends: _Positions) -> int:
        """Count the numbers in arrays. If the arrays are short on average, each byte counts as a number."""
        total = int(np.sum(ends - starts))
        if total < len(starts) * _LONG_ARRAY_BYTES:
            return total
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return sum(int(np.count_nonzero(self._data[start:end] < 0x80)) for start, end in spans)

    def _read_varints(self, positions: _Positions) -> tuple[_Positions, _Positions]:
        """Return the numbers at these positions and the positions after them. A number that is too long is negative."""
        positions = np.minimum(positions, len(self._message))
        first = self._data[positions]
        values = (first & 0x7F).astype(np.int64)
        after = positions + 1
        continued = np.flatnonzero(first >= 0x80)
        for index in range(1, _VARINT_BYTES_MAX):
            if not len(continued):
                return values, after
            next_bytes = self._data[after[continued]]
            values[continued] |= (next_bytes & 0x7F).astype(np.int64) << (7 * index)
            after[continued] += 1
            continued = continued[next_bytes >= 0x80]
        values[continued] = -1
        return values, after


def _read_varint(data: Sequence[int], position: int) -> tuple[int, int]:
    """Return the number at a position and the position after it, which is beyond the message if it is truncated."""
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    for byte in data[position : position + _VARINT_BYTES_MAX]:
        value |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if byte < 0x80:
            return value, position
    return value, len(data) + 1
