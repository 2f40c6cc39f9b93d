"""A fragment's rows, as the table's schema says they are: columns found by field id, dropped rows left out.

A column that no file of the fragment stores is null in all of its rows. What several files hold of one column is put
together in `assemble.py`.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.data.assemble import Part, assembled, is_in_place
from lance_core.data.blob_view import described
from lance_core.data.codec import BATCH_ROWS, DataCodec, FileReader, Rows
from lance_core.data.layout import Path, check_legacy_ids, is_blob, legacy_paths_of, paths_of, stored_ids
from lance_core.data.legacy_codec import LegacyFileReader
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
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
    decode = DeletionVector.decode_bitmap if deleted.is_bitmap else DeletionVector.decode_arrow
    return decode(store.read(deleted.place), path=deleted.path)


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
    def count(self) -> int:
        return int(self.batch.num_rows)

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
    wanted = TableSchema(tuple(schema.field(name) for name in columns), schema.metadata)
    reader = FragmentReader(store, codec, schema, wanted, path=path)
    return reader.open(fragment).live(load_deletions(store, fragment), start, count)


class FragmentReader:
    """Reads some columns of any fragment of a version. What it learns of one file's layout it remembers for the next,
    since most files of a table are alike. Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        codec: DataCodec,
        schema: TableSchema,
        wanted: TableSchema,
        *,
        path: str,
        describe_blobs: bool = False,
    ) -> None:
        """`wanted` has fields of `schema`, of structs maybe not all children. `path` is the manifest's. Of blob columns
        come the blobs, or where they are (`describe_blobs`)."""
        self._store = store
        self._codec = codec
        self._schema = schema
        self._fields = wanted.fields
        self.arrow = described(wanted) if describe_blobs else wanted.arrow
        self._described = frozenset(field.id for field in wanted.fields if describe_blobs and is_blob(field))
        whole = {field.id: field for field in schema.fields}
        self._pruned = frozenset(field.id for field in wanted.fields if field.children != whole[field.id].children)
        self._path = path
        self._layouts: dict[_Shape, _Layout] = {}

    def live(
        self, fragment: Fragment, deletions: DeletionVector | None, start: int = 0, count: int | None = None
    ) -> Iterator[LiveRows]:
        """Live rows among the physical rows `start` to `start + count`, in order, in batches."""
        return self.open(fragment).live(deletions, start, count)

    def take(self, fragment: Fragment, rows: Rows) -> pa.RecordBatch:
        """These physical rows, deleted or not."""
        return self.open(fragment).take(rows)

    def open(self, fragment: Fragment) -> "OpenFragment":
        """Its files, as far as they hold any of the columns."""
        fragment.check_itself(path=self._path)
        files = fragment.files
        shape = tuple((file.field_ids, file.column_indices, file.version) for file in files)
        layout = self._layouts.get(shape)
        if layout is None or (sources := layout.opened(self._store, self._codec, files)) is None:
            fragment.check(path=self._path)
            if files and files[0].version.is_legacy:
                check_legacy_ids(files, self._schema)
            self._check_held(fragment)
            held = [(number, file) for number, file in enumerate(files) if _holds_any(file, self._fields)]
            sources = [_open(self._store, self._codec, file, self._schema, self._likely(file)) for _, file in held]
            layout = self._laid_out(sources, [number for number, _ in held])
            if not any(file.version.is_legacy for file in files):
                self._layouts[shape] = layout
        for source in sources:
            if source.reader.row_count != fragment.physical_rows:
                raise Corrupt(
                    f"has {source.reader.row_count} rows, its fragment {fragment.id} {fragment.physical_rows}",
                    path=source.file.path,
                    field="rows",
                )
        all_live = fragment.deletion_file is None
        return OpenFragment(fragment.physical_rows, all_live, sources, layout, self._fields, self.arrow)

    def _check_held(self, fragment: Fragment) -> None:
        for field in self._fields:
            if not field.nullable and not any(_holds_any(file, [field]) for file in fragment.files):
                raise Corrupt(
                    f"no file of fragment {fragment.id} holds column {field.name!r}, which is not nullable",
                    path=self._path,
                    field=f"fragments[id={fragment.id}]",
                )

    def _likely(self, file: DataFile) -> list[str]:
        """What will be read of a file that calls its columns what the table does."""
        own = (field for field in self._fields if _holds_any(file, [field]) and not self._is_apart(field))
        return [name for field in own for name in _names(field, {}, is_pruned=field.id in self._pruned)]

    def _is_apart(self, field: Field) -> bool:
        return field.id in self._described or any(_is_read_apart(node) for node in field.walk())

    def _laid_out(self, sources: "Sequence[_Source]", numbers: Sequence[int]) -> "_Layout":
        streams: list[tuple[int, tuple[str, ...]]] = []
        descriptors: set[int] = set()
        places: dict[int, list[tuple[int, int, str]]] = {field.id: [] for field in self._fields}
        for number, source in enumerate(sources):
            for fields in self._read_together(source):
                if fields[0].id in self._described:
                    descriptors.add(len(streams))
                for field in fields:
                    places[field.id].append((number, len(streams), _name_in(source, field)))
                names = (_names(field, source.paths, is_pruned=field.id in self._pruned) for field in fields)
                streams.append((number, tuple(name for group in names for name in group)))
        by_field = [places[field.id] for field in self._fields]
        paths, schemas = tuple(source.paths for source in sources), tuple(source.reader.schema for source in sources)
        straight = len(streams) == 1 and not descriptors and not self._pruned
        straight = straight and all(_is_straight(field, places[field.id], paths[0]) for field in self._fields)
        return _Layout(tuple(numbers), paths, schemas, streams, by_field, descriptors, straight)

    def _read_together(self, source: "_Source") -> list[list[Field]]:
        """The fields that the file holds, in groups that the codec can read at once."""
        held = [field for field in self._fields if _holds_any(source.file, [field])]
        for field in held:
            if is_blob(field) and field.children and field.id not in self._described:
                raise Unsupported(
                    f"the blobs of column {field.name!r} lie beside their data files and cannot be read as values "
                    "here; read them with `blobs`, or leave the column out"
                )
        together = [field for field in held if not self._is_apart(field)]
        return [*([together] if together else []), *([field] for field in held if self._is_apart(field))]


