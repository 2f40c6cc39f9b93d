"""Cleanup: removes expired versions and the files that no retained version references, concurrently with writers.

    plan: choose versions -> collect references of retained and of expired versions -> find files
    unless dry_run: announce the sweep -> remove manifests -> read references again -> remove files -> check the rest

Manifests go first: a cleanup that dies leaves files without a version, never a version without its files. The cleanup
announces what it will remove before it reads references, leases and work in progress for the last time
(`coordination/leases.py`), so that no other process begins to use what is being removed. All ages are measured by the
store's clock: the clock of a process cannot make a file look old. An orphan file may belong to a write in progress and
stays until it is older than the grace period, which is at least an hour. A version stays for at least a minute, since a
commit may be about to use its number. Start with `clean`.

Detached versions do not count towards the versions to keep: some wait to be published, and those that an audit rejected
wait to be inspected. A detached version is removed, with the files that only it references, when it is older than both
`older_than` and the grace period of orphan files, unless a tag names it or a process holds a lease on it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from lance_core import validation
from lance_core.coordination import progress
from lance_core.coordination.leases import EXPIRY, NOTICE_DIRECTORY, SweepNotice, announce_sweep, release, sweep_notices
from lance_core.datafiles.lance_codec import OPEN_FILES
from lance_core.errors import InvalidInput, StorageError
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.maintenance import post_cleanup_check
from lance_core.maintenance.branch_manifests import (
    KEPT_BYTES_MAX,
    YOUNG_VERSION_AGE,
    ListedManifest,
    ManifestReader,
    expired_detached,
    list_manifests,
)
from lance_core.maintenance.retention_guards import (
    INTENT_MEMORY,
    abandoned_claims,
    damaged_records,
    expired_intents,
    expired_work,
    files_in_progress,
    retention_reasons,
)
from lance_core.progress import report as report_progress
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import ConcurrentCalls, delete_all, map_requests
from lance_core.storage.listing_view import view_of_small_store
from lance_core.storage.store import ObjectInfo, Put, ReportsClockJumps, load_details
from lance_core.storage.tree_operations import remove_empty_directories
from lance_core.versions.file_inventory import (
    BranchFiles,
    branch_files_of,
    file_key,
    list_files,
    references_of_other_branches,
)
from lance_core.versions.location import Location, check_manifest_store
from lance_core.versions.snapshot import Snapshot

DEFAULT_ORPHAN_GRACE = timedelta(days=7)
ORPHAN_GRACE_MIN = timedelta(hours=1)
SKEW_MAX = timedelta(minutes=5)
CLOCK_STEP_MAX = timedelta(seconds=20)
"""Step back of the store's clock that a cleanup does not detect: a third of `YOUNG_VERSION_AGE`."""
_MANIFESTS_PER_BATCH = 1000
_FILES_PER_BATCH = 10_000
_PLAUSIBLE_ORPHAN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention policy. A version expires when it is older than `older_than` and not among the newest `keep`."""

    older_than: timedelta
    keep: int
    orphan_grace: timedelta = DEFAULT_ORPHAN_GRACE
    protected: Mapping[int, str] = field(default_factory=dict)
    """Versions to retain in addition to those that the table itself protects, each with the reason."""

    def __post_init__(self) -> None:
        too_small = "the newest version always stays, so it is at least 1"
        validation.check_integer(self.keep, "keep", at_least=1, too_small=too_small)
        if validation.check_duration(self.older_than, "older_than") < timedelta(0):
            raise InvalidInput(f"older_than={self.older_than} must not be negative")
        if validation.check_duration(self.orphan_grace, "orphan_grace") < ORPHAN_GRACE_MIN:
            raise InvalidInput(
                f"orphan_grace={self.orphan_grace} must be at least {ORPHAN_GRACE_MIN}: a file that no version "
                "references may belong to a write in progress"
            )
        validation.check_mapping(self.protected, "protected")
        for number, reason in self.protected.items():
            validation.check_version_number(number)
            validation.check_text(reason, f"protected[{number}]")


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """Versions and files that a cleanup removed or, with `dry_run`, would remove. Paths are relative to the table."""

    dry_run: bool
    versions: tuple[Version, ...]
    files: tuple[str, ...]
    """Manifests, and all files that only expired versions reference."""
    orphans: tuple[str, ...]
    """Files that no version references, older than the grace period."""
    intents: tuple[str, ...]
    """Records of intents that were committed, or were claimed and are in no version, and of resumable jobs: all of them
    were last active more than 30 days ago."""
    bytes: int
    kept: Mapping[Version, tuple[str, ...]]
    """Versions that are old enough to expire but were retained, with the reasons, such as a tag, a branch or a
    clone."""
    detached: tuple[Version, ...] = ()
    """Detached versions."""
    seems_wrong: bool = False
    """True if more than half of all files are orphans."""
    damaged: tuple[str, ...] = ()
    """Damaged leases and sweep notices, and damaged records of intents that were active within the grace period. It is
    unknown what a damaged record protects, so no orphan file was removed if an intent or a lease is damaged, and no
    version if a lease is. `fsck` describes each record."""


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Versions that expire, and versions that are old enough but retained, with the reasons."""

    versions: tuple[Version, ...]
    kept: Mapping[Version, tuple[str, ...]]


