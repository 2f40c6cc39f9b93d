"""Planted defects of cleanup, and of the writers, taggers and branchers that run concurrently with it; see
`planted_defects.py`."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lance_core.commit import write_protocol
from lance_core.commit.fencing import CommitFence
from lance_core.coordination.leases import Lease, SweepNotice
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.maintenance import cleanup, retention_guards
from lance_core.maintenance.branch_manifests import ListedManifest, ManifestReader
from lance_core.maintenance.cleanup import CleanupReport
from lance_core.runtime import Runtime
from lance_core.storage.store import ObjectInfo, Store
from lance_core.table import branches
from lance_core.versions import refs
from lance_core.versions.file_inventory import BranchFiles
from lance_core.versions.location import Location
from tests.histories.cooperative_scheduler import current_actor_id
from tests.histories.defect_patch import DefectPatch

ListedFiles = Sequence[tuple[str, ObjectInfo]]


def _use_local_clock_for_ages(patch: pytest.MonkeyPatch) -> None:
    """Ages are measured with the clock of the process, which is two days ahead."""

    def read_store_clock(location: Location, probe: str, runtime: Runtime) -> object:
        local = datetime.fromtimestamp(runtime.now_ns() / 1e9, UTC) + timedelta(days=2)
        return cleanup._StoreClock(local, runtime.elapsed_ns(), runtime.elapsed_ns())

    patch.setattr(cleanup, "_read_store_clock", read_store_clock)


def _ignore_tags(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention_guards, "read_tags", lambda store: {})


def _read_references_once(patch: pytest.MonkeyPatch) -> None:
    """A cleanup uses the references that it read first and does not read them again."""
    original = cleanup.clean
    reasons: dict[int, dict[Version, list[str]]] = {}

    def retention_reasons(
        branch: BranchFiles, versions: Iterable[Version], *, now: datetime
    ) -> dict[Version, list[str]]:
        actor = current_actor_id()
        if actor not in reasons:
            reasons[actor] = retention_guards.retention_reasons(branch, versions, now=now)
        return reasons[actor]

    def clean(*args: object, **named: object) -> CleanupReport:
        reasons.pop(current_actor_id(), None)
        return original(*args, **named)  # type: ignore[arg-type]

    patch.setattr(cleanup, "retention_reasons", retention_reasons)
    patch.setattr(cleanup, "clean", clean)


def _ignore_files_of_branches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "references_of_other_branches", lambda branch, ignored=(): set())


def _ignore_files_in_progress(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "files_in_progress", lambda store, *, now, patience: set())


def _ignore_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention_guards, "active_leases", lambda store, *, now: ([], []))


def _delete_data_before_manifests(patch: pytest.MonkeyPatch) -> None:
    def manifests_last(files: Iterable[str]) -> list[str]:
        return sorted(files, key=lambda path: path.startswith(naming.VERSIONS))

    def remove_no_manifests(
        branch: BranchFiles,
        manifests: object,
        reader: object,
        *,
        now: datetime,
        before_first: Callable[[], None],
        after_last: Callable[[], None],
    ) -> dict[Version, tuple[str, ...]]:
        before_first()
        after_last()
        return {}

    patch.setattr(cleanup, "_remove_manifests", remove_no_manifests)
    patch.setattr(cleanup, "_deletion_order", manifests_last)


def _remove_newest_version(patch: pytest.MonkeyPatch) -> None:
    original = cleanup.choose_versions

    def choose_versions(modified: Mapping[Version, datetime], reasons: object, **options: object) -> object:
        """Choose as if two more versions followed the newest one."""
        next_version = Version(max(modified) + 1)
        newest_time = max(modified.values())
        extended = {**modified, next_version: newest_time, Version(next_version + 1): newest_time}
        return original(extended, reasons, **{**options, "loaded": next_version})  # type: ignore[arg-type]

    patch.setattr(cleanup, "choose_versions", choose_versions)


def _skip_grace_period(patch: pytest.MonkeyPatch) -> None:
    original = cleanup._find_removable

    def find_removable(files: ListedFiles, staying: set[str], leaving: set[str], *, older_than: datetime) -> object:
        return original(files, staying, leaving, older_than=older_than + timedelta(days=2))

    patch.setattr(cleanup, "_find_removable", find_removable)


def _announce_no_sweep(patch: pytest.MonkeyPatch) -> None:
    def announce_nothing(store: Store, notice: SweepNotice, runtime: Runtime) -> str:
        return ""

    patch.setattr(cleanup, "announce_sweep", announce_nothing)


def _ignore_concurrent_versions(patch: pytest.MonkeyPatch) -> None:
    """A cleanup does not read the references of the versions that were committed while it ran."""
    original_referenced_keys, original_clean = ManifestReader.referenced_keys, cleanup.clean
    calls: Counter[int] = Counter()

    def referenced_keys(
        reader: ManifestReader, manifests: Iterable[ListedManifest], *, own_only: bool = False
    ) -> set[str]:
        actor = current_actor_id()
        calls[actor] += 1
        return set() if calls[actor] == 3 else original_referenced_keys(reader, manifests, own_only=own_only)

    def clean(*args: object, **options: object) -> CleanupReport:
        calls.pop(current_actor_id(), None)
        return original_clean(*args, **options)  # type: ignore[arg-type]

    patch.setattr(ManifestReader, "referenced_keys", referenced_keys)
    patch.setattr(cleanup, "clean", clean)


def _remove_shared_files(patch: pytest.MonkeyPatch) -> None:
    """A file that a removed version references is removed with it, even if other versions reference it."""
    original = cleanup._find_removable

    def find_removable(files: ListedFiles, staying: set[str], leaving: set[str], *, older_than: datetime) -> object:
        data_files = {key for key in staying if key.startswith(naming.DATA)}
        return original(files, staying - data_files, leaving | data_files, older_than=older_than)

    patch.setattr(cleanup, "_find_removable", find_removable)


def _leave_interrupted_cleanup(patch: pytest.MonkeyPatch) -> None:
    """A cleanup does not find the files that a killed cleanup left."""
    original = cleanup._find_removable

    def find_removable(files: ListedFiles, staying: set[str], leaving: set[str], *, older_than: datetime) -> object:
        return replace(original(files, staying, leaving, older_than=older_than), orphans=())

    patch.setattr(cleanup, "_find_removable", find_removable)


def _leave_sweep_notices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "_withdraw_notices", lambda location, own, *, now: [])


def _remove_young_versions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "YOUNG_VERSION_AGE", timedelta(0))


def _skip_check_for_gaps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitFence, "after_put", lambda self, manifest, scheme: None)


def _ignore_clock_set_during_cleanup(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "_check_clock_is_steady", lambda location, probe, before, runtime: None)


def _ignore_clock_set_during_write(patch: pytest.MonkeyPatch) -> None:
    """Writers notice neither that the clock of an object store jumped, nor that a cleanup ran on a local store."""
    patch.setattr(CommitFence, "_has_clock_jumped_since", lambda self, reading: False)
    patch.setattr(CommitFence, "_met_cleanup", lambda self: False)


def _skip_lease_on_old_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitFence, "before_put", lambda self, manifest, before, written: True)
    patch.setattr(write_protocol, "_own_keys", lambda files: ())


def _skip_check_after_tagging(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refs.Tags, "_check_version_exists", lambda self, name, tag, undo: None)


def _restore_without_lease(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def acquire_nothing(location: Location, operation: object, runtime: Runtime) -> Iterator[None]:
        yield

    patch.setattr(write_protocol, "restore_lease", acquire_nothing)


def _branch_without_lease(patch: pytest.MonkeyPatch) -> None:
    def acquire_nothing(store: Store, lease: Lease, runtime: Runtime) -> str:
        return "_lance_assets/holds/none"

    patch.setattr(branches, "acquire", acquire_nothing)


CLEANUP_DEFECTS: Mapping[str, DefectPatch] = {
    "ages measured by the local clock": _use_local_clock_for_ages,
    "tags ignored": _ignore_tags,
    "references read only once": _read_references_once,
    "files of branches ignored": _ignore_files_of_branches,
    "files in progress ignored": _ignore_files_in_progress,
    "leases ignored": _ignore_leases,
    "data deleted before manifests": _delete_data_before_manifests,
    "newest version removed": _remove_newest_version,
    "grace period skipped": _skip_grace_period,
    "sweep not announced": _announce_no_sweep,
    "concurrent versions ignored": _ignore_concurrent_versions,
    "shared files removed": _remove_shared_files,
    "interrupted cleanup left": _leave_interrupted_cleanup,
    "sweep notices left": _leave_sweep_notices,
    "young versions removed": _remove_young_versions,
    "check for gaps skipped": _skip_check_for_gaps,
    "clock set during a cleanup ignored": _ignore_clock_set_during_cleanup,
    "clock set during a write ignored": _ignore_clock_set_during_write,
    "lease on old files skipped": _skip_lease_on_old_files,
    "check after tagging skipped": _skip_check_after_tagging,
    "restored without a lease": _restore_without_lease,
    "branched without a lease": _branch_without_lease,
}
RARELY_DETECTED = (
    "branched without a lease",
    "check after tagging skipped",
    "check for gaps skipped",
    "clock set during a cleanup ignored",
    "clock set during a write ignored",
    "files in progress ignored",
    "restored without a lease",
    "young versions removed",
)
"""Defects that one history in some hundred detects: `make torture` searches for them, and separate tests detect them
directly."""
