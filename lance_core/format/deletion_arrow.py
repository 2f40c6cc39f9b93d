"""Deletion files in Arrow IPC format: their buffers are measured before they are decompressed.

Compressed, 16 KB can stand for half a gigabyte. Each compressed buffer begins with its uncompressed length. The
positions of the buffers are in the metadata of their record batch, a flatbuffer that pyarrow does not expose, so this
module parses the few fields that it needs. Such a file does not name its fragment or that fragment's number of rows.
"""

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import Corrupt
from lance_core.limits import DELETED_ROWS_AS_ARROW

SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_WRITTEN = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
"""Threads are off because there is one column: handing a few bytes to another thread takes longer than compressing
them, a tenth of a millisecond or more on a busy machine."""
_WIDTH = 4
_SLACK_BYTES = 64
"""Some writers compress the padding of a buffer together with its values."""
_TRAILER = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")
_NOT_COMPRESSED = -1
_FOOTER_BATCHES, _HEADER, _ROWS, _BUFFERS, _COMPRESSION = 3, 2, 0, 2, 3
"""Field numbers: one of the footer, one of a message, three of a record batch."""


def encode(offsets: npt.NDArray[np.uint32]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA, options=_WRITTEN) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(offsets)], schema=SCHEMA))
    return bytes(sink.getvalue())


def decode(data: bytes, *, path: str) -> npt.NDArray[np.uint32]:
    """Return the offsets in the order of the file."""
    try:
        with pa.ipc.open_file(data, options=_READ) as file:
            if not file.schema.equals(SCHEMA):
                raise Corrupt(
                    f"has the columns {file.schema}; expected row_id: uint32 not null", path=path, field="schema"
                )
            batches = list(_read_batches(file, pa.py_buffer(data), path=path))
    except (pa.ArrowException, OSError, EOFError, struct.error) as error:
        raise Corrupt("is not an Arrow IPC file", path=path, field="deletion_file") from error
    return np.concatenate([np.empty(0, dtype=np.uint32), *batches])


def _read_batches(
    file: pa.ipc.RecordBatchFileReader, data: pa.Buffer, *, path: str
) -> Iterator[npt.NDArray[np.uint32]]:
    rows_left = DELETED_ROWS_AS_ARROW.maximum
    for number, (start, size) in enumerate(_batch_spans(data)):
        if not 0 <= start <= start + size <= data.size:
            raise Corrupt(
                f"places a batch at bytes {start} to {start + size} of {data.size}", path=path, field="footer"
            )
        message = pa.ipc.read_message(data.slice(start, size))
        rows_left -= _check_batch(message.metadata.to_pybytes(), message.body, rows_left, path=path)
        batch = file.get_batch(number)
        batch.validate()
        if batch.column(0).null_count:
            raise Corrupt("holds a null instead of a row number", path=path, field="row_id")
        yield batch.column(0).to_numpy()


def _batch_spans(data: pa.Buffer) -> Iterator[tuple[int, int]]:
    """Yield the position and size of each batch, including its metadata, from the footer."""
    end = data.size - _TRAILER.size
    size, _magic = _TRAILER.unpack(data.slice(end).to_pybytes())
    footer = data.slice(end - size, size).to_pybytes()
    blocks = _table_position(footer, _follow_offset(footer, 0), _FOOTER_BATCHES)
    if blocks is None:
        return
    (count,) = _COUNT.unpack_from(footer, blocks)
    for number in range(count):
        start, metadata, body = _BLOCK.unpack_from(footer, blocks + _COUNT.size + number * _BLOCK.size)
        yield start, metadata + body


def _check_batch(metadata: bytes, body: pa.Buffer, rows_max: int, *, path: str) -> int:
    """Return the number of rows of a batch, after checking that its buffers have the size for it, compressed or not."""
    batch = _table_position(metadata, _follow_offset(metadata, 0), _HEADER)
    if batch is None:
        raise Corrupt("holds a batch without metadata", path=path, field="deletion_file")
    rows_position = _field_position(metadata, batch, _ROWS)
    rows = 0 if rows_position is None else int(_LENGTH.unpack_from(metadata, rows_position)[0])
    if rows > rows_max:
        raise DELETED_ROWS_AS_ARROW.exceeded("more", path=path)
    if rows < 0 or body is None:
        raise Corrupt(f"holds a batch of {rows} rows", path=path, field="row_id")
    if _field_position(metadata, batch, _COMPRESSION) is None:
        return rows
    buffers = _table_position(metadata, batch, _BUFFERS)
    if buffers is None:
        return rows
    (count,) = _COUNT.unpack_from(metadata, buffers)
    for number in range(count):
        start, size = _BUFFER.unpack_from(metadata, buffers + _COUNT.size + number * _BUFFER.size)
        if size < _LENGTH.size:
            continue
        if not 0 <= start <= body.size - _LENGTH.size:
            raise Corrupt(f"places a buffer at byte {start} of {body.size}", path=path, field="row_id")
        (length,) = _LENGTH.unpack(body.slice(start, _LENGTH.size).to_pybytes())
        if length != _NOT_COMPRESSED and not 0 <= length <= rows * _WIDTH + _SLACK_BYTES:
            raise Corrupt(f"decompresses to {length:,} bytes for {rows:,} rows", path=path, field="row_id")
    return rows


def _table_position(data: bytes, table: int, number: int) -> int | None:
    """Return the position of the table or vector to which a field of a table points."""
    position = _field_position(data, table, number)
    return None if position is None else _follow_offset(data, position)


def _field_position(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field, or `None` if the table omits it."""
    entries = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, entries)
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", data, entries + entry)[0] if entry < size else 0
    return table + offset if offset else None


def _follow_offset(data: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", data, position)[0])
