"""Staged pages: reads the pages of some columns of files into memory, from where the codec decodes them.

It reads many small local files, and all files of object stores of which whole pages are requested: there the end of a
file and then its pages, close ones together, and those of all files concurrently. Every file passes the checks of
`file_checks.py`. Start with `stage_local` and `stage_objects`.
"""

import functools
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from lance_core.datafiles.codec import FileToRead, Rows
from lance_core.datafiles.column_layout import Path, is_blob, stored_with_paths
from lance_core.datafiles.file_checks import (
    OBJECT_TAIL_BYTES,
    CheckedFile,
    check_object_tail,
    known_object,
    open_checked_file,
    read_object_tail,
)
from lance_core.errors import Corrupt, LanceError
from lance_core.format.chunk_table import ChunkedPage, chunked_page_of
from lance_core.format.file_descriptor import decode_schema, select_fields
from lance_core.format.fragment import StorageVersion
from lance_core.format.page_view import (
    FetchedRange,
    FilePages,
    PageSelection,
    Span,
    build_view,
    merge_spans,
    select_pages,
)
from lance_core.format.schema import Field
from lance_core.storage.concurrency import SharedThreadPool
from lance_core.storage.local import LocalStore
from lance_core.storage.lru_cache import LruCache
from lance_core.storage.store import Store

_LOCAL_GAP_MAX = 8 * 1024
_OBJECT_GAP_MAX = 128 * 1024
"""Reading these bytes in between takes less time than another request."""
_COMMON_GAP_MAX = 64 * 1024
_WHOLE_PAGE_BYTES_MAX = 16 * 1024
"""Pages up to this size are read as a whole, with those of other columns, before the chunks of larger ones."""
_COMMON_MAX = 256
_COMMON_BYTES_MAX = 1 << 20
PAGE_STARTS_BYTES_MAX = 64 << 20
_PAGE_STARTS: "LruCache[tuple[str, str, int, int], bytes]" = LruCache(PAGE_STARTS_BYTES_MAX, "page starts")
"""Chunk tables, dictionaries and small pages, by store, path and span: they are read before any row of a page."""
_ENTRY_BYTES = 512
_REQUEST_BYTES_MAX = 8 << 20
"""Longer ranges are read by several concurrent requests."""
_WHOLE_BYTES_MAX = 4 << 20
_MOST = 0.5
"""A file of at most `_WHOLE_BYTES_MAX` is read by one request if this share of its columns is requested."""
_CACHED_PROJECTIONS_MAX = 64
_request_threads = SharedThreadPool("lance-range")

ReadRange = Callable[[str, int, int], bytes]
"""Function that reads a range of a file: path, position, number of bytes."""


@dataclass(frozen=True, slots=True)
class PageProjection:
    """The part of a file's schema that some names select."""

    schema_bytes: bytes
    """Serialized schema of their top-level columns."""
    columns: tuple[int, ...]
    """Numbers of the columns that store them."""
    left_out: frozenset[int]
    """Columns of which nothing is read, since only other children of a struct are requested."""


@dataclass(frozen=True, slots=True)
class StagedPages:
    """Pages of files in memory."""

    view: Sequence[FetchedRange]
    """Content of the file from which the codec decodes them."""
    files: Sequence[CheckedFile]
    first_row: int
    """Row of the file with which the view begins, if there is one file."""


@functools.lru_cache(maxsize=_CACHED_PROJECTIONS_MAX)
def project_schema(schema_bytes: bytes, version: StorageVersion, names: tuple[str, ...]) -> PageProjection | None:
    """Return the part of a schema that stores these columns, which may be paths into structs; `None` if a view cannot
    have it. The codec misreads the schemas of files with blobs."""
    try:
        fields = decode_schema(schema_bytes).fields
    except LanceError:
        return None
    if any(is_blob(node) for field in fields for node in field.walk()):
        return None
    top_level = {field.name for field in fields}
    selected = {name if name in top_level else name.partition(".")[0] for name in names}
    if not selected or not selected <= top_level:
        return None
    requested = [(name,) if name in top_level else tuple(name.split(".")) for name in names]
    stored = _stored_paths(fields, version)
    columns = tuple(number for number, path in enumerate(stored) if path[0] in selected)
    left_out = frozenset(number for number in columns if not _is_requested(stored[number], requested))
    return PageProjection(select_fields(schema_bytes, _ids_of(fields, selected)), columns, left_out)


def _stored_paths(fields: Sequence[Field], version: StorageVersion) -> list[Path]:
    return [path for field in fields for _, path in stored_with_paths(field, (), version)]


def _ids_of(fields: Sequence[Field], names: Set[str]) -> frozenset[int]:
    return frozenset(node.id for field in fields if field.name in names for node in field.walk())


def _is_requested(path: Path, requested: Sequence[Path]) -> bool:
    return any(path[: len(each)] == each for each in requested)


