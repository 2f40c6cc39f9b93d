"""Apply, for rows and columns: applies these operations to fragments, index coverage and row lineage.

`apply.py` calls one function for each operation. An index is never rebuilt here: it stays, loses coverage of
fragments whose values changed, or is removed with its column.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.errors import InvalidInput, RetryableConflict
from lance_core.format import field_ids
from lance_core.format import operations as op
from lance_core.format.deletion_vector import decode_offsets
from lance_core.format.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import FRAGMENT_REUSE, IndexMetadata
from lance_core.format.manifest_builder import ManifestBuilder
from lance_core.format.operations import UpdateMode
from lance_core.format.overlay import known_coverage, overlays_of, with_overlays_of, without_overlaid_fields
from lance_core.format.row_lineage import RowIdSequence, RowVersions
from lance_core.format.schema import TableSchema
from lance_core.transactions import index_coverage
from lance_core.transactions.index_coverage import LiveFragments

_NONE: frozenset[int] = frozenset()
Numbers = npt.NDArray[np.uint64]


def delete(builder: ManifestBuilder, operation: op.Delete) -> None:
    _check_fragments_exist(
        builder, operation, [*(fragment.id for fragment in operation.updated), *operation.removed_ids]
    )
    builder.remove_fragments(operation.removed_ids)
    builder.update_fragments([with_overlays_of(each, builder.fragments[each.id]) for each in operation.updated])
    _retain_indices(builder)


def update(builder: ManifestBuilder, operation: op.Update, *, read_version: Version) -> None:
    _check_fragments_exist(builder, operation, [*(each.id for each in operation.updated), *operation.removed_ids])
    before = builder.fragments.copy()
    builder.remove_fragments(operation.removed_ids)
    changed = frozenset(operation.fields_modified)
    rewritten = _with_descendants(builder.schema, changed) if operation.mode is UpdateMode.REWRITE_COLUMNS else _NONE
    updated = (with_overlays_of(each, before[each.id]) for each in _with_updated_versions(builder, operation))
    builder.update_fragments(without_overlaid_fields(each, rewritten, up_to=read_version) for each in updated)
    updated_ids = [fragment.id for fragment in operation.updated]
    if builder.indices:
        live = LiveFragments.of(builder.indices, before)
        builder.set_indices(index_coverage.remove_coverage(builder.indices, updated_ids, live, on_fields=changed))
    new = operation.new
    if builder.has_stable_row_ids and new:
        new = _with_created_at(new, before.values(), builder.version)
    builder.add_fragments(new, keep_ids=True)
    if builder.has_stable_row_ids and new and builder.indices:
        added = builder.added_fragments[-len(new) :]
        builder.set_indices(
            index_coverage.extend_to_moved_rows(builder.indices, operation, before, added, builder.schema)
        )
    _retain_indices(builder)


def rewrite(builder: ManifestBuilder, operation: op.Rewrite) -> None:
    for group in operation.groups:
        _check_fragments_exist(builder, operation, [fragment.id for fragment in group.old])
        reserved = {fragment.id for fragment in group.new}
        if 0 in reserved or any(number > builder.max_fragment_id for number in reserved):
            raise InvalidInput(
                "a Rewrite contains a fragment whose id was not reserved; reserve the ids with ReserveFragments first"
            )
    indices = _rewritten_indices(builder, operation)
    for group in operation.groups:
        builder.remove_fragments(fragment.id for fragment in group.old)
        builder.add_fragments(group.new, keep_ids=True)
    builder.set_indices(indices)


def merge(builder: ManifestBuilder, operation: op.Merge) -> None:
    before = dict(builder.fragments)
    highest = _highest_field_id(builder)
    after = {fragment.id: fragment for fragment in operation.fragments}
    if missing := sorted(set(before) - set(after)):
        raise InvalidInput(f"a Merge has to list every fragment of the table, but fragment {missing[0]} is missing")
    for fragment in operation.fragments:
        old = before.get(fragment.id)
        if old is None:
            raise InvalidInput(f"a Merge cannot add fragments, but fragment {fragment.id} is not in the table")
        if old.physical_rows != fragment.physical_rows:
            raise InvalidInput(
                f"a Merge cannot change the number of rows, but fragment {fragment.id} has {old.physical_rows} rows in "
                f"the table and {fragment.physical_rows} in the Merge"
            )
    moved = [fragment for fragment in operation.fragments if _paths(fragment) != _paths(before[fragment.id])]
    builder.update_fragments(operation.fragments)
    if builder.has_stable_row_ids:
        builder.update_fragments(_mark_all_rows_updated(fragment, builder.version) for fragment in moved)
    indices = builder.indices
    live = LiveFragments.of(indices, before)
    for fragment in moved:
        changed_files = frozenset(_files_by_field(before[fragment.id]).items() - _files_by_field(fragment).items())
        fields = frozenset(field_id for field_id, _path in changed_files)
        indices = index_coverage.remove_coverage(indices, [fragment.id], live, on_fields=fields)
    builder.set_indices(indices)
    builder.set_schema(operation.schema)
    _retain_indices(builder)
    _record_field_id_max(builder, highest)


def project(builder: ManifestBuilder, operation: op.Project) -> None:
    """Set another schema. Files with a live column stay byte for byte; they still list the ids of dropped columns."""
    schema = TableSchema(operation.schema.fields, builder.schema.metadata)
    live = schema.field_ids
    highest = _highest_field_id(builder)
    builder.update_fragments(
        fragment.with_files([file for file in fragment.files if live & set(file.field_ids)])
        for fragment in list(builder.fragments.values())
        if any(not live & set(file.field_ids) for file in fragment.files)
    )
    builder.update_fragments(
        without_overlaid_fields(fragment, dead, up_to=builder.version)
        for fragment in list(builder.fragments.values())
        if (dead := frozenset(each for overlay in overlays_of(fragment) for each in overlay.live_fields - live))
    )
    builder.set_schema(schema)
    _retain_indices(builder)
    _record_field_id_max(builder, highest)


def replace_data(builder: ManifestBuilder, operation: op.DataReplacement, *, read_version: Version) -> None:
    """Replace files. Overlays that the writer of the files knew are replaced with them; later ones stay in effect."""
    fields = {file.field_ids for _fragment_id, file in operation.replacements}
    if len(fields) > 1:
        raise InvalidInput("all files of a DataReplacement have to store the same fields")
    _check_fragments_exist(builder, operation, [fragment_id for fragment_id, _file in operation.replacements])
    replaced = []
    for fragment_id, file in operation.replacements:
        before = builder.fragments[fragment_id]
        overlaid = _with_descendants(builder.schema, frozenset(file.field_ids))
        fragment = without_overlaid_fields(_replace_file(before, file), overlaid, up_to=read_version)
        replaced.append(_mark_all_rows_updated(fragment, builder.version) if builder.has_stable_row_ids else fragment)
    builder.update_fragments(replaced)
    ids = [fragment.id for fragment in replaced]
    on_fields = frozenset(field_id for each in fields for field_id in each)
    live = LiveFragments.of(builder.indices, builder.fragments)
    builder.set_indices(index_coverage.remove_coverage(builder.indices, ids, live, on_fields=on_fields))


def uncover_overlaid_fragments(builder: ManifestBuilder) -> None:
    """Remove fragments from the coverage of segments that do not know their overlays. Readers ignore this coverage, but
    after an operation that moves rows or removes overlays, the segment must not cover the old values again."""
    messages = [fragment.message for fragment in builder.fragments.values()]
    builder.set_indices(known_coverage(builder.indices, messages, builder.schema))


def _with_descendants(schema: TableSchema, field_ids: frozenset[int]) -> frozenset[int]:
    """Return these fields with all fields below them."""
    nodes = (node for top in schema.fields for node in top.walk() if node.id in field_ids)
    return field_ids | {below.id for node in nodes for below in node.walk()}


def _check_fragments_exist(
    builder: ManifestBuilder, operation: op.Operation, fragment_ids: Iterable[FragmentId]
) -> None:
    for fragment_id in fragment_ids:
        if fragment_id not in builder.fragments:
            raise RetryableConflict(
                f"this {operation.name} changes fragment {fragment_id}, which the table no longer has; reopen the "
                "table and repeat the operation on the new version",
                ours=operation.name,
                theirs="an earlier commit",
                version=builder.version - 1,
                rule="fragments_are_there",
            )


def _retain_indices(builder: ManifestBuilder) -> None:
    if not builder.indices:
        return
    live = LiveFragments.of(
        builder.indices, [*builder.fragments, *(fragment.id for fragment in builder.added_fragments)]
    )
    builder.set_indices(index_coverage.drop_useless_segments(builder.indices, live, field_ids=builder.schema.field_ids))


def _highest_field_id(builder: ManifestBuilder) -> int:
    messages = (fragment.message for fragment in builder.fragments.values())
    return field_ids.highest_field_id(builder.schema, messages, builder.config)


def _record_field_id_max(builder: ManifestBuilder, highest: int) -> None:
    """Record the highest field id. When its column is dropped, files may still list it, but only until they are
    compacted."""
    if builder.schema.field_id_max < highest and builder.config.get(field_ids.FIELD_ID_MAX_KEY) != str(highest):
        builder.set_config({**builder.config, field_ids.FIELD_ID_MAX_KEY: str(highest)})


def _rewritten_indices(builder: ManifestBuilder, operation: op.Rewrite) -> list[IndexMetadata]:
    """Return the indices after a Rewrite. Coverage follows the rows if row ids are stable or the segment was
    rewritten. Other segments keep the ids of removed fragments, which cover nothing."""
    rewritten_by_uuid = dict(operation.rewritten_indices)
    reuse, earlier = operation.fragment_reuse, operation.earlier_reuse
    after = [] if reuse is None else [reuse]
    for index in builder.indices:
        rewritten = rewritten_by_uuid.get(index.uuid.bytes)
        if reuse is not None and index.name == FRAGMENT_REUSE:
            continue
        if index.is_system:
            after.append(index)
            continue
        covered = index.covers
        if not (builder.has_stable_row_ids or rewritten):
            loses_coverage = reuse is not None and not (
                not index.is_zone_based
                and (index.survives_remap if operation.uncovers_fragile else index.follows_reuse)
            )
            after.append(
                index
                if not loses_coverage or covered is None
                else index.with_coverage(covered & _unmoved_fragments(builder, operation))
            )
            continue
        if covered is not None:
            if rewritten is not None and earlier is not None and not index.is_zone_based:
                covered = earlier.follow_coverage(covered)
            for group in operation.groups:
                if index.stores_addresses and rewritten is None:
                    covered = covered - BitMap(fragment.id for fragment in group.old)
                else:
                    covered = _coverage_after_move(index, covered, group)
        moved = index if rewritten is None else index.with_rewrite(rewritten)
        after.append(moved if covered is None else moved.with_coverage(covered))
    return after


def _unmoved_fragments(builder: ManifestBuilder, operation: op.Rewrite) -> BitMap:
    """Return the fragments whose rows did not move, now or earlier: no recorded compaction maps them to others."""
    return BitMap(builder.fragments) - BitMap(fragment.id for group in operation.groups for fragment in group.old)


def _coverage_after_move(index: IndexMetadata, covered: BitMap, group: op.RewriteGroup) -> BitMap:
    old = BitMap(fragment.id for fragment in group.old)
    if not covered & old:
        return covered
    if not old <= covered:
        raise InvalidInput(
            f"a Rewrite would combine fragments that index {index.name!r} covers with fragments that it does not "
            "cover; put them into separate groups"
        )
    return (covered - old) | BitMap(fragment.id for fragment in group.new)


def _with_updated_versions(builder: ManifestBuilder, operation: op.Update) -> list[Fragment]:
    """Record the new version for rows whose columns were rewritten in place."""
    if not (builder.has_stable_row_ids and operation.mode is UpdateMode.REWRITE_COLUMNS):
        return list(operation.updated)
    stamped = []
    for fragment in operation.updated:
        offsets = operation.updated_offsets.get(fragment.id)
        if offsets is not None and fragment.last_updated_at is not None:
            positions = decode_offsets(offsets, path=f"updated offsets of fragment {fragment.id}")
            versions = _decode_versions(fragment, fragment.last_updated_at).with_version_in(positions, builder.version)
            fragment = fragment.with_lineage(last_updated_at=versions.encode())
        stamped.append(fragment)
    return stamped


def _mark_all_rows_updated(fragment: Fragment, version: Version) -> Fragment:
    return fragment.with_lineage(last_updated_at=RowVersions.of_one(fragment.physical_rows, version).encode())


def _with_created_at(new: Sequence[Fragment], before: Iterable[Fragment], version: Version) -> tuple[Fragment, ...]:
    """Keep the creation version of rows that moved, found by their row ids. The other rows are new."""
    known: list[tuple[Numbers, Numbers]] = []
    if any(fragment.row_ids is not None and fragment.created_at is None for fragment in new):
        for fragment in sorted(before, key=lambda each: each.id):
            if fragment.row_ids is not None:
                ids = RowIdSequence.decode(fragment.row_ids, rows=fragment.physical_rows, path="head").to_numpy()
                known.append((ids, _decode_versions(fragment, fragment.created_at).to_numpy()))
    resolved = []
    for fragment in new:
        if fragment.row_ids is not None and fragment.created_at is None:
            rows = fragment.physical_rows
            assigned_ids = RowIdSequence.decode_partial(fragment.row_ids, rows_max=rows, path="new fragment").to_numpy()
            created = np.full(rows, version, dtype=np.uint64)
            created[: len(assigned_ids)] = _created_at(assigned_ids, known, version)
            fragment = fragment.with_lineage(created_at=RowVersions.of(created).encode())
        resolved.append(fragment)
    return tuple(resolved)


def _created_at(
    ids: Numbers,
    known: Sequence[tuple[Numbers, Numbers]],
    version: Version,
) -> Numbers:
    """Return the creation version of each id, from the first fragment that has the id."""
    created = np.full(len(ids), version, dtype=np.uint64)
    unresolved = np.arange(len(ids))
    for known_ids, versions in known:
        if not len(unresolved):
            break
        order = np.argsort(known_ids, kind="stable")
        positions = np.searchsorted(known_ids, ids[unresolved], sorter=order)
        in_range = positions < len(known_ids)
        is_known = np.zeros(len(unresolved), dtype=np.bool_)
        is_known[in_range] = known_ids[order[positions[in_range]]] == ids[unresolved[in_range]]
        created[unresolved[is_known]] = versions[order[positions[is_known]]]
        unresolved = unresolved[~is_known]
    return created


def _decode_versions(fragment: Fragment, data: bytes | None) -> RowVersions:
    return RowVersions.decode(data, rows=fragment.physical_rows, path="head", field="row versions")


def _replace_file(fragment: Fragment, new: DataFile) -> Fragment:
    """Replace the file with the same fields. If there is none, mark the fields as dead in the other files and add the
    file."""
    for position, file in enumerate(fragment.files):
        if file.field_ids == new.field_ids and file.version == new.version:
            return fragment.with_files([*fragment.files[:position], new, *fragment.files[position + 1 :]])
    ids = set(new.field_ids)
    survivors = [file.without_fields(ids) if ids & set(file.field_ids) else file for file in fragment.files]
    return fragment.with_files([*(file for file in survivors if set(file.field_ids) != {TOMBSTONE}), new])


def _paths(fragment: Fragment) -> list[str]:
    return [file.path for file in fragment.files]


def _files_by_field(fragment: Fragment) -> dict[int, str]:
    return {field_id: file.path for file in fragment.files for field_id in file.field_ids if field_id >= 0}
