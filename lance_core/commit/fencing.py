"""Fencing: checks that the commit of a suspended process is valid, and that its files exist.

A put that returns `CREATED` proves only that the name was free. While the writer runs, this is enough. A process can
also be suspended between reading the history and its put, for hours. Meanwhile other writers commit, a cleanup removes
the versions that they replaced, and the put then creates a version in a gap below the newest one, or references files
that no version had referenced and that were old enough to be removed. A cleanup leaves versions younger than a minute
and files younger than an hour alone, so a faster commit needs no check. Start with `CommitFence`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from lance_core.commit.data_files import find_sizes
from lance_core.commit.succession import find_unrelated_successor
from lance_core.coordination import leases
from lance_core.coordination.leases import Lease
from lance_core.errors import CommitUndecided, LanceError, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.limits import MANIFEST_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.concurrency import map_requests
from lance_core.storage.store import ReportsClockJumps, ReportsLastChange, read_whole
from lance_core.versions.file_inventory import added_references, file_exists
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot

STALL_NS = 20 * 10**9
"""A third of the minimum age at which a cleanup removes a version."""
_CHECK_NS = STALL_NS // 10
"""Time from the reading of the history to the end of the checks after which the history is read again: other writers
have probably committed meanwhile."""
_FILE_AGE_NS = 30 * 60 * 10**9
"""Half of the minimum age at which a cleanup removes an orphan file."""
_FOREVER_NS = 2**62


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Point in time by both clocks of this process: one stops while the machine sleeps, the other can be set."""

    elapsed_ns: int
    now_ns: int

    @classmethod
    def now(cls, runtime: Runtime) -> "ClockReading":
        return cls(runtime.elapsed_ns(), runtime.now_ns())

    @classmethod
    def distant_past(cls) -> "ClockReading":
        """Return the time for files of unknown age."""
        return cls(-_FOREVER_NS, -_FOREVER_NS)

    @property
    def is_distant_past(self) -> bool:
        return self == ClockReading.distant_past()

    def is_older_than(self, nanoseconds: int, runtime: Runtime) -> bool:
        return max(runtime.elapsed_ns() - self.elapsed_ns, runtime.now_ns() - self.now_ns) > nanoseconds


