"""Removing versions that nobody needs any more, and files that no version names.

    choose the versions -> what stays names, what goes names -> files -> (unless dry) notice -> manifests, then files
    -> a look at what stayed (`post_cleanup_check.py`)

Manifests go first: a cleanup that dies leaves files without a version, never a version without its files. What goes is
told before references and work under way are looked at for the last time (`coordination/leases.py`), so that nobody
begins to use what is going. All ages are by the store's clock: nobody's own clock can make a file look old. A file that
no version ever named may belong to a write that is under way, and stays until it is older than the grace period; so
does a version that is so young that a commit may still be at work on its number. No argument makes these times shorter
than an hour and a minute. Start with `clean`.

A version beside the line is in nobody's way and in nobody's count: what an audit refused is there to be looked at, what
somebody commits detached to be published. It goes when it is older than both the age of versions and that of files
that nobody names, unless a tag names it or somebody is at work on it; the files that only it names go with it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from lance_core import validation
from lance_core.coordination import progress
from lance_core.coordination.leases import REMEMBERED, SweepNotice, announce_sweep, release, sweep_notices
from lance_core.errors import InvalidInput, NotFound, StorageError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.limits import MANIFEST_BYTES
from lance_core.maintenance import post_cleanup_check
from lance_core.maintenance.retention_guards import expired_intents, expired_work, files_in_progress, retention_reasons
from lance_core.runtime import Runtime
from lance_core.storage.store import ObjectInfo, Put, read_whole, load_details
from lance_core.storage.tree_operations import remove_empty_directories
from lance_core.versions.file_inventory import (
    BranchFiles,
    branch_files_of,
    file_key,
    list_files,
    references_of,
    references_of_other_branches,
)
from lance_core.versions.location import Location, check_manifest_store
from lance_core.versions.snapshot import Snapshot, list_versions

DEFAULT_ORPHAN_GRACE = timedelta(days=7)
ORPHAN_GRACE_MIN = timedelta(hours=1)
YOUNG_VERSION_AGE = timedelta(minutes=1)
"""Versions younger than this stay: whoever looked before one was made may be about to put its number, and would find
its place empty. Who takes longer than that looks again (`commit/fencing.py`)."""
SKEW_MAX = timedelta(minutes=5)
_AT_ONCE = 100
_ORPHANS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Retention:
    """A version goes when it is older than `older_than` and not among the newest `keep`."""

    older_than: timedelta
    keep: int
    orphan_grace: timedelta = DEFAULT_ORPHAN_GRACE
    protected: Mapping[int, str] = field(default_factory=dict)
    """Versions that stay besides those that the table itself has a name for, and why."""

    def __post_init__(self) -> None:
        stays = "the newest version always stays, so it is at least 1"
        validation.check_integer(self.keep, "keep", at_least=1, too_small=stays)
        if validation.check_duration(self.older_than, "older_than") < timedelta(0):
            raise InvalidInput(f"older_than={self.older_than}: no version is younger than new")
        if validation.check_duration(self.orphan_grace, "orphan_grace") < ORPHAN_GRACE_MIN:
            raise InvalidInput(
                f"orphan_grace={self.orphan_grace}: a file that no version names may belong to a write that is under "
                f"way, and stays for {ORPHAN_GRACE_MIN} at least"
            )
        validation.check_mapping(self.protected, "protected")
        for number, why in self.protected.items():
            validation.check_version_number(number)
            validation.check_text(why, f"protected[{number}]")


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What was removed; what would be, where `dry_run`. Paths are from the table's root."""

    dry_run: bool
    versions: tuple[Version, ...]
    files: tuple[str, ...]
    """Manifests, and everything that only versions named which went."""
    orphans: tuple[str, ...]
    """Files that no version names, older than the grace period."""
    intents: tuple[str, ...]
    """Records of writes that landed, or were left unfinished, so long ago that nobody repeats them."""
    bytes: int
    kept: Mapping[Version, tuple[str, ...]]
    """Versions that are old enough to go, and what keeps them: tags, branches, clones, or whoever asked for it."""
    detached: tuple[Version, ...] = ()
    """Those beside the line."""
    seems_wrong: bool = False
    """More than half of the files on the store are orphans."""


