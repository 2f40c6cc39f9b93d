"""From rows of a version, and segments that are there, to a segment under a new uuid. Nothing is committed here.

    what is wanted (`IndexSpec`) -> values of chosen fragments, a batch at a time -> the kind writes -> `IndexMetadata`

Rows come in the order of a scan: their value, found by its path, null where a struct on the way is, and their number,
an id or an address as the kind's version has it. Deleted rows are left out. How much of them is held is the kind's.
What was written and never committed lies under a name that nobody knows, for cleanup.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import Corrupt, InvalidInput, NotFound, StorageError
from lance_core.format import field_paths
from lance_core.format.field_paths import FieldPath
from lance_core.format.fragment import Fragment
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.schema import Field, TableSchema
from lance_core.index import registry
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import ROW, VALUE, IndexOptions, IndexType, MergeInput
from lance_core.index.segment_files import NewSegment
from lance_core.runtime import Runtime
from lance_core.scan.column_resolution import resolve_columns
from lance_core.scan.executor import scan
from lance_core.scan.plan import ScanTask, plan_columns
from lance_core.scan.system_columns import ROW_ADDRESS, ROW_ID
from lance_core.versions.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index, whatever it is built from."""

    name: str
    kind: IndexType
    chain: FieldPath
    """The field it is on, with all that it is within."""
    options: IndexOptions

    @property
    def path(self) -> str:
        return field_paths.format_path(self.chain)


SegmentWriter = Callable[[NewSegment, pa.Field, bool], bytes]
"""Is given the column, and whether rows are told by their addresses; gives back what the index section says of it."""


def column_of(schema: TableSchema, path: str, *, uri: str) -> FieldPath:
    """The field that is to be indexed. There is one value of it in a row, or one list."""
    try:
        chain = field_paths.find_field(schema, path)
    except InvalidInput as error:
        raise InvalidInput(f"{uri}: {error}") from None
    for parent in chain[:-1]:
        if parent.logical_type != "struct":
            whole = field_paths.format_path(chain[: chain.index(parent) + 1])
            raise InvalidInput(
                f"{uri}: {path!r} lies within {whole!r}, of type {parent.arrow().type}, which holds many of them in a "
                f"row; index {whole!r} itself, if a kind fits it, or a column outside of it"
            )
    return chain


def arrow_of(schema: TableSchema, chain: FieldPath) -> pa.Field:
    """The column as a scan shows it, which is what a kind is built from."""
    (column,) = resolve_columns(schema, [field_paths.format_path(chain)])
    return column.arrow


def chain_of(schema: TableSchema, field_id: int) -> FieldPath | None:
    """The field of this id, with all that it is within."""
    return next((chain for top in schema.fields for chain in _chains((top,)) if chain[-1].id == field_id), None)


def build_segment(
    base: Snapshot,
    spec: IndexSpec,
    fragments: Sequence[Fragment],
    *,
    inputs: Sequence[MergeInput] = (),
    covers: BitMap,
    runtime: Runtime,
) -> IndexMetadata:
    """A segment of the rows of these fragments, and of what the parts bring; `covers` is all that it covers."""

    def write(files: NewSegment, column: pa.Field, addresses: bool) -> bytes:
        rows = read_values(base, spec.chain, fragments, addresses=addresses)
        return spec.kind.write(files, column, rows, inputs, spec.options)

    return write_segment(base, spec, write, covers=covers, runtime=runtime)


def write_segment(
    base: Snapshot, spec: IndexSpec, write: SegmentWriter, *, covers: BitMap, runtime: Runtime
) -> IndexMetadata:
    """A segment whose files are written by `write`."""
    segment = NewSegment(base.location, runtime.new_uuid())
    empty = IndexMetadata.new(
        segment.segment_uuid,
        name=spec.name,
        field_id=spec.chain[-1].id,
        dataset_version=base.version,
        covers=covers,
        type_url=spec.kind.type_url,
        details=b"",
        index_version=spec.kind.written_version(stable_row_ids=base.manifest.has_stable_row_ids),
        created_ms=runtime.now_ns() // 1_000_000,
    )
    details = write(segment, arrow_of(base.manifest.schema, spec.chain), empty.stores_addresses)
    return empty.with_contents(details, segment.files)


def read_values(base: Snapshot, chain: FieldPath, fragments: Sequence[Fragment], *, addresses: bool) -> Iterator[pa.RecordBatch]:
    """`VALUE` and `ROW` of the live rows, in order."""
    if not fragments:
        return
    plan = plan_columns(base.manifest, [field_paths.format_path(chain), ROW_ADDRESS if addresses else ROW_ID])
    for batch in scan(base.location, replace(plan, tasks=tuple(map(ScanTask, fragments)))):
        yield pa.RecordBatch.from_arrays(batch.columns, names=[VALUE, ROW])


UNREADABLE_ERRORS = (NotFound, StorageError, Corrupt)
"""What reading a segment raises whose files are gone, cut short or wrong. Then it is built from the table's rows."""


def spec_of_segment(base: Snapshot, coverage: Coverage, segment: IndexMetadata) -> IndexSpec | None:
    """What a segment that is there is of; None where nobody here can build such a one, or its column is gone."""
    kind = registry.by_type_url(segment)
    if kind is None or len(segment.field_ids) != 1:
        return None
    chain = chain_of(base.manifest.schema, segment.field_ids[0])
    if chain is None or not kind.supports(arrow_of(base.manifest.schema, chain)):
        return None
    try:
        options = kind.options_of(coverage.segment_of(segment))
    except UNREADABLE_ERRORS:
        options = kind.parse_options({})
    return IndexSpec(segment.name, kind, chain, options)


def _chains(chain: tuple[Field, ...]) -> Iterator[FieldPath]:
    yield chain
    for child in chain[-1].children:
        yield from _chains((*chain, child))
