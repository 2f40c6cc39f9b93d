"""Manifest checks: one manifest by itself, and compared to the previous one. Pure: no file is opened.

Each check is a generator of findings; `check_version` and `check_fragment` call all of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from uuid import UUID

from pyroaring import BitMap

from lance_core.errors import Corrupt, Unsupported
from lance_core.format.features import Feature
from lance_core.format.fragment import Fragment, StorageVersion
from lance_core.format.id_runs import last_ids
from lance_core.format.ids import FRAGMENT_ID_MAX
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.overlay import overlays_of
from lance_core.format.row_lineage import RowIdSequence, RowVersions
from lance_core.format.schema import TableSchema
from lance_core.fsck.report import Finding, Severity

OVERWRITE = "Overwrite the table with the rows of an undamaged version."
_FIXED_BY_COMMIT = "The next commit by Lance, of any kind, corrects it."


def error(manifest: Manifest, rule: str, what: str, repair: str, *, path: str | None = None) -> Finding:
    return Finding(Severity.ERROR, rule, path or manifest.path, what, repair, manifest.version)


def warning(manifest: Manifest, rule: str, what: str, repair: str, *, path: str | None = None) -> Finding:
    return Finding(Severity.WARNING, rule, path or manifest.path, what, repair, manifest.version)


def check_version(manifest: Manifest) -> Iterator[Finding]:
    """Check one manifest, except its fragments."""
    yield from _check_ids(manifest)
    yield from _check_schema(manifest)
    yield from _check_flags(manifest)
    yield from _check_indices(manifest)


def check_pair(before: Manifest, after: Manifest) -> Iterator[Finding]:
    """Check that the counters never decrease: each number is assigned only once along all versions."""
    for rule, old, new in (
        ("max_fragment_id", before.max_fragment_id, after.max_fragment_id),
        ("next_row_id", before.next_row_id, after.next_row_id),
    ):
        if new < old:
            what = f"{rule} decreased from {old} in version {before.version} to {new}: ids may be assigned twice"
            yield warning(
                after, f"{rule}_goes_back", what, "Look for rows that share an id; nothing else depends on it."
            )


def check_fragment(manifest: Manifest, fragment: Fragment) -> Iterator[Finding]:
    """Check what holds for a fragment in every version that has it; `manifest` is the oldest of them."""
    name = f"fragment {fragment.id}"
    try:
        fragment.check(path=manifest.path)
        for file in fragment.files:
            assert file.path
    except Corrupt as problem:
        yield error(manifest, "fragment", f"{name} {problem.what} ({problem.field})", OVERWRITE)
        return
    if not fragment.files:
        yield error(manifest, "fragment_files", f"{name} has no data files", OVERWRITE)
    if not fragment.physical_rows:
        yield warning(manifest, "row_count", f"{name} does not record its number of rows", _FIXED_BY_COMMIT)
    deleted = fragment.deletion_file
    if deleted is not None and deleted.deleted_rows is None:
        yield warning(manifest, "row_count", f"{name} does not record its number of deleted rows", _FIXED_BY_COMMIT)
    if deleted is not None and (deleted.deleted_rows or 0) > fragment.physical_rows > 0:
        what = f"{name} has {fragment.physical_rows} rows, but more deleted rows"
        yield error(manifest, "row_count", what, OVERWRITE)
    yield from _check_overlays(manifest, fragment, name)
    if fragment.physical_rows:
        yield from _check_lineage(manifest, fragment, name)


def _check_overlays(manifest: Manifest, fragment: Fragment, name: str) -> Iterator[Finding]:
    newest = 0
    for overlay in overlays_of(fragment):
        try:
            covered = [offset for field_id in overlay.live_fields for offset in overlay.coverage(field_id)[-1:]]
        except Corrupt as problem:
            yield error(manifest, "overlay", f"{name} has the overlay {problem.path}, which {problem.what}", OVERWRITE)
            continue
        if fragment.physical_rows and max(covered, default=0) >= fragment.physical_rows:
            what = (
                f"{name} has {fragment.physical_rows} rows, but overlay {overlay.file.path} covers row {max(covered)}"
            )
            yield warning(manifest, "overlay", what, "Readers ignore the value; a compaction removes it.")
        if not newest <= overlay.committed_version <= manifest.version:
            what = (
                f"overlay {overlay.file.path} of {name} is of version {overlay.committed_version}, out of order: it is "
                "not known which value of a cell is the newest"
            )
            yield error(manifest, "overlay", what, OVERWRITE)
        newest = max(newest, overlay.committed_version)


def live_fragments(manifest: Manifest) -> BitMap:
    """Return the ids of the fragments, without impossible ids, which `check_fragment` reports."""
    return BitMap(fragment.id for fragment in manifest.message.fragments if fragment.id <= FRAGMENT_ID_MAX)


def covered_fragments(index: IndexMetadata, existing: BitMap) -> BitMap:
    """Return the existing fragments that a segment covers."""
    return (index.covers or BitMap()) & existing


def _check_ids(manifest: Manifest) -> Iterator[Finding]:
    ids = [fragment.id for fragment in manifest.message.fragments]
    if len(set(ids)) < len(ids):
        ((duplicate, _times),) = Counter(ids).most_common(1)
        what = f"two fragments have the id {duplicate}, so that their rows have the same addresses"
        yield error(manifest, "fragment_id_twice", what, OVERWRITE)
    elif ids != sorted(ids):
        what = "the fragments are not ordered by id: the next commit will reorder them, and with them the rows"
        yield warning(manifest, "fragment_order", what, "Do not rely on the order of rows.")
    if ids and max(ids) > manifest.max_fragment_id:
        what = f"max_fragment_id is {manifest.max_fragment_id}, but fragment {max(ids)} exists"
        yield error(manifest, "max_fragment_id", what, "Commit only with Lance, which computes it again.")


def _check_schema(manifest: Manifest) -> Iterator[Finding]:
    try:
        schema = manifest.schema
        version = manifest.storage_version
        assert schema.arrow is not None
    except Corrupt as problem:
        yield error(manifest, "schema", f"{problem.what} ({problem.field})", OVERWRITE)
        return
    except Unsupported as problem:
        yield warning(manifest, "schema", str(problem), "Examine it with a newer release of this package.")
        return
    yield from _check_storage_versions(manifest, version)
    yield from _check_mandatory_columns(manifest, schema)
    yield from _check_dead_files(manifest, version)
    bases = {base.id for base in manifest.base_paths}
    for fragment in manifest.message.fragments:
        for file in (*fragment.files, *(overlay.data_file for overlay in fragment.overlays)):
            if file.HasField("base_id") and file.base_id not in bases:
                what = f"{file.path} is in base path {file.base_id}, but the manifest has no base path with this id"
                yield error(manifest, "base_path", what, "Add the base path with this id, or restore a version.")
                return


def _check_storage_versions(manifest: Manifest, version: StorageVersion) -> Iterator[Finding]:
    stamps = {(f.file_major_version, f.file_minor_version) for each in manifest.message.fragments for f in each.files}
    versions = {StorageVersion.of_file(*stamp) for stamp in stamps}
    if any(each.is_legacy != version.is_legacy for each in versions):
        known = ", ".join(map(str, sorted(versions)))
        what = f"the table has storage version {version}, but some of its files have {known}"
        yield error(manifest, "storage_version", what, OVERWRITE)
    elif len(versions | {version}) > 1 and not _reader_flags(manifest) & Feature.MIXED_FILE_VERSIONS:
        known = ", ".join(map(str, sorted(versions)))
        what = f"the table has storage version {version}, but its files have {known}, without the feature flag for that"
        yield warning(manifest, "storage_version", what, "Compact the table, which rewrites its files.")


def _check_mandatory_columns(manifest: Manifest, schema: TableSchema) -> Iterator[Finding]:
    mandatory = {field.name: {node.id for node in field.walk()} for field in schema.fields if not field.nullable}
    if not mandatory:
        return
    for fragment in manifest.message.fragments:
        stored = {field_id for file in fragment.files for field_id in file.fields}
        for name, ids in mandatory.items():
            if not ids & stored:
                what = f"column {name!r} is not nullable, but no file of fragment {fragment.id} stores it"
                yield error(manifest, "mandatory_column", what, f"Make column {name!r} nullable.")
                return


def _check_dead_files(manifest: Manifest, version: StorageVersion) -> Iterator[Finding]:
    live = {field.id for field in manifest.message.fields}
    for fragment in manifest.message.fragments:
        dead = [file for file in fragment.files if live.isdisjoint(file.fields)]
        if not dead:
            continue
        what = f"{dead[0].path} of fragment {fragment.id} stores no column of the table: Lance treats it as damaged"
        if version.is_legacy and len(dead) == len(fragment.files):
            yield error(manifest, "dead_file", f"{what}, and the fragment cannot be read", OVERWRITE)
        else:
            yield warning(manifest, "dead_file", what, "Overwrite the table with its own rows.")
        return


def _reader_flags(manifest: Manifest) -> int:
    return manifest.message.reader_feature_flags


def _check_flags(manifest: Manifest) -> Iterator[Finding]:
    """Check the feature flags: a missing flag admits readers that do not understand the table."""
    message = manifest.message
    flags = message.reader_feature_flags & message.writer_feature_flags
    for feature, needed, what in (
        (Feature.DELETION_FILES, any(each.HasField("deletion_file") for each in message.fragments), "deleted rows"),
        (Feature.DATA_OVERLAYS, any(each.overlays for each in message.fragments), "overlay files"),
        (Feature.STABLE_ROW_IDS, any(each.HasField("inline_row_ids") for each in message.fragments), "stable row ids"),
        (Feature.BASE_PATHS, bool(message.base_paths), "base paths"),
    ):
        if needed and not flags & feature:
            text = f"there are {what}, but the feature flags do not declare them: older readers may return wrong rows"
            yield error(manifest, "flags", text, _FIXED_BY_COMMIT)
    if message.config and not message.writer_feature_flags & Feature.TABLE_CONFIG:
        yield warning(manifest, "flags", "there is a config, but the feature flags do not declare it", _FIXED_BY_COMMIT)


def _check_lineage(manifest: Manifest, fragment: Fragment, name: str) -> Iterator[Finding]:
    rows = fragment.physical_rows
    stable = manifest.has_stable_row_ids
    if stable and fragment.message.WhichOneof("row_id_sequence") is None:
        yield error(manifest, "row_ids", f"{name} has no row ids, although the table has stable row ids", OVERWRITE)
    try:
        if fragment.row_ids is not None:
            ids = RowIdSequence.decode(fragment.row_ids, rows=rows, path=manifest.path)
            highest = int(last_ids(ids.starts, ids.lengths).max(initial=0))
            if len(ids) and highest >= manifest.next_row_id:
                what = (
                    f"{name} has row id {highest}, but next_row_id is {manifest.next_row_id}: ids may be assigned twice"
                )
                yield error(manifest, "next_row_id", what, OVERWRITE)
        for field, data in (("created_at", fragment.created_at), ("last_updated_at", fragment.last_updated_at)):
            versions = RowVersions.decode(data, rows=rows, path=manifest.path, field=field)
            newest = max((version for _count, version in versions.runs), default=0)
            if stable and newest > manifest.version:
                what = f"{name} has rows of version {newest} in {field}, which does not exist yet"
                yield error(
                    manifest,
                    "row_versions",
                    what,
                    "Queries by row version return wrong results; the rows themselves are correct.",
                )
    except Corrupt as problem:
        yield error(manifest, "row_ids", f"{name}: {problem.field} {problem.what}", OVERWRITE)


def _check_indices(manifest: Manifest) -> Iterator[Finding]:
    try:
        indices = manifest.indices
        for index in indices:
            str(index.uuid)
            _ = index.covers
    except Corrupt as problem:
        yield error(manifest, "index_section", str(problem), "Drop the index and build it again.")
        return
    fields = {field.id for field in manifest.message.fields}
    uuids: set[UUID] = set()
    for index in indices:
        rebuild = f"Drop the index {index.name!r} and build it again."
        if index.uuid in uuids:
            yield error(manifest, "index_twice", f"two indices have the uuid {index.uuid}", rebuild)
        uuids.add(index.uuid)
        if index.is_system:
            continue
        if missing := sorted(set(index.field_ids) - fields):
            what = f"index {index.name!r} is on field {missing[0]}, which the table does not have"
            yield warning(manifest, "index_field", what, f"Drop the index {index.name!r}.")
        if index.covers is None:
            what = f"index {index.name!r} does not record its coverage, so that no query uses it"
            yield warning(manifest, "index_coverage", what, rebuild)
        elif index.covers and index.covers.max() > manifest.max_fragment_id:
            last = index.covers.max()
            what = f"index {index.name!r} covers fragment {last}, which never existed: queries will miss its rows"
            yield error(manifest, "index_coverage", what, rebuild)
    yield from _check_segments(manifest, indices)


def _check_segments(manifest: Manifest, indices: Sequence[IndexMetadata]) -> Iterator[Finding]:
    existing = live_fragments(manifest)
    covered_by_name: defaultdict[str, BitMap] = defaultdict(BitMap)
    for index in indices:
        if index.is_system:
            continue
        name, covered = index.name, covered_fragments(index, existing)
        if overlap := covered & covered_by_name[name]:
            what = f"two segments of index {name!r} cover fragment {overlap.min()}"
            yield warning(manifest, "index_overlap", what, f"Drop the index {name!r} and build it again.")
        covered_by_name[name] |= covered
