"""Conflict rules: small functions of our operation and of one that was committed before it, each with its reason.

`conflicts.py` alone decides which rule applies to which pair. A rule sees two operations, never a manifest. A check
that needs a manifest, such as whether both removed the same rows, is made during the rebase (`rebase.py`). The name
of a rule is visible to users as `ConflictError.rule`.
"""

from collections.abc import Sequence

from pyroaring import BitMap

from lance_core.format import key_filter
from lance_core.format import operations as op
from lance_core.format.ids import FragmentId
from lance_core.format.operations import MapUpdate, Operation, UpdateMode
from lance_core.format.overlay import OverlayFile
from lance_core.transactions.footprint import (
    affected_rows,
    config_of,
    field_ids_of,
    have_common_key,
    overlays_by_fragment,
    removed_fragments,
    replaced_fields,
    rewrites_columns,
    touched_fragments,
    updated_fragments,
)
from lance_core.transactions.verdicts import Verdict, incompatible_if, retry_if


def compatible(ours: Operation, theirs: Operation) -> Verdict:
    """Neither operation changes what the other relies on; ids are assigned at commit."""
    return Verdict.COMPATIBLE


def incompatible(ours: Operation, theirs: Operation) -> Verdict:
    """The table for which this operation was planned no longer exists."""
    return Verdict.INCOMPATIBLE


def plan_again(ours: Operation, theirs: Operation) -> Verdict:
    """One of the two operations states every fragment or the whole schema, and has not seen the other one."""
    return Verdict.RETRY


def unknown_change(ours: Operation, theirs: Operation) -> Verdict:
    """The other operation may have changed anything, so every operation planned before it is replanned."""
    return Verdict.RETRY


def same_fragments(ours: Operation, theirs: Operation) -> Verdict:
    """Both replace the state of a fragment, and the second would undo the changes of the first."""
    return retry_if(touched_fragments(ours) & touched_fragments(theirs))


def mandatory_columns(ours: Operation, theirs: Operation) -> Verdict:
    """Rows were written while a column became mandatory, and they were not checked for nulls."""
    return retry_if(any(isinstance(operation, op.Merge | op.Project) and not operation.preserves_nullability
                         for operation in (ours, theirs)))  # fmt: skip


def columns_written(ours: Operation, theirs: Operation) -> Verdict:
    """New values were written for a column that was dropped, or a column became mandatory and the values were not
    checked for nulls."""
    assert isinstance(ours, op.Update)
    assert isinstance(theirs, op.Project)
    return max(retry_if(set(ours.fields_modified) - field_ids_of(theirs.schema)), mandatory_columns(ours, theirs))


def same_rows(ours: Operation, theirs: Operation) -> Verdict:
    """Both remove or move rows of a fragment: their deletion vectors are merged, unless a row is in both. The
    operation is replanned if files of the fragment changed, if the fragment was removed, or if the affected rows are
    unknown."""
    our_fragments = updated_fragments(ours)
    if not touched_fragments(ours) & touched_fragments(theirs):
        return Verdict.COMPATIBLE
    if (
        affected_rows(ours) is None
        or touched_fragments(ours) & set(removed_fragments(theirs))
        or set(removed_fragments(ours)) & touched_fragments(theirs)
    ):
        return Verdict.RETRY
    if isinstance(theirs, op.Update) and (theirs.mode is UpdateMode.REWRITE_COLUMNS or theirs.fields_modified):
        return Verdict.RETRY
    for fragment in updated_fragments(theirs).values():
        before = our_fragments.get(fragment.id)
        if before and not rewrites_columns(ours) and not before.has_same_files(fragment):
            return Verdict.RETRY
    return Verdict.REBASE


def new_keys(ours: Operation, theirs: Operation) -> Verdict:
    """An upsert inserts the keys that it did not find, and the other operation may have added one of them: appended
    rows may have any key, unless they were checked. Likewise, they may belong to the slice that is overwritten."""
    assert isinstance(ours, op.Update)
    if ours.replaced_slice is not None:
        return retry_if(not isinstance(theirs, op.Append | op.Update) or theirs.overlaps is not False)
    if ours.inserted_keys is None:
        return Verdict.COMPATIBLE
    if isinstance(theirs, op.Append) and theirs.overlaps is not None:
        return retry_if(theirs.overlaps)
    if isinstance(theirs, op.Update) and theirs.inserted_keys is not None:
        return retry_if(key_filter.may_share_keys(ours.inserted_keys, theirs.inserted_keys))
    return Verdict.RETRY


