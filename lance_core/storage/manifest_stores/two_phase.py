"""The store of a table whose versions are reserved before they are put: `create` of a manifest takes five steps.

    stage      the bytes, under a name that nobody else uses: {manifest}-{uuid}
    reserve    the version, for that name, in the manifest store; who loses this never goes on
    finish     the same bytes under the name of the version: now it is committed, and may be acknowledged
    move       the entry to that name           both are tidying: whoever fails here has committed,
    drop       what was staged                  and whoever comes next can do it

A writer that dies after `reserve` leaves all that is needed to go on: whoever looks for the newest version, or for this
one, finishes it first. Where the store can put only what is not there, `finish` does so, and a writer that knows
nothing of the manifest store cannot be overwritten: then the version is that writer's. Where it cannot, everything that
is to be created only once is reserved like a version. The rest is passed on.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from lance_core.errors import Corrupt, LanceError, NotFound, StorageError, Unsupported
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.limits import MANIFEST_BYTES
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore, checked
from lance_core.storage.store import ObjectInfo, Put, Store, SupportsOrderedListing, read_whole

_PUTS_MAX = 5
_without_condition: set[str] = set()
"""Places whose store has told this process that it cannot put only what is not there."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """What at most one writer gets."""

    key: str
    version: Version
    """0 of what is no version."""
    root: str
    """Of the line that the entries are of, from the root of the table: nothing, or that of a branch with its slash."""
    path: str
    """From there."""

    @property
    def there(self) -> str:
        return self.root + self.path

    def at(self, path: str, size: int | None = None) -> Entry:
        return Entry(self.version, path, size)


@dataclass(frozen=True, slots=True)
class TwoPhaseStore(SupportsOrderedListing):
    own: Store
    manifests: ManifestStore
    key: str

    @property
    def description(self) -> str:
        return self.own.description

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return self.own.read(path, start, length)
        except NotFound:
            if self._finished_at(path) != path:
                raise
        return self.own.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        found = self.own.head(path)
        if found is None and self._finished_at(path) == path:
            return self.own.head(path)
        return found

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        """With the version that the manifest store knows last, even where the listing is behind."""
        found = self._with_newest(directory, lambda: self.own.list(directory, start_after))
        return [info for info in found if info.path.rpartition("/")[2] > start_after] if start_after else found

    def first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        """The entries alone could not tell what is the newest: not everybody who commits knows of them."""
        own = self.own
        if isinstance(own, SupportsOrderedListing):
            return self._with_newest(directory, lambda: own.first(directory, count))[:count]
        return self._with_newest(directory, lambda: own.list(directory))[:count]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return self.own.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        self.own.put(path, data)

    def create(self, path: str, data: bytes) -> Put:
        if (slot := self._slot(path)) is not None:
            return self._publish(slot, data)
        if (put := self._created(path, data)) is not None:
            return put
        return self._publish(_Slot(f"{self.key}/{path}", Version(0), "", path), data)

    def delete(self, path: str) -> None:
        """The entry first: one without a manifest would be asked for, a manifest without one is found by its name."""
        slot = self._slot(path)
        entry = None if slot is None else self._find(slot)
        if slot is not None and entry is not None and entry.final == slot.path:
            self.manifests.forget(slot.key, entry)
            if not entry.is_final:
                self.own.delete(slot.root + entry.path)
        self.own.delete(path)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.own.ensure_durable(paths)

    # Writing

    def _publish(self, slot: _Slot, data: bytes) -> Put:
        staged = slot.at(f"{slot.path}-{uuid4()}", len(data))
        self.own.put(slot.root + staged.path, data)
        answer = self.manifests.reserve(slot.key, staged)
        # From here on somebody else may finish what is ours: no failure is definite any more, so none is raised.
        try:
            if answer is not Put.CREATED:
                there = self._find(slot)
                if there is None:
                    return answer
                # The reservation may have been repeated below us, and what it met then was itself.
                if there.path != staged.path and not self._taken_over(slot, there, staged, data):
                    return Put.EXISTS
            put = self._put(slot.there, data)
        except LanceError:
            return Put.UNKNOWN
        if put is not Put.UNKNOWN:
            self._tidy(slot, staged, put)
        return put

    def _taken_over(self, slot: _Slot, there: Entry, staged: Entry, data: bytes) -> bool:
        """Whether this is ours in spite of an entry: the manifest is only being renamed, or the entry is of a file that
        nobody has, nor ever will (the table was deleted, or what was staged was)."""
        finished = self._finish(slot, there)
        if finished is None:
            ours = self._last_listed(slot) < slot.version or not slot.version
        else:
            ours = finished != slot.there and self.own.read(finished) == data
        if ours and self.manifests.move(slot.key, there, staged):
            return True
        with suppress(LanceError):  # proven to be nobody's; cleanup finds it too
            self.own.delete(slot.root + staged.path)
        return False

    def _put(self, path: str, data: bytes) -> Put:
        """CREATED: these bytes are there, whoever put them. EXISTS: others are."""
        for _ in range(_PUTS_MAX):
            put = self._created(path, data)
            if put is Put.CREATED:
                return put
            if put is not Put.UNKNOWN:
                try:
                    return Put.CREATED if self.own.read(path) == data else Put.EXISTS
                except NotFound:
                    if put is None:  # and whoever reserved it last puts the same
                        self.own.put(path, data)
                        return Put.CREATED
        return Put.UNKNOWN

    def _created(self, path: str, data: bytes) -> Put | None:
        """None where the store can put nothing under a condition."""
        if self.own.description in _without_condition:
            return None
        try:
            return self.own.create(path, data)
        except Unsupported:
            _without_condition.add(self.own.description)
            return None

    def _tidy(self, slot: _Slot, entry: Entry, put: Put) -> None:
        """At best effort: the version is there. What is staged stays for as long as an entry may name it."""
        with suppress(LanceError):
            info = None if put is Put.CREATED else self.own.head(slot.root + entry.final)
            final = slot.at(entry.final, entry.size if info is None else info.size)
            if self.manifests.move(slot.key, entry, final):
                self.own.delete(slot.root + entry.path)

    # Finishing what others began

    def finish(self, version: Version) -> str | None:
        """What looking for the newest version does for that one, for any that is reserved: where it is now, None where
        it is nowhere."""
        return self._finished_at(naming.manifest_path(version))

    def _with_newest(self, directory: str, ask: Callable[[], Sequence[ObjectInfo]]) -> Sequence[ObjectInfo]:
        root = _root_of_versions(directory)
        entry = None if root is None else self.manifests.newest(self._key(root))
        if root is None or entry is None:
            return ask()
        slot = _Slot(self._key(root), entry.version, root, entry.final)
        entry = self._believed(slot, entry)
        if entry.is_final:
            found = ask()
            if any(info.path == slot.there for info in found):
                return found
        last = self._finish(slot, entry)
        found = ask()
        if last is None or any(info.path == last for info in found):
            return found
        info = self.own.head(last)
        return found if info is None else sorted((*found, info), key=lambda each: each.path)

    def _finished_at(self, path: str) -> str | None:
        slot = self._slot(path)
        entry = None if slot is None else self._find(slot)
        return None if slot is None or entry is None else self._finish(slot, entry)

    def _finish(self, slot: _Slot, entry: Entry) -> str | None:
        """Where this is now; None if it is nowhere."""
        for _ in range(_PUTS_MAX):
            if entry.is_final:
                renamed = [naming.manifest_path(slot.version, scheme) for scheme in NamingScheme if slot.version]
                names = (slot.root + name for name in (entry.path, *renamed))
                return next((name for name in names if self.own.head(name) is not None), None)
            final = slot.root + entry.final
            try:
                data = read_whole(self.own, slot.root + entry.path, MANIFEST_BYTES)
            except NotFound:
                # Another helper has finished it and dropped what was staged, or is about to say so.
                if self.own.head(final) is not None:
                    self._tidy(slot, entry, Put.EXISTS)
                    return final
                again = self._find(slot)
                if again is None or again == entry:
                    return None
                entry = again
                continue
            if entry.size is not None and len(data) != entry.size:
                raise Corrupt(
                    f"has {len(data)} bytes, and {self.manifests.description} reserved version {entry.version} for "
                    f"{entry.size}; remove that entry, whose version nobody was told of, and the file",
                    path=f"{self.description}/{slot.root}{entry.path}",
                    field="size",
                )
            if (put := self._put(final, data)) is not Put.UNKNOWN:
                self._tidy(slot, slot.at(entry.path, len(data)), put)
                return final
        raise StorageError(
            f"{self.description}: version {entry.version} is reserved for {slot.root}{entry.path}, and putting that in "
            f"place was not answered {_PUTS_MAX} times; look again"
        )

    def _find(self, slot: _Slot) -> Entry | None:
        entry = self.manifests.find(slot.key, slot.version)
        return None if entry is None else self._believed(slot, entry)

    def _believed(self, slot: _Slot, entry: Entry) -> Entry:
        if not slot.version and entry.final == slot.path:
            return entry
        return checked(entry, what=f"{self.manifests.description}, entry {slot.key!r}")

    def _last_listed(self, slot: _Slot) -> int:
        names = [info.path.rpartition("/")[2] for info in self.own.list(slot.root + naming.VERSIONS)]
        return max((parsed[0] for name in names if (parsed := naming.parse_manifest_name(name))), default=0)

    def _slot(self, path: str) -> _Slot | None:
        """None of what is not the manifest of a version of a line: a version beside it has a number that nobody else
        has, and among the entries it would be the newest."""
        directory, _, name = path.rpartition("/")
        root, parsed = _root_of_versions(directory), naming.parse_manifest_name(name)
        if root is None or parsed is None:
            return None
        return _Slot(self._key(root), parsed[0], root, path.removeprefix(root))

    def _key(self, root: str) -> str:
        return "/".join(each for each in (self.key, root.rstrip("/")) if each)


def _root_of_versions(directory: str) -> str | None:
    """Of the line whose versions are in this directory; None if it is another.

    >>> _root_of_versions("tree/dev/_versions"), _root_of_versions("_versions"), _root_of_versions("data")
    ('tree/dev/', '', None)
    """
    root, slash, last = directory.rpartition("/")
    return root + slash if last == naming.VERSIONS else None
