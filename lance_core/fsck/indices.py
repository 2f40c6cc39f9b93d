"""Indices of the newest version: do the files of a segment say what the version says of them. No data file is read.

    what contradicts itself     pages out of order, rows twice: the kind looks (`RepairKind.examine`)
    the wrong sort of number    rows that no fragment ever had, ids that no row was given
    a claim that does not hold  a row that lives in a fragment which the segment covers, and that is not in it: a query
                                by the index misses it
    notes of compactions        fragments that became others together, of which a segment covers some

A claim that does not hold can be taken back, and a segment that cannot be used can go: then queries scan instead.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from uuid import UUID

from pyroaring import BitMap

from lance_core.commit.change import Change, commit_with_retry
from lance_core.commit.loop import ATTEMPTS
from lance_core.datafiles.fragment_reader import read_deletions
from lance_core.errors import ConflictError, Corrupt, InvalidInput, LanceError, NotFound
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from lance_core.format.row_sets import HALF_BITS, RowSet
from lance_core.fsck.manifests import error, warning
from lance_core.fsck.report import Finding, Repair, RepairKind, Severity
from lance_core.index import build
from lance_core.index.coverage import Coverage, SegmentCoverage
from lance_core.index.index_type import SegmentExamination
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, load_latest

_LISTED_MAX = 5


def check_indices(base: Snapshot, acting: Location) -> Iterator[Finding]:
    """`acting` is where repairs are committed."""
    manifest = base.manifest
    coverage = Coverage(base)
    try:
        segments = coverage.segments
        _ = coverage.reuse
    except LanceError as found:
        yield error(manifest, "index_reuse", f"what says where rows went cannot be read: {found}", "Drop all indices.")
        return
    for standing in segments:
        if standing.kind is None:
            what = f"index {standing.metadata.name!r} {standing.unused_reason}; its fragments are scanned"
            repair = "Query it with the library that made it, or drop it and build another."
            yield Finding(Severity.INFO, "index_unknown", manifest.path, what, repair, manifest.version)
        else:
            yield from _check_segment(base, coverage, standing, acting)
        yield from _check_reuse_index(base, coverage, standing, acting)


def _check_segment(
    base: Snapshot, coverage: Coverage, standing: SegmentCoverage, acting: Location
) -> Iterator[Finding]:
    manifest, index = base.manifest, standing.metadata
    path = index.qualified_path
    try:
        examined = _examine_segment(base, coverage, standing)
    except (NotFound, InvalidInput):
        return  # told of its files: they are gone, or in a place that is not opened
    except LanceError as found:
        what = f"a segment of index {index.name!r} cannot be read: {found}"
        yield _with_repair(
            error(manifest, "index_contents", what, _rebuild_advice(index), path=path), _drop_repair(acting, index)
        )
        return
    if examined is None:
        return
    if examined.problems:
        shown = "; ".join(examined.problems[:_LISTED_MAX])
        what = f"a segment of index {index.name!r} contradicts itself: {shown}"
        yield _with_repair(
            error(manifest, "index_contents", what, _rebuild_advice(index), path=path), _drop_repair(acting, index)
        )
    wrong = "; ".join(_impossible_rows(base, coverage, index, examined.rows))
    if wrong:
        sort = "row ids" if _holds_row_ids(base, index) else "addresses of rows"
        what = f"a segment of index {index.name!r} is said to hold {sort}, and it holds {wrong}"
        yield _with_repair(
            error(manifest, "index_rows", what, _rebuild_advice(index), path=path), _drop_repair(acting, index)
        )
        return
    try:
        missing = _missing_rows(base, coverage, standing, examined)
    except LanceError:
        return  # told of the fragments, whose ids or deleted rows cannot be read
    if missing and examined.lists_every_row:
        number, rows = next(iter(missing.items()))
        what = (
            f"a segment of index {index.name!r} says that it covers fragment {number}, and {rows} of its rows are not "
            f"in it{_other_fragments_text(missing)}: queries miss them"
        )
        repair = f"Take the claim back, and cover {'it' if len(missing) == 1 else 'them'} with optimize_indices()."
        yield _with_repair(
            error(manifest, "index_coverage", what, repair, path=path), _uncover_repair(acting, index, BitMap(missing))
        )
    elif missing:
        number, rows = next(iter(missing.items()))
        what = (
            f"a segment of index {index.name!r} says that it covers fragment {number}, and has nothing of its {rows} "
            f"rows{_other_fragments_text(missing)}, which is right only if none of them has anything that the kind keeps"
        )
        repair = f"Where that cannot be: {_rebuild_advice(index)}"
        yield Finding(Severity.INFO, "index_unproven", path, what, repair, manifest.version)


def _impossible_rows(base: Snapshot, coverage: Coverage, index: IndexMetadata, rows: RowSet) -> Iterator[str]:
    """Numbers that are no row's."""
    manifest = base.manifest
    if _holds_row_ids(base, index):
        last = max(rows.parts, default=0)
        highest = (last << HALF_BITS) + rows.bitmap_under(last).max() if rows.parts else -1
        if highest >= manifest.next_row_id:
            yield f"{highest}, and ids up to {manifest.next_row_id - 1} were given to rows"
        return
    under = coverage.rows_under(index)
    for fragment, offsets in rows.parts.items():
        if fragment > manifest.max_fragment_id:
            yield f"one in fragment {fragment}, which never was"
            return
        there = under(fragment)
        if there and offsets.max() >= there:
            yield f"row {offsets.max()} of fragment {fragment}, which has {there}"
            return


