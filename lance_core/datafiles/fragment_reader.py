"""Fragment reader: reads the rows of fragments with the columns that the table's schema declares. Columns are found by
field id, and deleted rows are left out.

A column that no file of the fragment stores is null in all rows. `assemble.py` combines what several files store of
one column. Start with `FragmentReader`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from lance_core.datafiles.assemble import StoredColumn, has_same_children
from lance_core.datafiles.blob_values import BlobValues
from lance_core.datafiles.blob_view import descriptor_schema
from lance_core.datafiles.checksums import verify_bytes
from lance_core.datafiles.codec import DataCodec, FileReader, FileToRead, Rows
from lance_core.datafiles.column_layout import Path, check_legacy_ids, is_blob, legacy_paths_of, paths_of, stored_ids
from lance_core.datafiles.error_context import ReadContext
from lance_core.datafiles.fragment_overlays import open_overlays
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.datafiles.open_fragment import (
    FragmentLayout,
    FragmentShape,
    LiveRows,
    OpenFile,
    OpenFragment,
    open_reader,
)
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.field_paths import needs_quotes
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.page_view import FIRST_VERSION
from lance_core.format.schema import Field, TableSchema
from lance_core.limits import DELETION_BYTES
from lance_core.storage.store import Store, read_whole

_table_schemas: dict[bytes, TableSchema] = {}
"""Schemas of files by their serialized Arrow schemas: decoding one takes longer than reading a small file."""
_CACHED_SCHEMAS_MAX = 1024


def read_deletions(store: Store, fragment: Fragment) -> DeletionVector | None:
    """Read the deletion file of a fragment, without comparing it to the counts in the manifest. Raises `Corrupt` if it
    differs from its checksum."""
    deleted = fragment.deletion_file
    if deleted is None:
        return None
    path = f"{store.description}/{deleted.qualified_path}"
    decode = DeletionVector.decode_bitmap if deleted.is_bitmap else DeletionVector.decode_arrow
    data = read_whole(store, deleted.qualified_path, DELETION_BYTES)
    verify_bytes(data, deleted.checksum, path=path)
    return decode(data, path=path)


def load_deletions(store: Store, fragment: Fragment) -> DeletionVector | None:
    """Read the deletion file of a fragment. Raises `Corrupt` if it contradicts the manifest."""
    deleted, vector = fragment.deletion_file, read_deletions(store, fragment)
    if deleted is None or vector is None:
        return None
    if deleted.deleted_rows is not None and deleted.deleted_rows != len(vector):
        raise Corrupt(
            f"lists {len(vector)} deleted rows, but the manifest counts {deleted.deleted_rows}",
            path=deleted.path,
            field="rows",
        )
    if len(vector) and int(vector.offsets[-1]) >= fragment.physical_rows:
        raise Corrupt(
            f"deletes row {vector.offsets[-1]} of a fragment with {fragment.physical_rows} rows",
            path=deleted.path,
            field="row_id",
        )
    return vector


def count_file_rows(store: Store, codec: DataCodec, file: DataFile) -> int:
    """Return the number of rows that a file declares, deleted rows included."""
    return open_reader(store, codec, file).row_count


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
    describe_blobs: bool = False,
) -> Iterator[LiveRows]:
    """Read the live rows among the physical rows `start` to `start + count`, in order, in batches. `path` is the one
    of the manifest."""
    projection = TableSchema(tuple(schema.field(name) for name in columns), schema.metadata)
    reader = FragmentReader(store, codec, schema, projection, path=path, describe_blobs=describe_blobs)
    return reader.open(fragment).read_live(load_deletions(store, fragment), start, count)


def is_joinable(fragment: Fragment) -> bool:
    """Return whether the files of a fragment may be read together with those of others."""
    files = fragment.files
    return bool(files) and not fragment.has_overlays and all(file.version >= FIRST_VERSION for file in files)


class FragmentReader:
    """Reader for some columns of any fragment of a version. It remembers the layout of files it has seen, since most
    files of a table have the same. Safe for use by several threads."""

    def __init__(
        self,
        store: Store,
        codec: DataCodec,
        schema: TableSchema,
        projection: TableSchema,
        *,
        path: str,
        describe_blobs: bool = False,
    ) -> None:
        """Prepare to read the fields of `projection`, which are fields of `schema`; a struct may have fewer children.

        `path` is the one of the manifest. Blob columns return their blobs, in smaller batches, or with
        `describe_blobs` the locations of the blobs.
        """
        self._store = store
        self._codec = codec
        self._schema = schema
        self._fields = projection.fields
        self.arrow = descriptor_schema(projection) if describe_blobs else projection.arrow
        self._blob_ids = frozenset(field.id for field in projection.fields if is_blob(field))
        self._descriptor_schema = self.arrow if describe_blobs else descriptor_schema(projection)
        self._loads_blobs = not describe_blobs and bool(self._blob_ids)
        schema_fields = {field.id: field for field in schema.fields}
        self._nested_blob_ids = frozenset(field.id for field in schema.fields if _has_nested_blobs(field))
        self._pruned_ids = frozenset(
            field.id for field in projection.fields if field.children != schema_fields[field.id].children
        )
        self._path = path
        self._layouts: dict[FragmentShape, FragmentLayout] = {}
        self._unjoinable: set[FragmentShape] = set()

    def read_live(
        self, fragment: Fragment, deletions: DeletionVector | None, start: int = 0, count: int | None = None
    ) -> Iterator[LiveRows]:
        """Read the live rows among the physical rows `start` to `start + count`, in order, in batches."""
        return self.open(fragment).read_live(deletions, start, count)

    def take(self, fragment: Fragment, rows: Rows) -> pa.RecordBatch:
        """Read the rows at these physical offsets, deleted or not."""
        return self.open(fragment).take(rows)

    def take_chunks(self, fragment: Fragment, rows: Rows) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """Read the same rows in chunks whose blobs fit in memory."""
        return self.open(fragment).take_chunks(rows)

    def open(self, fragment: Fragment) -> "OpenFragment":
        """Open the files of the fragment that store any of the columns. Errors of files, here and while the rows are
        read, name the version, the fragment and the columns."""
        fragment.check_limits(path=self._path)
        context = ReadContext(self._path, fragment.id, self.arrow.names)
        with context.named_in_errors():
            return self._open(fragment, context)

    def open_joined(self, fragments: Sequence[Fragment]) -> "OpenFragment | None":
        """Read the columns of several fragments of one shape, whose rows follow one another, deleted ones included.

        `None`, or a `LanceError`, if they have to be read one by one, which also tells which of them an error is about.
        """
        for fragment in fragments:
            fragment.check_limits(path=self._path)
        shape = shape_of(fragments[0])
        if self._blob_ids or shape in self._unjoinable:
            return None
        layout = self._layouts.get(shape)
        joined = self._join(fragments, layout)
        if joined is None and layout is None:
            if shape not in self._layouts:
                self.open(fragments[0])  # the files may name their columns in another way
            joined = self._join(fragments, self._layouts[shape])
        if joined is None:
            self._unjoinable.add(shape)
        return joined

    def _join(self, fragments: Sequence[Fragment], layout: "FragmentLayout | None") -> "OpenFragment | None":
        first = fragments[0]
        numbers, streams = self._expected_streams(first) if layout is None else (layout.file_numbers, layout.streams)
        if not streams or [number for number, _ in streams] != list(range(len(numbers))):
            return None
        sources = []
        for number, names in streams:
            source = self._join_files(fragments, numbers[number], names)
            if source is None:
                return None
            sources.append(source)
        if layout is None:
            first.check(path=self._path)
            self._check_mandatory(first)
            layout = self._learn_layout(first, sources, numbers)
            if layout.descriptors or list(layout.streams) != list(streams):
                return None
        elif not all(map(_has_schema, sources, layout.schemas)):
            return None
        return OpenFragment(
            sum(fragment.physical_rows for fragment in fragments),
            all(fragment.deletion_file is None for fragment in fragments),
            sources,
            layout,
            self._fields,
            self.arrow,
            ReadContext(self._path, first.id, self.arrow.names),
        )

    def _join_files(self, fragments: Sequence[Fragment], number: int, names: Sequence[str]) -> OpenFile | None:
        """Read columns of the file with this number of each fragment."""
        files = [fragment.files[number] for fragment in fragments]
        self._verify(files)
        reader = self._codec.join(
            [FileToRead(file.qualified_path, file.size, len(file.field_ids)) for file in files], names
        )
        if reader is None or list(reader.row_counts) != [fragment.physical_rows for fragment in fragments]:
            return None
        return OpenFile(files[0], reader, paths_of(files[0], _table_schema(reader.schema)))

    def _expected_streams(self, fragment: Fragment) -> tuple[Sequence[int], Sequence[tuple[int, tuple[str, ...]]]]:
        """Return the numbers of the files that store any of the columns, and the columns to read of each, if its column
        names are those of the table."""
        files = fragment.files
        numbers = [number for number, file in enumerate(files) if _stored_of(file, self._fields)]
        return numbers, [(at, tuple(self._expected_names(files[number]))) for at, number in enumerate(numbers)]

    def _learn_layout(self, fragment: Fragment, sources: Sequence[OpenFile], numbers: Sequence[int]) -> FragmentLayout:
        """Return the layout of fragments like this one, whose files have these numbers, and remember it."""
        layout = self._build_layout(sources, numbers)
        if not any(file.version.is_legacy for file in fragment.files):
            self._layouts[shape_of(fragment)] = layout
        return layout

    def _open(self, fragment: Fragment, context: ReadContext) -> "OpenFragment":
        files = fragment.files
        shape = shape_of(fragment)
        layout = self._layouts.get(shape)
        self._verify(
            [file for file in files if _stored_of(file, self._fields)] if layout is None else layout.pick(files)
        )
        if layout is None or (sources := layout.open_files(self._store, self._codec, files)) is None:
            fragment.check(path=self._path)
            if files and files[0].version.is_legacy:
                check_legacy_ids(files, self._schema)
            self._check_mandatory(fragment)
            used = [(number, file) for number, file in enumerate(files) if _stored_of(file, self._fields)]
            sources = [
                _open_file(self._store, self._codec, file, self._schema, self._expected_names(file)) for _, file in used
            ]
            layout = self._learn_layout(fragment, sources, [number for number, _ in used])
        for source in sources:
            if source.reader.row_count != fragment.physical_rows:
                raise Corrupt(
                    f"has {source.reader.row_count} rows, but its fragment {fragment.id} has {fragment.physical_rows}",
                    path=source.file.path,
                    field="rows",
                )
        all_live = fragment.deletion_file is None
        is_legacy = bool(files) and files[0].version.is_legacy
        overlays = open_overlays(fragment, self._fields, self._open_overlay) if fragment.has_overlays else None
        if not self._loads_blobs or is_legacy:
            return OpenFragment(
                fragment.physical_rows, all_live, sources, layout, self._fields, self.arrow, context, overlays=overlays
            )
        file_by_field = {field_id: source.file for source in sources for field_id in source.file.field_ids}
        blob_files = {
            field.name: file_by_field[field.id]
            for field in self._fields
            if field.id in self._blob_ids & file_by_field.keys()
        }
        blob_values = BlobValues(self._store, self.arrow, blob_files)
        arrow = self._descriptor_schema
        return OpenFragment(
            fragment.physical_rows, all_live, sources, layout, self._fields, arrow, context, blob_values, overlays
        )

    def _open_overlay(self, file: DataFile) -> tuple[FileReader, Mapping[int, Path]]:
        self._verify([file])
        opened = _open_file(self._store, self._codec, file, self._schema, self._expected_names(file))
        return opened.reader, opened.paths

    def _verify(self, files: Iterable[DataFile]) -> None:
        """Compare the files with their checksums before any of them is decoded."""
        for file in files:
            self._codec.verify(file.qualified_path, file.checksum)

    def _check_mandatory(self, fragment: Fragment) -> None:
        mandatory = [field for field in self._fields if not field.nullable]
        stored = {field.id for file in fragment.files for field in _stored_of(file, mandatory)}
        for field in mandatory:
            if field.id not in stored:
                raise Corrupt(
                    f"no file of fragment {fragment.id} stores column {field.name!r}, which is not nullable",
                    path=self._path,
                    field=f"fragments[id={fragment.id}]",
                )

    def _expected_names(self, file: DataFile) -> list[str]:
        """Return what will be read of a file if its column names are those of the table."""
        fields = (field for field in _stored_of(file, self._fields) if not self._needs_own_stream(field))
        return [name for field in fields for name in _names_to_read(field, {}, is_pruned=field.id in self._pruned_ids)]

    def _needs_own_stream(self, field: Field) -> bool:
        return field.id in self._blob_ids or any(_must_be_read_alone(node) for node in field.walk())

    def _build_layout(self, sources: "Sequence[OpenFile]", numbers: Sequence[int]) -> "FragmentLayout":
        streams: list[tuple[int, tuple[str, ...]]] = []
        descriptors: set[int] = set()
        placements: dict[int, list[tuple[int, int, str]]] = {field.id: [] for field in self._fields}
        for number, source in enumerate(sources):
            for fields in self._stream_groups(source):
                if fields[0].id in self._blob_ids and not (self._loads_blobs and source.file.version.is_legacy):
                    descriptors.add(len(streams))
                for field in fields:
                    placements[field.id].append((number, len(streams), _name_in_file(source, field)))
                names = (
                    _names_to_read(field, source.paths, is_pruned=field.id in self._pruned_ids) for field in fields
                )
                streams.append((number, tuple(name for group in names for name in group)))
        by_field = [placements[field.id] for field in self._fields]
        paths, schemas = tuple(source.paths for source in sources), tuple(source.reader.schema for source in sources)
        is_identity = len(streams) == 1 and not descriptors and not self._pruned_ids
        is_identity = is_identity and all(_is_identity(field, placements[field.id], paths[0]) for field in self._fields)
        return FragmentLayout(tuple(numbers), paths, schemas, streams, by_field, descriptors, is_identity)

    def _stream_groups(self, source: "OpenFile") -> list[list[Field]]:
        """Return the fields that the file stores, in groups that the codec can read together."""
        stored = _stored_of(source.file, self._fields)
        for field in stored:
            if field.id in self._nested_blob_ids:
                raise Unsupported(
                    f"column {field.name!r} contains blobs, which can only be read from a top-level blob column; "
                    "leave it out with columns=[...]"
                )
        grouped = [field for field in stored if not self._needs_own_stream(field)]
        return [*([grouped] if grouped else []), *([field] for field in stored if self._needs_own_stream(field))]


def shape_of(fragment: Fragment) -> FragmentShape:
    """Return what decides where the columns of a fragment are."""
    return tuple((file.field_ids, file.column_indices, file.version) for file in fragment.files)


def _open_file(
    store: Store, codec: DataCodec, file: DataFile, schema: TableSchema, expected_names: Sequence[str]
) -> OpenFile:
    reader = open_reader(store, codec, file, expected_names)
    if isinstance(reader, LegacyFileReader):
        return OpenFile(file, reader, legacy_paths_of(file, reader.table_schema, schema))
    return OpenFile(file, reader, paths_of(file, _table_schema(reader.schema)))


def _has_schema(source: OpenFile, schema: pa.Schema) -> bool:
    own = source.reader.schema
    return own is schema or bool(own.equals(schema, check_metadata=True))


def _table_schema(schema: pa.Schema) -> TableSchema:
    serialized: bytes = schema.serialize().to_pybytes()
    table_schema = _table_schemas.get(serialized)
    if table_schema is None:
        table_schema = TableSchema.from_arrow(schema, is_stored=True)
        if len(_table_schemas) < _CACHED_SCHEMAS_MAX:
            _table_schemas[serialized] = table_schema
    return table_schema


def _stored_of(file: DataFile, fields: Sequence[Field]) -> list[Field]:
    """Return those of the fields of which the file stores anything."""
    ids, version = frozenset(file.field_ids), file.version
    return [field for field in fields if not ids.isdisjoint(stored_ids(field, version))]


def _names_to_read(field: Field, paths: Mapping[int, Path], *, is_pruned: bool) -> list[str]:
    """Return the names to request from the codec for a field: its column, or paths to the requested children. As long
    as the paths of the file are unknown, the names of the table are assumed."""
    path = next((paths[node.id] for node in field.walk() if node.id in paths), (field.name,))
    if not is_pruned:
        return [path[0]]
    requested = list(_requested_paths(field, (field.name,), paths))
    if any(needs_quotes(name) for parts in requested for name in parts):
        return [path[0]]  # a dot in a name would be taken for a path
    return [".".join(parts) for parts in requested] or [path[0]]


def _requested_paths(field: Field, path: Path, paths: Mapping[int, Path]) -> Iterator[Path]:
    """Yield the paths of the requested children, through structs only: the content of a list is read with it."""
    if field.logical_type == "struct" and field.children and not field.is_packed and not is_blob(field):
        for child in field.children:
            yield from _requested_paths(child, (*path, child.name), paths)
    elif not paths:
        yield path
    elif stored_path := next((paths[node.id] for node in field.walk() if node.id in paths), None):
        yield stored_path[: len(path)]


def _is_identity(field: Field, placements: Sequence[tuple[int, int, str]], paths: Mapping[int, Path]) -> bool:
    return [name for _, _, name in placements] == [field.name] and has_same_children(
        field, StoredColumn(pa.nulls(0), paths, "")
    )


def _has_nested_blobs(field: Field) -> bool:
    return any(is_blob(node) for child in field.children for node in child.walk())


def _must_be_read_alone(field: Field) -> bool:
    """Return whether the codec cannot read a field together with others. It refuses fixed-size lists of structs next
    to columns of another length, and misreads the columns after a struct without children."""
    is_empty_struct = field.logical_type == "struct" and not field.children
    return is_empty_struct or field.logical_type.startswith("fixed_size_list:struct:")


def _name_in_file(source: OpenFile, field: Field) -> str:
    """Return the name of this top-level column in the file."""
    path = next((source.paths[node.id] for node in field.walk() if node.id in source.paths), None)
    if path is None:
        raise Corrupt(
            f"should store column {field.name!r} according to the manifest, but does not",
            path=source.file.path,
            field="fields",
        )
    return path[0]
