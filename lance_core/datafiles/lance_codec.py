"""Lance codec, the production codec: reads and writes `.lance` files through `lance.file` and its own storage stack.

This is the only module that imports pylance, and it does so on first use: loading pylance costs more than all of this
package. Panics of pylance are not ordinary exceptions; this module translates them to typed errors.
"""

import functools
import importlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles import blob_view
from lance_core.datafiles.blob_files import BlobFiles, Sidecar
from lance_core.datafiles.checksums import FileVerifier, Verify, compute_checksum
from lance_core.datafiles.codec import BATCH_ROWS, FileReader, FileToRead, RowRange, Rows
from lance_core.datafiles.conform import copy_array
from lance_core.datafiles.dictionaries import nulls_as_missing_indices
from lance_core.datafiles.file_checks import UNCHECKED, CheckedFile, check_file
from lance_core.datafiles.plain_reads import read_plain, take_plain
from lance_core.datafiles.staged_pages import open_object, stage_local, stage_objects
from lance_core.datafiles.staged_reader import JoinedReader, ObjectReader
from lance_core.errors import NotFound, StorageError, Unsupported
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import StorageVersion
from lance_core.format.logical_types import is_json
from lance_core.format.naming import blob_file_name
from lance_core.format.page_view import FetchedRange, schema_view
from lance_core.storage.concurrency import requests_max
from lance_core.storage.factory import TableStore
from lance_core.storage.local import LocalStore
from lance_core.storage.lru_cache import LruCache
from lance_core.storage.object_upload import StagedFile

if TYPE_CHECKING:
    import lance.file

_JSON_RELEASE = 13
"""First release of pylance that encodes JSON. Older ones store the text as it is, which no release can read."""
_SESSIONS_MAX = 64
_STRUCT_ID = pa.struct([]).id
OPEN_FILES_MAX = 128
_WRITE_BYTES_MAX = 8 * 1024**2
"""Largest batch that is written at once; the library buffers as much of each column before it writes a page."""
_declared_schemas: "dict[bytes, _DeclaredSchema]" = {}
"""Schemas of opened files by their serialized form: most files of a table have the same schema."""
_CACHED_SCHEMAS_MAX = 1024
_DRAFT_FORMAT_MESSAGE = "miniblock pages require the u32 chunk grammar"
"""Part of the codec's message for files of version 2.2 as releases around 1.0 wrote it."""


@dataclass(frozen=True, slots=True)
class LanceCodec:
    """Codec for Lance files."""

    store: TableStore
    verify_mode: Verify = Verify.OFF
    trusted: bool = True
    """`False` if all files are decoded in another process."""

    def verify(self, path: str, checksum: FileChecksum | None) -> None:
        FileVerifier(self.store, self.verify_mode).verify(path, checksum)

    def create(self, path: str, schema: pa.Schema, version: StorageVersion) -> "LanceFileWriter":
        return LanceFileWriter(self.store, path, schema, version)

    def open(
        self,
        path: str,
        columns: Sequence[str] = (),
        *,
        size: int | None = None,
        is_vouched: bool = False,
    ) -> FileReader:
        is_local = isinstance(self.store, LocalStore)
        if not is_local and self.trusted and size is not None and (opened := self._open_object(path, columns, size)):
            return opened
        # The other process needs no check, so an untrusted file of an object store takes no request here.
        checked = check_file(self.store, path, size, is_vouched=is_vouched) if is_local or self.trusted else UNCHECKED
        if self.trusted and checked.is_plausible:
            names = tuple(columns)
            if not is_local:
                return LanceFileReader(self.store, path, checked, names)
            key = self.store.codec_uri, path, checked.identity, names
            return OPEN_FILES.get_or_create(key, lambda: LanceFileReader(self.store, path, checked, names))
        from lance_core.datafiles.isolated_reader import IsolatedReader  # imports modules that start processes

        return IsolatedReader(self.store, path, checked, tuple(columns), size=size)

    def read_object(self, path: str, size: int) -> bytes:
        """Read a whole object of this size. This is faster than the store if many threads read, since the codec sends
        the request without the interpreter lock."""
        return self._read_range(path, 0, size)

    def open_ahead(self, files: Sequence[FileToRead]) -> None:
        """Open untrusted files of an object store concurrently, so that their readers open fast afterwards."""
        if not self.trusted and not isinstance(self.store, LocalStore):
            from lance_core.datafiles.isolated_reader import open_ahead  # imports modules that start processes

            open_ahead(self.store, files)

    def join(self, files: Sequence[FileToRead], columns: Sequence[str]) -> JoinedReader | None:
        if not self.trusted or not files or not columns:
            return None
        names = tuple(columns)
        if isinstance(self.store, LocalStore):
            staged = stage_local(self.store, files, names)
        elif any(file.size is None for file in files):
            return None
        else:
            staged = stage_objects(self.store, files, names, self._read_range, requests_max(self.store))
        if staged is None:
            return None
        decoder = self.view_decoder(files[0].path)
        row_counts = [checked.pages.rows for checked in staged.files if checked.pages is not None]
        return JoinedReader(row_counts, decoder.schema_of(staged.files[0]), staged, decoder)

    def view_decoder(self, path: str) -> "_ViewDecoder":
        """Return the decoder for pages of a file in memory."""
        return _ViewDecoder(self.store, self.store.codec_path(path))

    def _open_object(self, path: str, columns: Sequence[str], size: int) -> FileReader | None:
        """Open a file of an object store by reading its end, with one request; `None` if only the codec can open it."""
        checked, tail = open_object(self.store, FileToRead(path, size), self._read_range)
        decoder = self.view_decoder(path)
        if checked.pages is None or not decoder.can_read(checked):
            return None

        def open_by_codec() -> FileReader:
            return LanceFileReader(self.store, path, checked, tuple(columns))

        return ObjectReader(
            self.store, path, checked, tail, self._read_range, requests_max(self.store), decoder, open_by_codec
        )

    def _read_range(self, path: str, start: int, length: int) -> bytes:
        """Read a range of a file of an object store without the interpreter lock. A failed or incomplete answer is
        asked for again by the store, which knows which errors are final."""
        try:
            session = _session(self.store.codec_uri, self.store.codec_options)
            send = partial(session.read_range, path, start, length)
            if isinstance(self.store, LocalStore):
                return bytes(send())
            return bytes(self.store.run_limited(send, received_max=length))
        except (AttributeError, OSError, ValueError, RuntimeError):
            return self.store.read(path, start, length)


