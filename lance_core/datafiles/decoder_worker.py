"""Decoder worker: the process that decodes files for `isolated_reader.py`, one request at a time.

It ends when its parent closes the connection or dies, also while it decodes. It limits its own memory,
writes no core dump, and sends only arrays that it has validated. It runs on its own and is not imported elsewhere.
Start with `main`.
"""

import fcntl
import io
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from lance_core.datafiles.decoder_protocol import (
    BATCH,
    BYTES,
    END,
    ERROR,
    OPEN_AHEAD_MAX,
    OPENED,
    ROW_COUNT,
    ConnectionLost,
    FileReference,
    Request,
    receive_header,
    receive_into,
    send_frame,
)
from lance_core.datafiles.file_checks import UNCHECKED, check_file
from lance_core.datafiles.lance_codec import LanceFileReader, load_library
from lance_core.errors import Corrupt, LanceError, StorageError
from lance_core.storage.factory import TableStore, open_store
from lance_core.storage.local import LocalStore

_OPEN_FILES_MAX = 32
_IDLE_SECONDS = 600.0


def main(connection_number: int, lifeline: int, bytes_max: int) -> None:
    """Answer requests until the parent closes the connection, or sends none for ten minutes."""
    _end_with_parent(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt from the terminal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    load_library()
    _limit_memory(bytes_max)
    connection = socket.socket(fileno=connection_number)
    decoder = _Decoder()
    with suppress(ConnectionLost, TimeoutError):
        while True:
            connection.settimeout(_IDLE_SECONDS)
            _kind, length = receive_header(connection, None)
            request = bytearray(length)
            receive_into(connection, memoryview(request), None)
            connection.settimeout(None)
            try:
                kind, payload = decoder.answer(Request.decode(bytes(request)))
            except LanceError as error:
                kind, payload = ERROR, _encode_error(error)
            except MemoryError:
                kind, payload = ERROR, _encode_error(StorageError("memory allocation failed"))
            send_frame(connection, kind, payload)
    os._exit(0)  # threads of the codec may still decode


def _end_with_parent(lifeline: int) -> None:
    """End this process when its parent closes the other end of the pipe `lifeline` or dies.

    The kernel sends the signal, so that it also arrives while the codec holds the interpreter. The thread serves
    systems without such signals for pipes.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    with suppress(OSError, AttributeError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _limit_memory(bytes_max: int) -> None:
    """Allow this much address space beyond what is in use now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        used = pages * resource.getpagesize()
    except OSError:
        used = 1 << 31
    resource.setrlimit(resource.RLIMIT_AS, (used + bytes_max, used + bytes_max))


class _Decoder:
    """Open files and running reads of this process."""

    def __init__(self) -> None:
        self._readers: OrderedDict[FileReference, LanceFileReader] = OrderedDict()
        self._cursors: dict[int, Iterator[pa.RecordBatch]] = {}

    def answer(self, request: Request) -> tuple[bytes, bytes | memoryview]:
        for closed in request.closed:
            self._cursors.pop(closed, None)
        if request.operation == "next":
            return self._next_batch(request.cursor)
        assert request.file is not None
        if request.operation == "open_ahead":
            self._open_ahead([replace(request.file, path=path, size=size) for path, size in request.paths])
            return END, b""
        reader = self._open(request.file, request.columns)
        if request.operation == "open":
            return OPENED, ROW_COUNT.pack(reader.row_count) + memoryview(reader.schema.serialize())
        if request.operation == "buffer":
            return BYTES, reader.read_buffer(request.number)
        self._cursors[request.cursor] = (
            reader.read(request.columns, request.start, request.count)
            if request.rows is None
            else reader.take(request.columns, np.frombuffer(request.rows, dtype=np.int64))
        )
        return self._next_batch(request.cursor)

    def _open_ahead(self, files: Sequence[FileReference]) -> None:
        """Open files concurrently. A file that cannot be opened is skipped: the request that reads it opens it again,
        and reports the error."""

        def open_one(file: FileReference) -> LanceFileReader | None:
            with suppress(LanceError):
                return _open_reader(file, ())
            return None

        unopened = [file for file in files[:OPEN_AHEAD_MAX] if file not in self._readers]
        with ThreadPoolExecutor(OPEN_AHEAD_MAX) as threads:
            for file, reader in zip(unopened, threads.map(open_one, unopened), strict=True):
                if reader is not None:
                    self._readers[file] = reader
        while len(self._readers) > _OPEN_FILES_MAX:
            self._readers.popitem(last=False)

    def _open(self, file: FileReference, columns: tuple[str, ...]) -> LanceFileReader:
        reader = self._readers.get(file)
        if reader is None:
            reader = self._readers[file] = _open_reader(file, columns)
            if len(self._readers) > _OPEN_FILES_MAX:
                self._readers.popitem(last=False)
        self._readers.move_to_end(file)
        return reader

    def _next_batch(self, cursor: int) -> tuple[bytes, bytes | memoryview]:
        batches = self._cursors.get(cursor)
        try:
            if batches is None:
                raise StorageError("the read is not known")
            batch = next(batches, None)
            if batch is None:
                self._cursors.pop(cursor, None)
                return END, b""
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            self._cursors.pop(cursor, None)
            raise Corrupt(f"decodes to invalid arrays: {error}", path="", field="content") from error
        except BaseException:
            self._cursors.pop(cursor, None)
            raise
        return BATCH, _encode_batch(batch)


def _open_reader(file: FileReference, columns: tuple[str, ...]) -> LanceFileReader:
    store = _open_store(file)
    is_local = isinstance(store, LocalStore)  # it may be replaced after the check of the other process
    checked = check_file(store, file.path, file.size) if is_local else UNCHECKED
    reader = LanceFileReader(store, file.path, checked, columns)
    return reader.with_descriptors() if file.describe else reader


def _open_store(file: FileReference) -> TableStore:
    return open_store(file.uri, storage_options=dict(file.options))


def _encode_batch(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _encode_error(error: LanceError) -> bytes:
    described = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, Corrupt):
        described |= {"message": error.what, "path": error.path, "field": error.field}
    return json.dumps(described).encode()


if __name__ == "__main__":
    sys.stdout = io.StringIO()
    main(*map(int, sys.argv[1:4]))
