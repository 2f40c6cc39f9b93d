"""Sets of rows as the n-gram index keeps them: the 64-bit form of Roaring bitmaps, which is a count, and for each upper
half of numbers that half and a 32-bit bitmap. Those do not say how long they are, so `_length` finds it out.
"""

import struct

import numpy as np
from pyroaring import BitMap

from lance_core.errors import Corrupt
from lance_core.format.row_sets import RowSet, RowsUnder

_COUNT = struct.Struct("<Q")
_HIGH = struct.Struct("<I")
_COOKIE = struct.Struct("<HH")
_PLAIN, _WITH_RUNS = 12346, 12347
_CONTAINERS_MAX = 1 << 16
_OFFSETS_FROM = 4
"""So many containers have offsets even where some are runs."""
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192


def encode(rows: RowSet) -> bytes:
    out = [_COUNT.pack(len(rows.parts))]
    for high, part in rows.parts.items():
        part.run_optimize()
        out += [_HIGH.pack(high), bytes(part.serialize())]
    return b"".join(out)


def decode(data: bytes | memoryview, rows_under: RowsUnder, *, path: str, keep_impossible_rows: bool = False) -> RowSet:
    """Rows that cannot be there are left out; with `keep_impossible_rows` they are not."""
    view = memoryview(data)
    parts: dict[int, BitMap] = {}
    try:
        (count,) = _COUNT.unpack_from(view)
        at = _COUNT.size
        for _ in range(count):
            (high,) = _HIGH.unpack_from(view, at)
            at += _HIGH.size
            length = _length(view, at)
            part = BitMap.deserialize(bytes(view[at : at + length]))
            at += length
            rows = rows_under(high)
            if part and not keep_impossible_rows and part.max() >= rows:
                part &= BitMap(range(rows))
            if part:
                parts[high] = part
    except (struct.error, ValueError, IndexError) as error:
        raise Corrupt("is not a set of rows", path=path, field="posting_list") from error
    return RowSet(parts if list(parts) == sorted(parts) else dict(sorted(parts.items())))


def _length(view: memoryview, start: int) -> int:
    """Of the bitmap that begins there."""
    cookie, more = _COOKIE.unpack_from(view, start)
    at: int = start + _COOKIE.size
    if cookie == _PLAIN:
        (count,) = _HIGH.unpack_from(view, at)
        at += _HIGH.size
        runs = np.zeros(0, dtype=np.uint8)
    elif cookie == _WITH_RUNS:
        count = more + 1
        size = (count + 7) // 8
        runs = np.unpackbits(np.frombuffer(view, np.uint8, size, at), bitorder="little")[:count]
        at += size
    else:
        raise ValueError(f"no bitmap begins with {cookie}")
    if count > _CONTAINERS_MAX:
        raise ValueError(f"{count} containers")
    rows = np.frombuffer(view, "<u2", 2 * count, at)[1::2].astype(np.int64) + 1
    at += 4 * count
    if cookie == _PLAIN or count >= _OFFSETS_FROM:
        at += 4 * count
    sizes = np.where(rows > _ARRAY_MAX, _BITMAP_BYTES, 2 * rows)
    if not runs.any():
        at += int(sizes.sum())
    else:
        for is_run, size in zip(runs.tolist(), sizes.tolist(), strict=True):
            if is_run:
                (some,) = struct.unpack_from("<H", view, at)
                size = 2 + 4 * some
            at += size
    if at > len(view):
        raise ValueError("cut short")
    return at - start
