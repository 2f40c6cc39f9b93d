"""Two-phase manifest commit: the store of a table whose versions a manifest store reserves before they are written.

`create` of a manifest takes five steps:

    stage      write the bytes under a unique name: {manifest}-{uuid}
    reserve    reserve the version for that name in the manifest store; a writer that loses here stops
    finish     write the same bytes at the name of the version: now it is committed and may be acknowledged
    move       move the entry to that name      both are cleanup: a writer that fails here has committed,
    drop       delete the staged file           and the next process can do it

If a writer dies after `reserve`, any process that looks for the newest version, or for this one, finishes it first. If
the store has conditional puts, the finish step uses one, so that a writer that knows nothing of the manifest store is
never overwritten: the version is then that writer's. If it has none, every object that may be created only once is
reserved like a version. All other calls are passed on to the store. Start at `TwoPhaseStore.create`.
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
from lance_core.storage.concurrency import delete_all, requests_max
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore, check_entry
from lance_core.storage.store import (
    ObjectInfo,
    Put,
    Store,
    SupportsBatchDelete,
    SupportsConcurrency,
    SupportsOrderedListing,
    read_whole,
)

_ATTEMPTS_MAX = 5
_unconditional_stores: set[str] = set()
"""Descriptions of the stores that reported to this process that they have no conditional put."""


def forget_unconditional_stores() -> None:
    """Forget which stores have no conditional put, so that this process tries one again, as a new process does."""
    _unconditional_stores.clear()


@dataclass(frozen=True, slots=True)
class _Slot:
    """Path that at most one writer may create, with the key of its entry in the manifest store."""

    key: str
    version: Version
    """Version of the manifest; 0 if the path is not a manifest."""
    root: str
    """Root of the branch relative to that of the table: empty for the main branch, otherwise with a trailing slash."""
    path: str
    """Path relative to `root`."""

    @property
    def path_in_table(self) -> str:
        return self.root + self.path

    def entry_at(self, path: str, size: int | None = None) -> Entry:
        return Entry(self.version, path, size)


@dataclass(frozen=True, slots=True)
class TwoPhaseStore(SupportsOrderedListing, SupportsConcurrency, SupportsBatchDelete):
    """Store `table_store`, with manifests reserved in `manifest_store` under `table_key`."""

    table_store: Store
    manifest_store: ManifestStore
    table_key: str

    @property
    def description(self) -> str:
        return self.table_store.description

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        try:
            return self.table_store.read(path, start, length)
        except NotFound:
            if self._finish_at(path) != path:
                raise
        return self.table_store.read(path, start, length)

    def head(self, path: str) -> ObjectInfo | None:
        info = self.table_store.head(path)
        if info is None and self._finish_at(path) == path:
            return self.table_store.head(path)
        return info

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        """List a directory, including the newest version in the manifest store even if the listing lacks it."""
        listed = self._list_with_newest(directory, lambda: self.table_store.list(directory, start_after))
        return [info for info in listed if info.path.rpartition("/")[2] > start_after] if start_after else listed

    def list_first(self, directory: str, count: int, start_after: str = "") -> Sequence[ObjectInfo]:
        """List the first names of a directory, including the newest version in the manifest store.

        The entries alone do not determine the newest version, because writers of other libraries may not create them.
        """
        store = self.table_store
        if not isinstance(store, SupportsOrderedListing):
            return self.list(directory, start_after)[:count]
        listed = self._list_with_newest(directory, lambda: store.list_first(directory, count, start_after))
        return [info for info in listed if info.path.rpartition("/")[2] > start_after][:count]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        return self.table_store.walk(directory)

    def put(self, path: str, data: bytes) -> None:
        self.table_store.put(path, data)

    def create(self, path: str, data: bytes) -> Put:
        if (slot := self._slot_of(path)) is not None:
            return self._publish(slot, data)
        if (put := self._create_if_absent(path, data)) is not None:
            return put
        return self._publish(_Slot(f"{self.table_key}/{path}", Version(0), "", path), data)

    def delete(self, path: str) -> None:
        """Delete an object; of a manifest its entry first.

        An entry without a manifest would make readers look for it, while a manifest without an entry is found by name.
        """
        slot = self._slot_of(path)
        entry = None if slot is None else self._find_entry(slot)
        if slot is not None and entry is not None and entry.final_path == slot.path:
            self.manifest_store.remove_entry(slot.key, entry)
            if not entry.is_final:
                self.table_store.delete(slot.root + entry.path)
        self.table_store.delete(path)

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self._slot_of(path) is not None:
                self.delete(path)
        delete_all(self.table_store, [path for path in paths if self._slot_of(path) is None])

    @property
    def requests_max(self) -> int:
        return requests_max(self.table_store)

    def ensure_durable(self, paths: Sequence[str]) -> None:
        self.table_store.ensure_durable(paths)

    # Writing

    def _publish(self, slot: _Slot, data: bytes) -> Put:
        staged = slot.entry_at(f"{slot.path}-{uuid4()}", len(data))
        self.table_store.put(slot.root + staged.path, data)
        answer = self.manifest_store.reserve(slot.key, staged)
        # From here on another process may finish this commit, so no failure is definite any more and none is raised.
        try:
            if answer is not Put.CREATED:
                existing = self._find_entry(slot)
                if existing is None:
                    return answer
                # The client may have retried the reservation, which then met itself.
                if existing.path != staged.path and not self._take_over(slot, existing, staged, data):
                    return Put.EXISTS
            put = self._put_final(slot.path_in_table, data)
        except LanceError:
            return Put.UNKNOWN
        if put is not Put.UNKNOWN:
            self._finalize_entry(slot, staged, put)
        return put

    def _take_over(self, slot: _Slot, existing: Entry, staged: Entry, data: bytes) -> bool:
        """Move an existing entry to the staged file if it reserves the version for no other writer.

        The entry can be moved if the manifest is only being renamed, or if the file of the entry does not exist and
        never will, because the table or the staged file was deleted. Return whether the entry was moved.
        """
        finished = self._finish_entry(slot, existing)
        if finished is None:
            can_take_over = self._newest_listed_version(slot) < slot.version or not slot.version
        else:
            can_take_over = finished != slot.path_in_table and self.table_store.read(finished) == data
        if can_take_over and self.manifest_store.move_entry(slot.key, existing, staged):
            return True
        with suppress(LanceError):  # no entry refers to the staged file; cleanup would delete it, too
            self.table_store.delete(slot.root + staged.path)
        return False

    def _put_final(self, path: str, data: bytes) -> Put:
        """Write the file at its final name. CREATED means that it has these bytes, EXISTS that it has others."""
        for _ in range(_ATTEMPTS_MAX):
            put = self._create_if_absent(path, data)
            if put is Put.CREATED:
                return put
            if put is not Put.UNKNOWN:
                try:
                    return Put.CREATED if self.table_store.read(path) == data else Put.EXISTS
                except NotFound:
                    if put is None:  # unconditional, but only the holder of the reservation writes, and the same bytes
                        self.table_store.put(path, data)
                        return Put.CREATED
        return Put.UNKNOWN

    def _create_if_absent(self, path: str, data: bytes) -> Put | None:
        """Create the object, or return `None` if the store has no conditional put."""
        if self.table_store.description in _unconditional_stores:
            return None
        try:
            return self.table_store.create(path, data)
        except Unsupported:
            _unconditional_stores.add(self.table_store.description)
            return None

    def _finalize_entry(self, slot: _Slot, entry: Entry, put: Put) -> None:
        """Move the entry to the final name and delete the staged file, with best effort: the version exists already.

        The staged file stays as long as an entry may refer to it.
        """
        with suppress(LanceError):
            info = None if put is Put.CREATED else self.table_store.head(slot.root + entry.final_path)
            final = slot.entry_at(entry.final_path, entry.size if info is None else info.size)
            if self.manifest_store.move_entry(slot.key, entry, final):
                self.table_store.delete(slot.root + entry.path)

    # Finishing versions that other writers reserved

    def finish_version(self, version: Version) -> str | None:
        """Finish a reserved version and return the path of its manifest, or `None` if it has none.

        Every search for the newest version does this for the newest entry; this method does it for any version.
        """
        return self._finish_at(naming.manifest_path(version))

    def _list_with_newest(
        self, directory: str, list_directory: Callable[[], Sequence[ObjectInfo]]
    ) -> Sequence[ObjectInfo]:
        root = _branch_root(directory)
        entry = None if root is None else self.manifest_store.newest_entry(self._entry_key(root))
        if root is None or entry is None:
            return list_directory()
        slot = _Slot(self._entry_key(root), entry.version, root, entry.final_path)
        entry = self._checked_entry(slot, entry)
        if entry.is_final:
            listed = list_directory()
            if any(info.path == slot.path_in_table for info in listed):
                return listed
        newest_path = self._finish_entry(slot, entry)
        listed = list_directory()
        if newest_path is None:
            self._check_not_lost(slot, entry, listed)
            return listed
        if any(info.path == newest_path for info in listed):
            return listed
        newest = self.table_store.head(newest_path)
        return listed if newest is None else sorted((*listed, newest), key=lambda info: info.path)

    def _check_not_lost(self, slot: _Slot, entry: Entry, listed: Sequence[ObjectInfo]) -> None:
        """Raise `Corrupt` if the newest entry names a staged file that does not exist, unless the entry has changed.

        An older version is not returned in its place, since the newest one may have been acknowledged. Two cases
        pass: a directory without any manifest, because its table was deleted without its entries, and a finished entry
        above the versions of the table, because the table was deleted and created again.
        """
        has_manifests = any(naming.parse_manifest_name(info.path.rpartition("/")[2]) for info in listed)
        if entry.is_final or not has_manifests or self.manifest_store.newest_entry(slot.key) != entry:
            return
        raise Corrupt(
            f"{self.manifest_store.description} reserves version {entry.version}, the newest one, for this file, which "
            "does not exist. Restore it from a copy; if its commit was not acknowledged, remove the entry: python -m "
            "lance_core fsck --repair entries --apply",
            path=f"{self.description}/{slot.root}{entry.path}",
            field="path",
        )

    def _finish_at(self, path: str) -> str | None:
        slot = self._slot_of(path)
        entry = None if slot is None else self._find_entry(slot)
        return None if slot is None or entry is None else self._finish_entry(slot, entry)

    def _finish_entry(self, slot: _Slot, entry: Entry) -> str | None:
        """Write the manifest of an entry at its final name, unless it exists there, and return its path in the table.

        Return `None` if neither the staged file nor the manifest exists.
        """
        for _ in range(_ATTEMPTS_MAX):
            if entry.is_final:
                renamed = [naming.manifest_path(slot.version, scheme) for scheme in NamingScheme if slot.version]
                names = (slot.root + name for name in (entry.path, *renamed))
                return next((name for name in names if self.table_store.head(name) is not None), None)
            final = slot.root + entry.final_path
            try:
                data = read_whole(self.table_store, slot.root + entry.path, MANIFEST_BYTES)
            except NotFound:
                # Another process has finished the version and deleted the staged file, and may be about to move the
                # entry.
                if self.table_store.head(final) is not None:
                    self._finalize_entry(slot, entry, Put.EXISTS)
                    return final
                current = self._find_entry(slot)
                if current is None or current == entry:
                    return None
                entry = current
                continue
            if entry.size is not None and len(data) != entry.size:
                raise Corrupt(
                    f"has {len(data)} bytes, but {self.manifest_store.description} reserved version {entry.version} "
                    f"for {entry.size} bytes; delete that entry, whose version was never acknowledged, and the file",
                    path=f"{self.description}/{slot.root}{entry.path}",
                    field="size",
                )
            if (put := self._put_final(final, data)) is not Put.UNKNOWN:
                self._finalize_entry(slot, slot.entry_at(entry.path, len(data)), put)
                return final
        raise StorageError(
            f"{self.description}: version {entry.version} is reserved for {slot.root}{entry.path}, and writing it at "
            f"its final name got no answer {_ATTEMPTS_MAX} times; try again"
        )

    def _find_entry(self, slot: _Slot) -> Entry | None:
        entry = self.manifest_store.find_entry(slot.key, slot.version)
        return None if entry is None else self._checked_entry(slot, entry)

    def _checked_entry(self, slot: _Slot, entry: Entry) -> Entry:
        if not slot.version and entry.final_path == slot.path:
            return entry
        return check_entry(entry, what=f"{self.manifest_store.description}, entry {slot.key!r}")

    def _newest_listed_version(self, slot: _Slot) -> int:
        names = [info.path.rpartition("/")[2] for info in self.table_store.list(slot.root + naming.VERSIONS)]
        return max((parsed[0] for name in names if (parsed := naming.parse_manifest_name(name))), default=0)

    def _slot_of(self, path: str) -> _Slot | None:
        """Return the slot of a manifest on a branch, or `None` for any other path.

        Detached versions get no entry: their random numbers are unique, and as an entry each would be the newest.
        """
        directory, _, name = path.rpartition("/")
        root, parsed = _branch_root(directory), naming.parse_manifest_name(name)
        if root is None or parsed is None:
            return None
        return _Slot(self._entry_key(root), parsed[0], root, path.removeprefix(root))

    def _entry_key(self, root: str) -> str:
        return "/".join(part for part in (self.table_key, root.rstrip("/")) if part)


def _branch_root(directory: str) -> str | None:
    """Return the root of the branch whose manifests are in this directory, or `None` for any other directory.

    >>> _branch_root("tree/dev/_versions"), _branch_root("_versions"), _branch_root("data")
    ('tree/dev/', '', None)
    """
    root, slash, last = directory.rpartition("/")
    return root + slash if last == naming.VERSIONS else None
