"""Message weight: the small parts and the numbers that a protobuf message becomes, counted by following its structure.

`size_guard.py` bounds the number of small parts without knowing the structure. The numbers of wide fragments and the
row ids of many look like parts to it, so a message above that bound is counted here, by its declared type. Only what
takes memory of its own counts: messages, arrays of numbers and repeated texts. A parser keeps a single text, and every
unknown field, as bytes.

A level of nesting with few messages is walked field by field. One with many, such as the data files of a million
fragments, is walked in numpy: all messages advance by one field at a time.
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
_TOGETHER_MIN = 2048
"""Minimum number of messages that are walked in numpy."""
VISITS_MAX = 8_000_000
"""Maximum number of fields that are walked one by one. That takes a few seconds."""
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
    small_parts: int = 0
    numbers: int = 0
    """Numbers in arrays, in units of four bytes."""


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Fields of a message type that take memory of their own, by number."""

    messages: Mapping[int, Descriptor]
    number_units: Mapping[int, int]
    """Units of four bytes that a number of an array takes."""
    texts: frozenset[int]

    @classmethod
    def of(cls, descriptor: Descriptor) -> "_Kinds":
        messages, units, texts = {}, {}, set()
        for each in descriptor.fields:
            if each.message_type is not None:
                messages[each.number] = each.message_type
            elif each.is_repeated and each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                texts.add(each.number)
            elif each.is_repeated:
                units[each.number] = 2 if each.cpp_type in _WIDE_TYPES else 1
        return cls(messages, units, frozenset(texts))


_WIDE_TYPES = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_DOUBLE)


@dataclass(slots=True)
class _Level:
    """Messages of one type at one depth, as positions in the whole message, and the messages in them by field."""

    kinds: _Kinds
    starts: _Positions
    ends: _Positions
    children: dict[int, list[tuple[_Positions, _Positions]]] = field(default_factory=dict)


def weigh(message: bytes, kind: type[Message], *, small_parts_max: int) -> Weight:
    """Count the parts and numbers of a message of the type `kind`. A malformed message is counted up to where its
    parser stops. Raises `TooManyParts` as soon as there are more small parts than `small_parts_max`, and
    `Unweighable`."""
    weigher = _Weigher(message, small_parts_max)
    pending = [(cast(Descriptor, kind.DESCRIPTOR), np.zeros(1, np.int64), np.full(1, len(message), np.int64), 0)]
    while pending:
        descriptor, starts, ends, depth = pending.pop()
        if depth > _DEPTH_MAX:
            raise Unweighable
        level = _Level(_Kinds.of(descriptor), starts, ends)
        weigher.walk(level)
        if weigher.weight.small_parts > small_parts_max:
            raise TooManyParts
        for number, spans in level.children.items():
            child_starts, child_ends = (np.concatenate(positions) for positions in zip(*spans, strict=True))
            pending.append((level.kinds.messages[number], child_starts, child_ends, depth + 1))
    return weigher.weight


class _Weigher:
    def __init__(self, message: bytes, small_parts_max: int) -> None:
        self._message, self._small_parts_max = message, small_parts_max
        self._data = np.frombuffer(message + bytes(_VARINT_BYTES_MAX + 1), np.uint8)
        """The padding lets a truncated number be read like any other."""
        self._visits = 0
        self.weight = Weight()

    def walk(self, level: _Level) -> None:
        starts, ends = level.starts, level.ends
        while len(starts) >= _TOGETHER_MIN:
            starts, ends = self._advance_together(level, starts, ends)
        found: dict[int, array[int]] = {}
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            for number, *span in self._walk_fields(level.kinds, start, end):
                found.setdefault(number, array("q")).extend(span)
        for number, spans in found.items():
            positions = np.frombuffer(spans, np.int64).reshape(-1, 2)
            level.children.setdefault(number, []).append((positions[:, 0], positions[:, 1]))

    def _walk_fields(self, kinds: _Kinds, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Walk the fields of one message, and yield the number and the position of each message in it."""
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
                if number in kinds.messages:
                    weight.small_parts += length < SMALL_PART_BYTES
                    if length:
                        yield number, start, position
                    elif weight.small_parts > self._small_parts_max:
                        raise TooManyParts
                elif number in kinds.number_units:
                    weight.small_parts += length < SMALL_PART_BYTES
                    count = int(np.count_nonzero(self._data[start:position] < 0x80))
                    weight.numbers += count * kinds.number_units[number]
                elif number in kinds.texts:
                    weight.small_parts += length < SMALL_PART_BYTES
            elif wire_type == _VARINT:
                _, position = _read_varint(data, position)
                weight.numbers += kinds.number_units.get(number, 0)
            elif wire_type in _FIXED_BYTES:
                position += _FIXED_BYTES[wire_type]
                weight.numbers += kinds.number_units.get(number, 0)
            else:
                raise Unweighable

    def _count_visits(self, visits: int) -> None:
        self._visits += visits
        if self._visits > VISITS_MAX:
            raise Unweighable

    def _advance_together(
        self, level: _Level, positions: _Positions, ends: _Positions
    ) -> tuple[_Positions, _Positions]:
        """Count the next field of each message, and return the messages that have more, at their next field."""
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
        self._count_together(level, numbers, is_delimited & is_whole, after - values, after)
        for number, units in level.kinds.number_units.items():
            self.weight.numbers += int(np.count_nonzero((numbers == number) & ~is_delimited)) * units
        return after[is_whole], ends[is_whole]

    def _count_together(
        self,
        level: _Level,
        numbers: _Positions,
        is_counted: npt.NDArray[np.bool_],
        starts: _Positions,
        ends: _Positions,
    ) -> None:
        is_small = ends - starts < SMALL_PART_BYTES
        for number in np.unique(numbers[is_counted]).tolist():
            chosen = is_counted & (numbers == number)
            is_message, units = number in level.kinds.messages, level.kinds.number_units.get(number, 0)
            if is_message or units or number in level.kinds.texts:
                self.weight.small_parts += int(np.count_nonzero(chosen & is_small))
            if is_message:
                level.children.setdefault(number, []).append((starts[chosen], ends[chosen]))
            elif units:
                self.weight.numbers += self._count_numbers(starts[chosen], ends[chosen]) * units

    def _count_numbers(self, starts: _Positions, ends: _Positions) -> int:
        """Count the numbers in arrays. Each byte of short arrays counts as a number."""
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
            following = self._data[after[continued]]
            values[continued] |= (following & 0x7F).astype(np.int64) << (7 * index)
            after[continued] += 1
            continued = continued[following >= 0x80]
        values[continued] = -1
        return values, after


def _read_varint(data: Sequence[int], position: int) -> tuple[int, int]:
    """Return the number at a position and the position after it. A truncated number ends behind the message."""
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
