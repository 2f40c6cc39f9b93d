"""What keeps a version, or a file, however old it is: tags, branches, clones that are known, work under way.

All of it is read anew whenever it is asked for, since it may change while a cleanup runs. Nothing is written here.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

from lance_core.coordination import idempotency, progress
from lance_core.coordination.leases import active_leases
from lance_core.errors import NotFound
from lance_core.format import refs
from lance_core.format.ids import Version
from lance_core.storage.store import ObjectInfo, Store
from lance_core.versions.file_inventory import BranchFiles
from lance_core.versions.refs import read_branches, read_clone, read_tags

INTENT_MEMORY = timedelta(days=30)


def retention_reasons(line: BranchFiles, *, now: datetime) -> dict[Version, list[str]]:
    """Versions of this line that somebody has named or is at work on, and who. Holds come first: one goes when the name
    that it was for is there."""
    found: dict[Version, list[str]] = {}
    for hold in active_leases(line.location.store, now=now):
        if hold.version is not None:
            found.setdefault(Version(hold.version), []).append(hold.what)
    for name, tag in read_tags(line.root).items():
        if tag.branch == line.branch:
            found.setdefault(tag.version, []).append(f"tag {name}")
    for name, branch in read_branches(line.root).items():
        if branch.parent_branch == line.branch:
            found.setdefault(branch.parent_version, []).append(f"branch {name}")
    for version, uri in _clones(line.location.store):
        found.setdefault(version, []).append(f"clone {uri}")
    return found


def files_in_progress(store: Store, *, now: datetime, patience: timedelta) -> set[str]:
    """Files that are about to be named, and those of intentions that have not landed, and of work that may be gone on
    with, which were heard of within `patience`."""
    found = {file for hold in active_leases(store, now=now) for file in hold.files}
    for _listed, record in idempotency.records(store, lambda listed: now - listed.modified < patience):
        if record.landing is None:
            found |= record.keys
    for directory, last in progress.last_activity(store).items():
        if now - last < patience:
            found |= {file.qualified_path for each in progress.completed_fragments(store, directory) for file in each.files[-1:]}
    return found


def expired_intents(store: Store, *, now: datetime) -> list[str]:
    """Records that landed so long ago that nobody will repeat them, but for those that are remembered for good."""

    def is_old(listed: ObjectInfo) -> bool:
        return not idempotency.is_permanent(listed.path) and now - listed.modified > INTENT_MEMORY

    return [listed.path for listed, record in idempotency.records(store, is_old) if record.landing is not None]


def expired_work(store: Store, *, now: datetime) -> list[str]:
    """Records of work that nobody went on with for so long that nobody will."""
    old = [directory for directory, last in progress.last_activity(store).items() if now - last > INTENT_MEMORY]
    return [info.path for directory in old for info in store.list(directory)]


def _clones(store: Store) -> Iterator[tuple[Version, str]]:
    for listed in store.list(refs.CLONES):
        with suppress(NotFound):
            yield read_clone(store, listed.path)
