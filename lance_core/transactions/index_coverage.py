"""Index coverage: applies the effects of a change to the coverage of index segments.

    remove_coverage          values changed in place: the segment stops covering these fragments
    extend_to_moved_rows     rows moved and kept their ids and indexed values: the segment covers their new fragments
    drop_useless_segments    removes segments that are no longer useful

A segment may cover fragments that were compacted long ago, as a fragment reuse index records. Coverage is removed in
terms of the current fragments. If the fragment reuse index is stored in a file of its own, which this module does not
open, only the coverage of current fragments is kept: the segment covers less, but stays correct. This module does no
I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from lance_core.format import operations as op
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import FragmentReuse, content_of, reuse_entry
from lance_core.format.ids import FragmentId
from lance_core.format.index_metadata import FRAGMENT_REUSE, IndexMetadata
from lance_core.format.operations import UpdateMode
from lance_core.format.row_lineage import RowIdSequence
from lance_core.format.schema import Field, TableSchema


@dataclass(frozen=True, slots=True)
class LiveFragments:
    """The fragments of a version, and the fragment reuse index that maps older fragments to them."""

    fragments: BitMap
    reuse_entry: IndexMetadata | None

    @classmethod
    def of(cls, indices: Sequence[IndexMetadata], fragment_ids: Iterable[int]) -> "LiveFragments":
        return cls(BitMap(fragment_ids), reuse_entry(indices))

    def follow_reuse(self, index: IndexMetadata, covered: BitMap) -> BitMap:
        """Convert the coverage of a segment to the current fragments."""
        if self.reuse_entry is None or index.is_zone_based:
            return covered
        content = content_of(self.reuse_entry)
        return content.follow_coverage(covered) if isinstance(content, FragmentReuse) else covered & self.fragments

    def may_lead_to(self, index: IndexMetadata, fragments: BitMap) -> bool:
        """Return whether compactions in an external file, which is not read, may map covered fragments to these."""
        return self._is_external and not index.is_zone_based and bool(self._reuse_coverage & fragments)

    @property
    def _is_external(self) -> bool:
        return self.reuse_entry is not None and not isinstance(content_of(self.reuse_entry), FragmentReuse)

    @property
    def _reuse_coverage(self) -> BitMap:
        return (self.reuse_entry.covers if self.reuse_entry is not None else None) or BitMap()

    def covers_any(self, index: IndexMetadata) -> bool:
        """Return whether the segment covers, or may cover, a live fragment."""
        covered = index.covers
        if covered is None:
            return True
        if self._is_external:
            return bool(covered)
        return bool(self.follow_reuse(index, covered) & self.fragments)


def remove_coverage(
    indices: Iterable[IndexMetadata],
    fragment_ids: Iterable[FragmentId],
    live: LiveFragments,
    *,
    on_fields: frozenset[int],
) -> tuple[IndexMetadata, ...]:
    """Remove these fragments from the coverage of indices on fields whose values changed in place."""
    changed_ids = BitMap(fragment_ids)
    changed = []
    for index in indices:
        covered = index.covers
        if covered is not None and not index.is_system and set(index.field_ids) & on_fields:
            current = live.follow_reuse(index, covered)
            if current & changed_ids or live.may_lead_to(index, changed_ids):
                index = index.with_coverage(current - changed_ids)
        changed.append(index)
    return tuple(changed)


def extend_to_moved_rows(
    indices: Sequence[IndexMetadata],
    update: op.Update,
    before: Mapping[FragmentId, Fragment],
    added: Sequence[Fragment],
    schema: TableSchema,
) -> Sequence[IndexMetadata]:
    """Extend coverage to the new fragments of an Update, in a table with stable row ids.

    An index that stores row ids finds rows that moved, if it covered all fragments they came from and no indexed
    field was assigned. `added` are the new fragments with their ids. Inserted rows are in no index, so a new fragment
    counts only if all its rows have ids from the fragments they came from.
    """
    sources = BitMap([*update.removed_ids, *(fragment.id for fragment in update.updated)])
    if update.mode is not UpdateMode.REWRITE_ROWS or not update.fields_assigned or not sources or not added:
        return indices
    assigned = _with_related_fields(schema, frozenset(update.fields_assigned))
    extended = [number for number, index in enumerate(indices) if _still_finds_moved_rows(index, sources, assigned)]
    if not extended:
        return indices
    moved = _fully_moved_fragments(update.new, added, [before[FragmentId(number)] for number in sources])
    after = list(indices)
    for number in extended if moved else ():
        after[number] = indices[number].with_coverage((indices[number].covers or BitMap()) | moved)
    return after


def drop_useless_segments(
    indices: Iterable[IndexMetadata], live: LiveFragments, *, field_ids: frozenset[int]
) -> tuple[IndexMetadata, ...]:
    """Return the segments that are still useful after a change of rows or columns.

    A segment on a removed field is dropped. If an index has several segments, those that cover no live fragment are
    dropped, but one is kept so that the index continues to exist. A single segment is kept whatever it covers.
    """
    remaining = [index for index in indices if index.is_system or set(index.field_ids) <= field_ids]
    segments: dict[str, list[int]] = {}
    for number, index in enumerate(remaining):
        segments.setdefault(index.name, []).append(number)
    retained: list[int] = []
    for name, positions in segments.items():
        if name == FRAGMENT_REUSE or len(positions) == 1:
            retained += positions
        else:
            useful = [number for number in positions if live.covers_any(remaining[number])]
            retained += useful or [min(positions, key=lambda number: remaining[number].dataset_version)]
    return tuple(remaining[number] for number in sorted(retained))


def _still_finds_moved_rows(index: IndexMetadata, sources: BitMap, assigned: frozenset[int]) -> bool:
    covered = index.covers
    return (
        covered is not None
        and not index.is_system
        and not index.stores_addresses
        and bool(index.field_ids)
        and assigned.isdisjoint(index.field_ids)
        and sources <= covered
    )


def _with_related_fields(schema: TableSchema, field_ids: frozenset[int]) -> frozenset[int]:
    """Add related fields: a struct changes with its descendants, and they change with the struct."""
    related = set(field_ids)

    def visit(field: Field, is_within: bool) -> bool:
        is_within = is_within or field.id in field_ids
        below = [visit(child, is_within) for child in field.children]
        is_related = is_within or any(below)
        if is_related:
            related.add(field.id)
        return is_related

    for top in schema.fields:
        visit(top, False)
    return frozenset(related)


def _fully_moved_fragments(
    proposed: Sequence[Fragment], added: Sequence[Fragment], sources: Sequence[Fragment]
) -> BitMap:
    """Return the new fragments whose rows all come from the source fragments."""
    known = [
        RowIdSequence.decode(each.row_ids, rows=each.physical_rows, path="head").to_numpy()
        for each in sources
        if each.row_ids is not None
    ]
    all_known = np.concatenate(known) if known else np.empty(0, dtype=np.uint64)
    moved = BitMap()
    for fragment, numbered in zip(proposed, added, strict=True):
        if fragment.row_ids is None:
            continue
        rows = fragment.physical_rows
        ids = RowIdSequence.decode_partial(fragment.row_ids, rows_max=rows, path="new fragment").to_numpy()
        if len(ids) == rows and bool(np.isin(ids, all_known).all()):
            moved.add(numbered.id)
    return moved