@dataclass(frozen=True, slots=True)
class VersionChoice:
    versions: tuple[Version, ...]
    kept: Mapping[Version, tuple[str, ...]]


def choose_versions(
    modified: Mapping[Version, datetime],
    named: Mapping[Version, Sequence[str]],
    *,
    loaded: Version,
    retention: Retention,
    now: datetime,
) -> VersionChoice:
    """Pure. `modified` has every version there is; those from `loaded` on always stay. None stays that was put after
    one above it which goes: it landed where another had been, and is in nobody's line."""
    numbers = sorted(modified)
    newest = set(numbers[-retention.keep :])
    going, kept = [], {}
    earliest = now
    for number in reversed(numbers):
        earliest = min(earliest, modified[number])
        if number >= loaded or number in newest or now - earliest < retention.older_than:
            continue
        if number in named:
            kept[number] = tuple(named[number])
        elif now - earliest < YOUNG_VERSION_AGE:
            kept[number] = (f"younger than {YOUNG_VERSION_AGE}, and a commit may be at work on its number",)
        else:
            going.append(number)
    return VersionChoice(tuple(reversed(going)), dict(reversed(kept.items())))


def expired_versions(base: Snapshot, retention: Retention, *, now: datetime) -> VersionChoice:
    """The versions that a cleanup would remove at this moment, and those that are only kept: by listings and names
    alone. No file is looked for, and nothing is written, so that the clock is the caller's."""
    line = branch_files_of(base)
    modified = {version: age for version, (_path, age) in _manifests(line.location, now=now).items()}
    named = _named_by_somebody(line, retention, now=now)
    return choose_versions(modified, named, loaded=base.version, retention=retention, now=now)


def clean(base: Snapshot, retention: Retention, *, dry_run: bool, force: bool, runtime: Runtime) -> CleanupReport:
    """`base` is the version the caller has seen: it and whatever is newer stays."""
    dry_run, force = validation.check_flag(dry_run, "dry_run"), validation.check_flag(force, "force")
    check_manifest_store(base.location, base.manifest)
    line = branch_files_of(base)
    location = line.location
    now = _store_time(location, runtime)
    manifests = _manifests(location, now=now)
    versions = {version: manifest[1] for version, manifest in manifests.items()}
    named = _named_by_somebody(line, retention, now=now)
    choice = choose_versions(versions, named, loaded=base.version, retention=retention, now=now)
    beside, kept_beside = _beside(location, named, older_than=now - max(retention.older_than, retention.orphan_grace))
    paths = {version: manifests[version][0] for version in choice.versions} | beside
    staying = _referenced_keys(location, (path for version, (path, _age) in manifests.items() if version not in paths))
    staying |= references_of_other_branches(line, ignored=beside.values())
    leaving = _referenced_keys(location, paths.values(), own_only=True) - staying
    alive = files_in_progress(location.store, now=now, patience=retention.orphan_grace)

    found = _find_removable(location, staying | alive, leaving, older_than=now - retention.orphan_grace)
    sizes = {info.path: info.size for info in (*found.leaving, *found.orphans)}
    sizes |= {info.path: info.size for info in map(location.store.head, paths.values()) if info is not None}
    report = CleanupReport(
        dry_run=dry_run,
        versions=choice.versions,
        files=(*paths.values(), *(info.path for info in found.leaving)),
        orphans=tuple(info.path for info in found.orphans),
        intents=(*expired_intents(location.store, now=now), *expired_work(location.store, now=now)),
        bytes=sum(sizes.values()),
        kept={**choice.kept, **kept_beside},
        detached=tuple(beside),
        seems_wrong=len(found.orphans) > _ORPHANS_SHARE * found.known,
    )
    if dry_run:
        return report
    if report.seems_wrong and not force:
        raise InvalidInput(
            f"{location.uri}: {len(found.orphans)} of {found.known} files are named by no version, which looks more "
            "like a mistake than like leftovers. Nothing was removed. Look at what a dry run lists; if it is right, "
            "force it"
        )
    given_notice = []
    if report.versions or report.detached or report.orphans:
        keys = sorted({key for path in report.orphans if (key := file_key(path))})
        for part in SweepNotice((*report.versions, *report.detached), tuple(keys)).parts():
            given_notice.append(announce_sweep(location.store, part, runtime))
    put_back = _remove_manifests(line, paths, now=now)
    # Whatever was committed, named or begun meanwhile, a restored version above all, keeps what it needs. Who is at
    # work is asked first: a hold goes when its version is there.
    still = files_in_progress(location.store, now=now, patience=retention.orphan_grace)
    newer = [path for version, (path, _age) in _manifests(location, now=now).items() if version not in versions]
    still |= _referenced_keys(location, [*newer, *(paths[version] for version in put_back)]) | references_of_other_branches(line)
    spared = {info.path for info in (*found.leaving, *found.orphans) if file_key(info.path) in still}
    spared |= {paths[version] for version in put_back}
    for path in (*_deletion_order(report.files), *report.orphans, *report.intents):
        if path not in spared:
            location.store.delete(path)
            if path.startswith((naming.INDICES, progress.DIRECTORY)) or path.endswith(".blob"):
                remove_empty_directories(location.store, path.rpartition("/")[0])
    _withdraw_notices(location, given_notice, now=now)
    removed = {path for path in (*report.files, *report.orphans) if path not in spared}
    if removed:
        stayed = [(version, path) for version, (path, _age) in manifests.items() if path not in removed]
        post_cleanup_check.verify_readable(
            location, stayed, {key for path in removed if (key := file_key(path))}, runtime
        )
    return replace(
        report,
        versions=tuple(version for version in choice.versions if version not in put_back),
        detached=tuple(version for version in beside if version not in put_back),
        files=tuple(path for path in report.files if path not in spared),
        orphans=tuple(path for path in report.orphans if path not in spared),
        bytes=sum(size for path, size in sizes.items() if path not in spared),
        kept={**report.kept, **put_back},
    )


