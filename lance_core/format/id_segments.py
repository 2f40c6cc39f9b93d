"""Row id segments: encodes and decodes the five wire forms of a segment. The forms are a range, a range with holes, a
range with a bitmap, a sorted array and an unsorted array.

Start with `decode_segment` and `encode_segment`. `row_lineage.py` defines what a sequence of segments means.
"""

import numpy as np

from lance_core.format._pb import rowids_pb2
from lance_core.format.id_runs import END_MAX, Counts, Ids, expand_runs, is_ascending, last_ids, one_run, runs_of


class InvalidSegment(ValueError):
    """A segment contradicts itself. The caller adds the file and the field."""


def decode_segment(message: rowids_pb2.U64Segment, *, rows_max: int) -> tuple[Ids, Counts]:
    """Return the first value and the length of each run. The allocated memory is proportional to the size of the
    message."""
    kind = message.WhichOneof("segment")
    if kind == "sorted_array" or kind == "array":
        values = _decode_array(message.sorted_array if kind == "sorted_array" else message.array)
        _check_count(len(values), rows_max)
        if kind == "sorted_array" and not is_ascending(values):
            raise InvalidSegment("a sorted array is not in ascending order")
        return runs_of(values)
    if kind == "range":
        start, end = message.range.start, message.range.end
        _check_count(end - start, rows_max)
        return one_run(start, end - start)
    if kind == "range_with_holes":
        return _decode_holes(message.range_with_holes, rows_max)
    if kind == "range_with_bitmap":
        return _decode_bitmap(message.range_with_bitmap, rows_max)
    raise InvalidSegment("a segment has an unknown form")


def _decode_holes(message: rowids_pb2.U64Segment.RangeWithHoles, rows_max: int) -> tuple[Ids, Counts]:
    start, end = message.start, message.end
    holes = _decode_array(message.holes)
    _check_count(end - start - len(holes), rows_max)
    if not is_ascending(holes):
        raise InvalidSegment("the holes of a range are not in ascending order")
    if len(holes) and not (start <= holes[0] and holes[-1] < end):
        raise InvalidSegment(f"a hole lies outside its range {start}..{end}")
    starts = np.concatenate([np.array([start], dtype=np.uint64), holes + np.uint64(1)])
    lengths = (np.concatenate([holes, np.array([end], dtype=np.uint64)]) - starts).astype(np.int64)
    return starts[lengths > 0], lengths[lengths > 0]


def _decode_bitmap(message: rowids_pb2.U64Segment.RangeWithBitmap, rows_max: int) -> tuple[Ids, Counts]:
    slots = message.end - message.start
    packed = np.frombuffer(message.bitmap, dtype=np.uint8)
    if slots < 0 or len(packed) != -(-slots // 8):
        raise InvalidSegment(f"a bitmap of {len(packed)} bytes does not match its range {message.start}..{message.end}")
    if slots % 8 and packed[-1] >> (slots % 8):
        raise InvalidSegment("a bitmap has bits beyond its range")
    _check_count(int(np.bitwise_count(packed).sum()), rows_max)
    edges = np.diff(np.unpackbits(packed, count=slots, bitorder="little").view(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return starts.astype(np.uint64) + np.uint64(message.start), ends - starts


def _decode_array(message: rowids_pb2.EncodedU64Array) -> Ids:
    kind = message.WhichOneof("array")
    if kind == "u16_array":
        base, data, width = message.u16_array.base, message.u16_array.offsets, 2
    elif kind == "u32_array":
        base, data, width = message.u32_array.base, message.u32_array.offsets, 4
    elif kind == "u64_array":
        base, data, width = 0, message.u64_array.values, 8
    else:
        raise InvalidSegment("an array has an unknown form")
    if len(data) % width:
        raise InvalidSegment(f"{len(data)} bytes are not a whole number of {width}-byte values")
    offsets = np.frombuffer(data, dtype=f"<u{width}").astype(np.uint64)
    if len(offsets) and int(offsets.max()) + base > END_MAX:
        raise InvalidSegment("an array holds values of more than 64 bits")
    return offsets + np.uint64(base)


def _check_count(count: int, rows_max: int) -> None:
    if count < 0:
        raise InvalidSegment("a range ends before it starts")
    if count > rows_max:
        raise InvalidSegment(f"a segment holds {count} values, but at most {rows_max} rows remain")


def encode_segment(starts: Ids, lengths: Counts) -> rowids_pb2.U64Segment:
    """Return the smallest form by the estimate of the reference writer. Ties are resolved in the order holes, bitmap,
    array."""
    lasts = last_ids(starts, lengths)
    if not (starts[1:] > lasts[:-1]).all():
        return rowids_pb2.U64Segment(array=_encode_array(expand_runs(starts, lengths)))
    start, end, count = int(starts[0]), int(lasts[-1]) + 1, int(lengths.sum())
    slots = end - start
    if slots == count and end <= END_MAX:
        return range_segment(start, end)
    as_holes, as_bitmap, as_array = 4 * (slots - count), -(-slots // 8), 2 * count
    if end > END_MAX or as_array < min(as_holes, as_bitmap):
        return rowids_pb2.U64Segment(sorted_array=_encode_array(expand_runs(starts, lengths)))
    if as_holes <= as_bitmap:
        gaps = lasts[:-1] + np.uint64(1)
        holes = _encode_array(expand_runs(gaps, (starts[1:] - gaps).astype(np.int64)))
        message = rowids_pb2.U64Segment.RangeWithHoles(start=start, end=end, holes=holes)
        return rowids_pb2.U64Segment(range_with_holes=message)
    bits = np.zeros(slots, dtype=np.uint8)
    bits[(expand_runs(starts, lengths) - starts[0]).astype(np.int64)] = 1
    bitmap = np.packbits(bits, bitorder="little").tobytes()
    return rowids_pb2.U64Segment(
        range_with_bitmap=rowids_pb2.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap)
    )


def _encode_array(values: Ids) -> rowids_pb2.EncodedU64Array:
    base, top = (values.min(), values.max()) if len(values) else (np.uint64(0), np.uint64(END_MAX))
    offsets = values - base
    if top - base < 2**16:
        u16 = rowids_pb2.EncodedU64Array.U16Array(base=int(base), offsets=offsets.astype("<u2").tobytes())
        return rowids_pb2.EncodedU64Array(u16_array=u16)
    if top - base < 2**32:
        u32 = rowids_pb2.EncodedU64Array.U32Array(base=int(base), offsets=offsets.astype("<u4").tobytes())
        return rowids_pb2.EncodedU64Array(u32_array=u32)
    u64 = rowids_pb2.EncodedU64Array.U64Array(values=values.astype("<u8").tobytes())
    return rowids_pb2.EncodedU64Array(u64_array=u64)


def range_segment(start: int, end: int) -> rowids_pb2.U64Segment:
    return rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=start, end=end))
