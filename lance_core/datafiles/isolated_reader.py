"""Isolated reader: decodes data and index files in another process, which a damaged or hostile file may end without
harm to this one.

It serves tables that are opened with `trusted=False`, fsck, and files whose metadata does not prove how much memory
their decoding takes (`file_checks.py`). The process has limits of memory and time (`DECODER_BYTES` and
`DECODER_SECONDS` in `limits.py`); whatever ends it becomes one typed error about the file. See
`004-isolated-decoding.md`. Start with `IsolatedReader`.
"""

import itertools
import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import FileToRead, RowRange, Rows
from lance_core.datafiles.decoder_process import DecoderEnded, DecoderProcess, DecoderUnavailable, pool
from lance_core.datafiles.decoder_protocol import (
    BATCH,
    BYTES,
    ERROR,
    OPEN_AHEAD_MAX,
    OPENED,
    ROW_COUNT,
    FileReference,
    Request,
)
from lance_core.datafiles.file_checks import UNCHECKED, CheckedFile
from lance_core.errors import Corrupt, LanceError, NotFound, StorageError, Unsupported
from lance_core.limits import DECODER_BYTES, DECODER_SECONDS, CapExceeded
from lance_core.storage.factory import TableStore

_cursors = itertools.count(1)
_ERRORS: Mapping[str, type[LanceError]] = {
    each.__name__: each for each in (StorageError, NotFound, Unsupported, CapExceeded)
}
_ATTEMPTS = 5
_T = TypeVar("_T")
_Remaining = tuple[int, int, bytes | None]
"""First row, number of rows, and the numbers of single rows, that a read still has to return."""


def open_ahead(store: TableStore, files: Sequence[FileToRead]) -> None:
    """Let a decoder process open files of an object store concurrently, before their readers are created. Errors are
    ignored here, since the reader of a damaged file reports them."""
    if len(files) < 2:
        return
    first = FileReference(store.description, tuple(store.codec_options), files[0].path, UNCHECKED.identity, None)
    paths = tuple((file.path, file.size) for file in files[:OPEN_AHEAD_MAX])
    with suppress(DecoderEnded, DecoderUnavailable):
        pool.get().request(Request("open_ahead", first, paths=paths))


