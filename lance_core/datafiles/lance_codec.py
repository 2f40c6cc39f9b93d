"""The codec of the product: `.lance` files through `lance.file`, on its own storage stack.

The only place that imports pylance, and only on first use: loading it costs more than all of this package.
Its panics are not ordinary exceptions; here they become typed errors like everything else.
"""

import functools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_core.datafiles import blob_view, file_footer
from lance_core.datafiles.blob_files import BlobFiles, Sidecar
from lance_core.datafiles.codec import BATCH_ROWS, Rows
from lance_core.datafiles.conform import afresh
from lance_core.datafiles.dictionaries import with_missing_indices
from lance_core.errors import NotFound, StorageError, Unsupported
from lance_core.format.fragment import StorageVersion
from lance_core.format.naming import blob_file_name
from lance_core.storage.factory import TableStore
from lance_core.storage.local import LocalStore

if TYPE_CHECKING:
    import lance.file

_SESSIONS_KEPT = 64
_said: "dict[bytes, _DeclaredSchema]" = {}
"""Of files that were opened, by what they say of their schema: most files of a table say the same."""
_SCHEMAS_KEPT = 1024
_DRAFT_OF_A_VERSION = "miniblock pages require the u32 chunk grammar"
"""What the codec says of 2.2 as releases around 1.0 wrote it."""


@dataclass(frozen=True, slots=True)
class LanceCodec:
    store: TableStore

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> "LanceFileWriter":
        return LanceFileWriter(self.store, path, schema, version)

    def open(self, path: str, columns: Sequence[str] = ()) -> "LanceFileReader":
        return LanceFileReader(self.store, path, tuple(columns))


class LanceFileWriter:
    def __init__(self, store: TableStore, path: str, schema: pa.Schema, version: StorageVersion) -> None:
        from lance.file import LanceFileWriter as Writer

        self._store = store
        self._path = path
        self._beside = path.removesuffix(".lance")
        self._place = str(store.inside(path))
        store.make_directory(path.rpartition("/")[0])
        with _told_apart(self._store, self._place):
            self._blobs = BlobFiles(schema, packed=self._packed, dedicated=self._dedicated)
            options = dict(store.given) or None
            self._writer = Writer(self._place, self._blobs.schema, version=str(version), storage_options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        with _told_apart(self._store, self._place):
            stored = self._blobs.descriptors(batch)
            columns = [_without_offsets(column) for column in stored.columns]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=stored.schema))

    def attach(self, data: bytes) -> int:
        with _told_apart(self._store, self._place):
            return int(self._writer.add_global_buffer(data))

    def note(self, key: str, value: str) -> None:
        with _told_apart(self._store, self._place):
            self._writer.add_schema_metadata(key, value)

    def finish(self) -> int:
        with _told_apart(self._store, self._place):
            self._blobs.finish()
            self._writer.close()
        blobs = [f"{self._beside}/{blob_file_name(number)}" for number in self._blobs.blob_ids]
        self._store.ensure_durable([*blobs, self._path])
        assert self._writer.size_bytes is not None
        return self._writer.size_bytes

    def _packed(self, number: int) -> Sidecar:
        self._store.make_directory(self._beside)
        writer = _session(self._store.base, self._store.given).open_packed_blob_writer(self._path, number)
        return Sidecar(writer.write_blob, writer.finish)

    def _dedicated(self, number: int) -> Sidecar:
        self._store.make_directory(self._beside)
        writer = _session(self._store.base, self._store.given).open_dedicated_blob_writer(self._path, number)
        return Sidecar(writer.write, writer.finish)


