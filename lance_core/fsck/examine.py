"""The round through a table: its names, its versions from the oldest on, what they name, references, orphans, and what
is kept beside them."""

import enum
from collections.abc import Iterator, Mapping, Sequence

from pyroaring import BitMap

from lance_core.errors import Corrupt, LanceError, NotFound
from lance_core.format import naming, refs
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.fsck import auxiliary_records, hash_chain, indices, manifest_store_entries, manifests, references
from lance_core.fsck.blobs import BlobChecker
from lance_core.fsck.damaged_head import find_damaged_head, load_fully, unreadable_version
from lance_core.fsck.files import FileChecker
from lance_core.fsck.hash_chain import Link
from lance_core.fsck.report import Finding, Report, Severity
from lance_core.index.coverage import Coverage, combined_coverage, follow_reuse
from lance_core.transactions.fold import parts_of, uuids_of
from lance_core.versions.file_inventory import BranchFiles, list_files, references_of, references_of_other_branches
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot, format_ranges, load_transaction

_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)


class Extent(enum.Enum):
    ALL = "all"
    HEAD = "head"
    """The newest version only; orphans and the order of versions are then not asked for."""


def examine(location: Location, extent: Extent | Version = Extent.ALL) -> Report:
    """Whatever state it is in; a directory that holds no version at all is the only thing that is refused. `extent` may
    be one version."""
    as_opened, acting = location, location.own_store
    location, published = manifest_store_entries.without_manifest_store(location)
    manifest_names = _list_manifests(location)
    told = [] if published is None else list(manifest_store_entries.check_entries(published))
    if not manifest_names and not told:
        raise NotFound(f"there is no Lance table at {location.uri}; check the path")
    told += _check_naming_schemes(manifest_names)
    by_number = {version: path for path, version in manifest_names}
    numbers = sorted(by_number)
    looked_at = _versions_in(location, numbers, extent)
    found = _Examination(location, {info.path: info.size for _key, info in list_files(location)}, told)
    for version in looked_at:
        try:
            snapshot = load_fully(location, version)
        except LanceError as error:
            path = by_number[version]
            if version == numbers[-1]:
                found.add_unreadable(version, path, find_damaged_head(location, by_number, error, acting=acting))
            else:
                found.add_unreadable(version, path, unreadable_version(path, version, error))
        else:
            found.add_version(snapshot)
    if extent is Extent.ALL:
        found.links += hash_chain.detached_links(location)
    elif looked_at:
        found.links += hash_chain.neighbour_links(location, looked_at[0])
    chained, broken = hash_chain.check_chain(found.links)
    found.findings += broken
    if found.newest is not None:
        found.findings += _check_newest(found, extent, as_opened)
        if found.newest.version == numbers[-1] and published is None:
            found.findings += auxiliary_records.check_hint(location.own_store, found.newest.version, location)
    found.findings.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
    return Report(location.uri, tuple(looked_at), found.files.count, tuple(found.findings), chained)


class _Examination:
    """What was seen so far, from version to version."""

    def __init__(self, location: Location, sizes: Mapping[str, int], findings: list[Finding]) -> None:
        self.location, self.sizes, self.findings = location, sizes, findings
        self.files, self.blobs = FileChecker(dict(sizes)), BlobChecker(dict(sizes))
        self.fragments: set[bytes] = set()
        self.referenced: set[str] = set()
        self.has_all_references = True
        self.uuids: dict[str, Version] = {}
        self.links: list[Link] = []
        self.newest: Snapshot | None = None
        self._previous: Manifest | None = None

    def add_unreadable(self, version: Version, path: str, told: Finding) -> None:
        self.findings.append(told)
        self.links += Link.of_unreadable(self.location, version, path)
        self._previous, self.has_all_references = None, False

    def add_version(self, snapshot: Snapshot) -> None:
        manifest = snapshot.manifest
        self.newest = snapshot
        self.findings += _check_version(snapshot, self.files, self.blobs, self.fragments)
        transaction, told = _load_transaction(snapshot)
        self.findings += told or _check_transaction(snapshot, transaction, self.uuids)
        self.findings += auxiliary_records.check_transaction_file(self.location, manifest, transaction, self.sizes)
        self.links.append(Link.of(snapshot, transaction))
        if self._previous is not None:
            self.findings += manifests.check_pair(self._previous, manifest)
        self._previous = manifest
        try:
            here = references_of(manifest)
        except Corrupt:
            self.has_all_references = False  # the section of indices, which was found damaged above
        else:
            self.referenced |= here.own | here.in_other_bases


def _check_newest(found: _Examination, extent: Extent | Version, acting: Location) -> Iterator[Finding]:
    """What is asked once, of the newest version that can be read."""
    assert found.newest is not None
    try:
        yield from indices.check_indices(found.newest, acting)
        yield from _check_coverage(found.newest)
    except Corrupt:
        pass  # the section of indices, or of the fragments that it is about, which was found damaged above
    line, told = _find_branch(found.location, found.newest.manifest)
    yield from told
    if line is not None:
        yield from references.check_references(line)
        if found.has_all_references and extent is Extent.ALL:
            yield from _find_orphans(line, found.referenced)
    if extent is Extent.ALL:
        yield from auxiliary_records.check_intents(found.location, found.uuids, found.newest)
        yield from auxiliary_records.check_leases(found.location)
        yield from references.check_clones(found.location.store)


