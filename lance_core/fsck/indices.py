"""Index checks: compares the files of index segments with the newest version. A check reads no data file.

    contradictions              pages out of order, duplicate rows: each index type checks these (`IndexType.examine`)
    impossible row numbers      rows that no fragment ever had, ids that were assigned to no row
    outdated row numbers        row addresses although row ids are stable: compactions by some releases of pylance do
                                not update them
    wrong coverage              a live row of a covered fragment is missing in the segment: queries by the index miss it
    fragment reuse index        fragments that were compacted together, of which the segment covers only some

A repair can remove fragments from the coverage of a segment, or drop an unusable segment; queries then scan instead.
The repair of outdated row numbers builds the index again from the rows of the table.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from uuid import UUID

from pyroaring import BitMap

from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import Change, commit_with_retry
from lance_core.errors import ConflictError, Corrupt, InvalidInput, LanceError, NotFound, Unsupported
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.format.row_sets import HALF_BITS, RowSet
from lance_core.fsck.manifests import error, warning
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.index import build, verification
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_latest

_LISTED_MAX = 5


def check_indices(base: Snapshot, writer_location: Location) -> Iterator[Finding]:
    """Check all segments. `writer_location` is the location at which repairs are committed."""
    manifest = base.manifest
    coverage = Coverage(base)
    try:
        segments = coverage.segments
        _ = coverage.reuse
    except LanceError as problem:
        yield error(manifest, "index_reuse", f"the fragment reuse index cannot be read: {problem}", "Drop all indices.")
        return
    for segment in segments:
        if segment.kind is None:
            what = f"index {segment.metadata.name!r} {segment.unused_reason}; its fragments are scanned"
            repair = "Query it with the library that built it, or drop it and build another index."
            yield Finding(Severity.INFO, "index_unknown", manifest.path, what, repair, manifest.version)
        else:
            yield from _check_segment(base, coverage, segment, writer_location)
        yield from _check_reuse_index(base, coverage, segment, writer_location)


def _finding_of(problem: LanceError, base: Snapshot, index: IndexMetadata, writer_location: Location) -> Finding:
    """Return the finding for a segment that cannot be read."""
    manifest = base.manifest
    if isinstance(problem, Unsupported):
        what = f"a segment of index {index.name!r} is not supported; its fragments are scanned: {problem}"
        repair = "Build the index again, with replace=True."
        return Finding(Severity.INFO, "index_unknown", manifest.path, what, repair, manifest.version)
    what = f"a segment of index {index.name!r} cannot be read: {problem}"
    found = error(manifest, "index_contents", what, _rebuild_advice(index), path=index.qualified_path)
    return _with_repair(found, _drop_repair(writer_location, index))


def _check_segment(
    base: Snapshot, coverage: Coverage, segment: SegmentCoverage, writer_location: Location
) -> Iterator[Finding]:
    manifest, index = base.manifest, segment.metadata
    path = index.qualified_path
    try:
        examination = verification.examine_segment(base, coverage, segment)
    except (NotFound, InvalidInput):
        return  # already reported: the files are missing or outside the table
    except LanceError as problem:
        yield _finding_of(problem, base, index, writer_location)
        return
    if examination is None:
        return
    if examination.problems:
        problems = "; ".join(examination.problems[:_LISTED_MAX])
        what = f"a segment of index {index.name!r} contradicts itself: {problems}"
        yield _with_repair(
            error(manifest, "index_contents", what, _rebuild_advice(index), path=path),
            _drop_repair(writer_location, index),
        )
    impossible = "; ".join(_impossible_rows(base, coverage, index, examination.rows))
    if impossible:
        expected = "row ids" if _holds_row_ids(base, index) else "row addresses"
        what = f"a segment of index {index.name!r} should contain {expected}, but contains {impossible}"
        yield _with_repair(
            error(manifest, "index_rows", what, _rebuild_advice(index), path=path), _drop_repair(writer_location, index)
        )
        return
    try:
        unlisted = verification.unlisted_rows(coverage, segment, examination)
        missing = verification.count_missing_rows(base, unlisted)
    except LanceError:
        return  # already reported: row ids or deleted rows of a fragment cannot be read
    is_outdated = manifest.has_stable_row_ids and index.stores_addresses and not index.is_zone_based
    if missing and examination.lists_every_row:
        fix = (
            _rebuild_repair(writer_location, index)
            if is_outdated
            else _uncover_repair(writer_location, index, BitMap(missing))
        )
        yield _with_repair(_missing_rows_finding(base, index, missing), fix)
    elif is_outdated:
        yield _with_repair(_outdated_finding(base, index), _rebuild_repair(writer_location, index))
    elif missing:
        yield _unproven_finding(base, index, missing)


def _missing_rows_finding(base: Snapshot, index: IndexMetadata, missing: Mapping[int, int]) -> Finding:
    number, rows = next(iter(missing.items()))
    what = (
        f"a segment of index {index.name!r} covers fragment {number} but misses {rows} of its rows"
        f"{_other_fragments_text(missing)}: queries miss them"
    )
    pronoun = "it" if len(missing) == 1 else "them"
    repair = f"Remove the coverage, and index {pronoun} again with optimize_indices()."
    return error(base.manifest, "index_coverage", what, repair, path=index.qualified_path)


def _unproven_finding(base: Snapshot, index: IndexMetadata, missing: Mapping[int, int]) -> Finding:
    number, rows = next(iter(missing.items()))
    what = (
        f"a segment of index {index.name!r} covers fragment {number} but has none of its {rows} rows"
        f"{_other_fragments_text(missing)}, which is correct only if none of them has a value that this index "
        "type stores"
    )
    repair = f"If that is impossible: {_rebuild_advice(index)}"
    return Finding(Severity.INFO, "index_unproven", index.qualified_path, what, repair, base.manifest.version)


def _impossible_rows(base: Snapshot, coverage: Coverage, index: IndexMetadata, rows: RowSet) -> Iterator[str]:
    """Yield a description of the first number in a segment that belongs to no row, if there is one."""
    manifest = base.manifest
    if _holds_row_ids(base, index):
        last = max(rows.parts, default=0)
        highest = (last << HALF_BITS) + rows.bitmap_under(last).max() if rows.parts else -1
        if highest >= manifest.next_row_id:
            yield f"{highest}, while only ids up to {manifest.next_row_id - 1} were assigned"
        return
    under = coverage.rows_under(index)
    for fragment, offsets in rows.parts.items():
        if fragment > manifest.max_fragment_id:
            yield f"one in fragment {fragment}, which never existed"
            return
        row_count = under(fragment)
        if row_count and offsets.max() >= row_count:
            yield f"row {offsets.max()} of fragment {fragment}, which has {row_count} rows"
            return


def _check_reuse_index(
    base: Snapshot, coverage: Coverage, segment: SegmentCoverage, writer_location: Location
) -> Iterator[Finding]:
    index, reuse = segment.metadata, coverage.reuse
    covered = index.covers
    if reuse is None or covered is None or index.is_zone_based:
        return
    for _planned, groups in reuse.compactions():
        for group in groups:
            old, new = BitMap(id for id, _ in group.old), BitMap(id for id, _ in group.new)
            covered_part = old & covered
            if old and covered_part == old:
                covered = (covered - old) | new
            elif covered_part:
                what = (
                    f"index {index.name!r} covers fragment {covered_part.min()} but not {(old - covered_part).min()}; "
                    f"both were compacted to {_fragment_text(new)}, which is scanned, and Lance may reject the index"
                )
                finding = warning(base.manifest, "index_reuse", what, _rebuild_advice(index), path=index.qualified_path)
                yield _with_repair(finding, _uncover_repair(writer_location, index, covered_part))
                return


def _outdated_finding(base: Snapshot, index: IndexMetadata) -> Finding:
    what = (
        f"a segment of index {index.name!r} stores row addresses although row ids are stable, as pylance 14 writes it; "
        "pylance 12 and 13 do not maintain it when they compact the table, and readers then miss rows"
    )
    repair = "If these releases maintain the table, build the index again, which then stores row ids."
    manifest = base.manifest
    return Finding(Severity.INFO, "index_addresses", index.qualified_path, what, repair, manifest.version)


def _holds_row_ids(base: Snapshot, index: IndexMetadata) -> bool:
    return base.manifest.has_stable_row_ids and not index.stores_addresses


def _rebuild_advice(index: IndexMetadata) -> str:
    return f"Drop the index {index.name!r} and build it again."


def _other_fragments_text(missing: Mapping[int, int]) -> str:
    return f", and rows of {len(missing) - 1} other fragments" if len(missing) > 1 else ""


def _fragment_text(fragments: BitMap) -> str:
    return "nothing" if not fragments else f"fragment {fragments.min()}"


def _with_repair(finding: Finding, fix: Repair) -> Finding:
    return Finding(finding.severity, finding.rule, finding.path, finding.what, finding.repair, finding.version, fix)


def _uncover_repair(writer_location: Location, index: IndexMetadata, fragments: BitMap) -> Repair:
    listed = ", ".join(map(str, list(fragments)[:_LISTED_MAX])) + (", …" if len(fragments) > _LISTED_MAX else "")
    noun = "fragment" if len(fragments) == 1 else "fragments"
    what = f"Remove {noun} {listed} from the coverage of index {index.name!r} (segment {index.uuid})."
    return Repair(RepairKind.INDICES, what, partial(_commit_repair, writer_location, index.uuid, fragments))


def _drop_repair(writer_location: Location, index: IndexMetadata) -> Repair:
    what = f"Drop the segment {index.uuid} of index {index.name!r}."
    return Repair(RepairKind.INDICES, what, partial(_commit_repair, writer_location, index.uuid, None))


def _rebuild_repair(writer_location: Location, index: IndexMetadata) -> Repair:
    what = f"Build index {index.name!r} again from the rows of the table."
    return Repair(RepairKind.INDICES, what, partial(_commit_rebuild, writer_location, index.uuid))


def _commit_rebuild(writer_location: Location, identity: UUID) -> str:
    """Commit a version in which one new segment replaces all segments of the index of this segment."""
    base = load_latest(writer_location)
    index = _find_segment(base, identity)
    if index is None:
        return f"segment {identity} does not exist any more"
    coverage = Coverage(base)
    spec = build.spec_of_segment(base, coverage, index)
    segments = coverage.by_name[index.name]
    if spec is None or any(segment.kind is not spec.kind for segment in segments):
        return f"index {index.name!r} has segments that cannot be built here; drop it and build it again"
    fragments = base.manifest.fragments
    covers = BitMap(fragment.id for fragment in fragments)
    rebuilt = build.build_segment(base, spec, fragments, covers=covers, runtime=SYSTEM_RUNTIME)
    return _commit(base, CreateIndex((rebuilt,), tuple(segment.metadata for segment in segments)))


def _find_segment(base: Snapshot, identity: UUID) -> IndexMetadata | None:
    return next((each for each in base.manifest.indices if each.uuid == identity), None)


def _commit_repair(writer_location: Location, identity: UUID, uncovered: BitMap | None) -> str:
    """Commit a version in which the segment covers less, or is dropped if `uncovered` is `None`."""
    base = load_latest(writer_location)
    index = _find_segment(base, identity)
    if index is None:
        return f"segment {identity} does not exist any more"
    if uncovered is None:
        operation = CreateIndex(removed=(index,))
    else:
        covered = index.covers
        if covered is None or not covered & uncovered:
            return f"segment {identity} no longer covers these fragments"
        operation = CreateIndex((index.with_coverage(covered - uncovered),))
    return _commit(base, operation)


def _commit(base: Snapshot, operation: CreateIndex) -> str:
    try:
        result = commit_with_retry(
            Change("fsck", lambda _base: operation, can_replan=False),
            base.location,
            base,
            intent=None,
            properties={},
            retries=ATTEMPTS,
            runtime=SYSTEM_RUNTIME,
        )
    except (ConflictError, Corrupt) as problem:
        return f"nothing was changed: {problem}"
    return f"done in version {result.snapshot.version}"
