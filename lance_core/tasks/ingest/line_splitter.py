"""Line splitter: decompresses text files, splits them where lines begin, and reads blocks of whole lines.

CSV and JSON themselves define what a line means. A split has the lines that begin in it, so all splits together have
each line exactly once.
"""

from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from typing import IO

import pyarrow as pa

LINE_BYTES_MAX = 256 * 1024 * 1024
"""Maximum length of a line. No file that is meant as text has a longer one."""
BLOCK_BYTES = 4 * 1024 * 1024


def open_stream(raw: BufferedReader, compression: str | None) -> IO[bytes]:
    if compression is None:
        return raw
    decompressed: IO[bytes] = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)
    return decompressed


def open_split(
    raw: BufferedReader, compression: str | None, size: int, number: int, count: int
) -> tuple[IO[bytes], int]:
    """Return the bytes of split `number` of `count`, and the position at which they begin."""
    if compression is not None or count == 1:
        return open_stream(raw, compression), 0
    start = find_line_start(raw, size * number // count)
    end = find_line_start(raw, size * (number + 1) // count) if number + 1 < count else size
    raw.seek(start)
    return BufferedReader(_LimitedReader(raw, max(0, end - start))), start


def find_line_start(raw: BufferedReader, position: int) -> int:
    """Return the position of the first line that begins at `position` or later, or else the end of the file."""
    if position == 0:
        return 0
    offset = position - 1
    raw.seek(offset)
    while data := raw.read(64 * 1024):
        index = data.find(b"\n")
        if index >= 0:
            return offset + index + 1
        offset += len(data)
    return offset


def blocks_of_lines(stream: IO[bytes], *, first: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines, each with the number of lines before it. The last line may lack a line break."""
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


class _LimitedReader(RawIOBase):
    """The next `left` bytes of a stream."""

    def __init__(self, raw: BufferedReader, left: int) -> None:
        self._raw, self._left = raw, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._raw.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)