@dataclass(frozen=True, slots=True)
class OpenFragment:
    """Made by `FragmentReader.open`; several threads may read from one."""

    physical_rows: int
    all_live: bool
    sources: "Sequence[_Source]"
    layout: "_Layout"
    fields: Sequence[Field]
    arrow: pa.Schema

    def live(self, deletions: DeletionVector | None, start: int = 0, count: int | None = None) -> Iterator[LiveRows]:
        """Live rows among the physical rows `start` to `start + count`, in order, in batches."""
        left = self.physical_rows - start
        position = start
        for batches in self._batches(_Range(start, left if count is None else min(count, left))):
            rows = batches[0].num_rows
            alive = deletions.alive(position, rows) if deletions else None
            if alive is not None and alive.all():
                alive = None
            live = [_only(batch, alive) for batch in batches]
            yield LiveRows(self._joined(live, all_live=self.all_live or deletions is not None), position, alive)
            position += rows

    def take(self, rows: Rows) -> pa.RecordBatch:
        """These physical rows, deleted or not."""
        found = [self._joined(batches, all_live=self.all_live) for batches in self._batches(_Picked(rows))]
        return _one_batch(found, self.arrow)

    def _batches(self, rows: "_Range | _Picked") -> Iterator[Sequence[pa.RecordBatch]]:
        """The same rows of every stream at a time."""
        if not self.layout.streams:
            return _rows_of_nothing(len(rows))
        streams = []
        for stream, (number, names) in enumerate(self.layout.streams):
            reader = self.sources[number].reader
            streams.append(rows.read(reader.described() if stream in self.layout.descriptors else reader, names))
        return zip(*streams, strict=True)

    def _joined(self, batches: Sequence[pa.RecordBatch], *, all_live: bool) -> pa.RecordBatch:
        """What the streams hold, as the table's columns."""
        if not self.fields:
            return batches[0]
        if self.layout.is_straight and batches[0].schema.equals(self.arrow):
            return pa.RecordBatch.from_arrays(batches[0].columns, schema=self.arrow)
        columns = []
        for field, target, places in zip(self.fields, self.arrow, self.layout.places, strict=True):
            if any(stream in self.layout.descriptors for _, stream, _ in places):
                ((_, stream, name),) = places
                columns.append(batches[stream].column(name))
                continue
            if not places:
                columns.append(self.layout.nulls(target.type, batches[0].num_rows))
                continue
            parts = []
            for number, stream, name in places:
                source = self.sources[number]
                parts.append(Part(batches[stream].column(name), source.paths, source.file.path, all_live))
            columns.append(assembled(field, target.type, parts, batches[0].num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


@dataclass(frozen=True, slots=True)
class _Range:
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self, reader: FileReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reader.read(names, self.start, self.count)


@dataclass(frozen=True, slots=True)
class _Picked:
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, reader: FileReader, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return reader.take(names, self.rows)


_Shape = tuple[tuple[tuple[int, ...], tuple[int, ...], StorageVersion], ...]
"""What a manifest says of a fragment's files, but for their names and sizes."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the wanted fields are in fragments of one shape, whose files have these schemas."""

    used: tuple[int, ...]
    """The files that hold any of them, by their number in the fragment; the rest of the numbers count these."""
    paths: tuple[dict[int, Path], ...]
    schemas: tuple[pa.Schema, ...]
    streams: Sequence[tuple[int, tuple[str, ...]]]
    """What is read at once: the file and its columns."""
    places: Sequence[Sequence[tuple[int, int, str]]]
    """For each field the files that hold it, or children of it, with the stream and the column there."""
    descriptors: Set[int]
    """The streams that are of blobs told by where they are."""
    is_straight: bool
    """Whether one file has the fields as they are wanted, so that its columns need only be taken in their order."""
    _nulls: dict[pa.DataType, pa.Array] = dataclasses.field(default_factory=dict)

    def nulls(self, arrow: pa.DataType, rows: int) -> pa.Array:
        """Of a column that no file holds: made once, since a manifest can say for nothing that there are many."""
        known = self._nulls.get(arrow)
        if known is None or len(known) < rows:
            known = self._nulls[arrow] = pa.nulls(rows, arrow)
        return known.slice(0, rows)

    def opened(self, store: Store, codec: DataCodec, files: Sequence[DataFile]) -> "Sequence[_Source] | None":
        """The same files of another fragment; None where they have other schemas."""
        sources = []
        for number, (used, paths, schema) in enumerate(zip(self.used, self.paths, self.schemas, strict=True)):
            plain = (each for stream, each in enumerate(self.streams) if stream not in self.descriptors)
            likely = next((names for of, names in plain if of == number), ())
            reader = _reader(store, codec, files[used], likely)
            if not reader.schema.equals(schema, check_metadata=True):
                return None
            sources.append(_Source(files[used], reader, paths))
        return sources


def _rows_of_nothing(count: int) -> Iterator[Sequence[pa.RecordBatch]]:
    """One batch at a time, since `count` is only what a manifest says, and costs it nothing to say."""
    for start in range(0, max(count, 1), BATCH_ROWS):
        yield [rows_without_columns(min(BATCH_ROWS, count - start))]


def _one_batch(batches: Sequence[pa.RecordBatch], arrow: pa.Schema) -> pa.RecordBatch:
    """Of batches that may have no columns."""
    if len(batches) == 1:
        return batches[0]
    if not arrow.names:
        return rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=arrow)


def _open(store: Store, codec: DataCodec, file: DataFile, schema: TableSchema, likely: Sequence[str]) -> _Source:
    reader = _reader(store, codec, file, likely)
    if isinstance(reader, LegacyFileReader):
        return _Source(file, reader, legacy_paths_of(file, reader.table_schema, schema))
    return _Source(file, reader, paths_of(file, TableSchema.from_arrow(reader.schema)))


def _reader(store: Store, codec: DataCodec, file: DataFile, likely: Sequence[str] = ()) -> FileReader:
    return LegacyFileReader.open(store, file.place) if file.version.is_legacy else codec.open(file.place, likely)


def _holds_any(file: DataFile, fields: Sequence[Field]) -> bool:
    held = set(file.field_ids)
    return any(held & stored_ids(field, file.version) for field in fields)


def _names(field: Field, paths: Mapping[int, Path], *, is_pruned: bool) -> list[str]:
    """What is asked of the codec for a field: its column, or paths to the children that are wanted. Where the file's
    own paths are not known, the table's names are taken for them."""
    path = next((paths[node.id] for node in field.walk() if node.id in paths), (field.name,))
    if not is_pruned:
        return [path[0]]
    wanted = list(_wanted_paths(field, (field.name,), paths))
    if any("." in name for found in wanted for name in found):
        return [path[0]]  # of which child would be a part of that name?
    return [".".join(found) for found in wanted] or [path[0]]


def _wanted_paths(field: Field, path: Path, paths: Mapping[int, Path]) -> Iterator[Path]:
    """Through structs only: what lies within a list is read with it."""
    if field.logical_type == "struct" and field.children and not field.is_packed and not is_blob(field):
        for child in field.children:
            yield from _wanted_paths(child, (*path, child.name), paths)
    elif not paths:
        yield path
    elif held := next((paths[node.id] for node in field.walk() if node.id in paths), None):
        yield held[: len(path)]


def _is_straight(field: Field, places: Sequence[tuple[int, int, str]], paths: Mapping[int, Path]) -> bool:
    return [name for _, _, name in places] == [field.name] and is_in_place(field, Part(pa.nulls(0), paths, ""))


def _is_read_apart(field: Field) -> bool:
    """The codec refuses to read fixed-size lists of structs beside columns of another length, and mistakes the
    columns that come after a struct without children."""
    is_empty_struct = field.logical_type == "struct" and not field.children
    return is_empty_struct or field.logical_type.startswith("fixed_size_list:struct:")


def _name_in(source: _Source, field: Field) -> str:
    """What the file calls this top-level column."""
    path = next((source.paths[node.id] for node in field.walk() if node.id in source.paths), None)
    if path is None:
        raise Corrupt(
            f"is said to hold column {field.name!r}, and none of its columns is", path=source.file.path, field="fields"
        )
    return path[0]


def _only(batch: pa.RecordBatch, alive: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
    if alive is None:
        return batch
    if not batch.num_columns:
        return rows_without_columns(int(alive.sum()))
    return batch.filter(pa.array(alive))


def rows_without_columns(count: int) -> pa.RecordBatch:
    """A batch that still knows how many rows it stands for."""
    none_null = pa.array(np.zeros(count, dtype=np.bool_))
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_arrays([], fields=[], mask=none_null))
