"""A fragment's rows, as the table's schema says they are: columns found by field id, dropped rows left out.

A column that no file of the fragment stores is null in all of its rows. What several files hold of one column is put
together in `assemble.py`.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from lance_core.datafiles.assemble import StoredColumn, has_same_children
from lance_core.datafiles.blob_values import BlobValues
from lance_core.datafiles.blob_view import described
from lance_core.datafiles.codec import DataCodec, Rows
from lance_core.datafiles.column_layout import Path, check_legacy_ids, is_blob, legacy_paths_of, paths_of, stored_ids
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.datafiles.open_fragment import FragmentLayout, LiveRows, OpenFile, OpenFragment, Shape, reader_of
from lance_core.errors import Corrupt, Unsupported
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.field_paths import needs_quotes
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.schema import Field, TableSchema
from lance_core.limits import DELETION_BYTES
from lance_core.storage.store import Store, read_whole

_table_schemas: dict[bytes, TableSchema] = {}
"""Of files, by their Arrow schemas: to make one takes longer than to read a small file."""
_SCHEMAS_KEPT = 1024


def read_deletions(store: Store, fragment: Fragment) -> DeletionVector | None:
    """What the deletion file says, whatever the manifest counts."""
    deleted = fragment.deletion_file
    if deleted is None:
        return None
    decode = DeletionVector.decode_bitmap if deleted.is_bitmap else DeletionVector.decode_arrow
    return decode(read_whole(store, deleted.qualified_path, DELETION_BYTES), path=deleted.path)


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
    return reader_of(store, codec, file).row_count


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
    """Live rows among the physical rows `start` to `start + count`, in order, in batches.
    `path` is the manifest's."""
    wanted = TableSchema(tuple(schema.field(name) for name in columns), schema.metadata)
    reader = FragmentReader(store, codec, schema, wanted, path=path, describe_blobs=describe_blobs)
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
        come the blobs, fewer rows at a time, or where they are (`describe_blobs`)."""
        self._store = store
        self._codec = codec
        self._schema = schema
        self._fields = wanted.fields
        self.arrow = described(wanted) if describe_blobs else wanted.arrow
        self._described = frozenset(field.id for field in wanted.fields if is_blob(field))
        self._arrow_described = self.arrow if describe_blobs else described(wanted)
        self._fills_in = not describe_blobs and bool(self._described)
        whole = {field.id: field for field in schema.fields}
        self._holding_blobs = frozenset(field.id for field in schema.fields if _has_blobs_inside(field))
        self._pruned = frozenset(field.id for field in wanted.fields if field.children != whole[field.id].children)
        self._path = path
        self._layouts: dict[Shape, FragmentLayout] = {}

    def live(
        self, fragment: Fragment, deletions: DeletionVector | None, start: int = 0, count: int | None = None
    ) -> Iterator[LiveRows]:
        """Live rows among the physical rows `start` to `start + count`, in order, in batches."""
        return self.open(fragment).live(deletions, start, count)

    def take(self, fragment: Fragment, rows: Rows) -> pa.RecordBatch:
        """These physical rows, deleted or not."""
        return self.open(fragment).take(rows)

    def pieces(self, fragment: Fragment, rows: Rows) -> Iterator[tuple[slice, pa.RecordBatch]]:
        """The same, so many at a time that their blobs fit in memory."""
        return self.open(fragment).pieces(rows)

    def open(self, fragment: Fragment) -> "OpenFragment":
        """Its files, as far as they hold any of the columns."""
        fragment.check_limits(path=self._path)
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
        is_legacy = bool(files) and files[0].version.is_legacy
        if not self._fills_in or is_legacy:
            return OpenFragment(fragment.physical_rows, all_live, sources, layout, self._fields, self.arrow)
        by_id = {held: source.file for source in sources for held in source.file.field_ids}
        blobs = {field.name: by_id[field.id] for field in self._fields if field.id in self._described & by_id.keys()}
        filled = BlobValues(self._store, self.arrow, blobs)
        arrow = self._arrow_described
        return OpenFragment(fragment.physical_rows, all_live, sources, layout, self._fields, arrow, filled)

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

    def _laid_out(self, sources: "Sequence[OpenFile]", numbers: Sequence[int]) -> "FragmentLayout":
        streams: list[tuple[int, tuple[str, ...]]] = []
        descriptors: set[int] = set()
        places: dict[int, list[tuple[int, int, str]]] = {field.id: [] for field in self._fields}
        for number, source in enumerate(sources):
            for fields in self._read_together(source):
                if fields[0].id in self._described and not (self._fills_in and source.file.version.is_legacy):
                    descriptors.add(len(streams))
                for field in fields:
                    places[field.id].append((number, len(streams), _name_in(source, field)))
                names = (_names(field, source.paths, is_pruned=field.id in self._pruned) for field in fields)
                streams.append((number, tuple(name for group in names for name in group)))
        by_field = [places[field.id] for field in self._fields]
        paths, schemas = tuple(source.paths for source in sources), tuple(source.reader.schema for source in sources)
        straight = len(streams) == 1 and not descriptors and not self._pruned
        straight = straight and all(_is_straight(field, places[field.id], paths[0]) for field in self._fields)
        return FragmentLayout(tuple(numbers), paths, schemas, streams, by_field, descriptors, straight)

    def _read_together(self, source: "OpenFile") -> list[list[Field]]:
        """The fields that the file holds, in groups that the codec can read at once."""
        held = [field for field in self._fields if _holds_any(source.file, [field])]
        for field in held:
            if field.id in self._holding_blobs:
                raise Unsupported(
                    f"column {field.name!r} has blobs inside it, which are read only where they are a column of their "
                    "own; leave it out with columns=[...]"
                )
        together = [field for field in held if not self._is_apart(field)]
        return [*([together] if together else []), *([field] for field in held if self._is_apart(field))]


def _open(store: Store, codec: DataCodec, file: DataFile, schema: TableSchema, likely: Sequence[str]) -> OpenFile:
    reader = reader_of(store, codec, file, likely)
    if isinstance(reader, LegacyFileReader):
        return OpenFile(file, reader, legacy_paths_of(file, reader.table_schema, schema))
    return OpenFile(file, reader, paths_of(file, _table_schema(reader.schema)))


def _table_schema(schema: pa.Schema) -> TableSchema:
    told: bytes = schema.serialize().to_pybytes()
    known = _table_schemas.get(told)
    if known is None:
        known = TableSchema.from_arrow(schema, is_stored=True)
        if len(_table_schemas) < _SCHEMAS_KEPT:
            _table_schemas[told] = known
    return known


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
    if any(needs_quotes(name) for found in wanted for name in found):
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
    return [name for _, _, name in places] == [field.name] and has_same_children(field, StoredColumn(pa.nulls(0), paths, ""))


def _has_blobs_inside(field: Field) -> bool:
    return any(is_blob(node) for child in field.children for node in child.walk())


def _is_read_apart(field: Field) -> bool:
    """The codec refuses to read fixed-size lists of structs beside columns of another length, and mistakes the
    columns that come after a struct without children."""
    is_empty_struct = field.logical_type == "struct" and not field.children
    return is_empty_struct or field.logical_type.startswith("fixed_size_list:struct:")


def _name_in(source: OpenFile, field: Field) -> str:
    """What the file calls this top-level column."""
    path = next((source.paths[node.id] for node in field.walk() if node.id in source.paths), None)
    if path is None:
        raise Corrupt(
            f"is said to hold column {field.name!r}, and none of its columns is", path=source.file.path, field="fields"
        )
    return path[0]