class IsolatedReader:
    """Reader for one file, which another process decodes; implements `FileReader`.

    A read that another file interrupts, by ending the process, continues in a new one.
    """

    def __init__(
        self,
        store: TableStore,
        path: str,
        checked: CheckedFile,
        columns: tuple[str, ...],
        *,
        size: int | None = None,
        describe: bool = False,
    ) -> None:
        self._arguments = (store, path, checked, columns)
        self._full_path = f"{store.description}/{path}"
        self._file = FileReference(
            store.description, tuple(store.codec_options), path, checked.identity, size, describe
        )
        self._columns = columns
        self._without_secrets = store.without_secrets
        self._own: DecoderProcess | None = None
        content = self._expect(OPENED, self._call(Request("open", self._file, columns))[1])
        (self._rows,) = ROW_COUNT.unpack_from(content)
        self._schema = self._from_ipc(lambda: pa.ipc.read_schema(content.slice(ROW_COUNT.size)))

    @property
    def row_count(self) -> int:
        return int(self._rows)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def metadata(self) -> Mapping[str, str]:
        return {key.decode(): value.decode() for key, value in (self.schema.metadata or {}).items()}

    def read_buffer(self, number: int) -> bytes:
        request = Request("buffer", self._file, self._columns, number=number)
        return bytes(self._expect(BYTES, self._call(request)[1]).to_pybytes())

    def with_descriptors(self) -> "IsolatedReader":
        return IsolatedReader(*self._arguments, size=self._file.size, describe=True)

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        return self._stream(columns, count, lambda done: (start + done, count - done, None))

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        wanted = np.ascontiguousarray(rows, dtype=np.int64)
        return self._stream(columns, len(wanted), lambda done: (0, 0, wanted[done:].tobytes()))

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        """Return nothing: another process reads the file."""
        return None

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        """Return nothing: another process reads the file."""
        return None

    def _stream(
        self, columns: Sequence[str], count: int, remaining: Callable[[int], _Remaining]
    ) -> Iterator[pa.RecordBatch]:
        """Yield `count` rows. `remaining` returns the rows that are left after a number of rows."""
        number, done = next(_cursors), 0
        process: DecoderProcess | None = None
        try:
            while done < count:
                answer = None if process is None else self._ask(process, Request("next", cursor=number))
                if answer is None:
                    start, rest, rows = remaining(done)
                    process, answer = self._call(
                        Request("read", self._file, tuple(columns), start, rest, rows, cursor=number)
                    )
                content = self._expect(BATCH, answer)
                batch = self._from_ipc(lambda content=content: pa.ipc.open_stream(content).read_next_batch())  # type: ignore[misc]
                done += batch.num_rows
                if not batch.num_rows or done > count:
                    raise Corrupt(f"decodes to {done} rows instead of {count}", path=self._full_path, field="content")
                yield batch
        finally:
            if process is not None and done < count:
                process.abandon(number)

    def _call(self, request: Request) -> tuple[DecoderProcess, tuple[bytes, pa.Buffer]]:
        """Send a request to a process, which is replaced if it ends, and return the process and its answer."""
        for _ in range(_ATTEMPTS):
            process = self._own if self._own is not None and self._own.is_alive else pool.get()
            answer = self._ask(process, request)
            if answer is not None:
                return process, answer
        raise StorageError(
            f"data file {self._full_path}: the processes that decode files end before they receive a request; check "
            "the memory and the limits of this machine"
        )

    def _ask(self, process: DecoderProcess, request: Request) -> tuple[bytes, pa.Buffer] | None:
        """Return the answer of a process, or `None` if the request has to be sent to another one.

        If a shared process ends, another file may be the cause, so this file then gets a process of its own.
        """
        try:
            return process.request(request)
        except DecoderUnavailable:
            return None
        except DecoderEnded as error:
            if process is self._own or error.is_deadline:
                raise self._error(error) from None
            self._own = DecoderProcess()
            weakref.finalize(self, self._own.end)
            return None

    def _error(self, ended: DecoderEnded) -> LanceError:
        cause = self._without_secrets(ended.cause)
        if ended.is_limit:
            return StorageError(
                f"data file {self._full_path} was not decoded: {cause}. The file may be damaged or hostile: check the "
                f"table with fsck, or restore the file. If you trust it, raise {DECODER_BYTES.variable} (now "
                f"{DECODER_BYTES.maximum:,} bytes) or {DECODER_SECONDS.variable} (now {DECODER_SECONDS.maximum})"
            )
        return Corrupt(
            f"cannot be decoded: {cause}. Restore the file from a copy, or restore a version without it",
            path=self._full_path,
            field="content",
        )

    def _expect(self, kind: bytes, answer: tuple[bytes, pa.Buffer]) -> pa.Buffer:
        """Return the content of an answer of this kind. Raise the error that the process reported."""
        if answer[0] == kind:
            return answer[1]
        if answer[0] != ERROR:
            raise self._invalid_answer()
        try:
            described = json.loads(answer[1].to_pybytes())
            name, message = str(described["type"]), str(described["message"])
            path, field = str(described.get("path") or self._full_path), str(described.get("field", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._invalid_answer() from error
        if name == Corrupt.__name__:
            raise Corrupt(message, path=path, field=field)
        raise _ERRORS.get(name, StorageError)(message)

    def _from_ipc(self, decode: Callable[[], _T]) -> _T:
        try:
            return decode()
        except (pa.ArrowInvalid, OSError, StopIteration) as error:
            raise self._invalid_answer() from error

    def _invalid_answer(self) -> Corrupt:
        return Corrupt(
            "cannot be decoded: the process that decoded it sent an invalid answer. Restore the file from a copy",
            path=self._full_path,
            field="content",
        )
