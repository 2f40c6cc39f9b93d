"""Examination of a table: naming schemes, all versions from the oldest on, the files that they reference, references,
orphan files and auxiliary records. Start with `examine`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from pyroaring import BitMap

from lance_core.errors import Corrupt, LanceError, NotFound
from lance_core.format import naming, refs
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.transaction import Transaction
from lance_core.fsck import (
    auxiliary_records,
    contents,
    hash_chain,
    indices,
    manifest_store_entries,
    manifests,
    references,
)
from lance_core.fsck.blobs import BlobChecker
from lance_core.fsck.damaged_head import find_damaged_head, load_fully, unreadable_version
from lance_core.fsck.data_check import DataCheck
from lance_core.fsck.files import FileChecker
from lance_core.fsck.hash_chain import Link
from lance_core.fsck.read_ahead import FilesAhead
from lance_core.fsck.report import Extent, Finding, Report, Severity
from lance_core.index.coverage import Coverage, combined_coverage, follow_reuse
from lance_core.progress import track
from lance_core.storage.concurrency import ConcurrentCalls, map_requests
from lance_core.transactions.fold import parts_of, uuids_of
from lance_core.versions.file_inventory import BranchFiles, list_files, references_of, references_of_other_branches
from lance_core.versions.location import Location
from lance_core.versions.recorded_files import RecordedFiles
from lance_core.versions.snapshot import Snapshot, format_ranges, load_transaction

_VERSIONS_AHEAD_MAX = 64
_BYTES_AHEAD_MAX = 64 << 20
"""Maximum bytes of the manifests that are loaded ahead of the checks, so that their files are read ahead."""
_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def examine(location: Location, extent: Extent | Version = Extent.ALL, data: DataCheck | None = None) -> Report:
    """Examine a table in any state. Raises `NotFound` only if the directory contains no version. `extent` may be one
    version. `data` adds a comparison of all files with their checksums. Files are decoded in another process, because a
    damaged file may crash the process that decodes it."""
    location = location.as_untrusted()
    opened_location, writer_store = location, location.own_store
    location, two_phase = manifest_store_entries.without_manifest_store(location)
    manifest_names = _list_manifests(location)
    findings = [] if two_phase is None else list(manifest_store_entries.check_entries(two_phase))
    if not manifest_names and not findings:
        raise NotFound(f"there is no Lance table at {location.uri}; check the path")
    findings += _check_naming_schemes(manifest_names)
    by_number = {version: path for path, version in manifest_names}
    numbers = sorted(by_number)
    examined = _versions_in(location, numbers, extent)
    examination = _Examination(location, {info.path: info.size for _key, info in list_files(location)}, findings)
    loaded = map_requests(location.own_store, lambda version: _load_or_error(location, version), examined)
    ahead = examination.read_ahead(loaded)
    for version, (found, transaction, added) in zip(track(examined, "check versions", "versions"), ahead, strict=True):
        if isinstance(found, Snapshot):
            examination.add_version(found, added, transaction)
            continue
        path = by_number[version]
        if version == numbers[-1]:
            examination.add_unreadable(
                version, path, find_damaged_head(location, by_number, found, writer_store=writer_store)
            )
        else:
            examination.add_unreadable(version, path, unreadable_version(path, version, found))
    if extent is Extent.ALL:
        examination.links += hash_chain.detached_links(location)
    elif examined:
        examination.links += hash_chain.neighbour_links(location, examined[0])
    chain, chain_findings = hash_chain.check_chain(examination.links)
    examination.findings += chain_findings
    if examination.newest is not None:
        examination.findings += _check_newest(examination, extent, opened_location)
        if examination.newest.version == numbers[-1] and two_phase is None:
            examination.findings += auxiliary_records.check_hint(
                location.own_store, examination.newest.version, location
            )
    verified = 0
    if data is not None:
        verified, damaged = contents.verify_contents(examination.recorded, data, opened_location)
        examination.findings += damaged
    examination.findings.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
    return Report(location.uri, tuple(examined), examination.files.count, tuple(examination.findings), chain, verified)


class _Examination:
    """State of an examination, which proceeds from version to version."""

    def __init__(self, location: Location, sizes: Mapping[str, int], findings: list[Finding]) -> None:
        self.location, self.sizes, self.findings = location, sizes, findings
        self.files_ahead = FilesAhead(location)
        self.files, self.blobs = FileChecker(dict(sizes), self.files_ahead), BlobChecker(dict(sizes))
        self.fragments: set[bytes] = set()
        self.referenced: set[str] = set()
        self.has_all_references = True
        self.uuids: dict[str, Version] = {}
        self.links: list[Link] = []
        self.newest: Snapshot | None = None
        self.recorded = RecordedFiles()
        self._previous: Manifest | None = None

    def add_unreadable(self, version: Version, path: str, finding: Finding) -> None:
        self.findings.append(finding)
        self.links += Link.of_unreadable(self.location, version, path)
        self._previous, self.has_all_references = None, False

    def read_ahead(
        self, loaded: Iterable[tuple[Snapshot | LanceError, "_LoadedTransaction"]]
    ) -> Iterator[tuple[Snapshot | LanceError, "_LoadedTransaction", Sequence[Fragment]]]:
        """Yield the loaded versions with the fragments that no earlier version has. The files of several of the next
        versions are announced, so that they are read concurrently."""
        window: deque[tuple[Snapshot | LanceError, _LoadedTransaction, Sequence[Fragment]]] = deque()
        window_bytes = 0
        for found, transaction in loaded:
            added = self._new_fragments(found.manifest) if isinstance(found, Snapshot) else ()
            self.files_ahead.expect(added)
            window.append((found, transaction, added))
            window_bytes += _manifest_bytes(found)
            while len(window) > _VERSIONS_AHEAD_MAX or (len(window) > 1 and window_bytes > _BYTES_AHEAD_MAX):
                window_bytes -= _manifest_bytes(window[0][0])
                yield window.popleft()
        yield from window

    def _new_fragments(self, manifest: Manifest) -> Sequence[Fragment]:
        """Return the fragments that no earlier version has: an unchanged fragment is examined only in the oldest
        version that has it."""
        added = []
        for fragment in manifest.fragments:
            fingerprint = fragment.encode()
            if fingerprint not in self.fragments:
                self.fragments.add(fingerprint)
                added.append(fragment)
        return added

    def add_version(
        self, snapshot: Snapshot, added: Sequence[Fragment], loaded_transaction: "_LoadedTransaction"
    ) -> None:
        """Check a version. `added` are its fragments that no earlier version has."""
        manifest = snapshot.manifest
        self.newest = snapshot
        self.recorded.add(snapshot)
        self.findings += _check_version(snapshot, added, self.files, self.blobs)
        transaction, findings = loaded_transaction
        self.findings += findings or _check_transaction(snapshot, transaction, self.uuids)
        self.findings += auxiliary_records.check_transaction_file(self.location, manifest, transaction, self.sizes)
        self.links.append(Link.of(snapshot, transaction))
        if self._previous is not None:
            self.findings += manifests.check_pair(self._previous, manifest)
        self._previous = manifest
        try:
            file_references = references_of(manifest)
        except Corrupt:
            self.has_all_references = False  # the index section, which is already reported as damaged
        else:
            self.referenced |= file_references.own | file_references.in_other_bases


def _check_newest(examination: _Examination, extent: Extent | Version, writer_location: Location) -> Iterator[Finding]:
    """Run the checks that concern only the newest readable version."""
    assert examination.newest is not None
    try:
        yield from indices.check_indices(examination.newest, writer_location)
        yield from _check_coverage(examination.newest)
    except Corrupt:
        pass  # the index section or the fragments it covers, already reported as damaged
    location, newest = examination.location, examination.newest
    branch_files, findings = _find_branch(location, newest.manifest)
    yield from findings
    checks: list[Callable[[], Iterator[Finding]]] = []
    if branch_files is not None:
        checks.append(partial(references.check_references, branch_files))
        if examination.has_all_references and extent is Extent.ALL:
            checks.append(partial(_find_orphans, branch_files, examination.referenced))
    if extent is Extent.ALL:
        checks.append(partial(auxiliary_records.check_intents, location, examination.uuids, newest))
        checks.append(partial(auxiliary_records.check_leases, location))
        checks.append(partial(references.check_clones, location.store))
    with ConcurrentCalls(location.own_store) as calls:
        for result in [calls.start(partial(_all_findings, check)) for check in checks]:
            yield from result()


def _all_findings(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    return list(check())


def _versions_in(location: Location, numbers: Sequence[Version], extent: Extent | Version) -> Sequence[Version]:
    if isinstance(extent, Extent):
        return numbers if extent is Extent.ALL else numbers[-1:]
    if extent not in numbers:
        raise NotFound(f"{location.uri} has no version {extent}; it has {format_ranges(numbers)}")
    return [extent]


def _list_manifests(location: Location) -> list[tuple[str, Version]]:
    manifest_names = []
    for info in location.store.list(naming.VERSIONS):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            manifest_names.append((info.path, parsed[0]))
    return manifest_names


def _check_naming_schemes(manifest_names: Sequence[tuple[str, Version]]) -> Iterator[Finding]:
    schemes = {naming.parse_manifest_name(path.rpartition("/")[2]) for path, _version in manifest_names}
    names = {parsed[1].value for parsed in schemes if parsed}
    if len(names) > 1:
        yield Finding(
            Severity.ERROR,
            "mixed_names",
            naming.VERSIONS,
            "it contains manifests of both naming schemes, and no reader opens such a table",
            "Stop all writers, open a version by its number and call migrate_manifest_names() on it.",
        )


def _manifest_bytes(found: Snapshot | LanceError) -> int:
    return len(found.manifest.encode()) if isinstance(found, Snapshot) else 0


def _check_version(
    snapshot: Snapshot, added: Sequence[Fragment], files: FileChecker, blobs: BlobChecker
) -> Iterator[Finding]:
    manifest = snapshot.manifest
    yield from manifests.check_version(manifest)
    for fragment in added:
        findings = list(manifests.check_fragment(manifest, fragment))
        yield from findings
        if not any(finding.rule == "fragment" for finding in findings):
            findings = list(files.check_fragment(snapshot.location, manifest, fragment))
            yield from findings or blobs.check_fragment(snapshot.location, manifest, fragment)
    try:
        yield from files.check_indices(snapshot.location, manifest)
    except Corrupt:
        return  # the index section is already reported as damaged
    yield from files.check_unique_row_ids(manifest)


def _load_or_error(location: Location, version: Version) -> tuple[Snapshot | LanceError, "_LoadedTransaction"]:
    """Load a version with its transaction, or return the error."""
    try:
        snapshot = load_fully(location, version)
    except LanceError as error:
        return error, (None, ())
    return snapshot, _load_transaction(snapshot)


_LoadedTransaction: TypeAlias = tuple[Transaction | None, Sequence[Finding]]
"""Transaction of a version, or the findings of the one that cannot be read."""


def _load_transaction(snapshot: Snapshot) -> _LoadedTransaction:
    try:
        return load_transaction(snapshot.location, snapshot.manifest), ()
    except LanceError as error:
        what = f"its transaction cannot be read: {error}"
        repair = "Writers that planned on an older version have to replan; nothing else needs the transaction."
        return None, [manifests.error(snapshot.manifest, "transaction", what, repair)]


def _check_transaction(
    snapshot: Snapshot, transaction: Transaction | None, uuids: dict[str, Version]
) -> Iterator[Finding]:
    manifest = snapshot.manifest
    if transaction is None:
        what = "it has no transaction: a change that was planned before it cannot be committed after it"
        yield manifests.warning(manifest, "transaction", what, "Replan such changes.")
    elif duplicates := [
        uuid for uuid in uuids_of(transaction) if uuids.setdefault(uuid, manifest.version) != manifest.version
    ]:
        what = f"version {uuids[duplicates[0]]} has the same transaction, {duplicates[0]}: its rows may be duplicated"
        yield manifests.error(manifest, "transaction_twice", what, "Compare both versions, and delete duplicated rows.")
    for part in parts_of(transaction) if transaction else ():
        if (first := uuids.setdefault(part.uuid, manifest.version)) != manifest.version:
            what = f"version {first} also has the append {part.uuid}: its rows may be duplicated"
            yield manifests.error(
                manifest, "transaction_twice", what, "Compare both versions, and delete duplicated rows."
            )


def _check_coverage(newest: Snapshot) -> Iterator[Finding]:
    """Report indices for which queries still have to scan fragments."""
    manifest, coverage = newest.manifest, Coverage(newest)
    for name, segments in coverage.by_name.items():
        unknown_types = (
            follow_reuse(each.metadata, coverage.reuse) or BitMap() for each in segments if each.kind is None
        )
        covered = combined_coverage(segments) | (BitMap.union(BitMap(), *unknown_types) & coverage.live_fragments)
        if covered != coverage.live_fragments:
            total = len(coverage.live_fragments)
            what = f"index {name!r} covers {len(covered)} of {total} fragments; the others are scanned"
            repair = "Optimize the indices if queries are slow."
            yield Finding(Severity.INFO, "index_behind", manifest.path, what, repair, manifest.version)


def _find_branch(location: Location, manifest: Manifest) -> tuple[BranchFiles | None, Sequence[Finding]]:
    own_location = location.with_bases((), None, path=manifest.path)
    try:
        return BranchFiles(own_location, own_location.locate_main_branch(manifest.branch).store, manifest.branch), ()
    except LanceError as error:
        return None, [manifests.error(manifest, "branch", str(error), "Move the branch back to its original location.")]


def _find_orphans(branch_files: BranchFiles, referenced: set[str]) -> Iterator[Finding]:
    try:
        referenced = referenced | references_of_other_branches(branch_files)
    except LanceError as error:
        what = f"orphan files cannot be determined, since another branch cannot be read: {error}"
        yield Finding(Severity.WARNING, "orphans", refs.TREE, what, "Examine that branch.")
        return
    for key, info in list_files(branch_files.location):
        if key not in referenced:
            what = f"no version references it ({info.size} bytes, last changed {info.modified:%Y-%m-%d})"
            repair = "Cleanup removes it once it is older than the grace period; it may belong to a write in progress."
            yield Finding(Severity.INFO, "orphan", info.path, what, repair)