class CommitFence:
    """Fence around one commit. `started_at` is a time before its first file was written; `None` means now.

    The fence releases its leases at the end, unless a put of the commit may still succeed."""

    def __init__(
        self,
        location: Location,
        uuid: str,
        started_at: ClockReading | None,
        runtime: Runtime,
        leased: Collection[str] = (),
    ) -> None:
        """Prepare the checks. The caller holds a lease on the files with the keys `leased`, and has
        checked that they exist."""
        self._location = location
        self._uuid = uuid
        self._runtime = runtime
        self._attempt_began = ClockReading.now(runtime)
        self._started_at = started_at or self._attempt_began
        self._written_at: dict[str, ClockReading] = {}
        """Files that the commit itself wrote, with the time before each was written."""
        self._verified: set[str] = set(leased)
        """Old files that have a lease; the required ones among them were checked to exist."""
        self._leases: list[str] = []

    def __enter__(self) -> "CommitFence":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_decided = error is None or (isinstance(error, LanceError) and not isinstance(error, CommitUndecided))
        for lease in self._leases if is_decided else ():
            leases.release(self._location.own_store, lease)

    def begin_attempt(self) -> bool:
        """Begin an attempt. Return whether a cleanup may have removed the version of the previous one, because that
        attempt took long or because the clock of the store jumped."""
        has_stalled = self._attempt_began.is_older_than(STALL_NS, self._runtime)
        has_stalled = has_stalled or self._has_clock_jumped_since(self._attempt_began)
        self._attempt_began = ClockReading.now(self._runtime)
        return has_stalled

    def before_put(self, manifest: Manifest, before: Manifest | None, written: Collection[str]) -> bool:
        """Check, right before the put of a version, that the old files it adds exist, and hold leases on them until the
        version references them. Files from before a jump of the store's clock count as old. `written` are the files
        that this attempt wrote.

        Return false if files were checked, which happens once for each file, and the check took long: the caller then
        reads the history again, so that the put is not late."""
        self._written_at |= dict.fromkeys(written, self._attempt_began)
        if not self._may_look_old(self._started_at):
            return True
        references = added_references(manifest, before)
        may_be_old = {
            reading: self._may_look_old(reading) for reading in {self._started_at, *self._written_at.values()}
        }
        added = references.own - self._verified
        old = sorted(name for name in added if may_be_old[self._written_at.get(name, self._started_at)])
        for part in Lease("this commit", files=tuple(old)).parts() if old else ():
            self._leases.append(leases.acquire(self._location.own_store, part, self._runtime))
        required = references.required
        self._check_files([name for name in old if name in required])
        self._verified.update(old)
        began = self._attempt_began
        return not old or not (began.is_older_than(_CHECK_NS, self._runtime) or self._has_clock_jumped_since(began))

    def _may_look_old(self, written_at: ClockReading) -> bool:
        """Return whether a cleanup may take a file that was written at this time for an old one: it is old, or the
        clock of the store jumped since then."""
        return written_at.is_older_than(_FILE_AGE_NS, self._runtime) or self._has_clock_jumped_since(written_at)

    def after_put(self, manifest: Manifest, scheme: NamingScheme) -> None:
        """Check the version that the put created, if the history was read long before the put, or if a cleanup ran
        meanwhile."""
        try:
            has_stalled = self._attempt_began.is_older_than(STALL_NS, self._runtime)
            has_jumped = self._has_clock_jumped_since(self._attempt_began)
            is_suspect = has_stalled or has_jumped or self._met_cleanup()
            problem = find_commit_problem(self._location, manifest, scheme) if is_suspect else ""
        except LanceError as error:
            problem = f"checking it failed: {error}"
        if problem:
            raise CommitUndecided(
                f"{self._location.uri}: version {manifest.version} was put after its writer had been suspended, or "
                f"the clock of the store had been changed: {problem}",
                uuid=self._uuid,
                version=manifest.version,
            )

    def _has_clock_jumped_since(self, reading: ClockReading) -> bool:
        """Return whether the clock of the store is known to have gone back or ahead since then, up to the last
        answer."""
        store = self._location.own_store
        return isinstance(store, ReportsClockJumps) and store.has_clock_jumped_since(reading.elapsed_ns)

    def _met_cleanup(self) -> bool:
        """Return whether a cleanup is removing files, or has removed one that this commit wrote, which no version
        referenced before the put. If the clock of the store jumps ahead, a cleanup treats new files as old ones, and no
        clock of this process shows the jump. Only a local store is checked, in microseconds. An object store would need
        requests for each commit, and the dates of its responses show the jump."""
        store = self._location.own_store
        if not isinstance(store, ReportsLastChange):
            return False
        is_announced = any(notice is not None for _listed, notice in leases.sweep_notices(store))
        return is_announced or any(store.head(name) is None for name in self._written_at)

    def _check_files(self, keys: Sequence[str]) -> None:
        if missing := _missing_files(self._location, keys):
            raise NotFound(
                f"{self._location.uri}: {len(missing)} files of this commit do not exist any more, such as "
                f"{missing[0]}: a cleanup removed them as orphan files. Write them again, then commit; a version with "
                "missing files cannot be restored"
            )


def find_commit_problem(location: Location, manifest: Manifest, scheme: NamingScheme) -> str:
    """Return the problem of a version that may have been put late; an empty string if the version is valid."""
    if later := find_unrelated_successor(Snapshot(location, manifest, scheme)):
        return (
            f"it was created after version {later}, in a gap that a cleanup had left below that version, and there is "
            "no evidence that a later version is based on it. Check whether its rows are in the table; if they are "
            "not, repeat the change, under another intent if it had one"
        )
    references = added_references(manifest, _load_previous_version(location, manifest, scheme))
    # A running cleanup may have read the references before this version existed, and removes files afterwards.
    leases.check_not_being_swept(location.own_store, Lease("relying on it", files=tuple(references.own)))
    if missing := _missing_files(location, sorted(references.required)):
        return (
            f"a cleanup removed {len(missing)} of its files as orphan files, such as {missing[0]}. Restore version "
            f"{manifest.version - 1}, then repeat the change, under another intent if it had one"
        )
    return ""


def _load_previous_version(location: Location, manifest: Manifest, scheme: NamingScheme) -> Manifest | None:
    path = naming.manifest_path(Version(manifest.version - 1), scheme)
    try:
        return Manifest.decode(read_whole(location.store, path, MANIFEST_BYTES), path=path)
    except NotFound:
        return None


def _missing_files(location: Location, keys: Sequence[str]) -> list[str]:
    store = location.own_store
    indices = [key for key in keys if key.startswith(naming.INDICES)]
    files = [key for key in keys if not key.startswith(naming.INDICES)]
    exist = dict(zip(indices, map_requests(store, partial(file_exists, store), indices), strict=True))
    exist |= {key: size is not None for key, size in zip(files, find_sizes(location, files), strict=True)}
    return [key for key in keys if not exist[key]]
