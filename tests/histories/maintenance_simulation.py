"""A table that is cleaned up while others write, name, branch and read, and while hours and days go by at any call.

    kept_up(seed).run().check()

The cleaners take every liberty that they are given: no version is too young, one is enough to keep, the grace period is
the shortest there is, and they are forced. What must hold is told by what is stored, at every call
(`simulated_store.py`): no file goes that a version names,
nothing lands that names what is gone, and what was acknowledged opens.
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
from lance_core.storage.store import ObjectInfo, Put, Store
from lance_core.table.branches import Branches
from lance_core.versions.file_inventory import list_files, references_of
from lance_core.versions.location import Location
from lance_core.versions.refs import Tags
from lance_core.versions.snapshot import Snapshot, list_versions, load_at, load_latest, load_transaction
from tests.histories.cooperative_scheduler import Baton, Killed
from tests.histories.simulated_network import CALM, HARD, TICK, Odds
from tests.histories.simulated_operations import WORK, Verb
from tests.histories.simulated_store import BEGINNING
from tests.histories.simulation import Simulation, Work
from tests.lance_core.world import World

HOLDS_ON = (0.0, 0.8, 0.95)
ROOT = "memory://table"
DAY = timedelta(days=1)
MONTH = INTENT_MEMORY - DAY
QUIET = replace(CALM, stands_still=0.03)
HASTY = replace(HARD, killed=0.01, fails=0.01, lost=0.1, never=0.05, late=0.1, stands_still=0.02)


class Below:
    """A directory of a store, as a store."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._prefix = f"{directory}/"
        self.description = f"{ROOT}/{directory}"

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._store.read(self._prefix + path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        found = self._store.head(self._prefix + path)
        return found and _Renamed(found, path)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        return self._renamed(self._store.list(self._prefix + directory, start_after))

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return self._renamed(self._store.walk(self._prefix + directory))

    def put(self, path: str, data: bytes) -> None:
        self._store.put(self._prefix + path, data)

    def create(self, path: str, data: bytes) -> Put:
        return self._store.create(self._prefix + path, data)

    def delete(self, path: str) -> None:
        self._store.delete(self._prefix + path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self._store.ensure_durable([self._prefix + path for path in paths])

    def _renamed(self, found: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
        return [_Renamed(info, info.path.removeprefix(self._prefix)) for info in found]


class _Renamed:
    def __init__(self, info: ObjectInfo, path: str) -> None:
        self.path, self.size, self.modified = path, info.size, info.modified


@dataclass(frozen=True)
class Here(Location):
    """The simulated table or a branch of it, wherever it is asked for from."""

    def locate_other(self, uri: str, *, bases: Sequence[str] = ()) -> "Location":
        below = uri.removeprefix(ROOT).strip("/")
        root = self.own_store
        while isinstance(root, Below):
            root = root._store
        store = Below(root, below) if below else root
        return Here(uri, store, IpcCodec(store), self.access)


class Upkeep(Simulation):
    def __init__(
        self, seed: int, *, odds: Odds | None = None, cleaners: int = 2, writers: int = 2, namers: int = 1
    ) -> None:
        super().__init__(seed, odds=odds or HASTY, writers=writers)
        self.baton = Baton(seed, holds_on=HOLDS_ON[seed // 4 % len(HOLDS_ON)])
        self._cleaners = cleaners
        self._namers = namers
        self.cleaned = self.removed = 0
        self.tags: dict[str, int] = {}
        self.branches: set[str] = set()
        self.misses: list[tuple[str, str]] = []

    def location(self) -> Location:
        store = self.store()
        return Here(ROOT, store, IpcCodec(store))

    def _actors(self) -> dict[str, Callable[[], None]]:
        actors = super()._actors()
        for number in range(self._cleaners):
            actors[f"cleaner {number}"] = self._often(self._clean, 3)
        for number in range(self._namers):
            actors[f"tagger {number}"] = self._often(self._tag, 4)
            actors[f"brancher {number}"] = self._often(self._branch, 1)
        actors["restorer"] = self._doing([self._restoring(f"restored {turn}") for turn in range(2)])
        actors["reader"] = self._often(self._read, 4)
        return actors

    def _restoring(self, name: str) -> Work:
        verb = Verb("restore", name, version=self.baton.random.randrange(1, 5), again=False)
        self.work.append(Work(verb))
        return self.work[-1]

    def _often(self, do: Callable[[Runtime], None], times: int) -> Callable[[], None]:
        def act() -> None:
            for _ in range(times):
                self._processes += 1
                try:
                    do(self.runtime(self._processes))
                except (Killed, AlreadyExists, CommitUndecided, ConflictError, InvalidInput, NotFound, StorageError):
                    continue

        return act

    def runtime(self, process: int) -> Runtime:
        """Every other cleaner has the right time; the others are told that theirs is wrong."""
        given = super().runtime(process)
        if not self.baton.current.startswith("cleaner") or process % 4 == 0:
            return given
        return replace(given, now_ns=lambda: int(self.clock.now.timestamp() * 1e9))

    def pass_time(self, by: timedelta) -> None:
        """No history is longer than an intent is remembered."""
        super().pass_time(by if self.clock.now - BEGINNING + by < MONTH else min(by, TICK))

    def _some_version(self) -> Snapshot:
        """The newest, or an old one that may be about to go."""
        newest = load_latest(self.location())
        if self.baton.random.random() < 0.3:
            return newest
        return load_at(newest.location, self.baton.random.choice(list_versions(newest.location).numbers))

    def _clean(self, given: Runtime) -> None:
        chance = self.baton.random
        retention = Retention(
            older_than=chance.choice((timedelta(0), timedelta(0), timedelta(hours=1))),
            keep=chance.choice((1, 1, 2)),
            orphan_grace=chance.choice((ORPHAN_GRACE_MIN, ORPHAN_GRACE_MIN, DAY)),
        )
        self.pass_time(chance.choice((timedelta(0), timedelta(minutes=2), timedelta(hours=1, minutes=1))))
        base = load_latest(self.location())
        try:
            report = cleanup.clean(base, retention, dry_run=False, force=True, runtime=given)
        except Corrupt as error:
            self.misses.append((error.path, f"a cleanup tells: {error}"))
            return
        self.cleaned += 1
        self.removed += len(report.versions)

    def _tag(self, given: Runtime) -> None:
        meant = self._some_version()
        if self.tags and self.baton.random.random() < 0.4:
            name = self.baton.random.choice(sorted(self.tags))
            del self.tags[name]
            Tags(meant, given).delete(name)
            return
        name = f"t{self._processes}"
        Tags(meant, given).create(name)
        self.tags[name] = meant.version

    def _branch(self, given: Runtime) -> None:
        meant = self._some_version()
        name = f"b{self._processes}"
        Branches(meant, given, lambda snapshot: snapshot).create(name)
        self.branches.add(name)

    def _read(self, given: Runtime) -> None:
        """A version that stays is read to its end, however long that takes."""
        version = self._some_version()
        for path in sorted(references_of(version.manifest).own):
            gone = version.location.store.head(path) is None
            if gone and version.manifest.path in self.eye.live.keys() - self.eye.aside:
                self.misses.append((path, f"a reader of version {version.version} misses {path}"))

    def check(self) -> None:
        lost = self._known_to_be_lost()
        wrong = [miss for path, miss in self.misses if path not in lost]
        wrong += [f"{path} goes, and {user} names it" for path, user in self.eye.broken if path not in lost]
        for path, missing in self.eye.missing.items():
            if gone := set(missing) - lost:
                wrong.append(f"{path} lands and names {', '.join(sorted(gone))}")
        assert not wrong, f"{len(wrong)} times a file is missing: {'; '.join(wrong)}"
        here = Here(ROOT, self.stored, IpcCodec(self.stored))
        for name, version in self.tags.items():
            self._opens(load_at, here, f"the tag {name}", version)
        for name in self.branches:
            self._opens(load_at, here.locate_branch(name), f"the branch {name}", None)
        newest = list_versions(World(self.eye.archive).location()).numbers[-1]
        assert load_latest(here).version == newest, (
            f"the newest version was {newest}, and is {load_latest(here).version}"
        )
        super().check()
        self._check_that_it_can_be_finished(here)

    def _check_that_it_can_be_finished(self, here: Location) -> None:
        """Whatever was killed half way, a cleanup of later days leaves what is named, and nothing else."""
        self.clock.move(40 * DAY)
        given = replace(super().runtime(0), now_ns=lambda: int(self.clock.now.timestamp() * 1e9))
        before = len(self.eye.broken)
        try:
            cleanup.clean(load_latest(here), Retention(timedelta(0), 1), dry_run=False, force=True, runtime=given)
        except Corrupt as error:
            if error.path not in self._known_to_be_lost():
                raise AssertionError(f"the last cleanup tells: {error}") from error
        assert not self.eye.broken[before:], f"the last cleanup takes {self.eye.broken[before:]}"
        named = {path for files in self.eye.live.values() for path in files}
        left = {key for key, _info in list_files(here)} - named
        assert not left, f"a cleanup of later days leaves {sorted(left)}"
        assert not list(sweep_notices(self.stored)), "a notice is left"

    def _known_to_be_lost(self) -> set[str]:
        """Who stood still for hours between the last look and the put, on a table where nobody else did anything, makes
        a version that names what is gone. Nothing can hinder it; but it must be told, and is."""
        lost: set[str] = set()
        broken = [(user, (path,)) for path, user in self.eye.broken]
        for path, gone in [*self.eye.missing.items(), *broken]:
            manifest = Manifest.decode(self.eye.archive.read(path), path=path)
            made = load_transaction(World(self.eye.archive).location(), manifest)
            makers = [work for work in self.work if made and work.name == made.properties.get(WORK)]
            if path.startswith(naming.VERSIONS) and makers and not makers[0].versions:
                lost |= set(gone)
            if made and isinstance(made.operation, ReserveFragments):  # it says nobody's name, and nothing reads it
                lost |= {file for file in gone if file.startswith(naming.TRANSACTIONS)}
        return lost

    def _opens(self, load: Callable[..., Snapshot], here: Location, what: str, version: int | None) -> None:
        try:
            found = load_latest(here) if version is None else load(here, version)
        except LanceError as error:
            raise AssertionError(f"{what} was acknowledged, and does not open: {error}") from error
        named = references_of(found.manifest)
        gone = {path for path in named.own if here.store.head(path) is None}
        gone |= {path for path in named.in_other_bases if self.stored.head(path) is None}
        gone -= self._known_to_be_lost()
        assert not gone, f"{what} was acknowledged, and misses {gone}"


def kept_up(seed: int) -> Upkeep:
    """One in four in calm weather, where most is cleaned up."""
    return Upkeep(seed, odds=HASTY if seed % 4 else QUIET)