def choose_versions(
    modified: Mapping[Version, datetime],
    reasons: Mapping[Version, Sequence[str]],
    *,
    loaded: Version,
    retention: Retention,
    now: datetime,
) -> VersionChoice:
    """Choose the versions that expire. Pure.

    `modified` has every version of the branch; those from `loaded` on always stay. If a version expires, so do versions
    with lower numbers that were put after it: they filled gaps and are not part of the branch's history.
    """
    numbers = sorted(modified)
    newest = set(numbers[-retention.keep :])
    expired, retained = [], {}
    earliest = now
    for number in reversed(numbers):
        earliest = min(earliest, modified[number])
        if number >= loaded or number in newest or now - earliest < retention.older_than:
            continue
        if number in reasons:
            retained[number] = tuple(reasons[number])
        elif now - earliest < YOUNG_VERSION_AGE:
            retained[number] = (f"younger than {YOUNG_VERSION_AGE}, and a commit may be about to use its number",)
        else:
            expired.append(number)
    return VersionChoice(tuple(reversed(expired)), dict(reversed(retained.items())))


def expired_versions(base: Snapshot, retention: Retention, *, now: datetime) -> VersionChoice:
    """Return the versions that a cleanup would remove now, and those that are old enough but retained.

    It reads listings and references only and writes nothing, so that `now` comes from the caller's clock.
    """
    branch = branch_files_of(base)
    listed = list_manifests(branch.location, now=now).versions
    modified = {version: each.modified for version, each in listed.items()}
    reasons = _reasons_to_keep(branch, modified, retention, now=now)
    return choose_versions(modified, reasons, loaded=base.version, retention=retention, now=now)


