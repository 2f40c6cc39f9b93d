"""Column values: where the values of written columns come from, for the rows of one fragment at a time.

    SqlValues        expressions over the row's own columns, which may be those that are replaced
    FunctionValues   a function from batches of columns to batches of values
    JoinedValues     rows of the caller with the same key, row id or row address

`replaced_columns.py` asks for them and decides what is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core import validation
from lance_core.datafiles.inputs import InputRows
from lance_core.dml.column_files import PositionedBatch, read_rows_at
from lance_core.dml.key_join import NO_ROW, SourceKeys, check_key_type
from lance_core.dml.new_columns import Compute, cast_keys, check_function_result, take_or_null
from lance_core.errors import InvalidInput
from lance_core.expressions import Projection, with_metadata_columns
from lance_core.format.field_paths import unknown_column_message
from lance_core.format.fragment import Fragment
from lance_core.scan.system_columns import ROW_ADDRESS, ROW_ID, ROW_OFFSET
from lance_core.versions.snapshot import Snapshot

Offsets = npt.NDArray[np.int64]
ROW_IDENTIFIERS = (ROW_ADDRESS, ROW_ID)


@dataclass(slots=True)
class SqlValues:
    """Values of `{name: SQL}`. All expressions see the row as it was before."""

    expressions: Mapping[str, str]
    _parsed: tuple[pa.Schema, Projection] | None = field(default=None, init=False)
    """Cached schema and expressions parsed for it. Parsing takes milliseconds, and each fragment needs the result."""
    covers_all_rows: ClassVar[bool] = True
    is_thread_safe: ClassVar[bool] = True
    are_given: ClassVar[bool] = False

    def declared(self, base: Snapshot) -> pa.Schema:
        return self._projection(base).schema_over(with_metadata_columns(base.manifest.schema.arrow))

    def reads(self, base: Snapshot) -> Sequence[str]:
        return self._projection(base).columns

    def compute(
        self, base: Snapshot, fragment: Fragment, offsets: Offsets, stored: Sequence[str] = ()
    ) -> Iterator[PositionedBatch]:
        projection = self._projection(base)
        # An expression that reads no column still needs a batch with the right number of rows.
        for rows in _read_with_stored(base, fragment, offsets, projection.columns or (ROW_OFFSET,), stored):
            yield PositionedBatch(projection.evaluate(rows.batch), rows.offsets, rows.stored)

    def declare_without_rows(self, base: Snapshot) -> pa.Schema:
        return self.declared(base)

    def check_used(self, base: Snapshot) -> None:
        """Expressions apply to any row."""

    def sources(self, base: Snapshot, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return {name: expression.columns for name, expression in self._projection(base).compiled}

    def _projection(self, base: Snapshot) -> Projection:
        stored = base.manifest.schema.arrow
        if self._parsed is None or not self._parsed[0].equals(stored):
            self._parsed = stored, Projection.parse(self.expressions, with_metadata_columns(stored))
        return self._parsed[1]


@dataclass(frozen=True, slots=True)
class FunctionValues:
    """Values that a function returns for batches of `read_columns`."""

    function: Compute
    schema: pa.Schema | None
    """Columns that the function returns; `None` takes them from its first result."""
    read_columns: Sequence[str] | None
    """`None` reads all columns of the table."""
    covers_all_rows: ClassVar[bool] = True
    is_thread_safe: ClassVar[bool] = False
    are_given: ClassVar[bool] = False

    def declared(self, base: Snapshot) -> pa.Schema | None:
        return self.schema

    def reads(self, base: Snapshot) -> Sequence[str]:
        stored = base.manifest.schema.arrow
        if self.read_columns is None:
            return list(stored.names)
        readable = with_metadata_columns(stored).names
        for name in self.read_columns:
            if name not in readable:
                raise InvalidInput(f"{base.location.uri}: {unknown_column_message(name, stored.names)}")
        return self.read_columns

    def compute(
        self, base: Snapshot, fragment: Fragment, offsets: Offsets, stored: Sequence[str] = ()
    ) -> Iterator[PositionedBatch]:
        for rows in _read_with_stored(base, fragment, offsets, self.reads(base), stored):
            if rows.batch.num_rows:
                try:
                    result = self.function(rows.batch)
                except Exception as error:
                    source = f"fragment {fragment.id}, {rows.batch.num_rows:,} rows of version {base.version}"
                    error.add_note(f"{base.location.uri}: the function for columns raised this on {source}")
                    raise
                source = f"fragment {fragment.id}, rows {rows.offsets[0]} to {rows.offsets[-1]}"
                checked = check_function_result(result, rows.batch, base, source, self.schema)
                yield PositionedBatch(checked, rows.offsets, rows.stored)

    def declare_without_rows(self, base: Snapshot) -> pa.Schema:
        if self.schema is not None:
            return self.schema
        readable = with_metadata_columns(base.manifest.schema.arrow)
        empty = pa.RecordBatch.from_pylist([], schema=pa.schema([readable.field(name) for name in self.reads(base)]))
        return check_function_result(self.function(empty), empty, base, "no rows", None).schema

    def check_used(self, base: Snapshot) -> None:
        """A function applies to any row."""

    def sources(self, base: Snapshot, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the columns that the function gets. One that gets all columns does not say which ones it uses."""
        return {} if self.read_columns is None else dict.fromkeys(names, tuple(self.read_columns))


