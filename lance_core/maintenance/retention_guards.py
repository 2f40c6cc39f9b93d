"""Retention guards: find the tags, branches, registered clones, leases and work in progress that protect a version or a
file from removal at any age.

Every function reads the store again at each call, since references and leases may change while a cleanup runs. This
module writes nothing.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta

from lance_core.commit import intent_history
from lance_core.coordination import idempotency, progress
from lance_core.coordination.leases import LEASE_DIRECTORY, active_leases
from lance_core.errors import CommitUndecided, NotFound
from lance_core.format import refs
from lance_core.format.ids import Version
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

    Leases are read first: a lease is released once the reference that it was taken for exists.
    """
    reasons: dict[Version, list[str]] = {}
    leases, damaged = active_leases(branch_files.location.store, now=now)
    for path in damaged:
        for version in versions:
            reasons.setdefault(version, []).append(f"damaged lease {path}")
    for lease in leases:
        if lease.version is not None:
            reasons.setdefault(Version(lease.version), []).append(lease.purpose)
    for name, tag in read_tags(branch_files.root).items():
        if tag.branch == branch_files.branch:
            reasons.setdefault(tag.version, []).append(f"tag {name}")
    for name, branch in read_branches(branch_files.root).items():
        if branch.parent_branch == branch_files.branch:
            reasons.setdefault(branch.parent_version, []).append(f"branch {name}")
    for version, uri in _clones(branch_files.location.store):
        reasons.setdefault(version, []).append(f"clone {uri}")
    return reasons


def files_in_progress(store: Store, *, now: datetime, patience: timedelta) -> set[str]:
    """Return the files that are about to be referenced: those of active leases, and those of uncommitted intents and
    of resumable work that were active within `patience`. A damaged lease or record of an intent does not list the
    files that it protects, so its own path is returned instead (`damaged_records`)."""
    leases, damaged_leases = active_leases(store, now=now)
    records, damaged = idempotency.read_records(store, lambda listed: now - listed.modified < patience)
    files = {*damaged_leases, *damaged, *(file for lease in leases for file in lease.files)}
    for _listed, record in records:
        if record.landing is None:
            files |= record.file_keys
    for directory, last in progress.last_activity(store).items():
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

    records, _damaged = idempotency.read_records(store, lambda listed: _is_quiet(listed, now, INTENT_MEMORY))
    return [listed.path for listed, record in records if record.landing is not None]


def abandoned_claims(location: Location, *, now: datetime, patience: timedelta) -> list[str]:
    """Return the records of intents that were claimed, were last active before `patience` and are in no version.

    A record stays if a version that followed the claim was removed: the write may have been that version, and only the
    record keeps a repetition from writing again.
    """
    records, _damaged = idempotency.read_records(location.own_store, lambda listed: _is_quiet(listed, now, patience))
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
    return [info.path for directory in old for info in store.list(directory)]


def _clones(store: Store) -> Iterator[tuple[Version, str]]:
    for listed in store.list(refs.CLONES):
        with suppress(NotFound):
            yield read_clone(store, listed.path)
