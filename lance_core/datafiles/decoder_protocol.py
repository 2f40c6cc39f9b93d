"""Decoder protocol: the frames between a process that reads a table and the process that decodes its files.

A request is a `Request` as JSON, followed by the numbers of rows. An answer is Arrow IPC, JSON or plain bytes; nothing
that a decoder of hostile files sends is executed. Each frame starts with its kind and its length.
"""

import json
import socket
import struct
import time
from dataclasses import dataclass

HEADER = struct.Struct("<cQ")
OPENED, BATCH, BYTES, ERROR, END = b"O", b"A", b"B", b"E", b"X"
ROW_COUNT = struct.Struct("<Q")
"""Start of an `OPENED` frame; the Arrow schema follows."""

OPEN_AHEAD_MAX = 32
"""Maximum number of files that a decoder opens concurrently."""


@dataclass(frozen=True, slots=True)
class FileReference:
    """File to decode, and how to reach it. The options are secret: they travel over the socket only."""

    uri: str
    options: tuple[tuple[str, str], ...]
    path: str
    identity: tuple[int, ...]
    """Identity of the content of a local file, which may be replaced under the same path."""
    size: int | None
    describe: bool = False

    def __repr__(self) -> str:
        return f"FileReference({self.path!r})"


@dataclass(frozen=True, slots=True)
class Request:
    """Request to the decoder."""

    operation: str
    """One of `open`, `open_ahead`, `read`, `next` and `buffer`."""
    file: FileReference | None = None
    columns: tuple[str, ...] = ()
    start: int = 0
    count: int = 0
    rows: bytes | None = None
    """Numbers of single rows as 64-bit integers; `None` for the range from `start`."""
    cursor: int = 0
    """Number of the read, chosen by the parent."""
    closed: tuple[int, ...] = ()
    """Reads that have been given up."""
    number: int = 0
    paths: tuple[tuple[str, int | None], ...] = ()
    """Paths and sizes of the files to open ahead, in the store of `file`."""

    def encode(self) -> bytes:
        described = {name: getattr(self, name) for name in _IN_JSON}
        if self.file is not None:
            described["file"] = {name: getattr(self.file, name) for name in FileReference.__slots__}
        text = json.dumps(described).encode()
        return b"".join((ROW_COUNT.pack(len(text)), text, self.rows or b""))

    @classmethod
    def decode(cls, data: bytes) -> "Request":
        (length,) = ROW_COUNT.unpack_from(data)
        described = json.loads(data[ROW_COUNT.size : ROW_COUNT.size + length])
        if (file := described.pop("file", None)) is not None:
            file["options"] = tuple((key, value) for key, value in file["options"])
            file["identity"] = tuple(file["identity"])
            described["file"] = FileReference(**file)
        described["columns"] = tuple(described["columns"])
        described["paths"] = tuple((path, size) for path, size in described["paths"])
        has_rows = described.pop("has_rows")
        return cls(**described, rows=data[ROW_COUNT.size + length :] if has_rows else None)

    @property
    def has_rows(self) -> bool:
        return self.rows is not None


_IN_JSON = ("operation", "columns", "start", "count", "cursor", "closed", "number", "paths", "has_rows")


class ConnectionLost(Exception):
    """The other side has closed the connection."""


class DeadlineExceeded(Exception):
    """The other side did not answer in time."""


def send_frame(connection: socket.socket, kind: bytes, payload: "bytes | memoryview") -> None:
    try:
        connection.sendall(HEADER.pack(kind, len(payload)))
        if len(payload):
            connection.sendall(payload)
    except OSError as error:
        raise ConnectionLost from error


def receive_into(connection: socket.socket, target: memoryview, deadline: float | None) -> None:
    """Fill `target` from the connection. `deadline` is a time of `time.monotonic`."""
    while target:
        if deadline is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DeadlineExceeded
            connection.settimeout(remaining)
        try:
            received = connection.recv_into(target)
        except TimeoutError as error:
            raise DeadlineExceeded from error
        except OSError as error:
            raise ConnectionLost from error
        if not received:
            raise ConnectionLost
        target = target[received:]


def receive_header(connection: socket.socket, deadline: float | None) -> tuple[bytes, int]:
    header = bytearray(HEADER.size)
    receive_into(connection, memoryview(header), deadline)
    kind, length = HEADER.unpack(header)
    return kind, length
