"""ZONEMAP index: stores the minimum and maximum of each zone and the rows that are NULL.

A search returns the zones in which a value may occur; for NULL it returns exact rows. The file is small and read as a
whole when a segment is opened, so that a search is a few array comparisons. The bounds follow the reference writer,
including NaN as the greatest value (`_Bounds`); a bound that a writer omits is never taken for the absence of values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInput
from lance_core.expressions.tree import Call, Comparison, In, IsNull, Like, Op
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.row_sets import RowSet
from lance_core.format.zone_map_details import ZoneMapDetails
from lance_core.index import zones
from lance_core.index.index_type import (
    Certainty,
    IndexOptions,
    Leaf,
    MatchedRows,
    MergeInput,
    RangeCondition,
    Segment,
    SegmentBuild,
    SegmentExamination,
)
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import ORDERED_TYPES, is_number, is_ordered, is_plain, is_temporal
from lance_core.index.zone_keys import Keys, key_of, keys_of
from lance_core.index.zones import ROWS_PER_ZONE, Mask, Nulls, Zone, Zones, read_nulls, split_into_zones

_FILE = "zonemap.lance"
_ROWS_PER_ZONE = "rows_per_zone"
_ROWS_PER_ZONE_MAX = 1 << 32
_ZONES_PER_BATCH = 4096
_ZoneRecord: TypeAlias = tuple[pa.Scalar | None, pa.Scalar | None, int, int, int, int, int]
"""Row of the file."""
_COUNTS = {"null_count": pa.uint32(), "nan_count": pa.uint32()}


@dataclass(frozen=True, slots=True)
class ZoneMapOptions:
    """Options of a ZONEMAP index."""

    rows_per_zone: int = ROWS_PER_ZONE


class ZoneMap:
    name = "ZONEMAP"
    type_url = "/lance.table.ZoneMapIndexDetails"
    max_readable_version = 0
    written_version = 0
    supported_types = ORDERED_TYPES

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_ordered(column.type)

    def parse_options(self, parameters: Mapping[str, object]) -> IndexOptions:
        rows = parameters.get(_ROWS_PER_ZONE, ROWS_PER_ZONE)
        if unknown := sorted(parameters.keys() - {_ROWS_PER_ZONE}):
            raise InvalidInput(f"{self.name} has no option {unknown[0]!r}; it has {_ROWS_PER_ZONE}")
        if type(rows) is not int or not 0 < rows <= _ROWS_PER_ZONE_MAX:
            raise InvalidInput(f"{_ROWS_PER_ZONE}={rows!r} must be a whole number from 1 to {_ROWS_PER_ZONE_MAX:,}")
        return ZoneMapOptions(rows)

    def options_of(self, segment: Segment) -> IndexOptions:
        rows = ZoneMapDetails.of(segment.metadata).rows_per_zone
        return ZoneMapOptions(rows if rows and rows <= _ROWS_PER_ZONE_MAX else ROWS_PER_ZONE)

    def answers(self, leaf: Leaf, metadata: IndexMetadata) -> Certainty | None:
        match leaf:
            case IsNull():
                return Certainty.EXACT if ZoneMapDetails.of(metadata).has_null_bitmap else Certainty.AT_MOST
            case Comparison(op=op):
                return None if op is Op.NE else Certainty.AT_MOST
            case In() | RangeCondition():
                return Certainty.AT_MOST
            case Like():
                return Certainty.AT_MOST if leaf.prefix else None
            case Call(function=function):
                return Certainty.AT_MOST if function == "isnan" else None

    def write(self, sink: SegmentSink, build: SegmentBuild) -> bytes:
        options = build.options
        assert isinstance(options, ZoneMapOptions)
        schema = _schema(build.column.type)
        nulls = Nulls()
        file = sink.create(_FILE, schema)
        for unmoved in (_unmoved_zones(merge_input, build.column, nulls) for merge_input in build.inputs):
            for batch in unmoved.to_batches(max_chunksize=_ZONES_PER_BATCH):
                file.write(batch)
        for batch in _encode_zones(build.rows, options.rows_per_zone, schema, nulls):
            file.write(batch)
        nulls.write(file)
        file.add_metadata(_ROWS_PER_ZONE, str(options.rows_per_zone))
        file.finish()
        return ZoneMapDetails(options.rows_per_zone, nulls.is_known).encode()

    def open(self, segment: Segment, column: pa.Field) -> "ZoneMapSearcher":
        table, nulls = _read(segment, column)
        return ZoneMapSearcher(table, Zones.of(table, segment, path=_path(segment)), nulls)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        table, nulls = _read(segment, column, keep_impossible_rows=True)
        null_rows = table["null_count"].to_numpy().astype(np.uint64)
        rows, problems = zones.examine_zones(table, nulls, null_rows)
        counted = null_rows + table["nan_count"].to_numpy()
        problems += _zone_problems(counted > table["zone_length"].to_numpy(), "has more NULLs and NaNs than rows")
        if _has_order(column.type):
            bounds = _Bounds.of(table)
            inverted = bounds.has_bounds & ~bounds.open_above & (bounds.low > bounds.high)
            problems += _zone_problems(inverted, "has a maximum below its minimum")
        return SegmentExamination(rows, lists_every_row=True, problems=tuple(problems))


ZONEMAP = ZoneMap()


class ZoneMapSearcher:
    """Searcher for one segment of a ZONEMAP index."""

    def __init__(self, table: pa.Table, zones: Zones, nulls: RowSet | None) -> None:
        self._table = table
        self._zones = zones
        self._nulls = nulls

    def search(self, leaf: Leaf) -> MatchedRows | None:
        if not isinstance(leaf, IsNull) and not _has_order(self._table.schema.field("min").type):
            return None
        match leaf:
            case IsNull():
                return self._null_rows()
            case Comparison(op=op, value=value):
                mask = self._bounds.compare(op, value)
            case RangeCondition(low=low, high=high):
                above, below = (self._bounds.compare(bound.op, bound.value) for bound in (low, high))
                mask = None if above is None or below is None else above & below
            case In(values=values):
                mask = self._bounds.contains_any(values)
            case Like():
                mask = self._bounds.contains_prefix(leaf.prefix) if leaf.prefix else None
            case Call(function=function):
                mask = self._bounds.has_nan if function == "isnan" else None
        return None if mask is None else self._zones.matched_rows(mask)

    def _null_rows(self) -> MatchedRows:
        if self._nulls is None:
            return self._zones.matched_rows(self._table["null_count"].to_numpy() > 0)
        if self._zones.unknown_rows.parts:
            return MatchedRows(self._nulls | self._zones.unknown_rows, Certainty.AT_MOST)
        return MatchedRows(self._nulls, Certainty.EXACT)

    @cached_property
    def _bounds(self) -> "_Bounds":
        return _Bounds.of(self._table)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of the zones, as arrays that numpy compares."""

    low: Keys
    high: Keys
    """Both bounds are arbitrary if the zone has none."""
    has_bounds: Mask
    open_above: Mask
    """The maximum is unknown: a NaN hides the greatest of the other values, or the bound is missing."""
    has_nan: Mask
    is_incomplete: Mask
    """The zone may contain values that its bounds do not describe."""

    @classmethod
    def of(cls, table: pa.Table) -> "_Bounds":
        low, high = (table[name].combine_chunks() for name in ("min", "max"))
        low_is_nan, high_is_nan = _nan_mask(low), _nan_mask(high)
        # NaN is greater than every number, and with its sign bit set it is less: numbers may be above such a minimum.
        is_negative_nan = low_is_nan & np.signbit(keys_of(low)) if low_is_nan.any() else low_is_nan
        low_is_null, high_is_null = _null_mask(low), _null_mask(high)
        nans = table["nan_count"].to_numpy()
        # A zone of NULL and NaN alone has no bounds. Deleted rows lie within a zone and are not counted.
        counted = table["null_count"].to_numpy().astype(np.uint64) + nans
        has_missing_bounds = low_is_null & (counted < table["zone_length"].to_numpy())
        if _has_reference_bounds(low.type):
            has_missing_bounds &= (counted == 0) | ~(high_is_null | high_is_nan)
        return cls(
            keys_of(low),
            keys_of(high),
            has_bounds=~low_is_null & ~low_is_nan,
            open_above=high_is_nan | high_is_null,
            has_nan=(nans > 0) | low_is_nan | high_is_nan,
            is_incomplete=has_missing_bounds | is_negative_nan,
        )

    def compare(self, op: Op, value: pa.Scalar) -> Mask | None:
        """Return the zones that may contain a value for which the comparison holds; `None` for `!=`."""
        key = key_of(value)
        if (key != key).any():
            return self.has_nan | self.is_incomplete if op is Op.EQ else np.ones(len(self.low), dtype=np.bool_)
        may_match: Mask
        match op:
            case Op.EQ:
                may_match = (self.low <= key) & (self.open_above | (self.high >= key))
                return self.is_incomplete | (self.has_bounds & may_match)
            case Op.LT:
                may_match = self.low < key
            case Op.LE:
                may_match = self.low <= key
            case Op.GT:
                may_match = self.open_above | (self.high > key)
            case Op.GE:
                may_match = self.open_above | (self.high >= key)
            case Op.NE:
                return None
        # A NaN is greater or less than every number, depending on its sign bit.
        return self.is_incomplete | self.has_nan | (self.has_bounds & may_match)

    def contains_any(self, values: Sequence[pa.Scalar]) -> Mask:
        """Return the zones that may contain any of the values."""
        keys = keys_of(pa.array(values, values[0].type)) if values else self.low[:0]
        is_number = keys == keys
        mask: Mask = self.is_incomplete | self.has_nan if not is_number.all() else self.is_incomplete
        keys = np.sort(keys[is_number])
        if not len(keys):
            return mask
        # The zone must contain the least of the values that is not below its minimum.
        position = np.searchsorted(keys, self.low)
        least = keys[np.minimum(position, len(keys) - 1)]
        return mask | (self.has_bounds & (position < len(keys)) & (self.open_above | (self.high >= least)))

    def contains_prefix(self, prefix: str) -> Mask:
        """Return the zones that may contain a text with the prefix."""
        lowest = prefix.encode()
        # A text with this prefix is less than the prefix with its last byte incremented: UTF-8 has no byte 0xff.
        upper_limit = lowest[:-1] + bytes([lowest[-1] + 1])
        reaches = self.open_above | (self.high >= key_of(pa.scalar(lowest)))
        may_match: Mask = reaches & (self.low < key_of(pa.scalar(upper_limit)))
        return self.is_incomplete | (self.has_bounds & may_match)


