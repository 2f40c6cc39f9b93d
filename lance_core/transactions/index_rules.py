"""The rules of `conflicts.py` that are about indices: what they cover, where their rows went, and the logs in front of
a table, which are kept like one. Otherwise as in `rules.py`.
"""

from collections.abc import Iterable

from pyroaring import BitMap

from lance_core.format import operations as op
from lance_core.format.index_metadata import FRAGMENT_REUSE, MEM_WAL, SYSTEM_INDICES, IndexMetadata
from lance_core.format.operations import Operation
from lance_core.transactions.footprint import field_ids_of, names_of, shard_progress, replaces_one_segment, touched_fragments, uuids_of
from lance_core.transactions.verdicts import Verdict, incompatible_if, retry_if

_NGRAM = "ngramindexdetails"


def same_index(ours: Operation, theirs: Operation) -> Verdict:
    """One name would get two indices, or lose what was just put in place of it; or the notes that lead to its rows."""
    assert isinstance(ours, op.CreateIndex)
    assert isinstance(theirs, op.CreateIndex)
    mine, other = names_of(ours.new), names_of(theirs.new)
    if mine & other:
        return Verdict.RETRY
    if (FRAGMENT_REUSE in mine and other - SYSTEM_INDICES) or (FRAGMENT_REUSE in other and mine - SYSTEM_INDICES):
        return Verdict.RETRY  # notes were dropped that the other may have to follow
    for first, second in ((ours, theirs), (theirs, ours)):
        added = names_of(first.new) - names_of(first.removed)
        if added & names_of(second.removed):
            return Verdict.RETRY
    removed_by_both = {index.uuid: index.name for index in ours.removed if index.uuid in uuids_of(theirs.removed)}
    return retry_if(set(removed_by_both.values()) & (mine | other))


def values_under_an_index(ours: Operation, theirs: Operation) -> Verdict:
    """Values changed in place after the index was built: it stops covering these fragments."""
    assert isinstance(ours, op.CreateIndex)
    assert isinstance(theirs, op.Update)
    changed = set(theirs.fields_modified)
    return Verdict.REBASE if any(set(index.field_ids) & changed for index in ours.new) else Verdict.COMPATIBLE


def columns_of_an_index(ours: Operation, theirs: Operation) -> Verdict:
    """The column that was indexed is gone; or a log in front of the table was set up while its schema changed."""
    index, other = (ours, theirs) if isinstance(ours, op.CreateIndex) else (theirs, ours)
    assert isinstance(index, op.CreateIndex)
    if isinstance(other, op.Merge) and MEM_WAL in names_of(index.new):
        return Verdict.RETRY
    if index is theirs:
        return Verdict.COMPATIBLE  # an index on a column that goes, goes with it
    assert isinstance(other, op.Merge | op.Project)
    return retry_if(any(not set(each.field_ids) <= field_ids_of(other.schema) for each in index.new))


def indexed_values(ours: Operation, theirs: Operation) -> Verdict:
    """An index was built from values that the other replaced."""
    index, data = (ours, theirs) if isinstance(ours, op.CreateIndex) else (theirs, ours)
    assert isinstance(index, op.CreateIndex)
    assert isinstance(data, op.DataReplacement)
    replaced = {field_id for _fragment_id, file in data.replacements for field_id in file.field_ids}
    return retry_if(any(set(each.field_ids) & replaced for each in index.new))


def indexed_rows_moved(ours: Operation, theirs: Operation) -> Verdict:
    """An index knows rows by places that the compaction left, unless that noted where they went; or what this removes
    was written anew, and goes by another name."""
    assert isinstance(ours, op.CreateIndex)
    assert isinstance(theirs, op.Rewrite)
    written_anew = dict(theirs.rewritten_indices).keys()
    if any(index.uuid.bytes in written_anew for index in ours.removed):
        return Verdict.RETRY
    if FRAGMENT_REUSE in names_of((*ours.new, *ours.removed)):
        return _retry_or_incompatible(ours) if theirs.fragment_reuse else _retry_if_covered(ours.new, theirs)
    if theirs.fragment_reuse is None:
        return _retry_if_covered(ours.new, theirs)
    return _retry_if_covered([index for index in ours.new if index.kind.lower() == _NGRAM], theirs)


def rows_under_new_index(ours: Operation, theirs: Operation) -> Verdict:
    """The compaction does not know the index, and would leave it pointing at places without rows."""
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
    """An index knows nothing of what a log brings meanwhile; whoever sets the log up has to see its progress."""
    assert isinstance(ours, op.CreateIndex)
    return Verdict.RETRY if MEM_WAL in names_of(ours.new) else Verdict.INCOMPATIBLE


def progress_of_new_log(ours: Operation, theirs: Operation) -> Verdict:
    """The log was set up anew: its entry has to be read again, and it may be further on already."""
    assert isinstance(theirs, op.CreateIndex)
    return max(retry_if(MEM_WAL in names_of(theirs.new)), same_shard(ours, theirs))


def same_shard(ours: Operation, theirs: Operation) -> Verdict:
    """A shard's log is taken in order: what theirs contains already, or a later part, must not be taken again."""
    reached: dict[bytes, int] = {}
    for each in shard_progress(theirs):
        reached[each.shard] = max(each.generation, reached.get(each.shard, 0))
    met = [(reached[each.shard], each.generation) for each in shard_progress(ours) if each.shard in reached]
    return max(retry_if(met), incompatible_if(any(theirs >= ours for theirs, ours in met)))


def _retry_or_incompatible(trim: op.CreateIndex) -> Verdict:
    """Of two changes to the notes on where rows went, the second has to begin with the first."""
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