def same_rows_or_new_keys(ours: Operation, theirs: Operation) -> Verdict:
    """Both rules apply: a row is not changed twice, and a new key is not inserted twice. An upsert that deletes the
    unmatched rows must also have seen the rows that another upsert inserted."""
    assert isinstance(ours, op.Update)
    assert isinstance(theirs, op.Update)
    unseen = retry_if(ours.deletes_unmatched and theirs.inserted_keys is not None)
    return max(same_rows(ours, theirs), new_keys(ours, theirs), unseen)


def same_fragments_or_slice(ours: Operation, theirs: Operation) -> Verdict:
    """Both replace the state of a fragment, or values changed that decide which rows are in the overwritten slice."""
    assert isinstance(ours, op.Update)
    return max(same_fragments(ours, theirs), retry_if(ours.replaced_slice is not None))


def overlaid_rows(ours: Operation, theirs: Operation) -> Verdict:
    """The other operation gave new values to rows that this one moves or to columns that it rewrites, or to columns
    that decide which rows this one concerns."""
    assert isinstance(ours, op.Update)
    assert isinstance(theirs, op.DataOverlay)
    overlays = overlays_by_fragment(theirs)
    new_values = {field_id for each in overlays.values() for overlay in each for field_id in overlay.live_fields}
    if ours.replaced_slice is not None or (ours.source_keys and new_values & set(ours.source_keys.fields)):
        return Verdict.RETRY
    both = sorted(touched_fragments(ours) & overlays.keys())
    return max(
        (_overlaid_rows(ours, FragmentId(number), overlays[number]) for number in both), default=Verdict.COMPATIBLE
    )


def _overlaid_rows(ours: op.Update, fragment_id: FragmentId, overlays: Sequence[OverlayFile]) -> Verdict:
    if fragment_id not in ours.removed_ids and rewrites_columns(ours):
        return retry_if(any(overlay.live_fields & set(ours.fields_modified) for overlay in overlays))
    affected = (ours.affected or {}).get(fragment_id)
    if affected is None or fragment_id in ours.removed_ids:
        return Verdict.RETRY
    rows = BitMap.deserialize(affected)
    return retry_if(any(not rows.isdisjoint(overlay.rows) for overlay in overlays))


def both_replace(ours: Operation, theirs: Operation) -> Verdict:
    """The second overwrite has not seen what it would replace. If both set the same config key, the user has to
    decide."""
    assert isinstance(ours, op.Overwrite)
    assert isinstance(theirs, op.Overwrite)
    both = ours.config_upserts.keys() & theirs.config_upserts.keys()
    return Verdict.INCOMPATIBLE if both else Verdict.RETRY


def same_config_keys(ours: Operation, theirs: Operation) -> Verdict:
    """Both change the same config key, and the user has to decide which value is meant."""
    our_config, their_config = config_of(ours), config_of(theirs)
    return incompatible_if(have_common_key(our_config, their_config))


def settings_of_what_went(ours: Operation, theirs: Operation) -> Verdict:
    """The columns whose metadata this operation sets were replaced, or the same config key was set."""
    assert isinstance(ours, op.UpdateConfig)
    of_columns = ours.schema_metadata is not None or ours.field_metadata
    return max(incompatible_if(of_columns), same_config_keys(ours, theirs))


def same_settings(ours: Operation, theirs: Operation) -> Verdict:
    """Both change the same key of a map or the metadata of the same column. The metadata of the schema counts as one
    setting. A config key that both delete is no conflict."""
    assert isinstance(ours, op.UpdateConfig)
    assert isinstance(theirs, op.UpdateConfig)
    return incompatible_if(
        have_common_key(ours.config, theirs.config)
        or _keys(ours.table_metadata) & _keys(theirs.table_metadata)
        or (ours.schema_metadata is not None and theirs.schema_metadata is not None)
        or ours.field_metadata.keys() & theirs.field_metadata.keys()
    )