def clean(base: Snapshot, retention: Retention, *, dry_run: bool, force: bool, runtime: Runtime) -> CleanupReport:
    """Remove the versions and files that `retention` does not retain. `base` is the version that the caller has open:
    it and newer versions stay.

    The order of the steps makes a cleanup safe with concurrent writers, and if it is killed
    (`001-cleanup-with-concurrent-writers.md`).
    """
    dry_run, force = validation.check_flag(dry_run, "dry_run"), validation.check_flag(force, "force")
    check_manifest_store(base.location, base.manifest)
    branch, probe = branch_files_of(base), f"{naming.PROJECT_DIRECTORY}/clock/{runtime.new_uuid().hex}"
    store = branch.location.store
    is_probe_released = False
    with ConcurrentCalls(store) as calls:
        try:
            began_ns = runtime.elapsed_ns()
            may_list_first = isinstance(branch.location.own_store, ReportsClockJumps)  # a jump is detected anyhow
            first = _FirstListing.start(branch, calls) if may_list_first else None
            clock = replace(_read_store_clock(branch.location, probe, runtime), began_ns=began_ns)
            first = first or _FirstListing.start(branch, calls)
            plan = _plan_sweep(branch, base.version, retention, dry_run, first, clock.time)
            if not (dry_run or force):
                _check_is_plausible(plan)
            if dry_run or (plan.is_empty and not store.list(NOTICE_DIRECTORY)):  # a killed cleanup leaves notices
                return plan.report
            announced = calls.start(lambda: _announce(plan, runtime))

            def check_clock() -> None:
                try:
                    _check_clock_is_steady(branch.location, probe, clock, runtime)
                except BaseException:
                    for notice in announced():
                        release(store, notice)
                    raise
                finally:
                    release(store, probe)

            is_probe_released = True
            clock_checked = calls.start(check_clock)
            return _sweep(plan, announced(), clock_checked, runtime)
        finally:
            if not is_probe_released:
                release(store, probe)


def _sweep(
    plan: "_SweepPlan", notices: Sequence[str], clock_checked: Callable[[], None], runtime: Runtime
) -> CleanupReport:
    """Remove the planned and announced files, except those that a version or a process needs by now. `clock_checked`
    waits until the clock of the store has been checked, and raises if the ages of files are unknown. Nothing is removed
    before it returns."""
    with ConcurrentCalls(plan.location.store) as calls:
        needed: list[Callable[[], set[str]]] = []
        put_back = _remove_manifests(
            plan.branch,
            plan.manifests,
            plan.reader,
            now=plan.now,
            before_first=clock_checked,
            after_last=lambda: needed.append(calls.start(lambda: _keys_needed_now(plan))),
        )
        spared = _find_spared_files(plan, put_back, needed[0]())
        _remove_files(plan, spared)
        withdraw = calls.start(lambda: _withdraw_notices(plan.location, notices, now=plan.now))
        _check_remaining_versions(plan, spared, runtime)
        damaged_notices = withdraw()
    report = _report_of_removed(plan, put_back, spared)
    return replace(report, damaged=(*report.damaged, *damaged_notices))


@dataclass(frozen=True, slots=True)
class _SweepSet:
    """Files that a cleanup may remove."""

    leaving: tuple[ObjectInfo, ...]
    """Files that only expired versions reference."""
    orphans: tuple[ObjectInfo, ...]
    """Files that no version references, older than the grace period."""
    known: int
    """Number of all files of known kinds, including those that stay."""


