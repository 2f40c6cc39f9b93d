"""Text lookup: the full-text indices of one version, opened once and shared by the searches of this version."""

import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from pyroaring import BitMap

from lance_core.format.row_sets import HALF_BITS, Ids
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.index.lookup import IndexLookup
from lance_core.index.row_remap import SameAddresses, mask_within
from lance_core.index.scoped_segments import ScopedSegment
from lance_core.index.table_order import NO_POSITION, TableOrder, read_deleted_positions
from lance_core.index.text.best_documents import Allowed
from lance_core.index.text.list_elements import document_keys
from lance_core.index.text.posting_decoder import Ints
from lance_core.index.text.query import OpenColumn
from lance_core.index.text.scoring import Mask
from lance_core.index.text.segment_reader import TextPartition, TextSegment
from lance_core.index.text.statistics import PartitionView
from lance_core.index.text.text_plan import ColumnPlan, granularities_on, granularity_of_query, plan_column
from lance_core.storage.lru_cache import LruCache
from lance_core.text import Granularity, Query
from lance_core.versions.snapshot import Snapshot

_FRAGMENTS_IN_ORDER_MAX = 256
"""Maximum number of fragments for which ascending addresses are translated a fragment at a time."""
SEARCHED_TEXTS_BYTES_MAX = 256 << 20
"""Bytes of the table positions of documents, of scanned texts and of filters that searches of all tables cache."""
_VERSIONS_CACHED_MAX = 8
_SEGMENTS_CACHED_MAX = 128


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
SEARCHED_TEXTS: "LruCache[Hashable, object]" = LruCache(SEARCHED_TEXTS_BYTES_MAX, "searched texts")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class SharedCache(Generic[Key, Value]):
    """Values of one kind that belong to one lookup, in the cache of all searches."""

    lookup: int
    """Unique number of the lookup."""
    kind: str

    def get(self, key: Key) -> Value | None:
        value: Value | None = SEARCHED_TEXTS.get((self.lookup, self.kind, key))  # type: ignore[assignment]
        return value

    def put(self, key: Key, value: Value, weight: int) -> None:
        SEARCHED_TEXTS.put((self.lookup, self.kind, key), value, weight)


class TextLookup:
    """Full-text indices of a version, ready to be searched."""

    def __init__(self, base: Snapshot) -> None:
        self.base = base
        number = next(_numbers)
        self.filters: SharedCache[tuple[str, bytes], Mask] = SharedCache(number, "filters")
        """Rows that pass the filters of recent searches, by filter and fragments."""
        self.allowed: SharedCache[tuple[int, int], tuple[PartitionView, Mask, Allowed]] = SharedCache(number, "allowed")
        """Documents of a partition that pass a recent filter."""
        self.columns: SharedCache[Hashable, OpenColumn] = SharedCache(number, "columns")
        """Open columns, by what they depend on."""

    @classmethod
    def of(cls, base: Snapshot) -> "TextLookup":
        return _versions.get_or_create(
            id(base.manifest), lambda: cls(base), lambda kept: kept.base.manifest is base.manifest
        )

    @cached_property
    def lookup(self) -> IndexLookup:
        return IndexLookup.of(self.base)

    @property
    def coverage(self) -> Coverage | None:
        """Coverage of the indices; `None` if the version has none."""
        return None if self.base.manifest.index_section is None else self.lookup.coverage

    @cached_property
    def order(self) -> TableOrder:
        return TableOrder(self.base)

    def segment(self, segment: SegmentCoverage) -> TextSegment:
        """Return an open segment."""
        metadata, access = segment.metadata, self.base.location.access
        key = (self.base.location.uri, access.verify, access.trusted, metadata.uuid)
        return _segments.get_or_create(key, lambda: TextSegment(self.lookup.coverage.segment_of(metadata)))

    @cached_property
    def _granularities(self) -> dict[str, set[str]]:
        return {}

    def granularity_of(self, query: Query) -> Granularity:
        """Return the unit that a bound query scores."""
        return granularity_of_query(self.base, query, self._granularities_on)

    def _granularities_on(self, column: str) -> set[str]:
        if column not in self._granularities:
            self._granularities[column] = granularities_on(self.base, self.coverage, column)
        return self._granularities[column]

    @cached_property
    def plans(self) -> dict[tuple[str, bool, Granularity], ColumnPlan]:
        """Plans of the columns that were searched, by column, whether all rows are read, and the unit of documents."""
        return {}

    def plan(self, column: str, *, exact: bool, granularity: Granularity) -> ColumnPlan:
        key = (column, exact, granularity)
        if key not in self.plans:
            self.plans[key] = plan_column(self.base, self.coverage, column, exact=exact, granularity=granularity)
        return self.plans[key]

    def views(self, scope: ScopedSegment) -> list[PartitionView]:
        """Return the partitions of a segment with the table positions of their documents, or the keys of elements."""
        return [self._create_view(scope, each) for each in self.segment(scope.coverage).partitions]

    def _create_view(self, scope: ScopedSegment, partition: TextPartition) -> PartitionView:
        row_numbers: Ids = partition.documents.row_numbers
        row_remap = self.lookup.coverage.row_remap(scope.coverage)
        is_plain = isinstance(row_remap, SameAddresses) and len(scope.fragments) <= _FRAGMENTS_IN_ORDER_MAX
        if is_plain and (row_numbers[1:] > row_numbers[:-1]).all():
            positions = self._positions_in_order(scope.fragments, row_numbers)
        else:
            addresses, is_listed = row_remap.remap(row_numbers)
            is_listed = is_listed & mask_within(addresses, scope.fragments)
            positions = np.where(is_listed, self.order.positions(addresses), NO_POSITION)
        deleted = read_deleted_positions(self.base, self.order, scope.fragments)
        if len(deleted):
            is_deleted = np.zeros(self.order.row_count + 1, dtype=np.bool_)  # the last one stands for no position
            is_deleted[deleted] = True
            positions = np.where(is_deleted[positions], NO_POSITION, positions)
        elements = partition.documents.elements
        return PartitionView.of(partition, positions if elements is None else document_keys(positions, elements))

    def _positions_in_order(self, fragments: BitMap, addresses: Ids) -> Ints:
        """Return the positions of ascending addresses; those outside the fragments have none. Addresses that are
        positions already are not copied."""
        runs, found = [], 0
        for fragment in fragments:
            first = fragment << HALF_BITS
            last = first + self.lookup.coverage.physical_rows[fragment]
            begin, end = np.searchsorted(addresses, np.array([first, last], dtype=np.uint64)).tolist()
            if begin < end:
                runs.append((begin, end, self.order.start_of(fragment) - first))
                found += end - begin
        if found == len(addresses) and all(shift == 0 for _, _, shift in runs):
            return addresses.view(np.int64)
        positions = np.empty(len(addresses), dtype=np.int64)
        if found < len(addresses):
            positions.fill(NO_POSITION)
        for begin, end, shift in runs:
            np.add(addresses[begin:end].view(np.int64), shift, out=positions[begin:end])
        return positions


_versions: "LruCache[int, TextLookup]" = LruCache(_VERSIONS_CACHED_MAX)
_segments: "LruCache[tuple[object, ...], TextSegment]" = LruCache(_SEGMENTS_CACHED_MAX)
