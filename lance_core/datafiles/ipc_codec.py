"""IPC codec: stores Arrow IPC files in any store, for tests and simulations of commits, where the production codec has
no access to the store. It can write every Arrow type, but only this package can read such a table."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS, FileToRead, JoinedFiles, RowRange, Rows
from lance_core.errors import StorageError, Unsupported
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import StorageVersion
from lance_core.storage.store import Store

_BUFFER_PREFIX = "attached:"


@dataclass(frozen=True, slots=True)
class IpcCodec:
    """Codec for Arrow IPC files."""

    store: Store

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> "IpcFileWriter":
        return IpcFileWriter(self.store, path, schema)

    def verify(self, path: str, checksum: FileChecksum | None) -> None:
        """Do nothing: the files are in memory."""

    def join(self, files: Sequence[FileToRead], columns: Sequence[str]) -> JoinedFiles | None:
        return None

    def open(
        self,
        path: str,
        columns: Sequence[str] = (),
        *,
        size: int | None = None,
        is_vouched: bool = False,
    ) -> "IpcFileReader":
        return IpcFileReader(pa.ipc.open_file(self.store.read(path)).read_all())


class IpcFileWriter:
    """Writer that collects its batches in memory until `finish`."""

    def __init__(self, store: Store, path: str, schema: pa.Schema) -> None:
        self._store = store
        self._path = path
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._metadata: dict[str, str] = {}
        self._buffer_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def add_buffer(self, data: bytes) -> int:
        self._buffer_count += 1
        self._metadata[f"{_BUFFER_PREFIX}{self._buffer_count}"] = base64.b64encode(data).decode()
        return self._buffer_count

    def add_metadata(self, key: str, value: str) -> None:
        self._metadata[key] = value

    def finish(self, unsynced: list[str] | None = None) -> FileChecksum:
        buffer = io.BytesIO()
        metadata = {**(self._schema.metadata or {}), **self._metadata}
        with pa.ipc.new_file(buffer, self._schema.with_metadata(metadata)) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        data = buffer.getvalue()
        self._store.put(self._path, data)
        return FileChecksum.of(data)


@dataclass(frozen=True, slots=True)
class IpcFileReader:
    """Reader for a file that is in memory."""

    table: pa.Table

    @property
    def row_count(self) -> int:
        return int(self.table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def metadata(self) -> Mapping[str, str]:
        return {key.decode(): value.decode() for key, value in (self.schema.metadata or {}).items()}

    def read_buffer(self, number: int) -> bytes:
        try:
            return base64.b64decode(self.metadata[f"{_BUFFER_PREFIX}{number}"])
        except KeyError:
            raise StorageError(f"the file has no buffer {number}") from None

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        rows = (
            self._select(columns).slice(start, count).combine_chunks()
        )  # batches of parallel files must have the same lengths
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)

    def with_descriptors(self) -> "IpcFileReader":
        raise Unsupported("files of this codec store blobs like any other value and have no descriptors")

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        yield from self._select(columns).take(rows).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        """Return nothing: the columns of these files have no numbers."""
        return None

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        """Return nothing: the columns of these files have no numbers."""
        return None

    def _select(self, columns: Sequence[str]) -> pa.Table:
        return self.table.select(list(dict.fromkeys(name.partition(".")[0] for name in columns)))