@dataclass(frozen=True, slots=True)
class _SweepPlan:
    """Decisions of a cleanup before it removes anything."""

    branch: BranchFiles
    now: datetime
    """Store time at the start. All ages are relative to it."""
    patience: timedelta
    """Age up to which unfinished work counts as in progress."""
    versions: Mapping[Version, ListedManifest]
    """Versions of the branch at the start."""
    manifests: Mapping[Version, ListedManifest]
    """Manifests to remove, of versions of the branch and of detached versions."""
    reader: ManifestReader
    files: _SweepSet
    sizes: Mapping[str, int]
    """Sizes of the manifests and files to remove, by path."""
    claims: tuple[str, ...]
    """Records of abandoned intents to remove."""
    report: CleanupReport
    """Report if everything that is planned is removed."""

    @property
    def location(self) -> Location:
        return self.branch.location

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to remove."""
        return not (self.report.files or self.report.orphans or self.report.intents)


@dataclass(frozen=True, slots=True)
class _FirstListing:
    """Files and manifests that a cleanup begins to read before it knows the time of the store. Each field is a function
    that waits for its result."""

    branch: Callable[[], BranchFiles]
    """Branch whose listings all show one moment, if one request lists the table."""
    files: Callable[[], Sequence[tuple[str, ObjectInfo]]]
    """Files with their keys."""
    reader: Callable[[], ManifestReader]
    """Reader of the manifests that existed, which keeps small ones."""

    @classmethod
    def start(cls, branch: BranchFiles, calls: ConcurrentCalls) -> "_FirstListing":
        view = calls.start(lambda: _with_one_listing(branch))

        def read_manifests() -> ManifestReader:
            reader = ManifestReader(branch.location)
            reader.preload(view().location.store.list(naming.VERSIONS))
            return reader

        return cls(view, calls.start(lambda: list(list_files(view().location))), calls.start(read_manifests))


def _plan_sweep(
    branch: BranchFiles,
    loaded: Version,
    retention: Retention,
    dry_run: bool,
    first: _FirstListing,
    now: datetime,
) -> _SweepPlan:
    """Decide what to remove, by the ages at `now`, a time of the store. Files and manifests are read concurrently. This
    writes nothing."""
    current, branch = branch, first.branch()
    location, store = branch.location, branch.location.store
    patience_for_claims = _patience_for_claims(retention.orphan_grace)
    with ConcurrentCalls(store) as calls:
        list_versions_now = calls.start(lambda: list_manifests(location, now=now))
        read_in_progress = calls.start(lambda: files_in_progress(store, now=now, patience=retention.orphan_grace))
        read_claims = calls.start(lambda: tuple(abandoned_claims(location, now=now, patience=patience_for_claims)))
        read_expired = calls.start(lambda: expired_intents(store, now=now))
        read_work = calls.start(lambda: expired_work(store, now=now))
        listed = list_versions_now()
        reasons = _reasons_to_keep(branch, listed.versions, retention, now=now)
        modified = {version: each.modified for version, each in listed.versions.items()}
        choice = choose_versions(modified, reasons, loaded=loaded, retention=retention, now=now)
        age_of_detached = max(retention.older_than, retention.orphan_grace)
        detached, kept_detached = expired_detached(listed.detached, reasons, older_than=now - age_of_detached)
        ignored = [each.path for each in detached.values()]
        read_other_branches = calls.start(lambda: references_of_other_branches(branch, ignored=ignored))
        in_progress, claims = read_in_progress(), read_claims()
        expired_records = *read_expired(), *claims, *read_work()
        of_other_branches, reader, first_files = read_other_branches(), first.reader(), first.files()
    manifests = {version: listed.versions[version] for version in choice.versions} | detached
    paths = tuple(manifest.path for manifest in manifests.values())

    retained = (manifest for version, manifest in listed.versions.items() if version not in manifests)
    staying = reader.referenced_keys(retained)
    staying |= of_other_branches
    leaving = reader.referenced_keys(manifests.values(), own_only=True) - staying
    files = _find_removable(first_files, staying | in_progress, leaving, older_than=now - retention.orphan_grace)
    if damaged := damaged_records(in_progress):
        files = replace(files, orphans=())

    sizes = {info.path: info.size for info in (*files.leaving, *files.orphans)}
    sizes |= {manifest.path: manifest.size for manifest in manifests.values()}
    report = CleanupReport(
        dry_run=dry_run,
        versions=choice.versions,
        files=(*paths, *(info.path for info in files.leaving)),
        orphans=tuple(info.path for info in files.orphans),
        intents=expired_records,
        bytes=sum(sizes.values()),
        kept={**choice.kept, **kept_detached},
        detached=tuple(detached),
        damaged=damaged,
        seems_wrong=len(files.orphans) > _PLAUSIBLE_ORPHAN_SHARE * files.known,
    )
    return _SweepPlan(
        branch=current,
        now=now,
        patience=retention.orphan_grace,
        versions=listed.versions,
        manifests=manifests,
        reader=reader,
        files=files,
        sizes=sizes,
        claims=claims,
        report=report,
    )


def _with_one_listing(branch: BranchFiles) -> BranchFiles:
    """Return the main branch of a small table with a store whose listings all come from one request, made now. Return
    other branches, and those of larger tables, unchanged."""
    view = view_of_small_store(branch.location.own_store) if branch.branch is None else None
    return branch if view is None else BranchFiles(replace(branch.location, store=view), view, None)


def _patience_for_claims(orphan_grace: timedelta) -> timedelta:
    return max(INTENT_MEMORY, orphan_grace)


def _check_is_plausible(plan: _SweepPlan) -> None:
    if plan.report.seems_wrong:
        raise InvalidInput(
            f"{plan.location.uri}: no version references {len(plan.files.orphans)} of {plan.files.known} files, which "
            "looks more like a mistake than like leftovers. Nothing was removed. Check what a dry run lists; if it is "
            "right, pass force=True"
        )


def _announce(plan: _SweepPlan, runtime: Runtime) -> list[str]:
    """Write the sweep notices for the versions and files that will be removed. Return their paths."""
    report, notices = plan.report, list[str]()
    if report.versions or report.detached or report.orphans or plan.claims:
        keys = sorted({key for path in report.orphans if (key := file_key(path))} | set(plan.claims))
        for notice in SweepNotice((*report.versions, *report.detached), tuple(keys)).parts():
            notices.append(announce_sweep(plan.location.store, notice, runtime))
    return notices


def _keys_needed_now(plan: _SweepPlan) -> set[str]:
    """Return the keys that versions, references and writes that are newer than the plan need.

    Leases and work in progress are read first, since a lease is released once its version exists."""
    needed = files_in_progress(plan.location.store, now=plan.now, patience=plan.patience)
    branch = _with_one_listing(plan.branch)
    location = branch.location
    with ConcurrentCalls(location.store) as calls:
        read_other_branches = calls.start(lambda: references_of_other_branches(branch))
        listed = list_manifests(location, now=plan.now).versions
        newer = [manifest for version, manifest in listed.items() if version not in plan.versions]
        return needed | plan.reader.referenced_keys(newer) | read_other_branches()


def _find_spared_files(plan: _SweepPlan, put_back: Collection[Version], needed: set[str]) -> set[str]:
    """Return the planned paths that must not be removed: those of needed keys, and those of the versions put back."""
    location = plan.location
    needed = needed | plan.reader.referenced_keys([plan.manifests[version] for version in put_back])
    spared = {info.path for info in (*plan.files.leaving, *plan.files.orphans) if file_key(info.path) in needed}
    if damaged_records(needed):
        spared.update(info.path for info in plan.files.orphans)
    if plan.claims:  # one may have been continued, or committed
        patience = _patience_for_claims(plan.patience)
        spared |= set(plan.claims).difference(abandoned_claims(location, now=plan.now, patience=patience))
    return spared | {plan.manifests[version].path for version in put_back}


def _remove_files(plan: _SweepPlan, spared: Collection[str]) -> None:
    """Remove all planned files that are not spared, and directories that become empty."""
    store, report = plan.location.store, plan.report
    removed = [*(manifest.path for manifest in plan.manifests.values())]  # they are gone already, unless put back
    files = [path for path in report.files if path not in set(removed)]
    paths = [path for path in (*_deletion_order(files), *report.orphans, *report.intents) if path not in spared]
    report_progress("remove files", 0, len(paths), "files")
    for start in range(0, len(paths), _FILES_PER_BATCH):
        delete_all(store, paths[start : start + _FILES_PER_BATCH])
        report_progress("remove files", min(start + _FILES_PER_BATCH, len(paths)), len(paths), "files")
    OPEN_FILES.clear()  # the space of a deleted file is free once no reader has it open
    for directory in {path.rpartition("/")[0]: None for path in paths if _may_leave_directory(path)}:
        remove_empty_directories(store, directory)


def _may_leave_directory(path: str) -> bool:
    return path.startswith((naming.INDICES, progress.DIRECTORY)) or path.endswith(".blob")


def _check_remaining_versions(plan: _SweepPlan, spared: Collection[str], runtime: Runtime) -> None:
    """Check that a sample of the retained versions is still readable, if anything was removed."""
    removed = {path for path in (*plan.report.files, *plan.report.orphans) if path not in spared}
    if removed:
        retained = [(version, each.path) for version, each in plan.versions.items() if each.path not in removed]
        removed_keys = {key for path in removed if (key := file_key(path))}
        post_cleanup_check.verify_readable(plan.location, retained, removed_keys, runtime)


def _report_of_removed(
    plan: _SweepPlan, put_back: Mapping[Version, tuple[str, ...]], spared: Collection[str]
) -> CleanupReport:
    report = plan.report
    return replace(
        report,
        versions=tuple(version for version in report.versions if version not in put_back),
        detached=tuple(version for version in report.detached if version not in put_back),
        files=tuple(path for path in report.files if path not in spared),
        orphans=tuple(path for path in report.orphans if path not in spared),
        intents=tuple(path for path in report.intents if path not in spared),
        bytes=sum(size for path, size in plan.sizes.items() if path not in spared),
        kept={**report.kept, **put_back},
    )


def _reasons_to_keep(
    branch: BranchFiles, versions: Iterable[Version], retention: Retention, *, now: datetime
) -> dict[Version, list[str]]:
    """Return the protected versions with the reasons, including those of the caller."""
    reasons = retention_reasons(branch, versions, now=now)
    for number, reason in retention.protected.items():
        reasons.setdefault(validation.check_version_number(number), []).append(reason)
    return reasons


def _find_removable(
    files: Sequence[tuple[str, ObjectInfo]], staying: set[str], leaving: set[str], *, older_than: datetime
) -> _SweepSet:
    """Return the files whose keys are `leaving`, and the unreferenced files that are old enough."""
    removable, orphans = [], []
    known = 0
    for key, info in files:
        known += 1
        if key in staying:
            continue
        for detailed in load_details([info]):
            if key in leaving:
                removable.append(detailed)
            elif detailed.modified < older_than:
                orphans.append(detailed)
    return _SweepSet(tuple(removable), tuple(orphans), known)


@dataclass(frozen=True, slots=True)
class _StoreClock:
    """Reading of the store's clock, and the times of this process's monotonic clock between which it was read."""

    time: datetime
    asked_ns: int
    answered_ns: int
    began_ns: int = 0
    """Time at which the cleanup began, perhaps by listing files."""


def _check_clock_is_steady(location: Location, probe: str, before: _StoreClock, runtime: Runtime) -> None:
    """Raise `StorageError` if the store's clock went back after the cleanup read it: files that were written since then
    look older than they are, and the cleanup may have listed some of them."""
    after, store = _read_store_clock(location, probe, runtime), location.own_store
    elapsed = timedelta(microseconds=(after.asked_ns - before.answered_ns) / 1000)
    has_jumped = isinstance(store, ReportsClockJumps) and store.has_clock_jumped_since(before.began_ns)
    if has_jumped or after.time - before.time < elapsed - CLOCK_STEP_MAX:
        raise StorageError(
            f"{location.uri}: the clock of the store was set while this cleanup listed the files, so their ages are "
            "unknown; nothing was removed. Repeat the cleanup when the clock is right"
        )


def _read_store_clock(location: Location, probe: str, runtime: Runtime) -> _StoreClock:
    """Read the store's clock: the modification time of a file that was just written, which the caller deletes.

    Raise `StorageError` if it differs much from the clock of this process: one of the two clocks is wrong. If it is
    that of the store, all ages are wrong.
    """
    store, asked_ns = location.store, runtime.elapsed_ns()
    store.put(probe, b"")
    details = store.head(probe)
    process_time = datetime.fromtimestamp(runtime.now_ns() / 1e9, UTC)
    if details is None:
        raise StorageError(f"{store.description} does not show a file that was just written; nothing was removed")
    if abs(details.modified - process_time) > SKEW_MAX:
        raise StorageError(
            f"{location.uri}: it is {details.modified.isoformat(timespec='seconds')} by the clock of the store and "
            f"{process_time.isoformat(timespec='seconds')} by the clock of this process, so the ages of files are not "
            "known; nothing was removed. Set the clock that is wrong"
        )
    return _StoreClock(details.modified, asked_ns, runtime.elapsed_ns())


def _remove_manifests(
    branch: BranchFiles,
    manifests: Mapping[Version, ListedManifest],
    reader: ManifestReader,
    *,
    now: datetime,
    before_first: Callable[[], None],
    after_last: Callable[[], None],
) -> dict[Version, tuple[str, ...]]:
    """Remove the manifests, oldest version first. Return the versions that were not removed or were put back, with the
    reasons. Call `before_first` before anything is removed, and `after_last` after the last removal.

    References that this library creates respect the sweep notice. Another engine may create one while its version is
    being removed; the manifest is then put back, byte for byte.
    """
    store = branch.location.store
    put_back: dict[Version, tuple[str, ...]] = {}
    remaining = sorted(manifests)
    while remaining:
        batch = _next_batch(remaining, manifests)
        remaining = remaining[len(batch) :]
        reasons = retention_reasons(branch, batch, now=now)
        put_back |= {version: tuple(reasons[version]) for version in batch if version in reasons}
        unprotected = [version for version in batch if version not in reasons]
        contents = map_requests(store, lambda version: reader.read(manifests[version].path), unprotected)
        removed = {version: data for version, data in zip(unprotected, contents, strict=True) if data is not None}
        before_first()
        delete_all(store, [manifests[version].path for version in removed])
        if not remaining:
            after_last()
        reasons = retention_reasons(branch, batch, now=now)
        for version in removed.keys() & reasons.keys():
            path = manifests[version].path
            if store.create(path, removed[version]) is Put.UNKNOWN:
                raise StorageError(
                    f"{branch.location.uri}: version {version} was referenced ({', '.join(reasons[version])}) while it "
                    "was being removed, and the store did not confirm that it was put back. No data was removed: put "
                    f"back {path} from a backup, or remove the reference"
                )
            put_back[version] = tuple(reasons[version])
    if not manifests:
        before_first()
        after_last()
    return put_back


def _next_batch(versions: Sequence[Version], manifests: Mapping[Version, ListedManifest]) -> Sequence[Version]:
    """Return the first versions, as many as may be removed between two looks at the references."""
    total = 0
    for count, version in enumerate(versions[:_MANIFESTS_PER_BATCH]):
        total += manifests[version].size
        if count and total > KEPT_BYTES_MAX:
            return versions[:count]
    return versions[:_MANIFESTS_PER_BATCH]


def _withdraw_notices(location: Location, own: Collection[str], *, now: datetime) -> list[str]:
    """Remove the sweep notices of this cleanup, and those of killed cleanups whose versions and files are all removed.
    Return the paths of damaged notices, which expire."""
    with ConcurrentCalls(location.store) as calls:
        for released in [calls.start(partial(release, location.store, path)) for path in own]:
            released()
        others = [(info, notice) for info, notice in sweep_notices(location.store) if info.path not in own]
    if not others:
        return []
    listed = list_manifests(location, now=now)
    versions = listed.versions.keys() | listed.detached.keys()
    keys = {key for key, _info in list_files(location)}
    for info, notice in others:
        is_done = notice is not None and not (versions & set(notice.versions) or keys & set(notice.files))
        if is_done or now - info.modified > EXPIRY:
            release(location.store, info.path)
    return [info.path for info, notice in others if notice is None and now - info.modified <= EXPIRY]


def _deletion_order(files: Iterable[str]) -> list[str]:
    """Return the files in the order of removal: deletion files and indices come before the data files.

    The manifests among them are already gone.
    """
    order = (naming.VERSIONS, naming.DELETIONS, naming.INDICES, naming.DATA)
    return sorted(files, key=lambda path: next((at for at, top in enumerate(order) if path.startswith(top)), 9))