def _has_order(arrow: pa.DataType) -> bool:
    return is_ordered(arrow.value_type if pa.types.is_dictionary(arrow) else arrow)


def _has_reference_bounds(arrow: pa.DataType) -> bool:
    """Return whether the reference writer records bounds for the type."""
    return is_ordered(arrow) and not pa.types.is_fixed_size_binary(arrow)


def _null_mask(array: pa.Array) -> Mask:
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _nan_mask(array: pa.Array) -> Mask:
    if not pa.types.is_floating(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    mask: Mask = np.isnan(array.to_numpy(zero_copy_only=False)) & ~_null_mask(array)
    return mask


def _schema(arrow: pa.DataType) -> pa.Schema:
    counts = [pa.field(name, arrow_type, nullable=False) for name, arrow_type in _COUNTS.items()]
    return zones.zone_schema([pa.field("min", arrow), pa.field("max", arrow), *counts])


def _zone_problems(mask: Mask, what: str) -> list[str]:
    return [f"zone {number} {what}" for number in np.flatnonzero(mask)[: zones.PROBLEMS_SHOWN_MAX]]


def _read(segment: Segment, column: pa.Field, *, keep_impossible_rows: bool = False) -> tuple[pa.Table, RowSet | None]:
    path = _path(segment)
    file = segment.files.open(_FILE)
    columns = {
        "min": column.type,
        "max": column.type,
        **_COUNTS,
        **{location.name: location.type for location in zones.LOCATION_FIELDS},
    }
    zones.check_columns(file, columns, path=path)
    return read_all_rows(file, list(columns)), read_nulls(
        file, segment.rows_under, path=path, keep_impossible_rows=keep_impossible_rows
    )


def _path(segment: Segment) -> str:
    return f"{segment.metadata.qualified_path}/{_FILE}"


def _unmoved_zones(merge_input: MergeInput, column: pa.Field, nulls: Nulls) -> pa.Table:
    """Return the zones of an existing segment whose rows did not move."""
    table, known_nulls = _read(merge_input.segment, column)
    is_unmoved = zones.unmoved_zones(table, merge_input.row_remap, path=_path(merge_input.segment))
    unmoved = table.filter(pa.array(is_unmoved))
    if known_nulls is None:
        nulls.is_known &= not pc.any(pc.greater(unmoved["null_count"], 0)).as_py()
    else:
        nulls.add_rows(known_nulls.in_fragments(zones.fragments_of(table, is_unmoved)))
    return unmoved.cast(_schema(column.type))


def _encode_zones(
    rows: Iterable[pa.RecordBatch], rows_per_zone: int, schema: pa.Schema, nulls: Nulls
) -> Iterator[pa.RecordBatch]:
    """Yield the records of new zones, and add their NULLs to `nulls`."""
    records: list[_ZoneRecord] = []
    for zone in split_into_zones(rows, rows_per_zone, batch_whole_zones=True):
        nulls.add_zone(zone)
        records += _zone_records(zone, rows_per_zone)
        if len(records) >= _ZONES_PER_BATCH:
            yield _batch(records, schema)
            records = []
    if records:
        yield _batch(records, schema)


def _zone_records(zone: Zone, rows_per_zone: int) -> Iterator[_ZoneRecord]:
    """Yield the records of one zone, or of several whole zones that came together."""
    count = -(-len(zone.values) // rows_per_zone)
    extents = _extents_of_zones(zone.values, count) if count > 1 else None
    for number in range(count):
        start = number * rows_per_zone
        single = Zone(zone.values.slice(start, rows_per_zone), zone.addresses[start : start + rows_per_zone])
        extent = (extents[0][number], extents[1][number], 0, 0) if extents else _extent_of(single.values)
        yield *extent, single.fragment, single.start, single.length


def _extents_of_zones(values: pa.Array, count: int) -> tuple[pa.Array, pa.Array] | None:
    """Return the minima and maxima of zones of equal size, or `None` if the values are not plain numbers without
    NULL, NaN and zero bounds."""
    arrow = values.type
    if values.null_count or not (is_number(arrow) or is_temporal(arrow)) or pa.types.is_float16(arrow):
        return None
    by_zone = keys_of(values).reshape(count, -1)
    low, high = by_zone.min(axis=1), by_zone.max(axis=1)
    if pa.types.is_floating(arrow) and (np.isnan(low) | (low == 0) | (high == 0)).any():
        return None
    return pa.array(low).view(arrow), pa.array(high).view(arrow)


def _batch(records: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*records, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _extent_of(values: pa.Array) -> tuple[pa.Scalar | None, pa.Scalar | None, int, int]:
    """Return the minimum, the maximum, and the numbers of NULLs and NaNs."""
    arrow, nulls = values.type, values.null_count
    if nulls == len(values):
        return None, None, nulls, 0
    if pa.types.is_floating(arrow):
        return _extent_of_floats(values)
    if pa.types.is_duration(arrow):
        extremes = pc.min_max(values.view(pa.int64()))
        return extremes["min"].cast(arrow), extremes["max"].cast(arrow), nulls, 0
    extremes = pc.min_max(values)
    return extremes["min"], extremes["max"], nulls, 0


def _extent_of_floats(values: pa.Array) -> tuple[pa.Scalar | None, pa.Scalar | None, int, int]:
    """Return the same for floats. A NaN is the maximum. A zero gets the sign that makes the zone wider, since some
    readers distinguish the two."""
    arrow, nulls = values.type, values.null_count
    numbers = values.drop_null().to_numpy()
    nans = int(np.count_nonzero(np.isnan(numbers)))
    if nans == len(numbers):
        # The reference writer omits the minimum in this case, and its reader then loses these rows for `v > 1`.
        nan = pa.scalar(numbers.dtype.type(np.nan), arrow)
        return nan, nan, nulls, nans
    low, high = np.fmin.reduce(numbers), np.fmax.reduce(numbers)
    low = -abs(low) if low == 0 else low
    high = low.dtype.type(np.nan) if nans else abs(high) if high == 0 else high
    return pa.scalar(low, arrow), pa.scalar(high, arrow), nulls, nans