class LanceFileReader:
    """Opens the file once for every projection that is asked for: first the one that will probably be, with which the
    file's own schema is read as well. The codec's own readers fail when two threads begin to read from one; what they
    began may go on side by side."""

    def __init__(
        self,
        store: TableStore,
        path: str,
        columns: tuple[str, ...],
        *,
        describe: bool = False,
    ) -> None:
        self._store = store
        self._path = path
        self._place = str(store.inside(path))
        self._columns = columns or None
        self._reader = self._opened(self._columns)
        self._describe = describe
        self._described: LanceFileReader | None = None
        self._says: _DeclaredSchema | None = None
        self._others: dict[tuple[str, ...], lance.file.LanceFileReader] = {}
        self._one_at_a_time = threading.Lock()

    def _opened(self, columns: tuple[str, ...] | None) -> "lance.file.LanceFileReader":
        with _told_apart(self._store, self._place):
            session = _session(self._store.base, self._store.given)
            if columns is None:
                return session.open_reader(self._path)
            try:
                return session.open_reader(self._path, list(columns))
            except (OSError, ValueError):
                # The file calls its columns otherwise. Whoever guessed learns their names from its schema.
                self._columns = None
                return session.open_reader(self._path)

    @property
    def row_count(self) -> int:
        return int(self._reader.num_rows())

    @property
    def schema(self) -> pa.Schema:
        return self._said().schema

    @property
    def notes(self) -> Mapping[str, str]:
        return {key.decode(): value.decode() for key, value in (self.schema.metadata or {}).items()}

    def attached(self, number: int) -> bytes:
        with _told_apart(self._store, self._place):
            return bytes(self._reader.read_global_buffer(number))

    def _said(self) -> "_DeclaredSchema":
        """Asking the codec takes several times as long as looking whether the file says what another one said."""
        if self._says is None:
            key = file_footer.schema_bytes(self._place)
            says = None if key is None else _said.get(key)
            if says is None:
                with _told_apart(self._store, self._place):
                    says = _DeclaredSchema.of(self._reader.metadata().schema)
                if key is not None and len(_said) < _SCHEMAS_KEPT:
                    _said[key] = says
            self._says = says
        return self._says

    def described(self) -> "LanceFileReader":
        if self._described is None:
            self._described = LanceFileReader(self._store, self._path, (), describe=True)
        return self._described

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        with _told_apart(self._store, self._place):
            with self._one_at_a_time:
                found = self._projected(columns).read_range(start, count, batch_size=BATCH_ROWS)
            yield from _so_many(found.to_batches(), count)

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        with _told_apart(self._store, self._place):
            with self._one_at_a_time:
                found = self._projected(columns).take_rows(rows.tolist(), batch_size=BATCH_ROWS)
            yield from _so_many(found.to_batches(), len(rows))

    def _projected(self, columns: Sequence[str]) -> "lance.file.LanceFileReader":
        wanted = tuple(columns)
        if wanted == self._columns and not self._needs_view(wanted):
            return self._reader
        if wanted not in self._others:
            through = (
                self._viewed(wanted) if self._needs_view(wanted) else _session(self._store.base, self._store.given)
            )
            self._others[wanted] = through.open_reader(self._path, list(wanted))
        return self._others[wanted]

    def _needs_view(self, columns: Sequence[str]) -> bool:
        if self._describe:
            return True
        return not {name.partition(".")[0] for name in columns}.isdisjoint(self._said().misread)

    def _viewed(self, columns: Sequence[str]) -> "lance.file.LanceFileSession":
        """On disk for as long as this reader is there."""
        info = self._store.head(self._path)
        if info is None:
            raise NotFound(f"data file {self._path} does not exist")
        told = self._reader.metadata().columns

        def pages(number: int) -> list[tuple[int, int]]:
            buffers = [*told[number].column_buffers, *(each for page in told[number].pages for each in page.buffers)]
            return [(each.position, each.size) for each in buffers]

        view = blob_view.view_of(
            lambda start, length: self._store.read(self._path, start, length),
            size=info.size,
            rows=self.row_count,
            schema=self.schema,
            names=list(dict.fromkeys(name.partition(".")[0] for name in columns)),
            pages=pages,
            describe=self._describe,
            path=self._path,
        )
        directory = tempfile.mkdtemp(prefix="lance-blobs-")
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        file = Path(directory, self._path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for position, part in view.parts:
                out.seek(position)
                out.write(part)
        return _session(directory, ())


@dataclass(frozen=True, slots=True)
class _DeclaredSchema:
    """What a file says of its schema, and what of that the codec would read from wrong places."""

    schema: pa.Schema
    misread: frozenset[str]

    @classmethod
    def of(cls, told: pa.Schema) -> "_DeclaredSchema":
        schema = blob_view.repaired(told)
        if schema is told:
            return cls(told, frozenset())
        start = next(at for at, each in enumerate(told) if blob_view.is_misread(each))
        return cls(schema, frozenset(schema.names[start:]))


@functools.lru_cache(maxsize=_SESSIONS_KEPT)
def _session(root: str, options: tuple[tuple[str, str], ...]) -> "lance.file.LanceFileSession":
    """It saves half of what opening a small file costs, and remembers no file."""
    from lance.file import LanceFileSession

    return LanceFileSession(root, storage_options=dict(options) or None)


def _so_many(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Asking whether there are more takes as long as reading a small batch."""
    for batch in batches:
        yield with_missing_indices(batch)
        rows -= batch.num_rows
        if rows <= 0:
            return


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
def _told_apart(store: TableStore, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        what = store.without_secrets(_without_build_paths(str(error)))
        if what.startswith("Not found"):
            raise NotFound(f"data file {path} does not exist") from error
        if _DRAFT_OF_A_VERSION in what:
            raise Unsupported(
                f"data file {path} was written in a draft of its storage version, before that was settled: {what}. "
                "The release that wrote it can copy it into a settled one"
            ) from error
        raise StorageError(f"data file {path}: {what}") from (error if isinstance(store, LocalStore) else None)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(f"data file {path}: the codec panicked: {_without_build_paths(str(error))}") from error


def _without_build_paths(message: str) -> str:
    """The codec ends its messages with the place in its own source that raised them."""
    head, separator, tail = message.rpartition(", /")
    return head if separator and ".rs:" in tail else message
