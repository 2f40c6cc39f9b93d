"""Ways in which cleanup, and those who work beside it, could be broken; see `commit_defects.py`."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from lance_core.maintenance.cleanup import CleanupReport
from lance_core.runtime import Runtime
from lance_core.storage.store import Store
from lance_core.table import branches
from lance_core.versions import refs
from lance_core.versions.file_inventory import BranchFiles
from lance_core.versions.location import Location
from tests.histories.commit_defects import Breaks, Defect
from tests.histories.cooperative_scheduler import me
from tests.histories.maintenance_simulation import HASTY, Upkeep
from tests.histories.simulated_network import CALM

SLOW = replace(CALM, stands_still=0.1)
"""Nothing goes wrong, but that everybody stands still now and then."""


def beside_cleanup(seed: int) -> Upkeep:
    return Upkeep(seed, odds=(HASTY, SLOW)[seed % 2], cleaners=3)


def in_a_crowd(seed: int) -> Upkeep:
    """Where many name, write and clean up, and each waits for long in the middle of it."""
    return Upkeep(seed * 3 + 4, odds=replace(CALM, stands_still=0.005), cleaners=4, writers=4, namers=4)


def _ages_by_our_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Which is two days ahead."""

    def now(location: Location, runtime: Runtime) -> datetime:
        return datetime.fromtimestamp(runtime.now_ns() / 1e9, UTC) + timedelta(days=2)

    patch.setattr(cleanup, "_store_time", now)


def _tags_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention_guards, "read_tags", lambda store: {})


def _references_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    """Once they were read, cleanup goes by what they were."""
    real = cleanup.clean
    read: dict[int, dict[Version, list[str]]] = {}

    def once(line: BranchFiles, *, now: datetime) -> dict[Version, list[str]]:
        mine = me()
        if mine not in read:
            read[mine] = retention_guards.retention_reasons(line, now=now)
        return read[mine]

    def clean(*args: object, **named: object) -> CleanupReport:
        read.pop(me(), None)
        return real(*args, **named)  # type: ignore[arg-type]

    patch.setattr(cleanup, "retention_reasons", once)
    patch.setattr(cleanup, "clean", clean)


def _files_of_branches_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "references_of_other_branches", lambda line, ignored=(): set())


def _work_under_way_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "files_in_progress", lambda store, *, now, patience: set())


def _holds_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention_guards, "active_leases", lambda store, *, now: ())


def _data_before_manifests(patch: pytest.MonkeyPatch) -> None:
    def last(files: Iterable[str]) -> list[str]:
        return sorted(files, key=lambda path: path.startswith(naming.VERSIONS))

    def none(line: BranchFiles, paths: Mapping[Version, str], *, now: datetime) -> dict[Version, tuple[str, ...]]:
        return {}

    patch.setattr(cleanup, "_remove_manifests", none)
    patch.setattr(cleanup, "_deletion_order", last)


def _the_newest_removed(patch: pytest.MonkeyPatch) -> None:
    real = cleanup.choose_versions

    def choose(modified: Mapping[Version, datetime], named: object, **rest: object) -> object:
        """As if there were another version after the last."""
        beyond = Version(max(modified) + 1)
        wider = {**modified, beyond: max(modified.values()), Version(beyond + 1): max(modified.values())}
        return real(wider, named, **{**rest, "loaded": beyond})  # type: ignore[arg-type]

    patch.setattr(cleanup, "choose_versions", choose)


def _no_grace(patch: pytest.MonkeyPatch) -> None:
    real = cleanup._find_removable

    def sort_out(location: Location, staying: set[str], leaving: set[str], *, older_than: datetime) -> object:
        return real(location, staying, leaving, older_than=older_than + timedelta(days=2))

    patch.setattr(cleanup, "_find_removable", sort_out)


def _no_notice(patch: pytest.MonkeyPatch) -> None:
    def nobody_told(store: Store, notice: SweepNotice, runtime: Runtime) -> str:
        return ""

    patch.setattr(cleanup, "announce_sweep", nobody_told)


def _newer_versions_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """What was committed while it ran is not asked what it names."""
    real, really = cleanup._referenced_keys, cleanup.clean
    calls: Counter[int] = Counter()

    def named(location: Location, paths: Iterable[str], *, own_only: bool = False) -> set[str]:
        calls[me()] += 1
        return set() if calls[me()] == 3 else real(location, paths, own_only=own_only)

    def clean(*args: object, **options: object) -> CleanupReport:
        calls.pop(me(), None)
        return really(*args, **options)  # type: ignore[arg-type]

    patch.setattr(cleanup, "_referenced_keys", named)
    patch.setattr(cleanup, "clean", clean)


def _what_goes_only_by_its_versions(patch: pytest.MonkeyPatch) -> None:
    """A file that an old version names goes with it, whoever else names it."""
    real = cleanup._find_removable

    def sort_out(location: Location, staying: set[str], leaving: set[str], *, older_than: datetime) -> object:
        everything = {key for key in staying if key.startswith(naming.DATA)}
        return real(location, staying - everything, leaving | everything, older_than=older_than)

    patch.setattr(cleanup, "_find_removable", sort_out)


def _half_done_stays_half_done(patch: pytest.MonkeyPatch) -> None:
    """What a killed cleanup left is not found by the next one."""
    real = cleanup._find_removable

    def sort_out(location: Location, staying: set[str], leaving: set[str], *, older_than: datetime) -> object:
        return replace(real(location, staying, leaving, older_than=older_than), orphans=())

    patch.setattr(cleanup, "_find_removable", sort_out)


def _notices_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "_withdraw_notices", lambda location, own, *, now: None)


def _no_version_too_young(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cleanup, "YOUNG_VERSION_AGE", timedelta(0))


def _gaps_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitFence, "after_put", lambda self, manifest, scheme: None)


def _old_files_not_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitFence, "before_put", lambda self, manifest, before, written: True)


def _tags_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refs.Tags, "_check_version_exists", lambda self, name, tag, undo: None)


def _restored_without_a_hold(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(location: Location, operation: object, runtime: Runtime) -> Iterator[None]:
        yield

    patch.setattr(write_protocol, "restore_lease", nothing)


def _branched_without_a_hold(patch: pytest.MonkeyPatch) -> None:
    def nothing(store: Store, wanted: Lease, runtime: Runtime) -> str:
        return "_lance_assets/holds/none"

    patch.setattr(branches, "acquire", nothing)


_ALL: list[Breaks] = [
    _ages_by_our_own_clock,
    _tags_ignored,
    _references_not_looked_at_again,
    _files_of_branches_ignored,
    _work_under_way_ignored,
    _holds_ignored,
    _data_before_manifests,
    _the_newest_removed,
    _no_grace,
    _no_notice,
    _newer_versions_not_looked_at,
    _what_goes_only_by_its_versions,
    _half_done_stays_half_done,
    _notices_left,
    _no_version_too_young,
    _gaps_not_looked_for,
    _old_files_not_held,
    _tags_not_looked_at_again,
    _restored_without_a_hold,
    _branched_without_a_hold,
]
RARE = (
    "branched without a hold",
    "gaps not looked for",
    "no version too young",
    "restored without a hold",
    "tags not looked at again",
    "work under way ignored",
)
"""Seen by one history in some hundred: `make torture` looks for them, and tests of their own say the same at once."""


def _history(breaks: Breaks) -> Callable[[int], Upkeep]:
    return in_a_crowd if breaks is _tags_not_looked_at_again else beside_cleanup


DEFECTS_OF_CLEANUP = {each.__name__.strip("_").replace("_", " "): Defect(each, _history(each)) for each in _ALL}