def stage_local(store: LocalStore, files: Sequence[FileToRead], names: tuple[str, ...]) -> StagedPages | None:
    """Read all pages of these columns of local files with one schema; `None` if they have to be read one by one."""
    staging = _Staging(names)
    for file in files:
        with open_checked_file(store, file.path, file.size) as (descriptor, checked):
            selection = staging.select(checked)
            if selection is None:
                return None
            spans = merge_spans(selection.spans, _LOCAL_GAP_MAX)
            ranges = [(start, os.pread(descriptor, size, start)) for start, size in spans]
        staging.add(checked, selection, ranges, f"{store.description}/{file.path}", partial(store.read, file.path))
    return staging.finish()


def stage_objects(
    store: Store, files: Sequence[FileToRead], names: tuple[str, ...], read: ReadRange, concurrency: int
) -> StagedPages | None:
    """Return the same for files of an object store, whose sizes are known."""
    share = [len(names) / file.field_count if file.field_count else 0.0 for file in files]
    opened = _request_threads.map(
        lambda item: open_object(store, item[0], read, is_wanted=item[1] >= _MOST),
        list(zip(files, share, strict=True)),
        concurrency,
    )
    staging = _Staging(names)
    selections = []
    for checked, _ in opened:
        selection = staging.select(checked)
        if selection is None:
            return None
        selections.append(selection)
    fetched = fetch_ranges(
        [
            (file.path, merge_spans(selection.spans, _OBJECT_GAP_MAX), tail)
            for file, selection, (_, tail) in zip(files, selections, opened, strict=True)
        ],
        read,
        concurrency,
    )
    for file, selection, (checked, _), ranges in zip(files, selections, opened, fetched, strict=True):
        staging.add(checked, selection, ranges, f"{store.description}/{file.path}", partial(read, file.path))
    return staging.finish()


def open_object(
    store: Store, file: FileToRead, read: ReadRange, *, is_wanted: bool = False
) -> tuple[CheckedFile, FetchedRange | None]:
    """Check a file of an object store. Return also its end, if it was read; `is_wanted` asks for all of a file that is
    not large."""
    assert file.size is not None
    known = known_object(store, file.path, file.size)
    if known is not None:
        return known, None
    length = file.size if is_wanted and file.size <= _WHOLE_BYTES_MAX else OBJECT_TAIL_BYTES

    def read_more(start: int, count: int) -> bytes:
        return read(file.path, start, count)

    tail, start = read_object_tail(store, file.path, file.size, read_more, length)
    return check_object_tail(store, file.path, file.size, tail, read_more), (start, tail)


def stage_object_range(
    store: Store,
    path: str,
    checked: CheckedFile,
    tail: FetchedRange | None,
    names: tuple[str, ...],
    rows: Span,
    is_worth_it: Callable[[PageSelection], bool],
    read: ReadRange,
    concurrency: int,
) -> StagedPages | None:
    """Read the pages of a range of rows of one file. `is_worth_it` decides whether they are read as a whole."""
    staging = _Staging(names)
    selection = staging.select(checked, rows)
    if selection is None or not is_worth_it(selection):
        return None
    (ranges,) = fetch_ranges([(path, merge_spans(selection.spans, _OBJECT_GAP_MAX), tail)], read, concurrency)
    staging.add(checked, selection, ranges, f"{store.description}/{path}", partial(read, path))
    return staging.finish()


def stage_object_rows(
    store: Store,
    path: str,
    checked: CheckedFile,
    tail: FetchedRange | None,
    names: tuple[str, ...],
    rows: Rows,
    read: ReadRange,
    concurrency: int,
) -> StagedPages | None:
    """Read the chunks of pages that contain single rows, ascending; `None` if the pages have no chunks of rows.
    Everything else that the codec needs of a page is read before, and kept for further rows."""
    if checked.needs_check(names):
        return None
    staging = _Staging(names)
    first = int(rows[0])
    selection = staging.select(checked, (first, int(rows[-1]) + 1 - first))
    chunked = None if selection is None else _divide_pages(selection, rows)
    if selection is None or chunked is None:
        return None
    common, pages = chunked
    kept = {span: _PAGE_STARTS.get((store.description, path, *span)) for span in common}
    missing = [span for span, data in kept.items() if data is None]
    (fetched,) = fetch_ranges([(path, merge_spans(missing, _COMMON_GAP_MAX), tail)], read, concurrency)
    where = f"{store.description}/{path}"
    _check_complete(missing, fetched, where)
    parts = {span: data for span, data in kept.items() if data is not None}
    for span in missing:
        parts[span] = bytes(_read_from(fetched, partial(read, path), *span))
        _PAGE_STARTS.put((store.description, path, *span), parts[span], span[1] + _ENTRY_BYTES)
    spans: list[Span] = []
    for page, inside in pages:
        found = page.spans_of(parts[page.table], inside)
        if found is None:
            return None
        spans += found
    spans.sort()
    (chunks,) = fetch_ranges([(path, merge_spans(spans, _COMMON_GAP_MAX), tail)], read, concurrency)
    _check_complete(spans, chunks, where)
    ranges = sorted([*((position, data) for (position, _), data in parts.items()), *chunks], key=lambda each: each[0])
    return staging.finish_sparse(checked, selection, ranges)