@dataclass
class JoinedValues:
    """Values of the caller's rows, which are held in memory, for the rows with the same key. A null key has no match.
    The key can be the row id or the row address."""

    data: InputRows
    on: Sequence[str]
    covers_all_rows: ClassVar[bool] = False
    is_thread_safe: ClassVar[bool] = False
    are_given: ClassVar[bool] = True
    _values: pa.Table | None = field(default=None, init=False)
    _keys: tuple[pa.Schema, SourceKeys] | None = field(default=None, init=False)
    _is_matched: npt.NDArray[np.bool_] | None = field(default=None, init=False)
    """Mask of the rows of the data that a row of the table has matched, now or in an earlier plan."""

    def declared(self, base: Snapshot) -> pa.Schema:
        keys, what = validation.check_key_columns(self.on, "on"), base.location.uri
        readable, given = with_metadata_columns(base.manifest.schema.arrow), self.data.required_schema
        for name in keys:
            if name in ROW_IDENTIFIERS and len(keys) > 1:
                raise InvalidInput(
                    f"{what}: on= joins by {name} or by keys of the table, not by both; give one of them"
                )
            known = [*base.manifest.schema.arrow.names, *ROW_IDENTIFIERS]
            for side, names in (("the table", known), ("the data", given.names)):
                if name not in names:
                    raise InvalidInput(
                        f"{what}: cannot join on {name!r}: in {side}, {unknown_column_message(name, names)}"
                    )
            check_key_type(name, readable.field(name).type, what=what)
        added = pa.schema([each for each in given if each.name not in keys])
        if not keys or not added.names:
            raise InvalidInput(f"{what}: merge_columns needs a key column, and at least one other column in the data")
        return added

    def reads(self, base: Snapshot) -> Sequence[str]:
        return self.on

    def sources(self, base: Snapshot, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return an empty mapping, since the values come from the caller's rows and not from columns of the table."""
        return {}

    def compute(
        self, base: Snapshot, fragment: Fragment, offsets: Offsets, stored: Sequence[str] = ()
    ) -> Iterator[PositionedBatch]:
        keys, values = self._source(base)
        for rows in read_rows_at(base, fragment, offsets, self.on):
            matches = keys.find_rows([pa.chunked_array([column]) for column in rows.batch.columns])
            matched = np.flatnonzero(matches != NO_ROW)
            if len(matched):
                if self._is_matched is not None:
                    self._is_matched[matches[matched]] = True
                yield PositionedBatch(take_or_null(values, matches[matched]), rows.offsets[matched])

    def declare_without_rows(self, base: Snapshot) -> pa.Schema:
        return self.declared(base)

    def check_used(self, base: Snapshot) -> None:
        if tuple(self.on) != (ROW_ADDRESS,):
            return
        self._source(base)
        if self._is_matched is not None and not self._is_matched.all():
            row = int(np.flatnonzero(~self._is_matched)[0])
            address = pa.Table.from_batches(self.data.batches, self.data.schema).column(ROW_ADDRESS)[row].as_py()
            raise InvalidInput(
                f"{base.location.uri}: the data has the {ROW_ADDRESS} {address}, which is no live row of "
                f"version {base.version}; read the rows again"
            )

    def _source(self, base: Snapshot) -> tuple[SourceKeys, pa.Table]:
        """Return the keys, in the types of this version, and the values. They are prepared once."""
        what, readable = base.location.uri, with_metadata_columns(base.manifest.schema.arrow)
        types = pa.schema([readable.field(name) for name in self.on])
        if self._values is None or self._keys is None or self._keys[0] != types:
            source = cast_keys(pa.Table.from_batches(self.data.batches, self.data.schema), readable, self.on, what)
            self._values = source.select(self.declared(base).names).combine_chunks()
            self._keys = types, SourceKeys(source, self.on, what=what)
            self._is_matched = np.zeros(source.num_rows, dtype=np.bool_)
        return self._keys[1], self._values


def _read_with_stored(
    base: Snapshot, fragment: Fragment, offsets: Offsets, columns: Sequence[str], stored: Sequence[str]
) -> Iterator[PositionedBatch]:
    """Read columns of live rows, and the `stored` values of replaced columns in the same pass."""
    if not stored:
        yield from read_rows_at(base, fragment, offsets, columns)
        return
    names = list(dict.fromkeys((*columns, *stored)))
    for rows in read_rows_at(base, fragment, offsets, names):
        yield PositionedBatch(rows.batch.select(list(columns)), rows.offsets, rows.batch.select(list(stored)))
