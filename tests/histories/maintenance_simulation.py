"""Maintenance simulation: cleanups run concurrently with writers, taggers, branchers and readers, and any call may take
hours or days.

    simulate_maintenance(seed).run().check()

The cleanups use the most aggressive options: no version is too young, one version is enough to keep, the grace period
is the shortest that is allowed, and they are forced. The store observer checks the guarantees at every call
(`simulated_store.py`): no file is deleted while a version references it, no version is committed that references a
deleted file, and an acknowledged tag, branch or version opens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from lance_core import (
    AlreadyExists,
    CommitUndecided,
    ConflictError,
    Corrupt,
    InvalidInput,
    LanceError,
    NotFound,
    StorageError,
)
from lance_core.coordination.leases import sweep_notices
from lance_core.datafiles.ipc_codec import IpcCodec
from lance_core.format import naming
from lance_core.format.manifest import Manifest
from lance_core.format.operations import ReserveFragments
from lance_core.maintenance import cleanup
from lance_core.maintenance.cleanup import ORPHAN_GRACE_MIN, Retention
from lance_core.maintenance.retention_guards import INTENT_MEMORY
from lance_core.runtime import Runtime
from lance_core.table.branches import Branches
from lance_core.versions.file_inventory import list_files, references_of
from lance_core.versions.location import Location
from lance_core.versions.refs import Tags
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_latest, load_transaction
from tests.histories.cooperative_scheduler import CooperativeScheduler, ProcessKilled
from tests.histories.simulated_network import CALL_DURATION, HARSH_NETWORK, RELIABLE_NETWORK, FaultProbabilities
from tests.histories.simulated_operations import WORK_PROPERTY, SimulatedOperation
from tests.histories.simulated_store import START_TIME
from tests.histories.simulation import Simulation, WorkItem
from tests.histories.storage_backends import StoreDirectory
from tests.lance_core.in_memory_table import InMemoryTable

KEEP_RUNNING_PROBABILITIES = (0.0, 0.8, 0.95)
ROOT = "memory://table"
DAY = timedelta(days=1)
HISTORY_DURATION_MAX = INTENT_MEMORY - DAY
RELIABLE_WITH_SUSPENSIONS = replace(RELIABLE_NETWORK, suspension=0.03)
HARSH_WITH_SUSPENSIONS = replace(
    HARSH_NETWORK,
    kill=0.01,
    request_error=0.01,
    lost_answer=0.1,
    dropped_request=0.05,
    delayed_request=0.1,
    suspension=0.02,
)


@dataclass(frozen=True)
class SimulatedLocation(Location):
    """Location of the simulated table or of one of its branches. It locates other tables in the simulation too."""

    def locate_other(self, uri: str, *, bases: Sequence[str] = ()) -> "Location":
        directory = uri.removeprefix(ROOT).strip("/")
        root = self.own_store
        while isinstance(root, StoreDirectory):
            root = root.inner
        store = StoreDirectory(root, directory, description=f"{ROOT}/{directory}") if directory else root
        return SimulatedLocation(uri, store, IpcCodec(store), self.access)


class MaintenanceSimulation(Simulation):
    def __init__(
        self,
        seed: int,
        *,
        faults: FaultProbabilities | None = None,
        cleaners: int = 2,
        writers: int = 2,
        taggers: int = 1,
    ) -> None:
        super().__init__(seed, faults=faults or HARSH_WITH_SUSPENSIONS, writers=writers)
        self.scheduler = CooperativeScheduler(
            seed, keep_running_probability=KEEP_RUNNING_PROBABILITIES[seed // 4 % len(KEEP_RUNNING_PROBABILITIES)]
        )
        self._cleaner_count = cleaners
        self._tagger_count = taggers
        self.cleanup_count = self.removed_count = 0
        self.tags: dict[str, int] = {}
        self.branches: set[str] = set()
        self.missing_file_reports: list[tuple[str, str]] = []

    def location(self) -> Location:
        store = self.process_store()
        return SimulatedLocation(ROOT, store, IpcCodec(store))

    def _actors(self) -> dict[str, Callable[[], None]]:
        actors = super()._actors()
        for number in range(self._cleaner_count):
            actors[f"cleaner {number}"] = self._repeat(self._run_cleanup, 3)
        for number in range(self._tagger_count):
            actors[f"tagger {number}"] = self._repeat(self._change_tag, 4)
            actors[f"brancher {number}"] = self._repeat(self._create_branch, 1)
        actors["restorer"] = self._make_actor([self._add_restore(f"restored {turn}") for turn in range(2)])
        actors["reader"] = self._repeat(self._read_version, 4)
        return actors

    def _add_restore(self, name: str) -> WorkItem:
        restore = SimulatedOperation("restore", name, version=self.scheduler.random.randrange(1, 5), can_replan=False)
        self.work_items.append(WorkItem(restore))
        return self.work_items[-1]

    def _repeat(self, action: Callable[[Runtime], None], times: int) -> Callable[[], None]:
        def run_all() -> None:
            for _ in range(times):
                self._process_count += 1
                try:
                    action(self.runtime(self._process_count))
                except (
                    ProcessKilled,
                    AlreadyExists,
                    CommitUndecided,
                    ConflictError,
                    InvalidInput,
                    NotFound,
                    StorageError,
                ):
                    continue

        return run_all

    def runtime(self, process: int) -> Runtime:
        """Return the runtime of a process. Some cleaners have the right time; the cleanup of the others fails, because
        it detects that their clock is wrong."""
        process_runtime = super().runtime(process)
        if not self.scheduler.current.startswith("cleaner") or process % 4 == 0:
            return process_runtime
        return replace(process_runtime, now_ns=lambda: self._nanoseconds(self.clock.store_now))

    def advance_time(self, duration: timedelta) -> None:
        """Advance the clock. No history is longer than the time for which an intent is remembered."""
        super().advance_time(
            duration if self.clock.now - START_TIME + duration < HISTORY_DURATION_MAX else min(duration, CALL_DURATION)
        )

    def _choose_version(self) -> Snapshot:
        """Return the newest version, or an old one that may be about to be removed."""
        newest = load_latest(self.location())
        if self.scheduler.random.random() < 0.3:
            return newest
        return load_at(newest.location, self.scheduler.random.choice(list_versions(newest.location).numbers))

    def _run_cleanup(self, process_runtime: Runtime) -> None:
        generator = self.scheduler.random
        retention = Retention(
            older_than=generator.choice((timedelta(0), timedelta(0), timedelta(hours=1))),
            keep=generator.choice((1, 1, 2)),
            orphan_grace=generator.choice((ORPHAN_GRACE_MIN, ORPHAN_GRACE_MIN, DAY)),
        )
        self.advance_time(generator.choice((timedelta(0), timedelta(minutes=2), timedelta(hours=1, minutes=1))))
        base = load_latest(self.location())
        try:
            report = cleanup.clean(base, retention, dry_run=False, force=True, runtime=process_runtime)
        except Corrupt as error:
            self.missing_file_reports.append((error.path, f"a cleanup reports: {error}"))
            return
        self.cleanup_count += 1
        self.removed_count += len(report.versions)

    def _change_tag(self, process_runtime: Runtime) -> None:
        snapshot = self._choose_version()
        if self.tags and self.scheduler.random.random() < 0.4:
            name = self.scheduler.random.choice(sorted(self.tags))
            del self.tags[name]
            Tags(snapshot, process_runtime).delete(name)
            return
        name = f"t{self._process_count}"
        Tags(snapshot, process_runtime).create(name)
        self.tags[name] = snapshot.version

    def _create_branch(self, process_runtime: Runtime) -> None:
        snapshot = self._choose_version()
        name = f"b{self._process_count}"
        Branches(snapshot, process_runtime, lambda snapshot: snapshot).create(name)
        self.branches.add(name)

    def _read_version(self, _process_runtime: Runtime) -> None:
        """Read a retained version to its end, however long that takes."""
        snapshot = self._choose_version()
        for path in sorted(references_of(snapshot.manifest).own):
            is_missing = snapshot.location.store.head(path) is None
            if (
                is_missing
                and snapshot.manifest.path in self.observer.live_manifests.keys() - self.observer.excluded_manifests
            ):
                self.missing_file_reports.append(
                    (path, f"a reader of version {snapshot.version} needs the missing {path}")
                )

    def check(self) -> None:
        unpreventable = self._find_unpreventable_losses()
        problems = [report for path, report in self.missing_file_reports if path not in unpreventable]
        problems += [
            f"{path} was deleted, and {manifest} references it"
            for path, manifest in self.observer.deleted_files_in_use
            if path not in unpreventable
        ]
        for path, missing in self.observer.missing_files.items():
            if missing_unexpectedly := set(missing) - unpreventable:
                problems.append(f"{path} is new and references missing {', '.join(sorted(missing_unexpectedly))}")
        assert not problems, f"{len(problems)} missing files: {'; '.join(problems)}"
        location = SimulatedLocation(ROOT, self.shared_store, IpcCodec(self.shared_store))
        for name, version in self.tags.items():
            self._check_opens(load_at, location, f"the tag {name}", version)
        for name in self.branches:
            self._check_opens(load_at, location.locate_branch(name), f"the branch {name}", None)
        newest = list_versions(InMemoryTable(self.observer.archive).location()).numbers[-1]
        assert load_latest(location).version == newest, (
            f"the newest version was {newest}, and is now {load_latest(location).version}"
        )
        super().check()
        self._check_final_cleanup(location)

    def _check_final_cleanup(self, location: Location) -> None:
        """Check that a cleanup some days later keeps all referenced files and no others, whichever cleanups were
        killed."""
        self.clock.advance(40 * DAY)
        final_runtime = replace(super().runtime(0), now_ns=lambda: self._nanoseconds(self.clock.store_now))
        violations_before = len(self.observer.deleted_files_in_use)
        try:
            cleanup.clean(
                load_latest(location), Retention(timedelta(0), 1), dry_run=False, force=True, runtime=final_runtime
            )
        except Corrupt as error:
            if error.path not in self._find_unpreventable_losses():
                raise AssertionError(f"the last cleanup reports: {error}") from error
        assert not self.observer.deleted_files_in_use[violations_before:], (
            f"the last cleanup deletes referenced files: {self.observer.deleted_files_in_use[violations_before:]}"
        )
        referenced = {path for files in self.observer.live_manifests.values() for path in files}
        remaining = {key for key, _info in list_files(location)} - referenced
        assert not remaining, f"the last cleanup leaves {sorted(remaining)}"
        assert not list(sweep_notices(self.shared_store)), "a sweep notice is left"

    def _find_unpreventable_losses(self) -> set[str]:
        """Return the files that the product cannot protect. A writer that was suspended for hours between its last
        check and its put, on a table without other changes, creates a version that references deleted files. Nothing
        can prevent that; but the writer must receive an error, and it does."""
        lost: set[str] = set()
        deleted = [(manifest, (path,)) for path, manifest in self.observer.deleted_files_in_use]
        for path, missing in [*self.observer.missing_files.items(), *deleted]:
            manifest = Manifest.decode(self.observer.archive.read(path), path=path)
            transaction = load_transaction(InMemoryTable(self.observer.archive).location(), manifest)
            committers = [
                work
                for work in self.work_items
                if transaction and work.name == transaction.properties.get(WORK_PROPERTY)
            ]
            if path.startswith(naming.VERSIONS) and committers and not committers[0].versions:
                lost |= set(missing)
            # A reservation of fragment ids belongs to no work item, and nothing reads its transaction file.
            if transaction and isinstance(transaction.operation, ReserveFragments):
                lost |= {file for file in missing if file.startswith(naming.TRANSACTIONS)}
        return lost

    def _check_opens(self, load: Callable[..., Snapshot], location: Location, name: str, version: int | None) -> None:
        try:
            snapshot = load_latest(location) if version is None else load(location, version)
        except LanceError as error:
            raise AssertionError(f"{name} was acknowledged, but does not open: {error}") from error
        references = references_of(snapshot.manifest)
        missing = {path for path in references.own if location.store.head(path) is None}
        missing |= {path for path in references.in_other_bases if self.shared_store.head(path) is None}
        missing -= self._find_unpreventable_losses()
        assert not missing, f"{name} was acknowledged, but lacks {missing}"


def simulate_maintenance(seed: int) -> MaintenanceSimulation:
    """Return the simulation of a seed. One in four has a reliable network, where most versions are cleaned up."""
    return MaintenanceSimulation(seed, faults=HARSH_WITH_SUSPENSIONS if seed % 4 else RELIABLE_WITH_SUSPENSIONS)
