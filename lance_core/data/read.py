"""A fragment's rows, as the table's schema says they are: columns found by field id, dropped rows left out.

A column that no file of the fragment stores is null in all of its rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.data import jsonb
from lance_core.data.codec import DataCodec, FileReader
from lance_core.data.layout import Path, check_legacy_ids, is_blob, legacy_paths_of, paths_of, stored_ids
from lance_core.data.legacy_codec import LegacyFileReader
from lance_core.errors import Corrupt, Unsupported
from lance_core.format import naming
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.logical_types import is_json
from lance_core.format.schema import Field, TableSchema
from lance_core.storage.store import Store


@dataclass(frozen=True, slots=True)
class _Source:
    """An open file and where in it the table's fields are."""

    file: DataFile
    reader: FileReader
    paths: dict[int, Path]


def read_deletions(store: Store, fragment: Fragment) -> DeletionVector | None:
    """What the deletion file says, whatever the manifest counts."""
    deleted = fragment.deletion_file
    if deleted is None:
        return None
    if deleted.base_id is not None:
        raise Unsupported(f"{deleted.path} is in another base path, which this version does not read")
    decode = DeletionVector.decode_bitmap if deleted.is_bitmap else DeletionVector.decode_arrow
    return decode(store.read(deleted.path), path=deleted.path)


def load_deletions(store: Store, fragment: Fragment) -> DeletionVector | None:
    deleted, vector = fragment.deletion_file, read_deletions(store, fragment)
    if deleted is None or vector is None:
        return None
    if deleted.deleted_rows is not None and deleted.deleted_rows != len(vector):
        raise Corrupt(
            f"lists {len(vector)} rows, the manifest counts {deleted.deleted_rows}",
            path=deleted.path,
            field="rows",
        )
    if len(vector) and int(vector.offsets[-1]) >= fragment.physical_rows:
        raise Corrupt(
            f"deletes row {vector.offsets[-1]} of {fragment.physical_rows}", path=deleted.path, field="row_id"
        )
    return vector


def count_file_rows(store: Store, codec: DataCodec, file: DataFile) -> int:
    """Rows that a file says it has, deleted ones included."""
    return _reader(store, codec, file).row_count


@dataclass(frozen=True, slots=True)
class LiveRows:
    """A batch of live rows, and where in the fragment they are."""

    batch: pa.RecordBatch
    _start: int
    _alive: npt.NDArray[np.bool_] | None
    """Over the physical rows from `_start`; None where all of them are live."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Physical, ascending."""
        if self._alive is None:
            return np.arange(self._start, self._start + self.batch.num_rows, dtype=np.int64)
        return np.flatnonzero(self._alive) + self._start


def read_fragment(
    store: Store,
    codec: DataCodec,
    fragment: Fragment,
    schema: TableSchema,
    *,
    columns: Sequence[str],
    start: int = 0,
    count: int | None = None,
    path: str,
) -> Iterator[LiveRows]:
    """Live rows among the physical rows `start` to `start + count`, in order, in batches.
    `path` is the manifest's."""
    fragment.check(path=path)
    fields = [schema.field(name) for name in columns]
    arrow = pa.schema([schema.arrow.field(name) for name in columns], schema.arrow.metadata)
    files = fragment.files
    if files and files[0].version.is_legacy:
        check_legacy_ids(files, schema)
    sources = [_open(store, codec, file, schema) for file in files if _holds_any(file, fields)]
    rows = fragment.physical_rows
    for source in sources:
        if source.reader.row_count != rows:
            raise Corrupt(
                f"has {source.reader.row_count} rows, its fragment {fragment.id} {rows}",
                path=source.file.path,
                field="rows",
            )
    count = rows - start if count is None else min(count, rows - start)
    deletions = load_deletions(store, fragment)
    position = start
    for batch in _batches(sources, fields, arrow, start, count):
        alive = deletions.alive(position, batch.num_rows) if deletions else None
        if alive is not None and alive.all():
            alive = None
        yield LiveRows(_only(batch, alive), position, alive)
        position += batch.num_rows


