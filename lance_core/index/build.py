"""Index build: writes a new index segment from the rows of fragments and from existing segments. It commits nothing.

    `IndexSpec` -> values of the chosen fragments, batch by batch -> the index type writes -> `IndexMetadata`

Rows come in scan order: the value at the column's path, NULL if a struct on that path is NULL, and the row number, an
id or an address as the version of the index type requires. Deleted rows are left out. The index type decides how many
rows it holds in memory. Files that are never committed are in a directory that no version references, and a cleanup
removes them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError, Unsupported
from lance_core.format import field_paths
from lance_core.format.field_paths import FieldPath
from lance_core.format.fragment import Fragment, live_rows
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.schema import Field, TableSchema
from lance_core.index import registry
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import (
    ROW,
    VALUE,
    IncompatibleSegments,
    IndexOptions,
    IndexType,
    MergeInput,
    SegmentBuild,
)
from lance_core.index.segment_files import NewSegment, file_version_for
from lance_core.progress import report
from lance_core.runtime import Runtime
from lance_core.scan.column_resolution import resolve_columns
from lance_core.scan.executor import scan
from lance_core.scan.plan import ScanTask, plan_columns
from lance_core.scan.system_columns import ROW_ADDRESS, ROW_ID
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Definition of an index, independent of the rows that it is built from."""

    name: str
    kind: IndexType
    chain: FieldPath
    """The indexed field, preceded by the fields that contain it."""
    options: IndexOptions

    @property
    def path(self) -> str:
        return field_paths.format_path(self.chain)


SegmentWriter = Callable[[NewSegment, pa.Field, bool], bytes]
"""Function that writes the files of a segment. It gets the column and whether rows are identified by addresses, and
returns the `index_details` for the index section."""


def column_of(schema: TableSchema, path: str, *, uri: str) -> FieldPath:
    """Return the field to index. A row must have one value of it, or one list."""
    try:
        chain = field_paths.find_field(schema, path)
    except InvalidInput as error:
        raise InvalidInput(f"{uri}: {error}") from None
    for parent in chain[:-1]:
        if parent.logical_type != "struct":
            outer = field_paths.format_path(chain[: chain.index(parent) + 1])
            raise InvalidInput(
                f"{uri}: {path!r} lies within {outer!r} of type {parent.arrow().type}, which has many values of it in "
                f"a row; index {outer!r} itself, if an index type supports it, or a column outside of it"
            )
    return chain


def arrow_of(schema: TableSchema, chain: FieldPath) -> pa.Field:
    """Return the column as a scan returns it, which is what an index type is built from."""
    (column,) = resolve_columns(schema, [field_paths.format_path(chain)])
    return column.arrow


def chain_of(schema: TableSchema, field_id: int) -> FieldPath | None:
    """Return the field of this id, preceded by the fields that contain it."""
    return next((chain for top in schema.fields for chain in _nested_chains((top,)) if chain[-1].id == field_id), None)


def build_segment(
    base: Snapshot,
    spec: IndexSpec,
    fragments: Sequence[Fragment],
    *,
    inputs: Sequence[MergeInput] = (),
    covers: BitMap,
    runtime: Runtime,
) -> IndexMetadata:
    """Write a segment of the rows of `fragments` and of `inputs`. `covers` is its whole coverage."""

    def write(sink: NewSegment, column: pa.Field, by_address: bool) -> bytes:
        rows = _SourceRows(base, spec.chain, tuple(fragments), by_address)
        return spec.kind.write(sink, SegmentBuild(column, rows, inputs, spec.options))

    return write_segment(base, spec, write, covers=covers, runtime=runtime)


def write_segment(
    base: Snapshot, spec: IndexSpec, write: SegmentWriter, *, covers: BitMap, runtime: Runtime
) -> IndexMetadata:
    """Write a segment whose files `write` produces. Without any file, the result is a definition that covers
    nothing."""
    segment = NewSegment(base.location, runtime.new_uuid(), file_version_for(base.manifest.storage_version))
    empty = IndexMetadata.new(
        segment.segment_uuid,
        name=spec.name,
        field_id=spec.chain[-1].id,
        dataset_version=base.version,
        covers=covers,
        type_url=spec.kind.type_url,
        details=b"",
        index_version=spec.kind.written_version,
        created_ms=runtime.now_ns() // 1_000_000,
    )
    details = write(segment, arrow_of(base.manifest.schema, spec.chain), empty.stores_addresses)
    return empty.with_contents(details, segment.files)


_BYTES_AHEAD = 16 << 20
"""Maximum bytes of data files that a build reads ahead. Indexing rows takes longer than reading them."""


@dataclass(frozen=True, slots=True)
class _SourceRows:
    """Rows that an index is built from. An index type that trains a model reads them more than once."""

    base: Snapshot
    chain: FieldPath
    fragments: tuple[Fragment, ...]
    by_address: bool

    @property
    def row_count(self) -> int:
        return sum(live_rows(fragment.message) for fragment in self.fragments)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return read_values(self.base, self.chain, self.fragments, addresses=self.by_address)


def read_values(
    base: Snapshot, chain: FieldPath, fragments: Sequence[Fragment], *, addresses: bool
) -> Iterator[pa.RecordBatch]:
    """Yield `VALUE` and `ROW` of the live rows, in order."""
    if not fragments:
        return
    plan = plan_columns(base.manifest, [field_paths.format_path(chain), ROW_ADDRESS if addresses else ROW_ID])
    total, done = sum(fragment.live_rows for fragment in fragments), 0
    tasks = tuple(map(ScanTask, fragments))
    for batch in scan(base.location, replace(plan, tasks=tasks), bytes_ahead=_BYTES_AHEAD):
        done += batch.num_rows
        report("read rows", done, total, "rows")
        yield pa.RecordBatch.from_arrays(batch.columns, names=[VALUE, ROW])


UNREADABLE_ERRORS = (NotFound, StorageError, Corrupt, Unsupported, IncompatibleSegments)
"""Errors of reading a segment whose files are missing, truncated, corrupt, of an old layout, or cannot be merged. The
segment is then rebuilt from the rows of the table."""


def spec_of_segment(base: Snapshot, coverage: Coverage, segment: IndexMetadata) -> IndexSpec | None:
    """Return the definition that an existing segment has, or `None` if it cannot be built here or its column no
    longer exists."""
    kind = registry.by_type_url(segment)
    if kind is None or len(segment.field_ids) != 1:
        return None
    with suppress(*UNREADABLE_ERRORS):
        kind = registry.read_type(kind, coverage.segment_of(segment))
    chain = chain_of(base.manifest.schema, segment.field_ids[0])
    if chain is None or not kind.supports(arrow_of(base.manifest.schema, chain)):
        return None
    try:
        options = kind.options_of(coverage.segment_of(segment))
    except UNREADABLE_ERRORS:
        options = kind.parse_options({})
    return IndexSpec(segment.name, kind, chain, options)


def _nested_chains(chain: tuple[Field, ...]) -> Iterator[FieldPath]:
    yield chain
    for child in chain[-1].children:
        yield from _nested_chains((*chain, child))
