"""Bytes of text files: unpacked, cut where lines begin, in blocks of whole lines.

What a line means, CSV and JSON say themselves. A part of a file has the lines that begin in it: the parts together have
each line once, wherever they are cut.
"""

from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from typing import IO

import pyarrow as pa

LINE_BYTES_MAX = 256 * 1024 * 1024
"""A longer one is no line of a text that anybody meant to write."""
BLOCK_BYTES = 4 * 1024 * 1024


def open_stream(raw: BufferedReader, compression: str | None) -> IO[bytes]:
    if compression is None:
        return raw
    unpacked: IO[bytes] = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)
    return unpacked


def open_split(
    raw: BufferedReader, compression: str | None, size: int, number: int, count: int
) -> tuple[IO[bytes], int]:
    """The bytes of a part, and where they begin."""
    if compression is not None or count == 1:
        return open_stream(raw, compression), 0
    start = find_line_start(raw, size * number // count)
    end = find_line_start(raw, size * (number + 1) // count) if number + 1 < count else size
    raw.seek(start)
    return BufferedReader(_UpTo(raw, max(0, end - start))), start


def find_line_start(raw: BufferedReader, place: int) -> int:
    """The first byte at or behind `place` at which a line begins; the end of the file where there is none."""
    if place == 0:
        return 0
    at = place - 1
    raw.seek(at)
    while data := raw.read(64 * 1024):
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
    return at


def blocks_of_lines(stream: IO[bytes], *, first: int) -> Iterator[tuple[bytes, int]]:
    """Each with the number of lines before it. The last line may have no end."""
    rest, lines = b"", first
    while data := stream.read(BLOCK_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut:
            block, rest = rest + data[:cut], data[cut:]
            yield block, lines
            lines += block.count(b"\n")
            continue
        rest += data
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"line {lines + 1} has more than {LINE_BYTES_MAX:,} bytes")
    if rest:
        yield rest, lines


class _UpTo(RawIOBase):
    """So many bytes of a stream, from where it is."""

    def __init__(self, raw: BufferedReader, left: int) -> None:
        self._raw, self._left = raw, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._raw.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)
