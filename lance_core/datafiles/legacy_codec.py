"""Legacy codec: decodes data files of format 0.1, which the production codec does not read; it begins with 2.0.

This module turns the bytes of a page into an Arrow array, for every type of that format. It never writes. Such a file
names its own columns and contains its own dictionaries, so no manifest is needed. The format stores no validity: a
null number is whatever the writer's buffer contained, a null list is empty, a null struct has children, and empty
strings of a nullable column read as null, as in every reader of the format. `format/legacy_file.py` decodes where the
parts of the file are. Start with `LegacyFileReader.open`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.datafiles.codec import BATCH_ROWS, RowRange, Rows
from lance_core.errors import Corrupt, NotFound, Unsupported
from lance_core.format import legacy_file
from lance_core.format.legacy_file import LegacyFile, LegacySchema, Page, PageTable
from lance_core.format.schema import Field, TableSchema
from lance_core.limits import FILE_METADATA_BYTES
from lance_core.storage.store import Store

_VARIABLE_32 = (pa.string(), pa.binary())
_VARIABLE_64 = (pa.large_string(), pa.large_binary())
_OFFSETS = np.dtype("<i8")
_INT32_MAX = 2**31 - 1
_NO_PAGE = Page(0, 0)


@dataclass(frozen=True, slots=True)
class LegacyFileReader:
    """Reader for one file of format 0.1; implements `FileReader`."""

    _store: Store
    _path: str
    _file: LegacyFile
    _columns: LegacySchema
    _pages: PageTable

    @classmethod
    def open(cls, store: Store, path: str) -> "LegacyFileReader":
        info = store.head(path)
        if info is None:
            raise NotFound(f"data file {path} does not exist")
        size = info.size
        tail_start = max(0, size - legacy_file.TAIL_BYTES)
        tail = store.read(path, tail_start, size - tail_start)

        def bytes_from(position: int, field: str) -> bytes:
            if not 0 <= position <= size:
                raise Corrupt(f"{field} starts at byte {position} of a file of {size} bytes", path=path, field=field)
            if position >= tail_start:
                return tail[position - tail_start :]
            FILE_METADATA_BYTES.check(tail_start - position, path=path)
            return store.read(path, position, tail_start - position) + tail

        position = legacy_file.find_metadata_position(tail, size=size, path=path)
        message = legacy_file.read_message(bytes_from(position, "metadata"), path=path, field="metadata")
        file = LegacyFile.decode(message, size=size, path=path)
        manifest = legacy_file.read_message(bytes_from(file.schema_position, "schema"), path=path, field="schema")
        columns = LegacySchema.decode(manifest, path=path)
        for field in columns.schema.fields:
            field.arrow()  # rejects unknown types, and lists without a child
        pages = PageTable.decode(bytes_from(file.page_table_position, "page_table"), columns.schema, file.batches)
        return cls(store, path, file, columns, pages)

    @property
    def row_count(self) -> int:
        return self._file.batch_offsets[-1]

    @property
    def table_schema(self) -> TableSchema:
        """Schema with the field ids under which the file was written."""
        return self._columns.schema

    @property
    def schema(self) -> pa.Schema:
        return self._columns.schema.arrow

    def read(self, columns: Sequence[str], start: int, count: int) -> Iterator[pa.RecordBatch]:
        fields_by_name = {field.name: field for field in self._columns.schema.fields}
        names = dict.fromkeys(name if name in fields_by_name else name.partition(".")[0] for name in columns)
        fields = [fields_by_name[name] for name in names]
        for first in range(start, start + count, BATCH_ROWS):
            last = min(first + BATCH_ROWS, start + count)
            arrays = [self._read_column(field, first, last) for field in fields]
            named = [_arrow_field(field, array) for field, array in zip(fields, arrays, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(named))

    @property
    def metadata(self) -> Mapping[str, str]:
        return {key.decode(): value.decode() for key, value in (self.schema.metadata or {}).items()}

    def read_buffer(self, number: int) -> bytes:
        raise Unsupported(f"{self._path}: files of format 0.1 have no buffers apart from their columns")

    def with_descriptors(self) -> "LegacyFileReader":
        raise Unsupported(f"{self._path}: format 0.1 stores blobs like any other value; read the column")

    def take(self, columns: Sequence[str], rows: Rows) -> Iterator[pa.RecordBatch]:
        """Read single rows, one batch of the file at a time."""
        while len(rows):
            first = int(rows[0])
            rows_here = rows[: int(np.searchsorted(rows, first + BATCH_ROWS))]
            (batch,) = self.read(columns, first, int(rows_here[-1]) + 1 - first)
            yield batch.take(pa.array(rows_here - first))
            rows = rows[len(rows_here) :]

    def take_plain(self, column: int, rows: Rows) -> npt.NDArray[np.uint8] | None:
        """Return nothing: files of this format store lists in other ways."""
        return None

    def read_plain(
        self, columns: Sequence[int], ranges: Sequence[RowRange]
    ) -> list[tuple[npt.NDArray[np.uint8], ...]] | None:
        """Return nothing: files of this format store lists in other ways."""
        return None

    def _read_column(self, field: Field, first: int, last: int) -> pa.Array:
        """Read rows of one column from all batches that contain them."""
        offsets = self._file.batch_offsets
        batches = range(max(0, bisect_right(offsets, first) - 1), min(bisect_left(offsets, last), self._file.batches))
        parts = []
        for batch in batches:
            begin, end = max(first, offsets[batch]), min(last, offsets[batch + 1])
            parts.append(self._decode(field, batch, begin - offsets[batch], end - begin))
        if sum(map(len, parts)) != last - first:
            raise self._corrupt_error(field, f"does not contain all of the rows {first} to {last}")
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _decode(self, field: Field, batch: int, start: int, count: int) -> pa.Array:
        """Decode `count` values of a field within a batch; children of lists may have more or fewer values than the
        batch has rows."""
        kind = field.logical_type.partition(".")[0]
        if kind == "struct":
            children = [self._decode(child, batch, start, count) for child in field.children]
            if not children:
                return pa.Array.from_buffers(pa.struct([]), count, [None])
            inner = [_arrow_field(child, array) for child, array in zip(field.children, children, strict=True)]
            return pa.StructArray.from_arrays(children, fields=inner)
        page = self._pages.page(field.id, batch)
        if page is None:
            if count:
                raise self._corrupt_error(field, f"has no page in batch {batch}")
            page = _NO_PAGE
        if kind in ("list", "large_list"):
            return self._decode_lists(field, page, batch, start, count, is_large=kind == "large_list")
        arrow = pa.large_binary() if kind == "json" else field.arrow().type
        if pa.types.is_dictionary(arrow):
            return self._decode_dictionary(field, arrow, page, start, count)
        return self._decode_values(field, arrow, page, start, count)

    def _decode_lists(
        self, field: Field, page: Page, batch: int, start: int, count: int, *, is_large: bool
    ) -> pa.Array:
        """Decode lists: a page of offsets into the values that the child has in the same batch."""
        width = pa.int64() if is_large else pa.int32()
        offsets = (
            self._decode_fixed(field, width, page, start, count + 1).to_numpy() if count else np.zeros(1, np.int64)
        )
        first, last = self._offset_bounds(field, offsets)
        child = field.children[0]
        values = self._decode(child, batch, first, last - first)
        item = _arrow_field(child, values)
        relative = pa.array(offsets - first, width)
        if is_large:
            return pa.LargeListArray.from_arrays(relative, values, type=pa.large_list(item))
        return pa.ListArray.from_arrays(relative, values, type=pa.list_(item))

    def _decode_dictionary(self, field: Field, arrow: pa.DataType, page: Page, start: int, count: int) -> pa.Array:
        values_page = self._columns.dictionaries.get(field.id)
        if values_page is None:
            raise self._corrupt_error(field, "is a dictionary column, but the file has no values for it")
        keys = self._decode_fixed(field, arrow.index_type, page, start, count)
        values = self._decode_values(field, arrow.value_type, values_page, 0, values_page.length, empty_is_null=True)
        numbers = keys.to_numpy(zero_copy_only=False)
        if count and (int(numbers.min()) < 0 or int(numbers.max()) >= len(values)):
            raise self._corrupt_error(field, f"has keys outside its {len(values)} dictionary values")
        return pa.DictionaryArray.from_arrays(keys, values)

    def _decode_values(
        self, field: Field, arrow: pa.DataType, page: Page, start: int, count: int, *, empty_is_null: bool = False
    ) -> pa.Array:
        if pa.types.is_null(arrow):
            self._check_page_range(field, page, start, count)
            return pa.nulls(count)
        if arrow in _VARIABLE_32 or arrow in _VARIABLE_64:
            return self._decode_variable(field, arrow, page, start, count, empty_is_null or field.nullable)
        return self._decode_fixed(field, arrow, page, start, count)

    def _decode_variable(
        self, field: Field, arrow: pa.DataType, page: Page, start: int, count: int, empty_is_null: bool
    ) -> pa.Array:
        """Decode values of variable length. Their page contains offsets, one more than values, that are
        positions in the file."""
        if not count:
            return pa.array([], arrow)
        self._check_page_range(field, page, start, count)
        raw = self._read_bytes(field, page.position + start * _OFFSETS.itemsize, (count + 1) * _OFFSETS.itemsize)
        offsets = np.frombuffer(raw, dtype=_OFFSETS)
        first, last = self._offset_bounds(field, offsets)
        if arrow in _VARIABLE_32 and last - first > _INT32_MAX:
            raise Unsupported(
                f"{self._path}: {count} values of column {field.name!r} have {last - first} bytes, more than one "
                f"array of {arrow} can hold"
            )
        data = self._read_bytes(field, first, last - first)
        relative = (offsets - first).astype("<i4" if arrow in _VARIABLE_32 else "<i8")
        validity = None
        if empty_is_null:
            present = np.diff(offsets) > 0
            validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        array = pa.Array.from_buffers(arrow, count, [validity, pa.py_buffer(relative), pa.py_buffer(data)])
        if arrow in (pa.string(), pa.large_string()):
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise self._corrupt_error(field, "contains bytes that are not UTF-8") from error
        return array

    def _decode_fixed(self, field: Field, arrow: pa.DataType, page: Page, start: int, count: int) -> pa.Array:
        """Decode values of fixed width: bools as bits, the items of a fixed-size list as individual values."""
        self._check_page_range(field, page, start, count)
        if pa.types.is_fixed_size_list(arrow):
            size = arrow.list_size
            inner = Page(page.position, page.length * size)
            items = self._decode_fixed(field, arrow.value_type, inner, start * size, count * size)
            return pa.FixedSizeListArray.from_arrays(items, type=arrow)
        try:
            bits = arrow.bit_width
        except ValueError as error:
            raise Unsupported(
                f"{self._path}: column {field.name!r} has the type {arrow}, which is not known in format 0.1"
            ) from error
        begin, end = start * bits // 8, -(-(start + count) * bits // 8)
        raw = self._read_bytes(field, page.position + begin, end - begin)
        skipped = start - begin * 8 // bits
        return pa.Array.from_buffers(arrow, count, [None, pa.py_buffer(raw)], offset=skipped)

    def _check_page_range(self, field: Field, page: Page, start: int, count: int) -> None:
        if start < 0 or count < 0 or start + count > page.length:
            raise self._corrupt_error(
                field, f"has {page.length} values in a page, but values {start} to {start + count} are needed"
            )

    def _offset_bounds(self, field: Field, offsets: npt.NDArray[np.signedinteger]) -> tuple[int, int]:
        if offsets[0] < 0 or (np.diff(offsets) < 0).any():
            raise self._corrupt_error(field, "has offsets that go backwards")
        return int(offsets[0]), int(offsets[-1])

    def _read_bytes(self, field: Field, position: int, length: int) -> bytes:
        if position < 0 or length < 0 or position + length > self._file.size:
            raise self._corrupt_error(
                field, f"is at bytes {position} to {position + length} of a file of {self._file.size} bytes"
            )
        data = self._store.read(self._path, position, length) if length else b""
        if len(data) != length:
            raise self._corrupt_error(field, f"ends {length - len(data)} bytes early")
        return data

    def _corrupt_error(self, field: Field, what: str) -> Corrupt:
        return Corrupt(f"column {field.name!r} {what}", path=self._path, field=f"fields[id={field.id}]")


def _arrow_field(field: Field, array: pa.Array) -> pa.Field:
    return pa.field(field.name, array.type, field.nullable)