def _versions_in(location: Location, numbers: Sequence[Version], extent: Extent | Version) -> Sequence[Version]:
    if isinstance(extent, Extent):
        return numbers if extent is Extent.ALL else numbers[-1:]
    if extent not in numbers:
        raise NotFound(f"{location.uri} has no version {extent}; it has {format_ranges(numbers)}")
    return [extent]


def _list_manifests(location: Location) -> list[tuple[str, Version]]:
    found = []
    for info in location.store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            found.append((info.path, parsed[0]))
    return found


def _check_naming_schemes(named: Sequence[tuple[str, Version]]) -> Iterator[Finding]:
    schemes = {naming.parse_manifest_name(path.rpartition("/")[2]) for path, _version in named}
    kinds = {parsed[1].value for parsed in schemes if parsed}
    if len(kinds) > 1:
        yield Finding(
            Severity.ERROR,
            "mixed_names",
            naming.VERSIONS,
            "it holds manifests of both naming schemes, and no reader opens such a table",
            "With no writer at work, open a version by its number and call migrate_manifest_names() on it.",
        )


def _check_version(snapshot: Snapshot, files: FileChecker, blobs: BlobChecker, seen: set[bytes]) -> Iterator[Finding]:
    manifest = snapshot.manifest
    yield from manifests.check_version(manifest)
    for fragment in manifest.fragments:
        # What never changes is looked at in the oldest version that has it.
        fingerprint = fragment.encode()
        if fingerprint in seen:
            continue
        seen.add(fingerprint)
        found = list(manifests.check_fragment(manifest, fragment))
        yield from found
        if not any(finding.rule == "fragment" for finding in found):
            found = list(files.check_fragment(snapshot.location, manifest, fragment))
            yield from found or blobs.check_fragment(snapshot.location, manifest, fragment)
    try:
        yield from files.check_indices(snapshot.location, manifest)
    except Corrupt:
        return  # the section was found damaged above
    yield from files.check_unique_row_ids(manifest)


def _load_transaction(snapshot: Snapshot) -> tuple[Transaction | None, Sequence[Finding]]:
    try:
        return load_transaction(snapshot.location, snapshot.manifest), ()
    except LanceError as error:
        what = f"what made it cannot be read: {error}"
        repair = "A writer that planned on an older version has to plan again; nothing else needs it."
        return None, [manifests.error(snapshot.manifest, "transaction", what, repair)]


def _check_transaction(
    snapshot: Snapshot, transaction: Transaction | None, uuids: dict[str, Version]
) -> Iterator[Finding]:
    manifest = snapshot.manifest
    if transaction is None:
        what = "nothing says what made it: no change that was planned before it can be committed after it"
        yield manifests.warning(manifest, "transaction", what, "It passes, once such changes are planned again.")
    elif twice := [
        uuid for uuid in uuids_of(transaction) if uuids.setdefault(uuid, manifest.version) != manifest.version
    ]:
        what = f"version {uuids[twice[0]]} holds the same transaction, {twice[0]}: its rows may be there twice"
        yield manifests.error(manifest, "transaction_twice", what, "Compare both versions; delete what came twice.")
    for part in parts_of(transaction) if transaction else ():
        if (first := uuids.setdefault(part.uuid, manifest.version)) != manifest.version:
            what = f"version {first} holds the append {part.uuid} too: its rows may be there twice"
            yield manifests.error(manifest, "transaction_twice", what, "Compare both versions; delete what came twice.")


def _check_coverage(newest: Snapshot) -> Iterator[Finding]:
    """What queries by index still have to scan."""
    manifest, coverage = newest.manifest, Coverage(newest)
    for name, segments in coverage.by_name.items():
        told = (follow_reuse(each.metadata, coverage.reuse) or BitMap() for each in segments if each.kind is None)
        part = combined_coverage(segments) | (BitMap.union(BitMap(), *told) & coverage.live_fragments)
        if part != coverage.live_fragments:
            what = (
                f"index {name!r} covers {len(part)} of {len(coverage.live_fragments)} fragments; the others are scanned"
            )
            repair = "Optimize the indices if queries are slow."
            yield Finding(Severity.INFO, "index_behind", manifest.path, what, repair, manifest.version)


def _find_branch(location: Location, manifest: Manifest) -> tuple[BranchFiles | None, Sequence[Finding]]:
    own = location.with_bases((), None, path=manifest.path)
    try:
        return BranchFiles(own, own.locate_main_branch(manifest.branch).store, manifest.branch), ()
    except LanceError as error:
        return None, [manifests.error(manifest, "branch", str(error), "Move it back to where it was.")]


def _find_orphans(line: BranchFiles, names: set[str]) -> Iterator[Finding]:
    try:
        names = names | references_of_other_branches(line)
    except LanceError as error:
        what = f"which files are needed cannot be told, since another line cannot be read: {error}"
        yield Finding(Severity.WARNING, "orphans", refs.TREE, what, "Examine the branch it is about.")
        return
    for key, info in list_files(line.location):
        if key not in names:
            what = f"no version names it ({info.size} bytes, last changed {info.modified:%Y-%m-%d})"
            repair = "Cleanup removes it once it is older than the grace period; it may belong to a write under way."
            yield Finding(Severity.INFO, "orphan", info.path, what, repair)
