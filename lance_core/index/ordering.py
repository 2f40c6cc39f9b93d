"""The order of values in an index, and which of them a condition asks for: Arrow's total order, as the engine has it.

Every value has a key, and keys are compared as Python and numpy compare them: whole numbers for whatever is 64 bits or
less (floats by their bits, so that -NaN < -inf < -0.0 < 0.0 < inf < NaN), bytes for text, decimals for decimals. The
engine orders so too, but for one thing: to it -0.0 equals 0.0, in each comparison and in short lists of IN, and not in
long ones. Here both zeros are always meant; a list that has one says more than is asked, and says so.

NULL is nobody's business here: it has no key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.expressions.tree import Comparison, In, Like, Op
from lance_core.index.index_type import Certainty, Leaf, RangeCondition
from lance_core.index.supported_types import is_temporal

Key: TypeAlias = Any
"""An int, bytes or a Decimal: all keys of a column are of one kind."""
Numbers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """From a key to a key, either of which may be missing; `excludes_low` and `excludes_high` leave the key itself out."""

    low: Key | None = None
    high: Key | None = None
    excludes_low: bool = False
    excludes_high: bool = False


class Ordering(Protocol):
    @property
    def type(self) -> pa.DataType: ...

    def keys(self, values: pa.Array) -> Sequence[Key]:
        """Of values among which there is no NULL."""

    def hashable(self, values: pa.Array) -> pa.Array:
        """Values that Arrow takes for equal where keys are: they can be viewed as this type again."""

    def argsort(self, values: pa.Array) -> Positions:
        """Where the values are in ascending order; equal ones stay as they were. None is NULL."""

    def mask_within(self, values: pa.Array, span: Span) -> Mask:
        """NULL never is."""

    def mask_among(self, values: pa.Array, keys: Sequence[Key]) -> Mask:
        """The same of ascending keys."""


def ordering(arrow: pa.DataType) -> Ordering:
    """Of a type that fits."""
    number = _number_type(arrow)
    return _Values(arrow) if number is None else _Numbers(arrow, number)


def span_of(order: Ordering, leaf: Comparison | RangeCondition | Like) -> Span | None:
    """What a comparison asks for, or at least what every match of a pattern begins with."""
    if isinstance(leaf, RangeCondition):
        low, high = span_of(order, leaf.low), span_of(order, leaf.high)
        return None if low is None or high is None else Span(low.low, high.high, low.excludes_low, high.excludes_high)
    if isinstance(leaf, Like):
        return _beginning(leaf.prefix.encode()) if leaf.prefix or leaf.is_prefix else None
    if leaf.value.type != order.type or not leaf.value.is_valid:
        return None
    lowest, highest = _alike(order, leaf.value)
    match leaf.op:
        case Op.EQ:
            return Span(lowest, highest)
        case Op.LT:
            return Span(high=lowest, excludes_high=True)
        case Op.LE:
            return Span(high=highest)
        case Op.GT:
            return Span(low=highest, excludes_low=True)
        case Op.GE:
            return Span(low=lowest)
        case Op.NE:
            return None


def keys_of(order: Ordering, leaf: In) -> list[Key] | None:
    """What a list asks for, ascending and once each."""
    values = [value for value in leaf.values if value.is_valid]
    if any(value.type != order.type for value in values):
        return None
    zeros = [pa.scalar(zero, order.type) for zero in (-0.0, 0.0)] if any(map(_is_zero, values)) else []
    return sorted(set(order.keys(pa.array([*values, *zeros], order.type))))


def certainty_of(leaf: Leaf) -> Certainty | None:
    """Of an answer by keys in order."""
    if isinstance(leaf, Like):
        if leaf.is_prefix:
            return Certainty.EXACT
        return Certainty.AT_MOST if leaf.prefix else None
    if isinstance(leaf, In):
        return Certainty.AT_MOST if any(map(_is_zero, leaf.values)) else Certainty.EXACT
    if isinstance(leaf, Comparison):
        return None if leaf.op is Op.NE else Certainty.EXACT
    return Certainty.EXACT if isinstance(leaf, RangeCondition) else None


def _alike(order: Ordering, value: pa.Scalar) -> tuple[Key, Key]:
    """The keys of a value: two of a zero."""
    values = [value] if not _is_zero(value) else [pa.scalar(zero, value.type) for zero in (-0.0, 0.0)]
    keys = order.keys(pa.array(values, value.type))
    return keys[0], keys[-1]


def _is_zero(value: pa.Scalar) -> bool:
    return bool(pa.types.is_floating(value.type) and value.is_valid and value.as_py() == 0)


def _beginning(prefix: bytes) -> Span:
    stem = prefix.rstrip(b"\xff")
    return Span(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None, excludes_high=True)


_WIDTHS: Mapping[int, tuple[np.dtype[Any], np.dtype[Any]]] = {
    8: (np.dtype(np.int8), np.dtype(np.uint8)),
    16: (np.dtype(np.int16), np.dtype(np.uint16)),
    32: (np.dtype(np.int32), np.dtype(np.uint32)),
    64: (np.dtype(np.int64), np.dtype(np.uint64)),
}

_FRONT = 8
_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _number_type(arrow: pa.DataType) -> np.dtype[Any] | None:
    if pa.types.is_boolean(arrow):
        return np.dtype(np.uint8)
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or is_temporal(arrow):
        signed, unsigned = _WIDTHS[arrow.bit_width]
        return unsigned if pa.types.is_unsigned_integer(arrow) else signed
    return None


@dataclass(frozen=True, slots=True)
class _Numbers:
    type: pa.DataType
    number: np.dtype[Any]

    def keys(self, values: pa.Array) -> Sequence[Key]:
        keys: list[Key] = self._numbers(values).tolist()
        return keys

    def hashable(self, values: pa.Array) -> pa.Array:
        return values.view(_BITS[values.type.bit_width]) if pa.types.is_floating(self.type) else values

    def argsort(self, values: pa.Array) -> Positions:
        return argsort(self._numbers(values))

    def mask_within(self, values: pa.Array, span: Span) -> Mask:
        numbers = self._numbers(values)
        low, high = self._clipped(span)
        found = (numbers >= low) & (numbers <= high) if low <= high else np.zeros(len(numbers), np.bool_)
        return _valid(values, found)

    def mask_among(self, values: pa.Array, keys: Sequence[Key]) -> Mask:
        return _valid(values, _among(self._numbers(values), np.array(keys, self.number)))

    def _clipped(self, span: Span) -> tuple[int, int]:
        limits = np.iinfo(self.number)
        low = limits.min if span.low is None else int(span.low) + span.excludes_low
        high = limits.max if span.high is None else int(span.high) - span.excludes_high
        return max(low, limits.min), min(high, limits.max)

    def _numbers(self, values: pa.Array) -> Numbers:
        if pa.types.is_boolean(self.type):
            values = values.cast(pa.uint8())
        buffer = values.buffers()[1]
        if buffer is None:
            return np.zeros(len(values), self.number)
        start = values.offset
        numbers: Numbers = np.frombuffer(buffer, self.number, count=start + len(values))[start:]
        if not pa.types.is_floating(self.type):
            return numbers
        # Of what is below zero, the more the bits say the further down it is.
        turned: Numbers = numbers ^ ((numbers >> (self.type.bit_width - 1)) & np.iinfo(self.number).max)
        return turned


@dataclass(frozen=True, slots=True)
class _Values:
    """Text, bytes and decimals, compared by Arrow."""

    type: pa.DataType

    def keys(self, values: pa.Array) -> Sequence[Key]:
        keys: list[Key] = self._comparable(values).to_pylist()
        return keys

    def hashable(self, values: pa.Array) -> pa.Array:
        return values

    def argsort(self, values: pa.Array) -> Positions:
        comparable = self._comparable(values)
        return _by_value(comparable) if pa.types.is_decimal(self.type) else _by_front(comparable)

    def mask_within(self, values: pa.Array, span: Span) -> Mask:
        comparable = self._comparable(values)
        found = pc.is_valid(comparable)
        for key, compare in (
            (span.low, pc.greater if span.excludes_low else pc.greater_equal),
            (span.high, pc.less if span.excludes_high else pc.less_equal),
        ):
            if key is not None:
                found = pc.and_(found, compare(comparable, pa.scalar(key, comparable.type)))
        return _mask(found)

    def mask_among(self, values: pa.Array, keys: Sequence[Key]) -> Mask:
        comparable = self._comparable(values)
        return _mask(pc.is_in(comparable, value_set=pa.array(keys, comparable.type), skip_nulls=True))

    def _comparable(self, values: pa.Array) -> pa.Array:
        """Text as bytes: the two are in one order, and what is no text is in a file all the same."""
        if pa.types.is_string(self.type):
            return values.view(pa.binary())
        if pa.types.is_large_string(self.type):
            return values.view(pa.large_binary())
        return values


def _among(numbers: Numbers, keys: Numbers) -> Mask:
    """Numbers are in order in nearly every page: then each key is looked for among them, not each of them."""
    if not len(numbers) or (numbers[1:] < numbers[:-1]).any():
        return np.isin(numbers, keys)
    keys = keys[np.searchsorted(keys, numbers[0]) : np.searchsorted(keys, numbers[-1], "right")]
    starts, ends = np.searchsorted(numbers, keys), np.searchsorted(numbers, keys, "right")
    there = starts < ends
    edges = np.zeros(len(numbers) + 1, np.int8)
    edges[starts[there]] += 1
    edges[ends[there]] -= 1
    found: Mask = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
    return found


def _mask(found: pa.BooleanArray) -> Mask:
    mask: Mask = (found.fill_null(False) if found.null_count else found).to_numpy(zero_copy_only=False)
    return mask


def _valid(values: pa.Array, found: Mask) -> Mask:
    return found & values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else found


def argsort(numbers: Numbers) -> Positions:
    """Numbers alone are sorted fifteen times as fast as their positions are. So each is put before its position, and
    both are sorted as one: at once where there is room for both, else by the lower ends first and then by the rest."""
    count = len(numbers)
    if count < 2:
        return np.arange(count)
    lowest, highest = int(numbers.min()), int(numbers.max())
    apart = numbers.astype(np.uint64)
    apart -= np.uint64(lowest & 0xFFFFFFFFFFFFFFFF)  # wraps round for negative ones
    bits = (count - 1).bit_length()
    positions = _sorted_by(apart << np.uint64(bits), bits)
    if (highest - lowest).bit_length() + bits > 64:
        rest = apart[positions] >> np.uint64(64 - bits)
        positions = positions[_sorted_by(rest << np.uint64(bits), bits)]
    return positions


def _sorted_by(packed: npt.NDArray[np.uint64], bits: int) -> Positions:
    """By numbers that leave as many bits free as positions need."""
    packed |= np.arange(len(packed), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << bits) - 1)
    return packed.view(np.int64)


def _by_value(values: pa.Array) -> Positions:
    positions: Positions = pc.sort_indices(values).to_numpy().astype(np.int64)
    return positions


def _by_front(values: pa.Array) -> Positions:
    """Bytes are sorted by the first eight in which they differ, as numbers are, and by the rest only where that does
    not tell them apart."""
    if len(values) < 2:
        return np.arange(len(values))
    fronts, lengths = _fronts(values)
    positions = argsort(fronts)
    fronts, lengths = fronts[positions], lengths[positions]
    alike = fronts[1:] == fronts[:-1]
    unclear = alike & ((lengths[1:] != lengths[:-1]) | (lengths[1:] > _FRONT))
    if unclear.any():
        group = np.concatenate([[0], np.cumsum(~alike)])
        troubled = np.zeros(int(group[-1]) + 1, np.bool_)
        troubled[group[1:][unclear]] = True
        where = np.flatnonzero(troubled[group])
        some = positions[where]
        positions[where] = some[_by_value(values.take(pa.array(some)))]
    return positions


def _fronts(values: pa.Array) -> tuple[npt.NDArray[np.uint64], Positions]:
    """Eight bytes of each after those that all begin with, as a number; and how many bytes there are after those."""
    edges = pc.min_max(values)
    low, high = edges["min"].as_py(), edges["max"].as_py()
    shared = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    if pa.types.is_fixed_size_binary(values.type):
        width, data = values.type.byte_width, values.buffers()[1]
        offsets = np.arange(values.offset, values.offset + len(values) + 1, dtype=np.int64) * width
    else:
        kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        _, told, data = values.buffers()
        offsets = np.frombuffer(told, kind)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + _FRONT, np.uint8)
    if last > first:
        padded[:-_FRONT] = np.frombuffer(data, np.uint8)[first:last]
    at_each_byte: npt.NDArray[np.uint64] = np.ndarray((len(padded) - _FRONT + 1,), ">u8", padded, strides=(1,))
    starts, lengths = offsets[:-1] - first + shared, np.diff(offsets) - shared
    beyond = (8 * (_FRONT - np.clip(lengths, 1, _FRONT))).astype(np.uint64)
    fronts = (at_each_byte[starts].astype(np.uint64) >> beyond) << beyond
    fronts[lengths == 0] = 0
    return fronts, lengths


def concat_arrays(arrays: Iterable[pa.Array], arrow: pa.DataType) -> pa.Array:
    """One array; of several, which are copied."""
    several = list(arrays)
    if len(several) == 1:
        return several[0]
    return pa.concat_arrays(several) if several else pa.array([], arrow)