def _named_by_somebody(line: BranchFiles, retention: Retention, *, now: datetime) -> dict[Version, list[str]]:
    found = retention_reasons(line, now=now)
    for number, why in retention.protected.items():
        found.setdefault(validation.check_version_number(number), []).append(why)
    return found


@dataclass(frozen=True, slots=True)
class _SweepSet:
    leaving: tuple[ObjectInfo, ...]
    orphans: tuple[ObjectInfo, ...]
    known: int
    """Files of known kinds, those that stay included."""


def _find_removable(location: Location, staying: set[str], leaving: set[str], *, older_than: datetime) -> _SweepSet:
    gone, orphans = [], []
    known = 0
    for key, info in list_files(location):
        known += 1
        if key in staying:
            continue
        for there in load_details([info]):
            if key in leaving:
                gone.append(there)
            elif there.modified < older_than:
                orphans.append(there)
    return _SweepSet(tuple(gone), tuple(orphans), known)


def _store_time(location: Location, runtime: Runtime) -> datetime:
    """The store's own idea of now: when it last saw a file that was written a moment ago. Two clocks that differ by
    much mean that one of them is wrong; if it is the store's, all ages are."""
    store = location.store
    probe = f"{naming.PROJECT_DIRECTORY}/clock/{runtime.new_uuid().hex}"
    store.put(probe, b"")
    try:
        found = store.head(probe)
        here = datetime.fromtimestamp(runtime.now_ns() / 1e9, UTC)
    finally:
        store.delete(probe)
    if found is None:
        raise StorageError(f"{store.description} does not show a file that was just written; nothing was removed")
    if abs(found.modified - here) > SKEW_MAX:
        raise StorageError(
            f"{location.uri}: it is {found.modified.isoformat(timespec='seconds')} by the clock of the store, and "
            f"{here.isoformat(timespec='seconds')} by the one of this process. What is old enough to go cannot be "
            "told; nothing was removed. Set the clock that is wrong"
        )
    return found.modified


