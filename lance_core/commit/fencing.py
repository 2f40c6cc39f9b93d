"""Whether a version that landed stands: in the line of versions, with all of its files.

A put that is answered `CREATED` says that nothing was in its place. That is enough as long as its writer was at work. A
process can also stand still between its look and its put, for hours: meanwhile others commit, a cleanup removes what
they made first, and the put lands in a gap below the newest version, or names files that nobody had named and that were
old enough to go. Cleanup leaves versions of less than a minute and files of less than an hour alone, so who was faster
than that asks nothing. Start with `CommitFence`.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TypeVar

from lance_core.coordination import leases
from lance_core.coordination.leases import Lease
from lance_core.errors import CommitUndecided, LanceError, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.naming import NamingScheme
from lance_core.limits import MANIFEST_BYTES
from lance_core.runtime import Runtime
from lance_core.storage.store import load_details, read_whole
from lance_core.versions.file_inventory import file_exists, references_of
from lance_core.versions.location import Location

_STALL_NS = 20 * 10**9
"""A third of the age at which cleanup touches a version."""
_FILE_AGE_NS = 30 * 60 * 10**9
"""Half of the age at which it touches a file that no version names."""
_FOREVER_NS = 2**62
_CONCURRENCY = 8
_Thing = TypeVar("_Thing")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """By both clocks of this process: the one stops while the machine sleeps, the other can be set."""

    elapsed_ns: int
    now_ns: int

    @classmethod
    def now(cls, runtime: Runtime) -> "ClockReading":
        return cls(runtime.elapsed_ns(), runtime.now_ns())

    @classmethod
    def distant_past(cls) -> "ClockReading":
        """Of files of which nobody here knows how old they are."""
        return cls(-_FOREVER_NS, -_FOREVER_NS)

    def is_older_than(self, nanoseconds: int, runtime: Runtime) -> bool:
        return max(runtime.elapsed_ns() - self.elapsed_ns, runtime.now_ns() - self.now_ns) > nanoseconds


class CommitFence:
    """Over one commit, from its first look to its end. `begun` is before the first of its files was written; None:
    just now. What it holds it lets go when it ends, unless a put of it may still land."""

    def __init__(self, location: Location, uuid: str, begun: ClockReading | None, runtime: Runtime) -> None:
        self._location = location
        self._uuid = uuid
        self._runtime = runtime
        self._looked = ClockReading.now(runtime)
        self._begun = begun or self._looked
        self._written: dict[str, ClockReading] = {}
        """By this commit itself, which is at work on it since then."""
        self._assured: set[str] = set()
        """Names of files that were held and found there."""
        self._held: list[str] = []

    def __enter__(self) -> "CommitFence":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_decided = error is None or (isinstance(error, LanceError) and not isinstance(error, CommitUndecided))
        for held in self._held if is_decided else ():
            leases.release(self._location.own_store, held)

    def begin_attempt(self) -> bool:
        """A turn begins. Whether the one before took so long that what it put may have been cleaned up."""
        stood_still = self._looked.is_older_than(_STALL_NS, self._runtime)
        self._looked = ClockReading.now(self._runtime)
        return stood_still

    def before_put(self, manifest: Manifest, before: Manifest | None, written: Collection[str]) -> bool:
        """A call is about to put this version: what it adds must be there, and stay until it is named. `written` was
        in this turn. False if that had to be looked at, which is done once for each file: others may have gone on
        meanwhile."""
        self._written |= dict.fromkeys(written, self._looked)
        if not self._begun.is_older_than(_FILE_AGE_NS, self._runtime):
            return True
        named = references_of(manifest)
        added = named.own - (references_of(before).own if before else frozenset()) - self._assured
        old = sorted(
            name for name in added if self._written.get(name, self._begun).is_older_than(_FILE_AGE_NS, self._runtime)
        )
        for part in Lease("this commit", files=tuple(old)).parts() if old else ():
            self._held.append(leases.acquire(self._location.own_store, part, self._runtime))
        self._check_files([name for name in old if name in named.required])
        self._assured.update(old)
        return not old

    def after_put(self, manifest: Manifest, scheme: NamingScheme) -> None:
        """The put was answered. Whether it stands is asked only if it is long ago that we looked."""
        if self._looked.is_older_than(_STALL_NS, self._runtime):
            try:
                wrong = find_commit_problem(self._location, manifest, scheme)
            except LanceError as error:
                wrong = f"looking whether it stands failed: {error}"
            if wrong:
                raise CommitUndecided(
                    f"{self._location.uri}: version {manifest.version} was put after its writer had stood still for "
                    f"long: {wrong}",
                    uuid=self._uuid,
                    version=manifest.version,
                )

    def _check_files(self, keys: Sequence[str]) -> None:
        if missing := _missing_files(self._location, keys):
            raise NotFound(
                f"{self._location.uri}: {len(missing)} files of this commit do not exist any more, {missing[0]} for "
                "one: a cleanup took them, since no version had named them for so long. Write it again, then commit; a "
                "version that misses files cannot be restored"
            )


def find_commit_problem(location: Location, manifest: Manifest, scheme: NamingScheme) -> str:
    """With a version that is there, and may have come late; empty if it stands."""
    if later := find_overtaking_version(location, scheme, manifest.version):
        return (
            f"it came after version {later}, into a gap that a cleanup had made below it, and no version follows it. "
            "Look whether its rows are there; if they are not, repeat the change, under another intent if it had one"
        )
    named = references_of(manifest)
    added = named.own - _files_of_previous_version(location, manifest, scheme)
    # A cleanup that is under way may have looked for names before there was this one, and removes afterwards.
    leases.check_not_being_swept(location.own_store, Lease("relying on it", files=tuple(added)))
    if missing := _missing_files(location, sorted(added & named.required)):
        return (
            f"a cleanup took {len(missing)} of its files, {missing[0]} for one, which no version had named for so "
            f"long. Restore version {manifest.version - 1}, then repeat the change, under another intent if it had one"
        )
    return ""


def find_overtaking_version(location: Location, scheme: NamingScheme, version: Version) -> Version | None:
    """A later version that was there before this one: it landed where another had been, which a cleanup removed."""
    mine = location.store.head(naming.manifest_path(version, scheme))
    for listed in load_details(location.store.list(naming.VERSIONS)) if mine else ():
        parsed = naming.parse_manifest_name(listed.path.rpartition("/")[2])
        if mine and parsed and parsed[0] > version and listed.modified < mine.modified:
            return parsed[0]
    return None


def _files_of_previous_version(location: Location, manifest: Manifest, scheme: NamingScheme) -> frozenset[str]:
    path = naming.manifest_path(Version(manifest.version - 1), scheme)
    try:
        before = read_whole(location.store, path, MANIFEST_BYTES)
    except NotFound:
        return frozenset()
    return references_of(Manifest.decode(before, path=path)).own


def _missing_files(location: Location, keys: Sequence[str]) -> list[str]:
    found = map_concurrently(partial(file_exists, location.own_store), keys)
    return [key for key, there in zip(keys, found, strict=True) if not there]


def map_concurrently(look: Callable[[_Thing], _Answer], things: Sequence[_Thing]) -> Sequence[_Answer]:
    """Calls to a store that do not wait for each other."""
    if len(things) <= _CONCURRENCY:
        return [look(thing) for thing in things]
    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        return list(pool.map(look, things))
