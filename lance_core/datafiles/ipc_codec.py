"""A codec of Arrow IPC files inside any store: for commits under test and simulation, where the product's
codec cannot look. It can write everything that Arrow can; nobody but this package can read such a table."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS, Rows
from lance_core.errors import StorageError, Unsupported
from lance_core.format.fragment import StorageVersion
from lance_core.storage.store import Store

_ATTACHED = "attached:"


@dataclass(frozen=True, slots=True)
class IpcCodec:
    store: Store

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> "IpcFileWriter":
        return IpcFileWriter(self.store, path, schema)

    def open(self, path: str, columns: Sequence[str] = ()) -> "IpcFileReader":
        return IpcFileReader(pa.ipc.open_file(self.store.read(path)).read_all())


class IpcFileWriter:
    def __init__(self, store: Store, path: str, schema: pa.Schema) -> None:
        self._store = store
        self._path = path
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._notes: dict[str, str] = {}
        self._attached = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def attach(self, data: bytes) -> int:
        self._attached += 1
        self._notes[f"{_ATTACHED}{self._attached}"] = base64.b64encode(data).decode()
        return self._attached

    def note(self, key: str, value: str) -> None:
        self._notes[key] = value

    def finish(self) -> int:
        buffer = io.BytesIO()
        told = {**(self._schema.metadata or {}), **self._notes}
        with pa.ipc.new_file(buffer, self._schema.with_metadata(told)) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        data = buffer.getvalue()
        self._store.put(self._path, data)
        return len(data)


@dataclass(frozen=True, slots=True)
class IpcFileReader:
    table: pa.Table

    @property
    def row_count(self) -> int:
        return int(self.table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def notes(self) -> Mapping[str, str]:
        return {key.decode(): value.decode() for key, value in (self.schema.metadata or {}).items()}

    def attached(self, number: int) -> bytes:
        try:
            return base64.b64decode(self.notes[f"{_ATTACHED}{number}"])
        except KeyError:
            raise StorageError(f"there is no buffer {number}") from None

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        rows = self._select(columns).slice(start, count).combine_chunks()  # several files are read side by side
        yield from rows.to_batches(max_chunksize=BATCH_ROWS)

    def described(self) -> "IpcFileReader":
        raise Unsupported("files of this codec hold their blobs as any other value; there is nothing to describe")

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        yield from self._select(columns).take(rows).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def _select(self, columns: Sequence[str]) -> pa.Table:
        return self.table.select(list(dict.fromkeys(name.partition(".")[0] for name in columns)))