def _batches(
    sources: Sequence[_Source], fields: Sequence[Field], arrow: pa.Schema, start: int, count: int
) -> Iterator[pa.RecordBatch]:
    served: dict[int, _Source] = {}
    for source in sources:
        for field in fields:
            if _holds_any(source.file, [field]) and served.setdefault(field.id, source) is not source:
                raise Unsupported(
                    f"column {field.name!r} is spread over {served[field.id].file.path} and "
                    f"{source.file.path}, which this version cannot put together; leave it out"
                )
    if not served:
        nulls = [pa.nulls(count, field.type) for field in arrow]
        yield pa.RecordBatch.from_arrays(nulls, schema=arrow) if nulls else _rows_without_columns(count)
        return
    streams: list[Iterator[pa.RecordBatch]] = []
    stream_of: dict[tuple[str, str], int] = {}
    for source in sources:
        for names in _read_together(source, fields):
            stream_of |= {(source.file.path, name): len(streams) for name in names}
            streams.append(source.reader.read(names, start, count))
    for parts in zip(*streams, strict=True):
        columns = []
        for field, target in zip(fields, arrow, strict=True):
            held_by = served.get(field.id)
            if held_by is None:
                columns.append(pa.nulls(parts[0].num_rows, target.type))
            else:
                name = _name_in(held_by, field)
                part = parts[stream_of[held_by.file.path, name]]
                array = part.column(part.schema.get_field_index(name))
                columns.append(_assembled(field, target, array, held_by, depth=1))
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def _open(store: Store, codec: DataCodec, file: DataFile, schema: TableSchema) -> _Source:
    reader = _reader(store, codec, file)
    if isinstance(reader, LegacyFileReader):
        return _Source(file, reader, legacy_paths_of(file, reader.table_schema, schema))
    return _Source(file, reader, paths_of(file, TableSchema.from_arrow(reader.schema)))


def _reader(store: Store, codec: DataCodec, file: DataFile) -> FileReader:
    if file.base_id is not None:
        raise Unsupported(f"{file.path} is in another base path, which this version does not read")
    path = f"{naming.DATA}/{file.path}"
    return LegacyFileReader.open(store, path) if file.version.is_legacy else codec.open(path)


def _holds_any(file: DataFile, fields: Sequence[Field]) -> bool:
    held = set(file.field_ids)
    return any(held & stored_ids(field, file.version) for field in fields)


def _read_together(source: _Source, fields: Sequence[Field]) -> list[list[str]]:
    """The file's columns that hold these fields, in groups that the codec can read at once."""
    together: list[str] = []
    apart: list[list[str]] = []
    for field in fields:
        if not _holds_any(source.file, [field]):
            continue
        if is_blob(field):
            raise Unsupported(f"column {field.name!r} is a blob column, which this version cannot read; leave it out")
        name = _name_in(source, field)
        if any(_is_read_apart(node) for node in field.walk()):
            apart.append([name])
        else:
            together.append(name)
    return [*([together] if together else []), *apart]


def _is_read_apart(field: Field) -> bool:
    """The codec refuses to read fixed-size lists of structs beside columns of another length, and mistakes the
    columns that come after a struct without children."""
    is_empty_struct = field.logical_type == "struct" and not field.children
    return is_empty_struct or field.logical_type.startswith("fixed_size_list:struct:")


def _name_in(source: _Source, field: Field) -> str:
    """What the file calls this top-level column."""
    return next(source.paths[node.id] for node in field.walk() if node.id in source.paths)[0]


def _assembled(field: Field, target: pa.Field, array: pa.Array, source: _Source, *, depth: int) -> pa.Array:
    """A file's array under the names, and with just the children, that the table gives it now."""
    if array.type == target.type:
        return array
    if is_json(target.type):
        return _json_text(array, target.type, source.file.path)
    if isinstance(target.type, pa.BaseExtensionType):
        storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
        return pa.ExtensionArray.from_storage(target.type, storage.cast(target.type.storage_type))
    if pa.types.is_struct(target.type) and pa.types.is_struct(array.type):
        children = []
        for child, child_target in zip(field.children, target.type, strict=True):
            path = next((source.paths[node.id] for node in child.walk() if node.id in source.paths), None)
            if path is None:
                children.append(pa.nulls(len(array), child_target.type))
            else:
                children.append(_assembled(child, child_target, array.field(path[depth]), source, depth=depth + 1))
        return pa.StructArray.from_arrays(children, fields=list(target.type), mask=array.is_null())
    try:
        return array.cast(target.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Unsupported(
            f"{source.file.path}: column {field.name!r} is stored as {array.type} and the table says {target.type}"
        ) from error


def _json_text(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    storage = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    if pa.types.is_string(storage.type) or pa.types.is_large_string(storage.type):
        # Releases that did not know the type stored what it was made of.
        return pa.ExtensionArray.from_storage(target, storage.cast(target.storage_type))
    texts = [None if value is None else jsonb.to_text(value, path=path) for value in storage.to_pylist()]
    return pa.ExtensionArray.from_storage(target, pa.array(texts, target.storage_type))


def _only(batch: pa.RecordBatch, alive: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
    if alive is None:
        return batch
    if not batch.num_columns:
        return _rows_without_columns(int(alive.sum()))
    return batch.filter(pa.array(alive))


def _rows_without_columns(count: int) -> pa.RecordBatch:
    """A batch that still knows how many rows it stands for."""
    none_null = pa.array(np.zeros(count, dtype=np.bool_))
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_arrays([], fields=[], mask=none_null))
