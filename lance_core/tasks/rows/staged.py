"""Staged rows: the source rows of a change, written to files of their own until the change is committed.

Workers write them once, in the table's types, and every worker reads those it needs. So all workers see the same
rows, and after a conflict the source is not computed again. No version references these files; those that a crash
leaves behind are orphan files, which cleanup removes.
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
from lance_core.dml.row_rewrite import concat_arrays
from lance_core.errors import StorageError
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.key_filter import hashes_of
from lance_core.format.schema import TableSchema
from lance_core.tasks.rows.write import WritePlan
from lance_core.tasks.version_stamp import VersionStamp
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

KEY_CHUNK_ROWS = 1 << 22
"""Number of keys that are looked up at once. It bounds the memory of a worker."""
_CACHED_BYTES_MAX = 1 << 26
CACHED_ROWS_MAX = 1 << 20
"""Limits, in bytes and rows, up to which one process caches all source rows in memory."""
_KEYS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Picklable description of staged files."""

    schema: TableSchema
    """Columns of the table that the source has."""
    on: tuple[str, ...]
    fragments: tuple[bytes, ...]
    """Encoded fragments. The id of each is its position in this tuple."""
    chunk_rows: int

    @classmethod
    def of(cls, encoded: Sequence[bytes], schema: TableSchema, on: tuple[str, ...]) -> "StagedFiles":
        """Describe these fragments, with their positions as ids. A source row is identified by its position among the
        rows of all fragments."""
        numbered = (Fragment.decode(fragment).with_id(number).encode() for number, fragment in enumerate(encoded))
        return cls(schema, on, tuple(numbered), KEY_CHUNK_ROWS)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.schema.fields)

    @property
    def fits_in_memory(self) -> bool:
        """Return whether one process can hold all rows in memory."""
        fragments = self.decode_fragments()
        rows = sum(fragment.physical_rows for fragment in fragments)
        return rows <= CACHED_ROWS_MAX and sum(fragment.file_bytes for fragment in fragments) <= _CACHED_BYTES_MAX

    def decode_fragments(self) -> tuple[Fragment, ...]:
        return tuple(map(Fragment.decode, self.fragments))

    def chunks(self) -> tuple[range, ...]:
        """Return ranges of fragment numbers with at most `chunk_rows` rows each; a larger fragment is a chunk of its
        own."""
        ranges: list[range] = []
        rows = 0
        for number, fragment in enumerate(self.decode_fragments()):
            if not ranges or rows + fragment.physical_rows > self.chunk_rows:
                ranges.append(range(number, number))
                rows = 0
            ranges[-1] = range(ranges[-1].start, number + 1)
            rows += fragment.physical_rows
        return tuple(ranges)

    def delete_files(self, location: Location) -> None:
        """Delete the files. Errors are ignored, since cleanup removes orphan files."""
        for fragment in self.decode_fragments():
            for file in fragment.files:
                with suppress(StorageError):
                    location.store.delete(file.qualified_path)


def plan_staging(base: Snapshot, schema: TableSchema, version: StorageVersion | None = None) -> WritePlan:
    """Return the write plan for source rows. `version` is the storage version of the files, by default the table's."""
    location = base.location
    return WritePlan(
        uri=location.uri,
        schema=schema,
        storage_version=version or base.manifest.storage_version,
        limits=FileLimits(),
        durable=False,  # a power loss ends the change that needs the files
        stamp=VersionStamp.of_this_process(),
        storage_options=dict(location.access.storage_options),
    )


