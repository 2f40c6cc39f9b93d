"""Value ordering: the order of the values in an index, which is Arrow's total order, and the keys that a condition
selects.

Each value has a key that Python and numpy compare: an integer for every type of 64 bits or less (floats by their
bits, so that -NaN < -inf < -0.0 < 0.0 < inf < NaN), bytes for text, and a decimal for decimals. The query engine uses
the same order with one exception: for it -0.0 equals 0.0, in every comparison and in short IN lists, but not in long
ones. Here a zero always selects both zeros, so an IN list with a zero may select more rows than the engine does;
`certainty_of` reports its result as a superset.

NULL has no key; the index types handle it.
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
"""An int, bytes or a Decimal: all keys of a column have one type."""
Numbers: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """Range of keys. A bound of `None` is absent; `excludes_low` and `excludes_high` exclude the bound itself."""

    low: Key | None = None
    high: Key | None = None
    excludes_low: bool = False
    excludes_high: bool = False


class Ordering(Protocol):
    """Order of the values of one Arrow type."""

    @property
    def type(self) -> pa.DataType: ...

    def keys(self, values: pa.Array) -> Sequence[Key]:
        """Return the keys of values, none of which may be NULL."""

    def hashable(self, values: pa.Array) -> pa.Array:
        """Return the values in a type in which Arrow considers two of them equal exactly if their keys are equal. The
        result can be viewed as the original type again."""

    def argsort(self, values: pa.Array) -> Positions:
        """Return the positions of the values in ascending order; a stable sort. No value may be NULL."""

    def mask_within(self, values: pa.Array, span: Span) -> Mask:
        """Return which values lie within the span. NULL never does."""

    def mask_among(self, values: pa.Array, keys: Sequence[Key]) -> Mask:
        """Return which values have one of the keys, which must be ascending. NULL never does."""


def ordering(arrow: pa.DataType) -> Ordering:
    """Return the ordering of a supported type."""
    number = _number_type(arrow)
    return _ArrowOrdering(arrow) if number is None else _NumericOrdering(arrow, number)


def span_of(order: Ordering, leaf: Comparison | RangeCondition | Like) -> Span | None:
    """Return the span that a comparison selects, or for a pattern the span of its prefix; `None` if there is none."""
    if isinstance(leaf, RangeCondition):
        low, high = span_of(order, leaf.low), span_of(order, leaf.high)
        return None if low is None or high is None else Span(low.low, high.high, low.excludes_low, high.excludes_high)
    if isinstance(leaf, Like):
        return _prefix_span(leaf.prefix.encode()) if leaf.prefix or leaf.is_prefix else None
    if leaf.value.type != order.type or not leaf.value.is_valid:
        return None
    lowest, highest = _equal_keys(order, leaf.value)
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
    """Return the keys that an IN list selects, ascending and distinct; `None` if a value has another type."""
    values = [value for value in leaf.values if value.is_valid]
    if any(value.type != order.type for value in values):
        return None
    zeros = [pa.scalar(zero, order.type) for zero in (-0.0, 0.0)] if any(map(_is_zero, values)) else []
    return sorted(set(order.keys(pa.array([*values, *zeros], order.type))))


def certainty_of(leaf: Leaf) -> Certainty | None:
    """Return how precisely a search by ordered keys answers a condition; `None` if it cannot."""
    if isinstance(leaf, Like):
        if leaf.is_prefix:
            return Certainty.EXACT
        return Certainty.AT_MOST if leaf.prefix else None
    if isinstance(leaf, In):
        return Certainty.AT_MOST if any(map(_is_zero, leaf.values)) else Certainty.EXACT
    if isinstance(leaf, Comparison):
        return None if leaf.op is Op.NE else Certainty.EXACT
    return Certainty.EXACT if isinstance(leaf, RangeCondition) else None


def _equal_keys(order: Ordering, value: pa.Scalar) -> tuple[Key, Key]:
    """Return the lowest and highest key of the values that equal this one: they differ only for zero."""
    values = [value] if not _is_zero(value) else [pa.scalar(zero, value.type) for zero in (-0.0, 0.0)]
    keys = order.keys(pa.array(values, value.type))
    return keys[0], keys[-1]


def _is_zero(value: pa.Scalar) -> bool:
    return bool(pa.types.is_floating(value.type) and value.is_valid and value.as_py() == 0)


def _prefix_span(prefix: bytes) -> Span:
    """Return the span of all byte strings with this prefix."""
    stem = prefix.rstrip(b"\xff")
    return Span(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None, excludes_high=True)


_WIDTHS: Mapping[int, tuple[np.dtype[Any], np.dtype[Any]]] = {
    8: (np.dtype(np.int8), np.dtype(np.uint8)),
    16: (np.dtype(np.int16), np.dtype(np.uint16)),
    32: (np.dtype(np.int32), np.dtype(np.uint32)),
    64: (np.dtype(np.int64), np.dtype(np.uint64)),
}

_PREFIX_BYTES = 8
_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _number_type(arrow: pa.DataType) -> np.dtype[Any] | None:
    if pa.types.is_boolean(arrow):
        return np.dtype(np.uint8)
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or is_temporal(arrow):
        signed, unsigned = _WIDTHS[arrow.bit_width]
        return unsigned if pa.types.is_unsigned_integer(arrow) else signed
    return None


@dataclass(frozen=True, slots=True)
class _NumericOrdering:
    """Ordering of types of 64 bits or less, whose keys are integers."""

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
        is_within = (numbers >= low) & (numbers <= high) if low <= high else np.zeros(len(numbers), np.bool_)
        return _exclude_nulls(values, is_within)

    def mask_among(self, values: pa.Array, keys: Sequence[Key]) -> Mask:
        return _exclude_nulls(values, _mask_of_members(self._numbers(values), np.array(keys, self.number)))

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
        # For negative floats, larger bits mean a smaller value.
        ordered: Numbers = numbers ^ ((numbers >> (self.type.bit_width - 1)) & np.iinfo(self.number).max)
        return ordered


@dataclass(frozen=True, slots=True)
class _ArrowOrdering:
    """Ordering of text, bytes and decimals, which Arrow compares."""

    type: pa.DataType

    def keys(self, values: pa.Array) -> Sequence[Key]:
        keys: list[Key] = self._comparable(values).to_pylist()
        return keys

    def hashable(self, values: pa.Array) -> pa.Array:
        return values

    def argsort(self, values: pa.Array) -> Positions:
        comparable = self._comparable(values)
        return _argsort_with_arrow(comparable) if pa.types.is_decimal(self.type) else _argsort_bytes(comparable)

    def mask_within(self, values: pa.Array, span: Span) -> Mask:
        comparable = self._comparable(values)
        is_within = pc.is_valid(comparable)
        for key, compare in (
            (span.low, pc.greater if span.excludes_low else pc.greater_equal),
            (span.high, pc.less if span.excludes_high else pc.less_equal),
        ):
            if key is not None:
                is_within = pc.and_(is_within, compare(comparable, pa.scalar(key, comparable.type)))
        return _as_mask(is_within)

    def mask_among(self, values: pa.Array, keys: Sequence[Key]) -> Mask:
        comparable = self._comparable(values)
        return _as_mask(pc.is_in(comparable, value_set=pa.array(keys, comparable.type), skip_nulls=True))

    def _comparable(self, values: pa.Array) -> pa.Array:
        """Return text as bytes: both have the same order, and a file may contain text that is not valid UTF-8."""
        if pa.types.is_string(self.type):
            return values.view(pa.binary())
        if pa.types.is_large_string(self.type):
            return values.view(pa.large_binary())
        return values


def _mask_of_members(numbers: Numbers, keys: Numbers) -> Mask:
    """Return which numbers are among the keys. Nearly every page has its numbers in ascending order; in such a page, a
    binary search looks up each key among the numbers. Otherwise each number is looked up among the keys."""
    if not len(numbers) or (numbers[1:] < numbers[:-1]).any():
        return np.isin(numbers, keys)
    keys = keys[np.searchsorted(keys, numbers[0]) : np.searchsorted(keys, numbers[-1], "right")]
    starts, ends = np.searchsorted(numbers, keys), np.searchsorted(numbers, keys, "right")
    is_present = starts < ends
    edges = np.zeros(len(numbers) + 1, np.int8)
    edges[starts[is_present]] += 1
    edges[ends[is_present]] -= 1
    mask: Mask = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
    return mask


def _as_mask(values: pa.BooleanArray) -> Mask:
    mask: Mask = (values.fill_null(False) if values.null_count else values).to_numpy(zero_copy_only=False)
    return mask


def _exclude_nulls(values: pa.Array, mask: Mask) -> Mask:
    return mask & values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else mask


def argsort(numbers: Numbers) -> Positions:
    """Return the positions of the numbers in ascending order; a stable sort.

    Sorting numbers is fifteen times as fast as sorting their positions. Therefore each number is packed with its
    position into 64 bits, and these are sorted: in one pass if both fit, else by the lower bits first and then by the
    rest.
    """
    count = len(numbers)
    if count < 2:
        return np.arange(count)
    lowest, highest = int(numbers.min()), int(numbers.max())
    relative = numbers.astype(np.uint64)
    relative -= np.uint64(lowest & 0xFFFFFFFFFFFFFFFF)  # Wraps around for negative numbers.
    bits = (count - 1).bit_length()
    positions = _argsort_packed(relative << np.uint64(bits), bits)
    if (highest - lowest).bit_length() + bits > 64:
        rest = relative[positions] >> np.uint64(64 - bits)
        positions = positions[_argsort_packed(rest << np.uint64(bits), bits)]
    return positions


def _argsort_packed(packed: npt.NDArray[np.uint64], bits: int) -> Positions:
    """Sort numbers whose lowest `bits` bits are zero, and return their positions."""
    packed |= np.arange(len(packed), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << bits) - 1)
    return packed.view(np.int64)


def _argsort_with_arrow(values: pa.Array) -> Positions:
    positions: Positions = pc.sort_indices(values).to_numpy().astype(np.int64)
    return positions


def _argsort_bytes(values: pa.Array) -> Positions:
    """Return the positions of byte strings in ascending order. They are sorted as numbers by the eight bytes after
    their common prefix; whole strings are compared only where these bytes are equal."""
    if len(values) < 2:
        return np.arange(len(values))
    prefixes, lengths = _prefixes(values)
    positions = argsort(prefixes)
    prefixes, lengths = prefixes[positions], lengths[positions]
    equal_prefix = prefixes[1:] == prefixes[:-1]
    is_ambiguous = equal_prefix & ((lengths[1:] != lengths[:-1]) | (lengths[1:] > _PREFIX_BYTES))
    if is_ambiguous.any():
        group = np.concatenate([[0], np.cumsum(~equal_prefix)])
        is_ambiguous_group = np.zeros(int(group[-1]) + 1, np.bool_)
        is_ambiguous_group[group[1:][is_ambiguous]] = True
        ambiguous = np.flatnonzero(is_ambiguous_group[group])
        ambiguous_positions = positions[ambiguous]
        positions[ambiguous] = ambiguous_positions[_argsort_with_arrow(values.take(pa.array(ambiguous_positions)))]
    return positions


def _prefixes(values: pa.Array) -> tuple[npt.NDArray[np.uint64], Positions]:
    """Return eight bytes of each value, taken after the bytes that all values share, as a number; and the number of
    bytes that each value has after the shared ones."""
    extremes = pc.min_max(values)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    differing = (position for position, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    shared = next(differing, min(len(low), len(high)))
    if pa.types.is_fixed_size_binary(values.type):
        width, data = values.type.byte_width, values.buffers()[1]
        offsets = np.arange(values.offset, values.offset + len(values) + 1, dtype=np.int64) * width
    else:
        offset_type = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        _, offset_buffer, data = values.buffers()
        offsets = np.frombuffer(offset_buffer, offset_type)[values.offset : values.offset + len(values) + 1].astype(
            np.int64
        )
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.zeros(last - first + _PREFIX_BYTES, np.uint8)
    if last > first:
        padded[:-_PREFIX_BYTES] = np.frombuffer(data, np.uint8)[first:last]
    at_each_byte: npt.NDArray[np.uint64] = np.ndarray((len(padded) - _PREFIX_BYTES + 1,), ">u8", padded, strides=(1,))
    starts, lengths = offsets[:-1] - first + shared, np.diff(offsets) - shared
    unused_bits = (8 * (_PREFIX_BYTES - np.clip(lengths, 1, _PREFIX_BYTES))).astype(np.uint64)
    prefixes = (at_each_byte[starts].astype(np.uint64) >> unused_bits) << unused_bits
    prefixes[lengths == 0] = 0
    return prefixes, lengths


def concat_arrays(arrays: Iterable[pa.Array], arrow: pa.DataType) -> pa.Array:
    """Return one array of all values; several arrays are copied."""
    chunks = list(arrays)
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], arrow)
