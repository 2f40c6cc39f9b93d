"""ZONEMAP: the least and the greatest value of each zone, and which rows have none. What it answers is zones in which
a value may be; that a row is NULL it knows exactly.

The file is small, and is read whole when a segment is opened: then a search is a few comparisons of arrays. Its bounds
are those of the reference writer, NaN as the greatest value included (`_bounds`); what another one leaves out is never
taken for the absence of values.
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
    SegmentExamination,
)
from lance_core.index.segment_files import SegmentSink, read_all_rows
from lance_core.index.supported_types import ORDERED_TYPES, is_number, is_ordered, is_plain, is_temporal
from lance_core.index.zone_keys import Keys, key_of, keys_of
from lance_core.index.zones import ROWS_PER_ZONE, Mask, Nulls, Zone, Zones, read_nulls, split_into_zones

_FILE = "zonemap.lance"
_ROWS_PER_ZONE = "rows_per_zone"
_ROWS_PER_ZONE_MAX = 1 << 32
_ZONES_A_BATCH = 4096
_Line: TypeAlias = tuple[pa.Scalar | None, pa.Scalar | None, int, int, int, int, int]
"""A row of the file."""
_COUNTS = {"null_count": pa.uint32(), "nan_count": pa.uint32()}


@dataclass(frozen=True, slots=True)
class ZoneMapOptions:
    rows_per_zone: int = ROWS_PER_ZONE


class ZoneMap:
    name = "ZONEMAP"
    type_url = "/lance.table.ZoneMapIndexDetails"
    max_readable_version = 0
    supported_types = ORDERED_TYPES

    def written_version(self, *, stable_row_ids: bool) -> int:
        return 0

    def supports(self, column: pa.Field) -> bool:
        return is_plain(column) and is_ordered(column.type)

    def parse_options(self, given: Mapping[str, object]) -> IndexOptions:
        rows = given.get(_ROWS_PER_ZONE, ROWS_PER_ZONE)
        if unknown := sorted(given.keys() - {_ROWS_PER_ZONE}):
            raise InvalidInput(f"{self.name} has no option {unknown[0]!r}; it has {_ROWS_PER_ZONE}")
        if type(rows) is not int or not 0 < rows <= _ROWS_PER_ZONE_MAX:
            raise InvalidInput(f"{_ROWS_PER_ZONE}={rows!r}: it is a whole number, from 1 to {_ROWS_PER_ZONE_MAX:,}")
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

    def write(
        self,
        files: SegmentSink,
        column: pa.Field,
        rows: Iterable[pa.RecordBatch],
        parts: Sequence[MergeInput],
        options: IndexOptions,
    ) -> bytes:
        assert isinstance(options, ZoneMapOptions)
        schema = _schema(column.type)
        nulls = Nulls()
        file = files.create(_FILE, schema)
        for kept in (_kept(part, column, nulls) for part in parts):
            for batch in kept.to_batches(max_chunksize=_ZONES_A_BATCH):
                file.write(batch)
        for batch in _described(rows, options.rows_per_zone, schema, nulls):
            file.write(batch)
        nulls.write(file)
        file.add_metadata(_ROWS_PER_ZONE, str(options.rows_per_zone))
        file.finish()
        return ZoneMapDetails(options.rows_per_zone, nulls.is_known).encode()

    def open(self, segment: Segment, column: pa.Field) -> "ZoneMapSearcher":
        table, nulls = _read(segment, column)
        return ZoneMapSearcher(table, Zones.of(table, segment, path=_path(segment)), nulls)

    def examine(self, segment: Segment, column: pa.Field) -> SegmentExamination:
        table, nulls = _read(segment, column, beyond=True)
        null_rows = table["null_count"].to_numpy().astype(np.uint64)
        rows, problems = zones.examine_zones(table, nulls, null_rows)
        counted = null_rows + table["nan_count"].to_numpy()
        problems += _named(counted > table["zone_length"].to_numpy(), "has more rows without a value than rows")
        if _has_order(column.type):
            bounds = _Bounds.of(table)
            inverted = bounds.bounded & ~bounds.open_above & (bounds.low > bounds.high)
            problems += _named(inverted, "ends below its beginning")
        return SegmentExamination(rows, lists_every_row=True, problems=tuple(problems))


ZONEMAP = ZoneMap()


class ZoneMapSearcher:
    def __init__(self, table: pa.Table, zones: Zones, nulls: RowSet | None) -> None:
        self._table = table
        self._zones = zones
        self._nulls = nulls

    def search(self, leaf: Leaf) -> MatchedRows | None:
        if not isinstance(leaf, IsNull) and not _has_order(self._table.schema.field("min").type):
            return None
        match leaf:
            case IsNull():
                return self._without_value()
            case Comparison(op=op, value=value):
                where = self._bounds.compared(op, value)
            case RangeCondition(low=low, high=high):
                above, below = (self._bounds.compared(each.op, each.value) for each in (low, high))
                where = None if above is None or below is None else above & below
            case In(values=values):
                where = self._bounds.one_of(values)
            case Like():
                where = self._bounds.beginning_with(leaf.prefix) if leaf.prefix else None
            case Call(function=function):
                where = self._bounds.has_nan if function == "isnan" else None
        return None if where is None else self._zones.matched_rows(where)

    def _without_value(self) -> MatchedRows:
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
    """What each zone says of its values, in arrays that numpy compares."""

    low: Keys
    high: Keys
    """Both of any value where the zone has no bounds."""
    bounded: Mask
    open_above: Mask
    """NaN hides the greatest of its other values."""
    has_nan: Mask
    vague: Mask
    """Values may be there of which nothing is said."""

    @classmethod
    def of(cls, table: pa.Table) -> "_Bounds":
        low, high = (table[name].combine_chunks() for name in ("min", "max"))
        low_is_nan, high_is_nan = _where_nan(low), _where_nan(high)
        # NaN is greater than every number, and with its sign set it is less: numbers may be above the latter.
        least = low_is_nan & np.signbit(keys_of(low)) if low_is_nan.any() else low_is_nan
        low_is_null, high_is_null = _where_null(low), _where_null(high)
        nans = table["nan_count"].to_numpy()
        # Where all values are NULL or NaN there are no bounds; deleted rows lie in a zone and are counted nowhere.
        counted = table["null_count"].to_numpy().astype(np.uint64) + nans
        unsaid = low_is_null & (counted < table["zone_length"].to_numpy())
        if _is_bounded_by_all(low.type):
            unsaid &= (counted == 0) | ~(high_is_null | high_is_nan)
        return cls(
            keys_of(low),
            keys_of(high),
            bounded=~low_is_null & ~low_is_nan,
            open_above=high_is_nan | high_is_null,
            has_nan=(nans > 0) | low_is_nan | high_is_nan,
            vague=unsaid | least,
        )

    def compared(self, op: Op, value: pa.Scalar) -> Mask | None:
        key = key_of(value)
        if (key != key).any():
            return self.has_nan | self.vague if op is Op.EQ else np.ones(len(self.low), dtype=np.bool_)
        within: Mask
        match op:
            case Op.EQ:
                within = (self.low <= key) & (self.open_above | (self.high >= key))
                return self.vague | (self.bounded & within)
            case Op.LT:
                within = self.low < key
            case Op.LE:
                within = self.low <= key
            case Op.GT:
                within = self.open_above | (self.high > key)
            case Op.GE:
                within = self.open_above | (self.high >= key)
            case Op.NE:
                return None
        # A NaN is greater than every number, or less.
        return self.vague | self.has_nan | (self.bounded & within)

    def one_of(self, values: Sequence[pa.Scalar]) -> Mask:
        keys = keys_of(pa.array(values, values[0].type)) if values else self.low[:0]
        numbers = keys == keys
        where: Mask = self.vague | self.has_nan if not numbers.all() else self.vague
        keys = np.sort(keys[numbers])
        if not len(keys):
            return where
        # The least of the values that is not below the zone has to be in it.
        place = np.searchsorted(keys, self.low)
        least = keys[np.minimum(place, len(keys) - 1)]
        return where | (self.bounded & (place < len(keys)) & (self.open_above | (self.high >= least)))

    def beginning_with(self, prefix: str) -> Mask:
        first = prefix.encode()
        # What begins with it is below what its last byte, one more, ends: no UTF-8 has a byte 0xff.
        after = first[:-1] + bytes([first[-1] + 1])
        reaches = self.open_above | (self.high >= key_of(pa.scalar(first)))
        within: Mask = reaches & (self.low < key_of(pa.scalar(after)))
        return self.vague | (self.bounded & within)


def _has_order(arrow: pa.DataType) -> bool:
    return is_ordered(arrow.value_type if pa.types.is_dictionary(arrow) else arrow)


def _is_bounded_by_all(arrow: pa.DataType) -> bool:
    """The reference writer leaves the bounds of other types out."""
    return is_ordered(arrow) and not pa.types.is_fixed_size_binary(arrow)


def _where_null(array: pa.Array) -> Mask:
    found: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _where_nan(array: pa.Array) -> Mask:
    if not pa.types.is_floating(array.type):
        return np.zeros(len(array), dtype=np.bool_)
    found: Mask = np.isnan(array.to_numpy(zero_copy_only=False)) & ~_where_null(array)
    return found


def _schema(arrow: pa.DataType) -> pa.Schema:
    counts = [pa.field(name, of, nullable=False) for name, of in _COUNTS.items()]
    return zones.zone_schema([pa.field("min", arrow), pa.field("max", arrow), *counts])


def _named(where: Mask, what: str) -> list[str]:
    return [f"zone {at} {what}" for at in np.flatnonzero(where)[: zones.PROBLEMS_SHOWN_MAX]]


def _read(segment: Segment, column: pa.Field, *, beyond: bool = False) -> tuple[pa.Table, RowSet | None]:
    path = _path(segment)
    file = segment.files.open(_FILE)
    wanted = {
        "min": column.type,
        "max": column.type,
        **_COUNTS,
        **{each.name: each.type for each in zones.PLACE_FIELDS},
    }
    zones.check_columns(file, wanted, path=path)
    return read_all_rows(file, list(wanted)), read_nulls(file, segment.rows_under, path=path, beyond=beyond)


def _path(segment: Segment) -> str:
    return f"{segment.metadata.qualified_path}/{_FILE}"


def _kept(part: MergeInput, column: pa.Field, nulls: Nulls) -> pa.Table:
    """The zones of a segment whose rows are where they were."""
    table, missing = _read(part.segment, column)
    where = zones.unmoved_zones(table, part.row_remap, path=_path(part.segment))
    kept = table.filter(pa.array(where))
    if missing is None:
        nulls.is_known &= not pc.any(pc.greater(kept["null_count"], 0)).as_py()
    else:
        nulls.add_rows(missing.in_fragments(zones.fragments_of(table, where)))
    return kept.cast(_schema(column.type))


def _described(
    rows: Iterable[pa.RecordBatch], rows_per_zone: int, schema: pa.Schema, nulls: Nulls
) -> Iterator[pa.RecordBatch]:
    """The rows of new zones, whose NULLs are noted besides."""
    lines: list[_Line] = []
    for zone in split_into_zones(rows, rows_per_zone, batch_whole_zones=True):
        nulls.add_zone(zone)
        lines += _lines(zone, rows_per_zone)
        if len(lines) >= _ZONES_A_BATCH:
            yield _batch(lines, schema)
            lines = []
    if lines:
        yield _batch(lines, schema)


def _lines(zone: Zone, rows_per_zone: int) -> Iterator[_Line]:
    """Of one zone, or of several whole ones that came together."""
    count = -(-len(zone.values) // rows_per_zone)
    extents = _extents_at_once(zone.values, count) if count > 1 else None
    for number in range(count):
        start = number * rows_per_zone
        one = Zone(zone.values.slice(start, rows_per_zone), zone.addresses[start : start + rows_per_zone])
        extent = (extents[0][number], extents[1][number], 0, 0) if extents else _extent(one.values)
        yield *extent, one.fragment, one.start, one.length


def _extents_at_once(values: pa.Array, count: int) -> tuple[pa.Array, pa.Array] | None:
    """The least and the greatest of zones of one size, where they are numbers, and there is nothing special to them."""
    arrow = values.type
    if values.null_count or not (is_number(arrow) or is_temporal(arrow)) or pa.types.is_float16(arrow):
        return None
    by_zone = keys_of(values).reshape(count, -1)
    low, high = by_zone.min(axis=1), by_zone.max(axis=1)
    if pa.types.is_floating(arrow) and (np.isnan(low) | (low == 0) | (high == 0)).any():
        return None
    return pa.array(low).view(arrow), pa.array(high).view(arrow)


def _batch(lines: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*lines, strict=True)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _extent(values: pa.Array) -> tuple[pa.Scalar | None, pa.Scalar | None, int, int]:
    """The least and the greatest value, and how many are NULL and NaN."""
    arrow, nulls = values.type, values.null_count
    if nulls == len(values):
        return None, None, nulls, 0
    if pa.types.is_floating(arrow):
        return _extent_of_floats(values)
    if pa.types.is_duration(arrow):
        found = pc.min_max(values.view(pa.int64()))
        return found["min"].cast(arrow), found["max"].cast(arrow), nulls, 0
    found = pc.min_max(values)
    return found["min"], found["max"], nulls, 0


def _extent_of_floats(values: pa.Array) -> tuple[pa.Scalar | None, pa.Scalar | None, int, int]:
    """With a NaN, that is the greatest. Zero has the sign that makes the zone wider: some readers tell them apart."""
    arrow, nulls = values.type, values.null_count
    numbers = values.drop_null().to_numpy()
    nans = int(np.count_nonzero(np.isnan(numbers)))
    if nans == len(numbers):
        # The reference writer says nothing of the least then, and its reader loses these rows to `v > 1`.
        nan = pa.scalar(numbers.dtype.type(np.nan), arrow)
        return nan, nan, nulls, nans
    low, high = np.fmin.reduce(numbers), np.fmax.reduce(numbers)
    low = -abs(low) if low == 0 else low
    high = low.dtype.type(np.nan) if nans else abs(high) if high == 0 else high
    return pa.scalar(low, arrow), pa.scalar(high, arrow), nulls, nans