def load_library() -> None:
    """Load pylance, which otherwise happens when the first file is opened."""
    importlib.import_module("lance.file")


@functools.cache
def pylance_release() -> int:
    """Return the major version of the installed pylance."""
    return int(version("pylance").partition(".")[0])


def check_json_support(schema: pa.Schema, release: int) -> None:
    """Raise `Unsupported` if this release of pylance would write JSON columns that cannot be read."""
    if release < _JSON_RELEASE:
        for field in schema:
            if _holds_json(field.type):
                raise Unsupported(
                    f"column {field.name!r} has JSON, which pylance {release} cannot write; install pylance "
                    f"{_JSON_RELEASE} or newer"
                )


def _holds_json(arrow: pa.DataType) -> bool:
    return is_json(arrow) or any(_holds_json(arrow.field(index).type) for index in range(arrow.num_fields))


def _split_by_bytes(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch of vectors or of other wide rows. The library encodes one batch while it writes the one before; a
    batch of 32 MiB took twice as long as four of 8 MiB, and became a page that takes twice as long to read."""
    if batch.get_total_buffer_size() <= _WRITE_BYTES_MAX:  # this is much faster than `nbytes`
        yield batch
        return
    parts = -(-batch.nbytes // _WRITE_BYTES_MAX)
    rows = max(1, -(-batch.num_rows // max(1, parts)))
    if rows >= batch.num_rows:
        yield batch
        return
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class LanceFileWriter:
    """Writer for one file and its blob files. A file of an object store is written to the local disk first, where its
    hash is computed, and its parts are sent as soon as they are written; blob files have no hash and are sent by the
    codec."""

    def __init__(self, store: TableStore, path: str, schema: pa.Schema, version: StorageVersion) -> None:
        from lance.file import LanceFileWriter as Writer

        check_json_support(schema, pylance_release())
        self._store = store
        self._path = path
        self._blob_directory = path.removesuffix(".lance")
        self._full_path = store.codec_path(path)
        store.create_directory(path.rpartition("/")[0])
        with _translated_errors(self._store, self._full_path):
            self._staged = None if isinstance(store, LocalStore) else StagedFile(store, path)
            self._blobs = BlobFiles(schema, packed=self._open_packed, dedicated=self._open_dedicated)
            self._has_structs = any(map(_holds_struct, self._blobs.schema.types))
            local_path = self._full_path if self._staged is None else str(self._staged.path)
            self._writer = Writer(local_path, self._blobs.schema, version=str(version))

    def write(self, batch: pa.RecordBatch) -> None:
        with _translated_errors(self._store, self._full_path):
            stored = self._blobs.write_blobs(batch)
            for part in _split_by_bytes(stored):
                if self._has_structs:
                    columns = [_copy_sliced_structs(column) for column in part.columns]
                    part = pa.RecordBatch.from_arrays(columns, schema=stored.schema)
                self._writer.write_batch(part)
            if self._staged is not None:
                self._staged.advance()

    def add_buffer(self, data: bytes) -> int:
        with _translated_errors(self._store, self._full_path):
            return int(self._writer.add_global_buffer(data))

    def add_metadata(self, key: str, value: str) -> None:
        with _translated_errors(self._store, self._full_path):
            self._writer.add_schema_metadata(key, value)

    def finish(self, unsynced: list[str] | None = None) -> FileChecksum:
        with _translated_errors(self._store, self._full_path):
            self._blobs.finish()
            self._writer.close()
            if self._staged is not None:
                self._check_complete(self._staged.path.stat().st_size)
                return self._staged.finish()
        blobs = [f"{self._blob_directory}/{blob_file_name(number)}" for number in self._blobs.blob_ids]
        checksum = compute_checksum(self._store, self._path)  # from memory, since nothing is on disk yet
        if unsynced is None:
            self._store.ensure_durable([*blobs, self._path])
        else:
            unsynced += [*blobs, self._path]
        self._check_complete(checksum.size)
        return checksum

    def _check_complete(self, size: int) -> None:
        """Raise `StorageError` if the size of the file differs from the number of written bytes. The codec of pylance
        14 reports no error if the last write of a file fails, for example because the disk is full."""
        if size != self._writer.size_bytes:
            place = "the disk" if self._staged is None else f"the local disk, in {self._staged.directory}"
            raise StorageError(
                f"{self._full_path} is incomplete: {size:,} of {self._writer.size_bytes:,} bytes are on {place}. "
                "Check its free space and the quota, then repeat the write"
            )

    def _open_packed(self, number: int) -> Sidecar:
        self._store.create_directory(self._blob_directory)
        writer = _session(self._store.codec_uri, self._store.codec_options).open_packed_blob_writer(self._path, number)
        return Sidecar(writer.write_blob, writer.finish)

    def _open_dedicated(self, number: int) -> Sidecar:
        self._store.create_directory(self._blob_directory)
        writer = _session(self._store.codec_uri, self._store.codec_options).open_dedicated_blob_writer(
            self._path, number
        )
        return Sidecar(writer.write, writer.finish)


class LanceFileReader:
    """Reader for one file. It opens the file once for every projection that is requested, beginning with the expected
    one, which also yields the schema of the file.

    The codec's own readers refuse concurrent calls, except those that only return values in memory. A lock therefore
    serializes the calls. Batches, which take most of the time, are decoded without it.
    """

    def __init__(
        self,
        store: TableStore,
        path: str,
        checked: CheckedFile,
        columns: tuple[str, ...],
        *,
        describe: bool = False,
    ) -> None:
        self._store = store
        self._path = path
        self._checked = checked
        self.full_path = store.codec_path(path)
        self._columns = columns or None
        self._reader = self._open(self._columns)
        self._describe = describe
        self._described: LanceFileReader | None = None
        self._declared: _DeclaredSchema | None = None
        self._projections: dict[tuple[str, ...], lance.file.LanceFileReader] = {}
        self._call_lock = threading.RLock()
        self._row_count = int(self._reader.num_rows())

    def _open(self, columns: tuple[str, ...] | None) -> "lance.file.LanceFileReader":
        with _translated_errors(self._store, self.full_path):
            session = _session(self._store.codec_uri, self._store.codec_options)
            if columns is None:
                return session.open_reader(self._path)
            try:
                return session.open_reader(self._path, list(columns))
            except (OSError, ValueError):
                # The file has other column names, which the caller then reads from its schema.
                self._columns = None
                return session.open_reader(self._path)

    @property
    def row_count(self) -> int:
        return self._row_count

    @property
    def schema(self) -> pa.Schema:
        return self._declared_schema().schema

    @property
    def metadata(self) -> Mapping[str, str]:
        return {key.decode(): value.decode() for key, value in (self.schema.metadata or {}).items()}

    def read_buffer(self, number: int) -> bytes:
        with _translated_errors(self._store, self.full_path), self._call_lock:
            return bytes(self._reader.read_global_buffer(number))

    def _declared_schema(self) -> "_DeclaredSchema":
        """Return the schema of the file. Asking the codec takes several times as long as comparing the serialized
        schema with those of other files."""
        if self._declared is None:
            key = self._checked.schema_bytes
            declared = None if key is None else _declared_schemas.get(key)
            if declared is None:
                with _translated_errors(self._store, self.full_path), self._call_lock:
                    declared = _DeclaredSchema.of(self._reader.metadata().schema)
                if key is not None and len(_declared_schemas) < _CACHED_SCHEMAS_MAX:
                    _declared_schemas[key] = declared
            self._declared = declared
        return self._declared

    def with_descriptors(self) -> "LanceFileReader":
        with self._call_lock:
            if self._described is None:
                self._described = LanceFileReader(self._store, self._path, self._checked, (), describe=True)
            return self._described

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        self._checked.check_offsets(self._store, self._path, columns)
        with _translated_errors(self._store, self.full_path):
            with self._call_lock:
                result = self._reader_for(columns).read_range(start, count, batch_size=BATCH_ROWS)
            yield from _limit_batches(result.to_batches(), count)

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        """Begin to read the rows at once, so that a caller that takes rows of several files reads them concurrently."""
        self._checked.check_offsets(self._store, self._path, columns)
        with _translated_errors(self._store, self.full_path), self._call_lock:
            result = self._reader_for(columns).take_rows(rows.tolist(), batch_size=BATCH_ROWS)

        def batches() -> Iterator[pa.RecordBatch]:
            with _translated_errors(self._store, self.full_path):
                yield from _limit_batches(result.to_batches(), len(rows))

        return batches()

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        return take_plain(self._store, self._path, self._checked, column, rows)

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        return read_plain(self._store, self._path, self._checked, columns, ranges)

    def _reader_for(self, columns: Sequence[str]) -> "lance.file.LanceFileReader":
        names = tuple(columns)
        opened = self._columns or tuple(self._declared_schema().schema.names)
        if names == opened and not self._needs_view(names):
            return self._reader
        if names not in self._projections:
            session = (
                self._open_view(names)
                if self._needs_view(names)
                else _session(self._store.codec_uri, self._store.codec_options)
            )
            self._projections[names] = session.open_reader(self._path, list(names))
        return self._projections[names]

    def _needs_view(self, columns: Sequence[str]) -> bool:
        if self._describe:
            return True
        return not {name.partition(".")[0] for name in columns}.isdisjoint(self._declared_schema().misread)

    def _open_view(self, columns: Sequence[str]) -> "lance.file.LanceFileSession":
        """Open a view of the file, which exists on disk as long as this reader."""
        info = self._store.head(self._path)
        if info is None:
            raise NotFound(f"data file {self._path} does not exist")
        column_metadata = self._reader.metadata().columns

        def pages(number: int) -> list[tuple[int, int]]:
            buffers = [
                *column_metadata[number].column_buffers,
                *(each for page in column_metadata[number].pages for each in page.buffers),
            ]
            return [(each.position, each.size) for each in buffers]

        view = blob_view.build_view(
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
class _ViewDecoder:
    """Decoder of views of the pages of files."""

    _store: TableStore
    _path: str
    """Path of a file whose pages are decoded, for errors."""

    def can_read(self, checked: CheckedFile) -> bool:
        """Return whether the codec reads all columns of a file from the places where they are."""
        return not self._declared(checked).misread

    def schema_of(self, checked: CheckedFile) -> pa.Schema:
        return self._declared(checked).schema

    def read(
        self, view: Sequence[FetchedRange], columns: Sequence[str], start: int, count: int
    ) -> Iterator[pa.RecordBatch]:
        with _translated_errors(self._store, self._path):
            result = _open_view(view, columns).read_range(start, count, batch_size=BATCH_ROWS)
            yield from _limit_batches(result.to_batches(), count)

    def take(self, view: Sequence[FetchedRange], columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        with _translated_errors(self._store, self._path):
            result = _open_view(view, columns).take_rows(rows.tolist(), batch_size=BATCH_ROWS)

        def batches() -> Iterator[pa.RecordBatch]:
            with _translated_errors(self._store, self._path):
                yield from _limit_batches(result.to_batches(), len(rows))

        return batches()

    def _declared(self, checked: CheckedFile) -> "_DeclaredSchema":
        assert checked.pages is not None
        key = checked.pages.schema_bytes
        declared = _declared_schemas.get(key)
        if declared is None:
            with _translated_errors(self._store, self._path):
                view = schema_view(key, checked.pages.version)
                declared = _DeclaredSchema.of(_open_view(view, None).metadata().schema)
            if len(_declared_schemas) < _CACHED_SCHEMAS_MAX:
                _declared_schemas[key] = declared
        return declared


def _open_view(view: Sequence[FetchedRange], columns: Sequence[str] | None) -> "lance.file.LanceFileReader":
    """Open a view by the codec, which opens files by name alone."""
    names = None if columns is None else list(columns)
    if hasattr(os, "memfd_create") and os.path.isdir(directory := f"/proc/{os.getpid()}/fd"):
        with open(os.memfd_create("lance-view"), "wb") as file:
            _write_ranges(file, view)
            return _session(directory, ()).open_reader(str(file.fileno()), names)
    with tempfile.NamedTemporaryFile(prefix="lance-view-") as named:
        _write_ranges(named.file, view)
        directory, name = os.path.split(named.name)
        return _session(directory, ()).open_reader(name, names)


def _write_ranges(file: IO[bytes], ranges: Sequence[FetchedRange]) -> None:
    """Write ranges at their positions, with holes between them."""
    end = 0
    for position, data in ranges:
        if position != end:
            file.seek(position)
        file.write(data)
        end = position + len(data)
    file.flush()


@dataclass(frozen=True, slots=True)
class _DeclaredSchema:
    """Schema that a file declares, and the columns that the codec would read from wrong places."""

    schema: pa.Schema
    misread: frozenset[str]

    @classmethod
    def of(cls, declared: pa.Schema) -> "_DeclaredSchema":
        schema = blob_view.repair_schema(declared)
        if schema is declared:
            return cls(declared, frozenset())
        first_misread = next(number for number, each in enumerate(declared) if blob_view.is_misread(each))
        return cls(schema, frozenset(schema.names[first_misread:]))


OPEN_FILES: "LruCache[tuple[str, str, tuple[int, ...], tuple[str, ...]], LanceFileReader]" = LruCache(
    OPEN_FILES_MAX, "open files"
)
"""Local files that the codec has open, with the columns for which it opened them: it takes it milliseconds to open a
file of many pages. A file that was replaced since has another identity."""


_sessions: "LruCache[tuple[str, tuple[tuple[str, str], ...]], lance.file.LanceFileSession]" = LruCache(_SESSIONS_MAX)
_session_lock = threading.Lock()


def _session(root: str, options: tuple[tuple[str, str], ...]) -> "lance.file.LanceFileSession":
    """Return a session of the codec. It halves the cost of opening a small file, and caches no file content. A lock
    ensures that concurrent first calls create one session, which takes milliseconds."""
    from lance.file import LanceFileSession

    found = _sessions.get((root, options))
    if found is not None:
        return found
    with _session_lock:
        return _sessions.get_or_create(
            (root, options), lambda: LanceFileSession(root, storage_options=dict(options) or None)
        )


def _reset_session_lock() -> None:
    """Replace the lock in a forked process: another thread of the parent may have held it."""
    global _session_lock
    _session_lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_session_lock)


def _limit_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches until `rows` rows have been read. Asking the codec for one more batch takes as long as reading
    a small batch."""
    for batch in batches:
        yield nulls_as_missing_indices(batch)
        rows -= batch.num_rows
        if rows <= 0:
            return


def _copy_sliced_structs(array: pa.Array) -> pa.Array:
    """Copy slices of structs inside structs and fixed-size lists, on which the codec panics."""
    if not (_holds_struct(array.type) and _has_offset(array)):
        return array
    return copy_array(array)


def _holds_struct(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        arrow = arrow.storage_type
    if not arrow.num_fields and arrow.id != _STRUCT_ID:
        return False
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
def _translated_errors(store: TableStore, path: str) -> Iterator[None]:
    """Translate errors and panics of the codec to typed errors without secrets."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        what = store.without_secrets(_without_build_paths(str(error)))
        if what.startswith("Not found"):
            raise NotFound(f"data file {path} does not exist") from error
        if _DRAFT_FORMAT_MESSAGE in what:
            raise Unsupported(
                f"data file {path} was written in a draft of its storage version, before that version was final: "
                f"{what}. The release that wrote it can copy it into a final version"
            ) from error
        raise StorageError(f"data file {path}: {what}") from (error if isinstance(store, LocalStore) else None)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise StorageError(f"data file {path}: the codec panicked: {_without_build_paths(str(error))}") from error


def _without_build_paths(message: str) -> str:
    """Return a message of the codec without the location in its source code, with which it ends."""
    head, separator, tail = message.rpartition(", /")
    return head if separator and ".rs:" in tail else message
