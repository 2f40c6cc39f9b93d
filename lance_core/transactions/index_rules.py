"""Conflict rules for indices: their coverage, the rows that moved, and the MemWAL progress, which is stored as an
index entry. Everything else is as in `rules.py`.
"""

from collections.abc import Iterable

from pyroaring import BitMap

from lance_core.format import operations as op
from lance_core.format.index_metadata import FRAGMENT_REUSE, MEM_WAL, SYSTEM_INDICES, IndexMetadata
from lance_core.format.operations import Operation
from lance_core.transactions.footprint import (
    field_ids_of,
    names_of,
    replaces_one_segment,
    shard_progress,
    touched_fragments,
    uuids_of,
)
from lance_core.transactions.verdicts import Verdict, incompatible_if, retry_if

_NGRAM = "ngramindexdetails"


def same_index(ours: Operation, theirs: Operation) -> Verdict:
    """Both would create an index of the same name, or one would remove what the other has just added; or one removes
    the record of moved rows that the other may need."""
    assert isinstance(ours, op.CreateIndex)
    assert isinstance(theirs, op.CreateIndex)
    our_names, their_names = names_of(ours.new), names_of(theirs.new)
    if our_names & their_names:
        return Verdict.RETRY
    if (FRAGMENT_REUSE in our_names and their_names - SYSTEM_INDICES) or (
        FRAGMENT_REUSE in their_names and our_names - SYSTEM_INDICES
    ):
        return Verdict.RETRY  # compactions were removed that the other may have to follow
    for first, second in ((ours, theirs), (theirs, ours)):
        added = names_of(first.new) - names_of(first.removed)
        if added & names_of(second.removed):
            return Verdict.RETRY
    removed_by_both = {index.uuid: index.name for index in ours.removed if index.uuid in uuids_of(theirs.removed)}
    return retry_if(set(removed_by_both.values()) & (our_names | their_names))


def values_under_an_index(ours: Operation, theirs: Operation) -> Verdict:
    """Values changed in place after the index was built, so it stops covering these fragments."""
    assert isinstance(ours, op.CreateIndex)
    assert isinstance(theirs, op.Update)
    changed = set(theirs.fields_modified)
    return Verdict.REBASE if any(set(index.field_ids) & changed for index in ours.new) else Verdict.COMPATIBLE


def columns_of_an_index(ours: Operation, theirs: Operation) -> Verdict:
    """The indexed column was dropped, or a write-ahead log was set up while the schema of its table changed."""
    index, other = (ours, theirs) if isinstance(ours, op.CreateIndex) else (theirs, ours)
    assert isinstance(index, op.CreateIndex)
    if isinstance(other, op.Merge) and MEM_WAL in names_of(index.new):
        return Verdict.RETRY
    if index is theirs:
        return Verdict.COMPATIBLE  # an index on a dropped column is dropped with it
    assert isinstance(other, op.Merge | op.Project)
    return retry_if(any(not set(segment.field_ids) <= field_ids_of(other.schema) for segment in index.new))


def indexed_values(ours: Operation, theirs: Operation) -> Verdict:
    """An index was built from values that the other operation replaced."""
    index, data = (ours, theirs) if isinstance(ours, op.CreateIndex) else (theirs, ours)
    assert isinstance(index, op.CreateIndex)
    assert isinstance(data, op.DataReplacement)
    replaced = {field_id for _fragment_id, file in data.replacements for field_id in file.field_ids}
    return retry_if(any(set(segment.field_ids) & replaced for segment in index.new))


def indexed_rows_moved(ours: Operation, theirs: Operation) -> Verdict:
    """The compaction moved rows that the index addresses, unless it recorded where they moved; or it rewrote the
    segment that this operation removes, which now has another uuid."""
    assert isinstance(ours, op.CreateIndex)
    assert isinstance(theirs, op.Rewrite)
    rewritten = dict(theirs.rewritten_indices).keys()
    if any(index.uuid.bytes in rewritten for index in ours.removed):
        return Verdict.RETRY
    if FRAGMENT_REUSE in names_of((*ours.new, *ours.removed)):
        return _retry_or_incompatible(ours) if theirs.fragment_reuse else _retry_if_covered(ours.new, theirs)
    if theirs.fragment_reuse is None:
        return _retry_if_covered(ours.new, theirs)
    return _retry_if_covered([index for index in ours.new if index.kind.lower() == _NGRAM], theirs)


def rows_under_new_index(ours: Operation, theirs: Operation) -> Verdict:
    """The compaction does not know the new index, which would keep addresses without rows."""
    assert isinstance(ours, op.Rewrite)
    assert isinstance(theirs, op.CreateIndex)
    if FRAGMENT_REUSE in names_of((*theirs.new, *theirs.removed)):
        if ours.fragment_reuse is not None:
            return _retry_or_incompatible(theirs)
        return incompatible_if(not replaces_one_segment(theirs))
    if ours.fragment_reuse is None:
        return _retry_if_covered(theirs.new, ours)
    return max((_retry_if_straddling(index, ours) for index in theirs.new), default=Verdict.COMPATIBLE)


def log_set_up(ours: Operation, theirs: Operation) -> Verdict:
    """The index does not cover rows that the write-ahead log adds meanwhile. An operation that sets up the log has to
    see its progress."""
    assert isinstance(ours, op.CreateIndex)
    return Verdict.RETRY if MEM_WAL in names_of(ours.new) else Verdict.INCOMPATIBLE


def progress_of_new_log(ours: Operation, theirs: Operation) -> Verdict:
    """The write-ahead log was set up again: its entry has to be read again and may already have more progress."""
    assert isinstance(theirs, op.CreateIndex)
    return max(retry_if(MEM_WAL in names_of(theirs.new)), same_shard(ours, theirs))


def same_shard(ours: Operation, theirs: Operation) -> Verdict:
    """The log of a shard is merged in order, so a generation that the other operation has already merged, or an
    earlier one, must not be merged again."""
    merged: dict[bytes, int] = {}
    for item in shard_progress(theirs):
        merged[item.shard] = max(item.generation, merged.get(item.shard, 0))
    common = [(merged[item.shard], item.generation) for item in shard_progress(ours) if item.shard in merged]
    return max(retry_if(common), incompatible_if(any(theirs >= ours for theirs, ours in common)))


def _retry_or_incompatible(trim: op.CreateIndex) -> Verdict:
    """Return the verdict for two changes of the fragment reuse index: the second has to start from the first."""
    return Verdict.RETRY if replaces_one_segment(trim) else Verdict.INCOMPATIBLE


def _retry_if_covered(indices: Iterable[IndexMetadata], rewrite: op.Rewrite) -> Verdict:
    old = BitMap(touched_fragments(rewrite))
    covered = [index.covers for index in indices]
    return retry_if(any(covers is None or covers & old for covers in covered))


def _retry_if_straddling(index: IndexMetadata, rewrite: op.Rewrite) -> Verdict:
    covers = index.covers
    if covers is None:
        return Verdict.RETRY
    groups = [BitMap(fragment.id for fragment in group.old) for group in rewrite.groups]
    return retry_if(any(covers & old and not old <= covers for old in groups))
