"""The rules of the table in `conflicts.py`: each a small function of our change and of one that was committed first,
with a sentence on why. Which rule holds for which pair is said there, and nowhere else.

A rule sees two operations, never a manifest. What it takes a manifest to find out, such as whether the same rows were
removed, is found where the change is made to fit (`rebase.py`).
"""

from lance_core.format import key_filter
from lance_core.format import operations as op
from lance_core.format.operations import MapUpdate, Operation, UpdateMode
from lance_core.transactions.footprint import (
    affected_rows,
    config_of,
    updated_fragments,
    field_ids_of,
    have_common_key,
    removed_fragments,
    replaced_fields,
    rewrites_columns,
    touched_fragments,
)
from lance_core.transactions.verdicts import Verdict, incompatible_if, retry_if


def compatible(ours: Operation, theirs: Operation) -> Verdict:
    """Neither touches what the other relies on; ids are given out at commit."""
    return Verdict.COMPATIBLE


def incompatible(ours: Operation, theirs: Operation) -> Verdict:
    """The table that this was planned for is no longer there."""
    return Verdict.INCOMPATIBLE


def plan_again(ours: Operation, theirs: Operation) -> Verdict:
    """One of the two says what every fragment or the whole schema is, and has not seen the other."""
    return Verdict.RETRY


def unknown_change(ours: Operation, theirs: Operation) -> Verdict:
    """Nobody here knows what it changed, so all that was planned before it is planned again."""
    return Verdict.RETRY


def same_fragments(ours: Operation, theirs: Operation) -> Verdict:
    """Both restate a fragment, and the second would undo what the first did to it."""
    return retry_if(touched_fragments(ours) & touched_fragments(theirs))


def mandatory_columns(ours: Operation, theirs: Operation) -> Verdict:
    """Rows were written while a column became mandatory: nobody looked for nulls in them."""
    return retry_if(any(isinstance(each, op.Merge | op.Project) and not each.preserves_nullability
                         for each in (ours, theirs)))  # fmt: skip


def columns_written(ours: Operation, theirs: Operation) -> Verdict:
    """New values were written for a column that is gone; or a column became mandatory, and nobody looked for nulls."""
    assert isinstance(ours, op.Update)
    assert isinstance(theirs, op.Project)
    return max(retry_if(set(ours.fields_modified) - field_ids_of(theirs.schema)), mandatory_columns(ours, theirs))


def same_rows(ours: Operation, theirs: Operation) -> Verdict:
    """Both remove or move rows of a fragment: two sets of deleted rows are joined, unless a row is in both. Files that
    changed under us, fragments that went, and rows that nobody named are planned again."""
    mine = updated_fragments(ours)
    if not touched_fragments(ours) & touched_fragments(theirs):
        return Verdict.COMPATIBLE
    if affected_rows(ours) is None or touched_fragments(ours) & set(removed_fragments(theirs)) or set(removed_fragments(ours)) & touched_fragments(theirs):
        return Verdict.RETRY
    if isinstance(theirs, op.Update) and (theirs.mode is UpdateMode.REWRITE_COLUMNS or theirs.fields_modified):
        return Verdict.RETRY
    for fragment in updated_fragments(theirs).values():
        before = mine.get(fragment.id)
        if before and not rewrites_columns(ours) and before.files != fragment.files:
            return Verdict.RETRY
    return Verdict.REBASE


def new_keys(ours: Operation, theirs: Operation) -> Verdict:
    """An upsert inserts what it did not find, and theirs may have brought it: rows of an append could have any key,
    unless somebody looked. So they could be of the slice that is overwritten."""
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
    """Both rules: rows that are there are not changed twice, and a new key is not inserted twice. What removes the rows
    that it has no match for must have seen those that another upsert brought."""
    assert isinstance(ours, op.Update)
    assert isinstance(theirs, op.Update)
    unseen = retry_if(ours.deletes_unmatched and theirs.inserted_keys is not None)
    return max(same_rows(ours, theirs), new_keys(ours, theirs), unseen)


def same_fragments_or_slice(ours: Operation, theirs: Operation) -> Verdict:
    """Both restate a fragment; or values were replaced by which rows are of the slice that is overwritten."""
    assert isinstance(ours, op.Update)
    return max(same_fragments(ours, theirs), retry_if(ours.replaced_slice is not None))


def both_replace(ours: Operation, theirs: Operation) -> Verdict:
    """Whoever comes second has not seen what it would replace; a config key set by both needs a person."""
    assert isinstance(ours, op.Overwrite)
    assert isinstance(theirs, op.Overwrite)
    both = ours.config_upserts.keys() & theirs.config_upserts.keys()
    return Verdict.INCOMPATIBLE if both else Verdict.RETRY


