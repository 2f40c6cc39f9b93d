"""What a change does to the coverage of indices: which fragments a segment loses, which it gains, which segments go.

    without_fragments   values were changed where they are: the segment answers for these fragments no more
    grown               rows moved, and kept their ids and what was indexed of them: it answers for their new fragments
    retained            segments that are of no use any more

A segment may name fragments of long ago that became others, as a fragment reuse index tells. What is taken from it is
taken in fragments of today. Where those notes lie in a file of their own, which nobody opens here, only what it names
of today's fragments is kept: it claims less, and is right. Pure.
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
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import Field, TableSchema


@dataclass(frozen=True, slots=True)
class LiveFragments:
    """The fragments of a version, and how those of older ones lead to them."""

    fragments: BitMap
    reuse_entry: IndexMetadata | None

    @classmethod
    def of(cls, indices: Sequence[IndexMetadata], fragment_ids: Iterable[int]) -> "LiveFragments":
        return cls(BitMap(fragment_ids), reuse_entry(indices))

    def follow_reuse(self, index: IndexMetadata, covered: BitMap) -> BitMap:
        if self.reuse_entry is None or index.is_zone_based:
            return covered
        content = content_of(self.reuse_entry)
        return content.follow_coverage(covered) if isinstance(content, FragmentReuse) else covered & self.fragments

    def may_lead_to(self, index: IndexMetadata, fragments: BitMap) -> bool:
        """Whether notes that are not read may lead to these fragments."""
        return self._is_external and not index.is_zone_based and bool(self._reuse_coverage & fragments)

    @property
    def _is_external(self) -> bool:
        return self.reuse_entry is not None and not isinstance(content_of(self.reuse_entry), FragmentReuse)

    @property
    def _reuse_coverage(self) -> BitMap:
        return (self.reuse_entry.covers if self.reuse_entry is not None else None) or BitMap()

    def covers_any(self, index: IndexMetadata) -> bool:
        """Whether it covers anything that is there, or may."""
        covered = index.covers
        if covered is None:
            return True
        if self._is_external:
            return bool(covered)
        return bool(self.follow_reuse(index, covered) & self.fragments)


def remove_coverage(
    indices: Iterable[IndexMetadata],
    fragment_ids: Iterable[FragmentId],
    alive: LiveFragments,
    *,
    on_fields: frozenset[int],
) -> tuple[IndexMetadata, ...]:
    """Where values of these fields were changed in place, indices on them no longer cover the fragments."""
    gone = BitMap(fragment_ids)
    changed = []
    for index in indices:
        covered = index.covers
        if covered is not None and not index.is_system and set(index.field_ids) & on_fields:
            now = alive.follow_reuse(index, covered)
            if now & gone or alive.may_lead_to(index, gone):
                index = index.with_coverage(now - gone)
        changed.append(index)
    return tuple(changed)


def extend_to_moved_rows(
    indices: Sequence[IndexMetadata],
    update: op.Update,
    before: Mapping[FragmentId, Fragment],
    added: Sequence[Fragment],
    schema: TableSchema,
) -> Sequence[IndexMetadata]:
    """Where row ids are stable. An index that stores them finds rows that moved, if it covered all that they were
    moved from and nothing that it is on was assigned. `added` are the new fragments with their numbers. Rows that were
    inserted are in none: a new fragment counts if its rows all had their ids, and had them in those it was moved from.
    """
    sources = BitMap([*update.removed_ids, *(fragment.id for fragment in update.updated)])
    if update.mode is not UpdateMode.REWRITE_ROWS or not update.fields_assigned or not sources or not added:
        return indices
    assigned = _with_related_fields(schema, frozenset(update.fields_assigned))
    grows = [number for number, index in enumerate(indices) if _still_finds_moved_rows(index, sources, assigned)]
    if not grows:
        return indices
    moved = _fully_moved_fragments(update.new, added, [before[FragmentId(number)] for number in sources])
    after = list(indices)
    for number in grows if moved else ():
        after[number] = indices[number].with_coverage((indices[number].covers or BitMap()) | moved)
    return after


def drop_useless_segments(
    indices: Iterable[IndexMetadata], alive: LiveFragments, *, field_ids: frozenset[int]
) -> tuple[IndexMetadata, ...]:
    """Those that a change to rows or columns leaves useful.

    An index on a field that is gone goes too. Of several segments, those that cover nothing alive any more go, but one
    is kept, so that the index does not vanish; a segment alone stays whatever it covers.
    """
    left = [index for index in indices if index.is_system or set(index.field_ids) <= field_ids]
    segments: dict[str, list[int]] = {}
    for number, index in enumerate(left):
        segments.setdefault(index.name, []).append(number)
    kept: list[int] = []
    for name, of_name in segments.items():
        if name == FRAGMENT_REUSE or len(of_name) == 1:
            kept += of_name
        else:
            useful = [number for number in of_name if alive.covers_any(left[number])]
            kept += useful or [min(of_name, key=lambda number: left[number].dataset_version)]
    return tuple(left[number] for number in sorted(kept))


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
    """A struct changes with what is in it, and all that is in it with the struct."""
    found = set(field_ids)

    def look(field: Field, is_within: bool) -> bool:
        is_within = is_within or field.id in field_ids
        below = [look(child, is_within) for child in field.children]
        changes = is_within or any(below)
        if changes:
            found.add(field.id)
        return changes

    for top in schema.fields:
        look(top, False)
    return frozenset(found)


def _fully_moved_fragments(proposed: Sequence[Fragment], added: Sequence[Fragment], sources: Sequence[Fragment]) -> BitMap:
    known = [
        RowIdSequence.decode(each.row_ids, rows=each.physical_rows, path="head").to_numpy()
        for each in sources
        if each.row_ids is not None
    ]
    all_known = np.concatenate(known) if known else np.empty(0, dtype=np.uint64)
    found = BitMap()
    for fragment, numbered in zip(proposed, added, strict=True):
        if fragment.row_ids is None:
            continue
        rows = fragment.physical_rows
        ids = RowIdSequence.decode_partial(fragment.row_ids, rows_max=rows, path="new fragment").to_numpy()
        if len(ids) == rows and bool(np.isin(ids, all_known).all()):
            found.add(numbered.id)
    return found