def metadata_of_columns(ours: Operation, theirs: Operation) -> Verdict:
    """One operation sets the whole schema, and the other one changes metadata in it."""
    settings = ours if isinstance(ours, op.UpdateConfig) else theirs
    assert isinstance(settings, op.UpdateConfig)
    changed = [settings.schema_metadata, *settings.field_metadata.values()]
    return retry_if(any(update is not None and (update.entries or update.replace) for update in changed))


def metadata_of_kept_columns(ours: Operation, theirs: Operation) -> Verdict:
    """One operation sets all columns as it knew them, and the other one changed the metadata of some."""
    assert isinstance(theirs, op.UpdateConfig)
    return retry_if(theirs.field_metadata)


def metadata_of_restored_columns(ours: Operation, theirs: Operation) -> Verdict:
    """One operation restores the columns of another version, and the other one sets metadata of the current columns."""
    settings = ours if isinstance(ours, op.UpdateConfig) else theirs
    assert isinstance(settings, op.UpdateConfig)
    return incompatible_if(settings.schema_metadata is not None or settings.field_metadata)


def both_compact(ours: Operation, theirs: Operation) -> Verdict:
    """If both rewrite the same fragments, their rows would exist twice. If both record moved rows in the fragment
    reuse index, the second has to include the record of the first. If both rewrite the same index, the result would
    follow only one of them."""
    assert isinstance(ours, op.Rewrite)
    assert isinstance(theirs, op.Rewrite)
    both_record_moves = ours.fragment_reuse is not None and theirs.fragment_reuse is not None
    both_remap = dict(ours.rewritten_indices).keys() & dict(theirs.rewritten_indices).keys()
    return max(same_fragments(ours, theirs), retry_if(both_record_moves or both_remap))


def target_removed(ours: Operation, theirs: Operation) -> Verdict:
    """The fragment whose column this operation replaces was removed. Rows deleted from it stay deleted."""
    assert isinstance(ours, op.DataReplacement)
    return incompatible_if(touched_fragments(ours) & set(removed_fragments(theirs)))


def target_changed(ours: Operation, theirs: Operation) -> Verdict:
    """The values that this operation replaces were changed, or their rows moved to another fragment."""
    assert isinstance(ours, op.DataReplacement)
    assert isinstance(theirs, op.Update)
    if touched_fragments(ours) & set(removed_fragments(theirs)):
        return Verdict.INCOMPATIBLE
    if not touched_fragments(ours) & touched_fragments(theirs):
        return Verdict.COMPATIBLE
    moved = theirs.new and theirs.mode is not UpdateMode.REWRITE_COLUMNS
    return retry_if(moved or replaced_fields(ours) & set(theirs.fields_modified))


def target_columns_dropped(ours: Operation, theirs: Operation) -> Verdict:
    """The column that this operation replaces was dropped, or it became mandatory."""
    assert isinstance(ours, op.DataReplacement)
    assert isinstance(theirs, op.Project)
    dropped = {field_id for field_id in replaced_fields(ours) if field_id >= 0} - field_ids_of(theirs.schema)
    return max(incompatible_if(dropped), mandatory_columns(ours, theirs))


def same_columns(ours: Operation, theirs: Operation) -> Verdict:
    """Both replace the same column of a fragment."""
    assert isinstance(ours, op.DataReplacement)
    assert isinstance(theirs, op.DataReplacement)
    return retry_if(
        touched_fragments(ours) & touched_fragments(theirs) and replaced_fields(ours) & replaced_fields(theirs)
    )


def same_place(ours: Operation, theirs: Operation) -> Verdict:
    """Both add a base with the same id, name or path, which must be unique."""
    assert isinstance(ours, op.UpdateBases)
    assert isinstance(theirs, op.UpdateBases)
    return incompatible_if(
        any(
            mine.path == other.path or (mine.id and mine.id == other.id) or (mine.name and mine.name == other.name)
            for mine in ours.new
            for other in theirs.new
        )
    )


def _keys(update: MapUpdate | None) -> set[str]:
    return set(update.entries) if update else set()