class StagedRows:
    """Reader of staged rows: the `SourceRows` of an upsert. Every worker sees the same rows under the same numbers."""

    def __init__(self, base: Snapshot, staged: StagedFiles) -> None:
        self._base = base
        self._staged = staged
        self._fragments = staged.decode_fragments()
        self._first_rows = np.cumsum([0, *(fragment.physical_rows for fragment in self._fragments)])
        self._chunks = staged.chunks()
        self._keys: SourceKeys | None = None
        self._cached_rows: pa.Table | None = None

    @property
    def columns(self) -> pa.Schema:
        return self._staged.schema.arrow

    @property
    def count(self) -> int:
        return int(self._first_rows[-1])

    def find_matches(self, keys: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        empty = np.empty(0, dtype=np.int64)
        positions, rows = empty, empty
        for chunk in self._chunks:
            chunk_positions, chunk_rows = self._keys_of_chunk(chunk).find_matches(keys)
            positions, rows = (
                np.concatenate([positions, chunk_positions]),
                np.concatenate([rows, chunk_rows + self._first_rows[chunk.start]]),
            )
        if len(self._chunks) > 1:
            order = np.argsort(positions)
            positions, rows = positions[order], rows[order]
        return positions, rows

    def take(self, rows: Numbers, names: Sequence[str]) -> pa.Table:
        if not names:
            return pa.table({})
        if self._staged.fits_in_memory:
            if self._cached_rows is None:
                self._cached_rows = self.read_fragments(range(len(self._fragments)), self._staged.column_names)
            return self._cached_rows.select(list(names)).take(pa.array(rows))
        distinct, inverse = np.unique(rows, return_inverse=True)
        reader = self.open_reader(names)
        batches = []
        for number, fragment in enumerate(self._fragments):
            start, stop = np.searchsorted(distinct, self._first_rows[number : number + 2])
            if start < stop:
                offsets = distinct[start:stop] - self._first_rows[number]
                batches += [batch for _, batch in reader.take_chunks(fragment, offsets)]
        return _to_table(batches, reader.arrow).take(pa.array(inverse))

    def describe_keys(self, rows: Numbers) -> str:
        """Return the keys of the first few of these rows, for an error message."""
        few = self.take(rows[:_KEYS_SHOWN], self._staged.on)
        return SourceKeys(few, self._staged.on, what="").describe_keys(np.arange(few.num_rows))

    def check_unique(self, bucket: int, bucket_count: int) -> None:
        """Raise if a key occurs twice among those whose hash falls into `bucket` of `bucket_count` buckets."""
        tables = []
        for fragment in range(len(self._fragments)):
            keys = self.read_fragments(range(fragment, fragment + 1), self._staged.on).drop_null()
            if bucket_count > 1 and keys.num_rows:
                columns = [concat_arrays(column.chunks) for column in map(normalized_key, keys.columns)]
                keys = keys.filter(pa.array(hashes_of(columns) % np.uint64(bucket_count) == bucket))
            tables.append(keys)
        if tables:
            SourceKeys(pa.concat_tables(tables), self._staged.on, what=self._base.location.uri)

    def read_fragments(self, fragments: range, names: Sequence[str]) -> pa.Table:
        """Return these columns of the staged fragments with these numbers."""
        reader = self.open_reader(names)
        batches = [rows.batch for number in fragments for rows in reader.read_live(self._fragments[number], None)]
        return _to_table(batches, reader.arrow)

    def open_reader(self, names: Sequence[str]) -> FragmentReader:
        """Return a reader of these columns of the staged fragments."""
        location, schema = self._base.location, self._base.manifest.schema
        columns = TableSchema(tuple(map(schema.field, names)), schema.metadata)
        return FragmentReader(location.store, location.codec, schema, columns, path=f"{location.uri}, staged rows")

    def _keys_of_chunk(self, chunk: range) -> SourceKeys:
        if self._keys is not None:
            return self._keys
        keys = SourceKeys(self.read_fragments(chunk, self._staged.on), self._staged.on, what=self._base.location.uri)
        if len(self._chunks) == 1:
            self._keys = keys
        return keys


def cached_staged_rows(base: Snapshot, staged: StagedFiles) -> StagedRows:
    """Return the reader of these staged rows, from a cache of one entry. The reader caches the keys and rows of a small
    source, so that a worker that joins several partitions reads it once."""
    key = (base.location.uri, base.manifest.schema, staged)
    for cached_key, rows in _cache:
        if cached_key == key:
            return rows
    rows = StagedRows(base, staged)
    _cache[:] = [(key, rows)]
    return rows


def evict_staged_rows(staged: StagedFiles) -> None:
    """Remove the staged rows from the cache of this process. The driver calls it, since its process outlives the
    change."""
    _cache[:] = [entry for entry in _cache if entry[0][2] != staged]


_cache: list[tuple[tuple[str, TableSchema, StagedFiles], StagedRows]] = []


def _to_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema)