def _divide_pages(selection: PageSelection, rows: Rows) -> tuple[list[Span], list[tuple[ChunkedPage, Rows]]] | None:
    """Return the buffers that are needed for any row, and the pages with the rows that are read of each, counted from
    the first of the page; `None` if some rows can only be read with the whole page."""
    common: list[Span] = []
    pages: list[tuple[ChunkedPage, Rows]] = []
    for column in selection.columns:
        at = selection.first_row
        for page in column.pages:
            first, stop = np.searchsorted(rows, (at, at + page.length))
            buffers = [each for each in zip(page.buffer_offsets, page.buffer_sizes, strict=True) if each[1]]
            chunked = chunked_page_of(page)
            if chunked is not None and chunked.chunks[1] > _WHOLE_PAGE_BYTES_MAX:
                buffers.remove(chunked.chunks)
                if stop > first:
                    pages.append((chunked, rows[first:stop] - at))
            common += buffers
            at += page.length
    if len(common) > _COMMON_MAX or sum(size for _, size in common) > _COMMON_BYTES_MAX:
        return None
    return sorted(set(common)), pages


def fetch_ranges(
    wanted: Iterable[tuple[str, Sequence[Span], FetchedRange | None]], read: ReadRange, concurrency: int
) -> list[list[FetchedRange]]:
    """Read spans of files, except those inside the end of the file that is in memory."""
    fetched: list[list[FetchedRange]] = []
    requests: list[tuple[int, str, int, int]] = []
    for number, (path, spans, tail) in enumerate(wanted):
        fetched.append([])
        for start, size in spans:
            if tail is not None and tail[0] <= start and start + size <= tail[0] + len(tail[1]):
                fetched[number].append((start, tail[1][start - tail[0] : start - tail[0] + size]))
                continue
            requests += [
                (number, path, at, min(_REQUEST_BYTES_MAX, start + size - at))
                for at in range(start, start + size, _REQUEST_BYTES_MAX)
            ]
    answers = _request_threads.map(lambda request: read(*request[1:]), requests, concurrency)
    for (number, _, start, _), data in zip(requests, answers, strict=True):
        fetched[number].append((start, data))
    for ranges in fetched:
        ranges.sort(key=lambda each: each[0])
    return fetched


class _Staging:
    """Collection of the pages of files with one schema."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._projection: PageProjection | None = None
        self._pages: FilePages | None = None
        self._files: list[CheckedFile] = []
        self._parts: list[tuple[PageSelection, Sequence[FetchedRange]]] = []

    def select(self, checked: CheckedFile, rows: Span | None = None) -> PageSelection | None:
        """Return the pages to read of a file; `None` if they cannot be read together with those before."""
        pages = checked.pages
        if pages is None:
            return None
        if self._pages is None:
            self._pages = pages
            self._projection = project_schema(pages.schema_bytes, pages.version, self._names)
        if self._projection is None or pages.version != self._pages.version:
            return None
        if pages.schema_bytes is not self._pages.schema_bytes and pages.schema_bytes != self._pages.schema_bytes:
            return None
        start, count = (0, pages.rows) if rows is None else rows
        projection = self._projection
        return select_pages(pages, projection.columns, start, start + count, left_out=projection.left_out)

    def add(
        self,
        checked: CheckedFile,
        selection: PageSelection,
        ranges: Sequence[FetchedRange],
        path: str,
        read: Callable[[int, int], bytes],
    ) -> None:
        """Add the pages of a file, which are in these ranges; `read` reads anything else of it."""
        _check_complete(selection.spans, ranges, path)
        checked.check_offsets_by(partial(_read_from, ranges, read), path, self._names)
        self._files.append(checked)
        self._parts.append((selection, ranges))

    def finish_sparse(
        self, checked: CheckedFile, selection: PageSelection, ranges: Sequence[FetchedRange]
    ) -> StagedPages | None:
        """Return the parts of one file that are read, where they are in the file."""
        if self._projection is None or self._pages is None:
            return None
        view = build_view(
            self._projection.schema_bytes, self._pages.version, [(selection, ranges)], keeps_positions=True
        )
        return StagedPages(view, [checked], selection.first_row)

    def finish(self) -> StagedPages | None:
        if self._projection is None or self._pages is None:
            return None
        first_row = self._parts[0][0].first_row
        view = build_view(self._projection.schema_bytes, self._pages.version, self._parts)
        return StagedPages(view, self._files, first_row)


def _check_complete(spans: Sequence[Span], ranges: Sequence[FetchedRange], path: str) -> None:
    """Raise `Corrupt` unless the ranges contain the spans: the codec would decode whatever is in their place."""
    present = merge_spans([(start, len(data)) for start, data in ranges], 0)
    starts = [start for start, _ in present]
    for start, size in spans:
        number = bisect_right(starts, start) - 1
        if number < 0 or start + size > sum(present[number]):
            raise Corrupt("ends before its pages", path=path, field="columns")


def _read_from(ranges: Sequence[FetchedRange], read: Callable[[int, int], bytes], position: int, count: int) -> bytes:
    for start, data in ranges:
        if start <= position and position + count <= start + len(data):
            return data[position - start : position - start + count]
    return read(position, count)