def _manifests(location: Location, *, now: datetime) -> dict[Version, tuple[str, datetime]]:
    """Path and age of each version; both naming schemes in one table are refused. What came a moment ago a listing may
    not show: it is asked for by name."""
    scheme = list_versions(location).scheme
    found = {}
    for info in load_details(location.store.list(naming.VERSIONS)):
        if parsed := naming.parse_manifest_name(info.path.rpartition("/")[2]):
            found[parsed[0]] = (info.path, info.modified)
    following = max((version for version, (_path, age) in found.items() if now - age > YOUNG_VERSION_AGE), default=Version(0))
    newest = max(found, default=following)
    while following <= newest:
        following = Version(following + 1)
        if following not in found and (there := location.store.head(naming.manifest_path(following, scheme))):
            found[following] = (there.path, there.modified)
            newest = max(newest, following)
    return dict(sorted(found.items()))


def _beside(
    location: Location, named: Mapping[Version, Sequence[str]], *, older_than: datetime
) -> tuple[dict[Version, str], dict[Version, tuple[str, ...]]]:
    """Manifests beside the line that are old enough to go: those that do, and those that somebody keeps."""
    going, kept = {}, {}
    for info in load_details(location.store.list(naming.VERSIONS)):
        version = naming.parse_detached_name(info.path.rpartition("/")[2])
        if version is None or info.modified >= older_than:
            continue
        if version in named:
            kept[version] = tuple(named[version])
        else:
            going[version] = info.path
    return going, kept


def _referenced_keys(location: Location, paths: Iterable[str], *, own_only: bool = False) -> set[str]:
    """A manifest that cannot be read ends the cleanup: what it names, nobody knows. One that is gone was removed by
    another cleanup."""
    found: set[str] = set()
    for path in paths:
        try:
            named = references_of(Manifest.decode(read_whole(location.store, path, MANIFEST_BYTES), path=path))
        except NotFound:
            continue
        found |= named.own
        if not own_only:
            found |= named.in_other_bases
    return found


def _remove_manifests(
    line: BranchFiles, paths: Mapping[Version, str], *, now: datetime
) -> dict[Version, tuple[str, ...]]:
    """Oldest first. Names by ours respect the notice; one by another engine may come while its version goes, which is
    then put back, byte for byte."""
    store = line.location.store
    put_back: dict[Version, tuple[str, ...]] = {}
    left = sorted(paths)
    while left:
        at_once, left = left[:_AT_ONCE], left[_AT_ONCE:]
        named = retention_reasons(line, now=now)
        removed = {}
        for version in at_once:
            if version in named:
                put_back[version] = tuple(named[version])
                continue
            try:
                removed[version] = read_whole(store, paths[version], MANIFEST_BYTES)
            except NotFound:
                continue
            store.delete(paths[version])
        named = retention_reasons(line, now=now)
        for version in removed.keys() & named.keys():
            if store.create(paths[version], removed[version]) is Put.UNKNOWN:
                raise StorageError(
                    f"{line.location.uri}: version {version} was named ({', '.join(named[version])}) while it was "
                    "being removed, and whether it could be put back is not known. No data was removed: put back "
                    f"{paths[version]} from a backup, or remove the name"
                )
            put_back[version] = tuple(named[version])
    return put_back


def _withdraw_notices(location: Location, own: Collection[str], *, now: datetime) -> None:
    """Ours, and what is left of others that died, once all that they gave notice of is gone."""
    for path in own:
        release(location.store, path)
    others = [(info, notice) for info, notice in sweep_notices(location.store) if info.path not in own]
    if not others:
        return
    beside, _kept = _beside(location, {}, older_than=datetime.max.replace(tzinfo=UTC))
    there = _manifests(location, now=now).keys() | beside.keys()
    left = {key for key, _info in list_files(location)}
    for info, notice in others:
        if now - info.modified > REMEMBERED or not (there & set(notice.versions) or left & set(notice.files)):
            release(location.store, info.path)


def _deletion_order(files: Iterable[str]) -> list[str]:
    """What only helps to read goes before what is read; manifests are gone by then."""
    order = (naming.VERSIONS, naming.DELETIONS, naming.INDICES, naming.DATA)
    return sorted(files, key=lambda path: next((at for at, top in enumerate(order) if path.startswith(top)), 9))
