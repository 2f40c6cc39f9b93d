"""Rows that came for a change, in files of their own beside the table's until the change has landed.

They are written once, in the table's types, and read by every worker that needs some of them: so they are the same rows
for all, and when somebody was in the way they need not be made again. No version ever names these files; what a crash
leaves of them is an orphan like any other.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_core.datafiles.fragment_reader import FragmentReader
from lance_core.datafiles.fragment_writer import FileLimits
from lance_core.datafiles.key_normalization import normalized_key
from lance_core.dml.key_join import Numbers, SourceKeys
from lance_core.dml.row_rewrite import in_one_piece
from lance_core.errors import StorageError
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.key_filter import hashes_of
from lance_core.format.schema import TableSchema
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.tasks.write import WritePlan
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

KEY_CHUNK_ROWS = 1 << 22
"""So many keys are looked up at once; what a worker holds does not grow beyond that."""
_HELD_BYTES = 1 << 26
CACHED_ROWS_MAX = 1 << 20
_FEW = 4


@dataclass(frozen=True, slots=True)
class StagedFiles:
    schema: TableSchema
    """What comes, of the table's columns."""
    on: tuple[str, ...]
    fragments: tuple[bytes, ...]
    """Encoded, and numbered in their order."""
    chunk_rows: int

    @classmethod
    def of(cls, encoded: Sequence[bytes], fields: TableSchema, on: tuple[str, ...]) -> "StagedFiles":
        """Rows are told by their number, in this order."""
        numbered = (Fragment.decode(each).with_id(number).encode() for number, each in enumerate(encoded))
        return cls(fields, on, tuple(numbered), KEY_CHUNK_ROWS)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.schema.fields)

    @property
    def fits_in_memory(self) -> bool:
        """Whether one process can have all of it in memory."""
        fragments = self.decode_fragments()
        rows = sum(each.physical_rows for each in fragments)
        return rows <= CACHED_ROWS_MAX and sum(each.file_bytes for each in fragments) <= _HELD_BYTES

    def decode_fragments(self) -> tuple[Fragment, ...]:
        return tuple(map(Fragment.decode, self.fragments))

    def chunks(self) -> tuple[range, ...]:
        """Numbers of fragments."""
        found: list[range] = []
        rows = 0
        for number, fragment in enumerate(self.decode_fragments()):
            if not found or rows + fragment.physical_rows > self.chunk_rows:
                found.append(range(number, number))
                rows = 0
            found[-1] = range(found[-1].start, number + 1)
            rows += fragment.physical_rows
        return tuple(found)

    def delete_files(self, location: Location) -> None:
        for fragment in self.decode_fragments():
            for file in fragment.files:
                with suppress(StorageError):  # a cleanup will find it
                    location.store.delete(file.qualified_path)


def plan_staging(base: Snapshot, fields: TableSchema, version: StorageVersion | None = None) -> WritePlan:
    """`version` is that of the table, unless it is said."""
    location = base.location
    return WritePlan(
        uri=location.uri,
        schema=fields,
        storage_version=version or base.manifest.storage_version,
        limits=FileLimits(),
        durable=False,  # nobody needs them after a power loss
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(location.access.storage_options),
    )


class StagedRows:
    """The same rows to who works with them: a `Source` of an upsert."""

    def __init__(self, base: Snapshot, staged: StagedFiles) -> None:
        self._base = base
        self._staged = staged
        self._fragments = staged.decode_fragments()
        self._first = np.cumsum([0, *(fragment.physical_rows for fragment in self._fragments)])
        self._portions = staged.chunks()
        self._keys: SourceKeys | None = None
        self._whole: pa.Table | None = None

    @property
    def columns(self) -> pa.Schema:
        return self._staged.schema.arrow

    @property
    def count(self) -> int:
        return int(self._first[-1])

    def matches(self, keys: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        none = np.empty(0, dtype=np.int64)
        places, rows = none, none
        for portion in self._portions:
            its, found = self._keys_of(portion).matches(keys)
            places, rows = np.concatenate([places, its]), np.concatenate([rows, found + self._first[portion.start]])
        if len(self._portions) > 1:
            order = np.argsort(places)
            places, rows = places[order], rows[order]
        return places, rows

    def take(self, rows: Numbers, names: Sequence[str]) -> pa.Table:
        if not names:
            return pa.table({})
        if self._staged.fits_in_memory:
            if self._whole is None:
                self._whole = self.read_fragments(range(len(self._fragments)), self._staged.column_names)
            return self._whole.select(list(names)).take(pa.array(rows))
        wanted, places = np.unique(rows, return_inverse=True)
        reader = self.open_reader(names)
        batches = []
        for number, fragment in enumerate(self._fragments):
            start, stop = np.searchsorted(wanted, self._first[number : number + 2])
            if start < stop:
                some = wanted[start:stop] - self._first[number]
                batches += [batch for _, batch in reader.take_chunks(fragment, some)]
        return _table(batches, reader.arrow).take(pa.array(places))

    def named(self, rows: Numbers) -> str:
        """The keys of these rows for people, a few of them."""
        few = self.take(rows[:_FEW], self._staged.on)
        return SourceKeys(few, self._staged.on, what="").named(np.arange(few.num_rows))

    def check_unique(self, bucket: int, bucket_count: int) -> None:
        """Of all keys those that fall to this number `bucket_count` so many: whether each is there once."""
        some = []
        for fragment in range(len(self._fragments)):
            keys = self.read_fragments(range(fragment, fragment + 1), self._staged.on).drop_null()
            if bucket_count > 1 and keys.num_rows:
                columns = [in_one_piece(column.chunks) for column in map(normalized_key, keys.columns)]
                keys = keys.filter(pa.array(hashes_of(columns) % np.uint64(bucket_count) == bucket))
            some.append(keys)
        if some:
            SourceKeys(pa.concat_tables(some), self._staged.on, what=self._base.location.uri)

    def read_fragments(self, fragments: range, names: Sequence[str]) -> pa.Table:
        reader = self.open_reader(names)
        batches = [rows.batch for number in fragments for rows in reader.read_live(self._fragments[number], None)]
        return _table(batches, reader.arrow)

    def open_reader(self, names: Sequence[str]) -> FragmentReader:
        location, schema = self._base.location, self._base.manifest.schema
        wanted = TableSchema(tuple(map(schema.field, names)), schema.metadata)
        return FragmentReader(location.store, location.codec, schema, wanted, path=f"{location.uri}, what came for it")

    def _keys_of(self, portion: range) -> SourceKeys:
        if self._keys is not None:
            return self._keys
        keys = SourceKeys(self.read_fragments(portion, self._staged.on), self._staged.on, what=self._base.location.uri)
        if len(self._portions) == 1:
            self._keys = keys
        return keys


def cached_staged_rows(base: Snapshot, staged: StagedFiles) -> StagedRows:
    """For who is given one part of a table after another: what was read for the last one is kept."""
    asked = (base.location.uri, base.manifest.schema, staged)
    for before, rows in _last:
        if before == asked:
            return rows
    rows = StagedRows(base, staged)
    _last[:] = [(asked, rows)]
    return rows


def evict_staged_rows(staged: StagedFiles) -> None:
    """On a driver, where no part comes after the last one."""
    _last[:] = [kept for kept in _last if kept[0][2] != staged]


_last: list[tuple[tuple[str, TableSchema, StagedFiles], StagedRows]] = []


def _table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema)
