"""The codec of the product: `.lance` files through `lance.file`, on its own storage stack.

The only place that imports pylance, and only on first use: loading it costs more than all of this package.
Its panics are not ordinary exceptions; here they become typed errors like everything else.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.data.codec import BATCH_ROWS
from lance_core.data.conform import afresh
from lance_core.errors import NotFound, StorageError, Unsupported
from lance_core.format.fragment import StorageVersion
from lance_core.storage.local import LocalStore

if TYPE_CHECKING:
    import lance.file

_DRAFT_OF_A_VERSION = "miniblock pages require the u32 chunk grammar"
"""What the codec says of 2.2 as releases around 1.0 wrote it."""


@dataclass(frozen=True, slots=True)
class LanceCodec:
    store: LocalStore

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> "LanceFileWriter":
        return LanceFileWriter(self.store, path, schema, version)

    def open(self, path: str) -> "LanceFileReader":
        return LanceFileReader(str(self.store.inside(path)))


class LanceFileWriter:
    def __init__(self, store: LocalStore, path: str, schema: pa.Schema, version: StorageVersion) -> None:
        from lance.file import LanceFileWriter as Writer

        self._store = store
        self._path = path
        self._place = str(store.root / path)
        store.make_directory(path.rpartition("/")[0])
        with _told_apart(self._place):
            self._writer = Writer(self._place, schema, version=str(version))

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_without_offsets(column) for column in batch.columns]
        with _told_apart(self._place):
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))

    def finish(self) -> int:
        with _told_apart(self._place):
            self._writer.close()
        self._store.settle([self._path])
        assert self._writer.size_bytes is not None
        return self._writer.size_bytes


class LanceFileReader:
    def __init__(self, path: str) -> None:
        from lance.file import LanceFileReader as Reader

        self._path = path
        with _told_apart(path):
            self._reader: lance.file.LanceFileReader = Reader(path)

    @property
    def row_count(self) -> int:
        return int(self._reader.num_rows())

    @property
    def schema(self) -> pa.Schema:
        with _told_apart(self._path):
            return self._reader.metadata().schema

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        from lance.file import LanceFileReader as Reader

        with _told_apart(self._path):
            reader = Reader(self._path, columns=list(columns))
            yield from reader.read_range(start, count, batch_size=BATCH_ROWS).to_batches()


def _without_offsets(array: pa.Array) -> pa.Array:
    """The codec panics on slices of structs inside structs and fixed-size lists; those are copied."""
    if not (_holds_struct(array.type) and _has_offset(array)):
        return array
    return afresh(array)


def _holds_struct(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    return pa.types.is_struct(arrow) or any(_holds_struct(arrow.field(index).type) for index in range(arrow.num_fields))


def _has_offset(array: pa.Array) -> bool:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.offset:
        return True
    if pa.types.is_struct(array.type):
        return any(_has_offset(array.field(index)) for index in range(array.type.num_fields))
    return pa.types.is_nested(array.type) and _has_offset(array.values)


@contextmanager
def _told_apart(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        what = _without_build_paths(str(error))
        if what.startswith("Not found"):
            raise NotFound(f"data file {path} does not exist") from error
        if _DRAFT_OF_A_VERSION in what:
            raise Unsupported(
                f"data file {path} was written in a draft of its storage version, before that was settled: {what}. "
                "The release that wrote it can copy it into a settled one"
            ) from error
        raise StorageError(f"data file {path}: {what}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(f"data file {path}: the codec panicked: {_without_build_paths(str(error))}") from error


def _without_build_paths(message: str) -> str:
    """The codec ends its messages with the place in its own source that raised them."""
    head, separator, tail = message.rpartition(", /")
    return head if separator and ".rs:" in tail else message
