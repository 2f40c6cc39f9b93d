"""What a scan will read: which fragments, which of their rows, which columns and when. Pure: a manifest in, a plan out.

A plan is what runs, and what `explain` prints. With a condition the columns that it needs are read first (`first`),
the others (`then`) only where rows match. Start with `plan_scan`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lance_core.data.layout import is_blob
from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate, with_metadata_columns
from lance_core.format.fragment import Fragment
from lance_core.format.manifest import Manifest
from lance_core.format.schema import Field, TableSchema
from lance_core.scan.columns import Column, pruned, resolved

_PIECE_ROWS_MAX = 262_144
_PIECE_ROWS_MIN = 8_192
_PIECE_BYTES = 16 * 1024**2
"""Of a piece as its file stores it; Arrow needs two or three times as much."""


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Live rows `skip` to `skip + take` of one fragment; all that are left where `take` is None."""

    fragment: Fragment
    skip: int = 0
    take: int | None = None

    @property
    def is_whole(self) -> bool:
        return not self.skip and (self.take is None or self.take == self.fragment.live_rows)


@dataclass(frozen=True, slots=True)
class ScanPlan:
    manifest: Manifest
    table: TableSchema
    """What the columns are: the version's schema, or a later one's."""
    output: tuple[Column, ...]
    """What comes back, in this order."""
    first: TableSchema
    """What is read of every row: with a condition its columns, else all that comes back."""
    then: TableSchema
    """What is read of rows that match."""
    tasks: tuple[ScanTask, ...]
    predicate: Predicate | None = None
    """Rows that do not match are left out; `skip` and `take` of tasks are then unused, for nobody knows which match."""
    limit: int | None = None
    offset: int = 0
    """Both count matching rows over the whole scan. Without a predicate the tasks say it all already."""
    describe_blobs: bool = True
    """Of blob columns comes where the blobs are, not what they hold."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.output)

    @property
    def schema(self) -> pa.Schema:
        """Of the result."""
        return pa.schema([column.arrow for column in self.output], self.table.arrow.metadata)

    def piece_rows(self, fragment: Fragment) -> int:
        """How many rows of a fragment are read in one go: so many that they fit in memory a few times over."""
        if fragment.physical_rows <= _PIECE_ROWS_MIN:
            return _PIECE_ROWS_MIN
        width = _bytes_per_row(self.table, (*self.first.fields, *self.then.fields), fragment)
        return int(max(_PIECE_ROWS_MIN, min(_PIECE_ROWS_MAX, _PIECE_BYTES // max(1, width))))


def plan_scan(
    manifest: Manifest,
    *,
    columns: Sequence[str] | None,
    filter: str | None = None,
    limit: int | None = None,
    offset: int | None = None,
    with_row_id: bool = False,
    with_row_address: bool = False,
) -> ScanPlan:
    """All columns where none are named; fragments that hold no wanted row are left out."""
    if (limit is not None and limit < 0) or (offset is not None and offset < 0):
        raise InvalidInput(f"limit={limit} and offset={offset} count rows from the start; neither may be negative")
    manifest.check_ids()
    schema = manifest.schema
    also = [name for name, wanted in (("_rowid", with_row_id), ("_rowaddr", with_row_address)) if wanted]
    output = resolved(schema, columns, also=also)
    if filter is None:
        tasks = tuple(map(ScanTask, manifest.fragments))
        if limit is not None or offset:
            tasks = tuple(_window(manifest, offset or 0, limit))
        return replace(plan_columns(manifest, (column.name for column in output)), tasks=tasks)
    predicate = Predicate.parse(filter, with_metadata_columns(schema.arrow))
    needed = pruned(schema, resolved(schema, predicate.columns))
    for field in needed.fields:
        if is_blob(field):
            raise InvalidInput(f"the filter reads {field.name!r}, a blob column; filter by the other columns")
    rest = pruned(schema, (column for column in output if column.path[0] not in needed.arrow.names))
    everything = tuple(map(ScanTask, manifest.fragments))
    return ScanPlan(manifest, schema, output, needed, rest, everything, predicate, limit, offset or 0)


def plan_columns(
    manifest: Manifest, columns: Iterable[str] | None, *, table: TableSchema | None = None, describe_blobs: bool = True
) -> ScanPlan:
    """What to read of rows that are found in another way than by scanning."""
    schema = manifest.schema if table is None else table
    output = resolved(schema, None if columns is None else list(columns), describe_blobs=describe_blobs)
    none = TableSchema((), schema.metadata)
    return ScanPlan(manifest, schema, output, pruned(schema, output), none, (), describe_blobs=describe_blobs)


def _window(manifest: Manifest, offset: int, limit: int | None) -> Iterator[ScanTask]:
    to_skip, to_take = offset, limit
    for fragment in manifest.fragments:
        if to_take == 0:
            return
        rows = fragment.live_rows
        if to_skip >= rows:
            to_skip -= rows
            continue
        take = rows - to_skip if to_take is None else min(rows - to_skip, to_take)
        yield ScanTask(fragment, skip=to_skip, take=take)
        to_skip = 0
        to_take = None if to_take is None else to_take - take


def _bytes_per_row(schema: TableSchema, read: tuple[Field, ...], fragment: Fragment) -> int:
    """Of these columns in a fragment's files: types of one width say it themselves, the others share what is left."""
    own, own_open = _widths(TableSchema(read, schema.metadata).arrow)
    whole, whole_open = _widths(schema.arrow)
    stored = fragment.file_bytes // max(1, fragment.physical_rows)
    return own + max(0, stored - whole) * own_open // max(1, whole_open)


def _widths(arrow: pa.Schema) -> tuple[int, int]:
    """Bytes of the columns whose values all have one width, and how many columns have not."""
    known, unknown = 0, 0
    for field in arrow:
        try:
            known += -(-field.type.bit_width // 8)
        except ValueError:
            unknown += 1
    return known, unknown