def _missing_rows(
    base: Snapshot, coverage: Coverage, standing: SegmentCoverage, examined: SegmentExamination
) -> Mapping[int, int]:
    """Of each fragment that is covered, how many live rows are not there; of a kind that does not keep every row, only
    where none of them is."""
    found = coverage.row_remap(standing).remap_set(examined.rows)
    missing = {}
    for fragment in base.manifest.fragments:
        if fragment.id not in standing.covered or not fragment.live_rows:
            continue
        there = found.bitmap_under(fragment.id)
        if not examined.lists_every_row:
            if not there:
                missing[int(fragment.id)] = fragment.live_rows
            continue
        if len(there) == fragment.physical_rows:
            continue
        live = BitMap(range(fragment.physical_rows))
        deleted = read_deletions(base.location.store, fragment)
        if deleted is not None:
            live -= BitMap(deleted.offsets)
        if lost := len(live - there):
            missing[int(fragment.id)] = lost
    return missing


def _check_reuse_index(
    base: Snapshot, coverage: Coverage, standing: SegmentCoverage, acting: Location
) -> Iterator[Finding]:
    index, reuse = standing.metadata, coverage.reuse
    here = index.covers
    if reuse is None or here is None or index.is_zone_based:
        return
    for _planned, groups in reuse.compactions():
        for led in groups:
            old, new = BitMap(id for id, _ in led.old), BitMap(id for id, _ in led.new)
            part = old & here
            if old and part == old:
                here = (here - old) | new
            elif part:
                what = (
                    f"index {index.name!r} covers fragment {part.min()} and not fragment {(old - part).min()}, which "
                    f"became {_fragment_text(new)} together: what became of it is scanned, and Lance may refuse the index"
                )
                finding = warning(base.manifest, "index_reuse", what, _rebuild_advice(index), path=index.qualified_path)
                yield _with_repair(finding, _uncover_repair(acting, index, part))
                return


def _examine_segment(base: Snapshot, coverage: Coverage, standing: SegmentCoverage) -> SegmentExamination | None:
    """None for a column that is gone, which is told of the version."""
    index = standing.metadata
    chain = build.chain_of(base.manifest.schema, index.field_ids[0]) if len(index.field_ids) == 1 else None
    if chain is None or standing.kind is None:
        return None
    return standing.kind.examine(coverage.segment_of(index), build.arrow_of(base.manifest.schema, chain))


def _holds_row_ids(base: Snapshot, index: IndexMetadata) -> bool:
    return base.manifest.has_stable_row_ids and not index.stores_addresses


def _rebuild_advice(index: IndexMetadata) -> str:
    return f"Drop the index {index.name!r} and build it again."


def _other_fragments_text(missing: Mapping[int, int]) -> str:
    return f", and so it is of {len(missing) - 1} other fragments" if len(missing) > 1 else ""


def _fragment_text(fragments: BitMap) -> str:
    return "nothing" if not fragments else f"fragment {fragments.min()}"


def _with_repair(finding: Finding, mend: Repair) -> Finding:
    return Finding(finding.severity, finding.rule, finding.path, finding.what, finding.repair, finding.version, mend)


def _uncover_repair(acting: Location, index: IndexMetadata, fragments: BitMap) -> Repair:
    named = ", ".join(map(str, list(fragments)[:_LISTED_MAX])) + (", …" if len(fragments) > _LISTED_MAX else "")
    what = f"Let index {index.name!r} (segment {index.uuid}) no longer say that it covers {named}."
    return Repair(RepairKind.INDICES, what, partial(_commit_repair, acting, index.uuid, fragments))


def _drop_repair(acting: Location, index: IndexMetadata) -> Repair:
    what = f"Drop the segment {index.uuid} of index {index.name!r}."
    return Repair(RepairKind.INDICES, what, partial(_commit_repair, acting, index.uuid, None))


def _commit_repair(acting: Location, identity: UUID, uncovered: BitMap | None) -> str:
    """A version of its own, upon the newest: the segment says less, or is gone (`uncovered` is None)."""
    base = load_latest(acting)
    index = next((each for each in base.manifest.indices if each.uuid == identity), None)
    if index is None:
        return f"there is no segment {identity} any more"
    if uncovered is None:
        operation = CreateIndex(removed=(index,))
    else:
        covered = index.covers
        if covered is None or not covered & uncovered:
            return f"segment {identity} says so no more"
        operation = CreateIndex((index.with_coverage(covered - uncovered),))
    try:
        done = commit_with_retry(
            Change("fsck", lambda _base: operation, can_replan=False),
            base.location,
            base,
            intent=None,
            properties={},
            retries=ATTEMPTS,
            runtime=SYSTEM_RUNTIME,
        )
    except (ConflictError, Corrupt) as found:
        return f"nothing was done: {found}"
    return f"done in version {done.snapshot.version}"