def same_config_keys(ours: Operation, theirs: Operation) -> Verdict:
    """Two values for one key: which one is meant, a person decides."""
    mine, other = config_of(ours), config_of(theirs)
    return incompatible_if(have_common_key(mine, other))


def settings_of_what_went(ours: Operation, theirs: Operation) -> Verdict:
    """The columns whose metadata this sets were replaced, or the same config key was set."""
    assert isinstance(ours, op.UpdateConfig)
    of_columns = ours.schema_metadata is not None or ours.field_metadata
    return max(incompatible_if(of_columns), same_config_keys(ours, theirs))


def same_settings(ours: Operation, theirs: Operation) -> Verdict:
    """Two values for one key of a map, or of one column; the schema's own metadata is one thing. That both delete a key
    of the config is no disagreement."""
    assert isinstance(ours, op.UpdateConfig)
    assert isinstance(theirs, op.UpdateConfig)
    return incompatible_if(
        have_common_key(ours.config, theirs.config)
        or _keys(ours.table_metadata) & _keys(theirs.table_metadata)
        or (ours.schema_metadata is not None and theirs.schema_metadata is not None)
        or ours.field_metadata.keys() & theirs.field_metadata.keys()
    )


def metadata_of_columns(ours: Operation, theirs: Operation) -> Verdict:
    """One states the whole schema, and the other changes metadata within it."""
    settings = ours if isinstance(ours, op.UpdateConfig) else theirs
    assert isinstance(settings, op.UpdateConfig)
    changed = [settings.schema_metadata, *settings.field_metadata.values()]
    return retry_if(any(each is not None and (each.entries or each.replace) for each in changed))


def metadata_of_kept_columns(ours: Operation, theirs: Operation) -> Verdict:
    """One states all columns as it knew them, and the other changed the metadata of some."""
    assert isinstance(theirs, op.UpdateConfig)
    return retry_if(theirs.field_metadata)


def metadata_of_restored_columns(ours: Operation, theirs: Operation) -> Verdict:
    """One brings back the columns of another version, and the other was about those of this one."""
    settings = ours if isinstance(ours, op.UpdateConfig) else theirs
    assert isinstance(settings, op.UpdateConfig)
    return incompatible_if(settings.schema_metadata is not None or settings.field_metadata)


def both_compact(ours: Operation, theirs: Operation) -> Verdict:
    """Fragments that both wrote anew would hold their rows twice; of two that say where rows went, the second has to
    say it for the first too; and an index that both wrote anew would follow one of them."""
    assert isinstance(ours, op.Rewrite)
    assert isinstance(theirs, op.Rewrite)
    both_note = ours.fragment_reuse is not None and theirs.fragment_reuse is not None
    both_remap = dict(ours.rewritten_indices).keys() & dict(theirs.rewritten_indices).keys()
    return max(same_fragments(ours, theirs), retry_if(both_note or both_remap))


def target_removed(ours: Operation, theirs: Operation) -> Verdict:
    """The fragment whose column this replaces is gone. Rows deleted from it stay deleted."""
    assert isinstance(ours, op.DataReplacement)
    return incompatible_if(touched_fragments(ours) & set(removed_fragments(theirs)))


def target_changed(ours: Operation, theirs: Operation) -> Verdict:
    """The values that this replaces were changed, or their rows moved to another fragment."""
    assert isinstance(ours, op.DataReplacement)
    assert isinstance(theirs, op.Update)
    if touched_fragments(ours) & set(removed_fragments(theirs)):
        return Verdict.INCOMPATIBLE
    if not touched_fragments(ours) & touched_fragments(theirs):
        return Verdict.COMPATIBLE
    moved = theirs.new and theirs.mode is not UpdateMode.REWRITE_COLUMNS
    return retry_if(moved or replaced_fields(ours) & set(theirs.fields_modified))


def target_columns_dropped(ours: Operation, theirs: Operation) -> Verdict:
    """The column that this replaces is gone; or it became mandatory."""
    assert isinstance(ours, op.DataReplacement)
    assert isinstance(theirs, op.Project)
    gone = {field_id for field_id in replaced_fields(ours) if field_id >= 0} - field_ids_of(theirs.schema)
    return max(incompatible_if(gone), mandatory_columns(ours, theirs))


def same_columns(ours: Operation, theirs: Operation) -> Verdict:
    """Both replace the same column of a fragment."""
    assert isinstance(ours, op.DataReplacement)
    assert isinstance(theirs, op.DataReplacement)
    return retry_if(touched_fragments(ours) & touched_fragments(theirs) and replaced_fields(ours) & replaced_fields(theirs))


def same_place(ours: Operation, theirs: Operation) -> Verdict:
    """A number, a name or a path can stand for one place only."""
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
