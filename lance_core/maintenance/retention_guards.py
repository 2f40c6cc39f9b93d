"""Retention guards: find the tags, branches, registered clones, leases and work in progress that protect a version or a
file from removal at any age.

Every function reads the store again at each call, since references and leases may change while a cleanup runs. This
module writes nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from lance_core.commit import intent_history
from lance_core.coordination import idempotency, progress
from lance_core.coordination.leases import LEASE_DIRECTORY, active_leases
from lance_core.errors import CommitUndecided, NotFound
from lance_core.format import refs
from lance_core.format.ids import Version
from lance_core.format.naming import PROJECT_DIRECTORY
from lance_core.storage.concurrency import ConcurrentCalls, map_requests
from lance_core.storage.listing_view import ListingView, view_of_directory
from lance_core.storage.store import ObjectInfo, Store
from lance_core.versions.file_inventory import BranchFiles
from lance_core.versions.location import Location
from lance_core.versions.refs import read_branches, read_clone, read_tags
from lance_core.versions.snapshot import list_versions

INTENT_MEMORY = timedelta(days=30)
"""Age at which the record of a committed or abandoned intent, or of an abandoned resumable job, is removed."""


def retention_reasons(
    branch_files: BranchFiles, versions: Iterable[Version], *, now: datetime
) -> dict[Version, list[str]]:
    """Return the versions of this branch that a reference or a lease protects, with the reasons. A damaged lease may
    be on any version, so it protects all of `versions`.

    Leases are read first: a lease is released once the reference that it was taken for exists. Records of clones are
    such references, and a walk of several pages may list them before the leases.
    """
    reasons: dict[Version, list[str]] = {}
    records = view_of_directory(branch_files.location.store, PROJECT_DIRECTORY)
    is_one_moment = isinstance(records, ListingView) and records.is_one_page
    leases, damaged = active_leases(records, now=now)
    for path in damaged:
        for version in versions:
            reasons.setdefault(version, []).append(f"damaged lease {path}")
    for lease in leases:
        if lease.version is not None:
            reasons.setdefault(Version(lease.version), []).append(lease.purpose)
    root = view_of_directory(branch_files.root, refs.REFERENCES)
    with ConcurrentCalls(root) as calls:
        tags = calls.start(lambda: read_tags(root))
        branches = calls.start(lambda: read_branches(root))
        clones = calls.start(lambda: _read_clones(records if is_one_moment else branch_files.location.store))
        for name, tag in tags().items():
            if tag.branch == branch_files.branch:
                reasons.setdefault(tag.version, []).append(f"tag {name}")
        for name, branch in branches().items():
            if branch.parent_branch == branch_files.branch:
                reasons.setdefault(branch.parent_version, []).append(f"branch {name}")
        for version, uri in clones():
            reasons.setdefault(version, []).append(f"clone {uri}")
    return reasons


def files_in_progress(store: Store, *, now: datetime, patience: timedelta) -> set[str]:
    """Return the files that are about to be referenced: those of active leases, and those of uncommitted intents and
    of resumable work that were active within `patience`. A damaged lease or record of an intent does not list the
    files that it protects, so its own path is returned instead (`damaged_records`)."""

    def is_wanted(listed: ObjectInfo) -> bool:
        return now - listed.modified < patience and not idempotency.is_committed(listed)

    store = view_of_directory(store, PROJECT_DIRECTORY)
    with ConcurrentCalls(store) as calls:
        read_leases = calls.start(lambda: active_leases(store, now=now))
        read_intents = calls.start(lambda: idempotency.read_records(store, is_wanted))
        read_jobs = calls.start(lambda: progress.last_activity(store))
        (leases, damaged_leases), (records, damaged), jobs = read_leases(), read_intents(), read_jobs()
    files = {*damaged_leases, *damaged, *(file for lease in leases for file in lease.files)}
    for _listed, record in records:
        if record.landing is None:
            files |= record.file_keys
    for directory, last in jobs.items():
        if now - last < patience:
            fragments = progress.completed_fragments(store, directory)
            files |= {file.qualified_path for fragment in fragments for file in fragment.files[-1:]}
            files |= {each.segment.qualified_path for each in progress.completed_segments(store, directory)}
    return files


def damaged_records(files: Collection[str]) -> tuple[str, ...]:
    """Return the damaged records among files in progress. While there are any, no orphan file may be removed."""
    directories = f"{idempotency.DIRECTORY}/", f"{LEASE_DIRECTORY}/"
    return tuple(sorted(file for file in files if file.startswith(directories)))


def expired_intents(store: Store, *, now: datetime) -> list[str]:
    """Return the records of writes that committed so long ago that they will not be repeated, except permanent ones and
    damaged ones, which a person has to judge."""
    committed: list[str] = []

    def is_wanted(listed: ObjectInfo) -> bool:
        is_quiet = _is_quiet(listed, now, INTENT_MEMORY)
        if is_quiet and idempotency.is_committed(listed):
            committed.append(listed.path)
            return False
        return is_quiet

    records, _damaged = idempotency.read_records(store, is_wanted)
    return sorted((*committed, *(listed.path for listed, record in records if record.landing is not None)))


def abandoned_claims(location: Location, *, now: datetime, patience: timedelta) -> list[str]:
    """Return the records of intents that were claimed, were last active before `patience` and are in no version.

    A record stays if a version that followed the claim was removed: the write may have been that version, and only the
    record keeps a repetition from writing again.
    """

    def is_wanted(listed: ObjectInfo) -> bool:
        return _is_quiet(listed, now, patience) and not idempotency.is_committed(listed)

    records, _damaged = idempotency.read_records(location.own_store, is_wanted)
    claims = [(listed.path, record) for listed, record in records if record.landing is None]
    numbers = set(list_versions(location).numbers) if claims else set()
    newest = max(numbers, default=Version(0))
    abandoned = []
    for path, record in claims:
        if numbers.issuperset(range(record.base + 1, newest + 1)):
            with suppress(CommitUndecided):
                if intent_history.find_commit(location, record, None) is None:
                    abandoned.append(path)
    return abandoned


def _is_quiet(listed: ObjectInfo, now: datetime, patience: timedelta) -> bool:
    return not idempotency.is_permanent(listed.path) and now - listed.modified > patience


def expired_work(store: Store, *, now: datetime) -> list[str]:
    """Return the records of resumable work that was last active so long ago that it is considered abandoned."""
    old = [directory for directory, last in progress.last_activity(store).items() if now - last > INTENT_MEMORY]
    return [info.path for listed in map_requests(store, store.list, old) for info in listed]


def _read_clones(store: Store) -> Sequence[tuple[Version, str]]:
    def read(listed: ObjectInfo) -> tuple[Version, str] | None:
        with suppress(NotFound):
            return read_clone(store, listed.path)
        return None

    return [clone for clone in map_requests(store, read, store.list(refs.CLONES)) if clone is not None]
