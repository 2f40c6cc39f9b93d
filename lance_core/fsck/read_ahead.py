"""Read-ahead of an examination: opens data files and reads deletion files of an object store concurrently, before they
are checked one by one. On a local store it does nothing. Start with `FilesAhead`."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from lance_core.datafiles.codec import FileToRead
from lance_core.datafiles.decoder_protocol import OPEN_AHEAD_MAX
from lance_core.datafiles.fragment_reader import read_deletions
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.errors import LanceError
from lance_core.format.deletion_vector import DeletionVector
from lance_core.format.fragment import DataFile, Fragment
from lance_core.storage.concurrency import map_requests, requests_max
from lance_core.storage.store import Store
from lance_core.versions.location import Location

_Item = TypeVar("_Item")
_DELETION_FILES_MAX = 64


class _ItemQueue(Generic[_Item]):
    """Queue of items with their paths, in the order in which the checks will request them."""

    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}

    def add(self, path: str, item: _Item) -> None:
        self._items.setdefault(path, item)

    def take_from(self, path: str, count: int) -> list[_Item]:
        """Remove the item of this path and the items that follow it, at most `count` in total, and return them. Earlier
        items are dropped, since no check has requested them."""
        if path not in self._items:
            return []
        taken: list[_Item] = []
        for each in list(self._items):
            if not taken and each != path:
                del self._items[each]
            elif len(taken) < count:
                taken.append(self._items.pop(each))
            else:
                break
        return taken


class FilesAhead:
    """Files of a table that an examination will check, in the order of the checks."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._is_concurrent = requests_max(location.own_store) > 1
        self._data_files: _ItemQueue[DataFile] = _ItemQueue()
        self._fragments: _ItemQueue[Fragment] = _ItemQueue()
        """Fragments with a deletion file, by the path of that file."""
        self._deletions: dict[str, DeletionVector | LanceError | None] = {}

    def expect(self, fragments: Iterable[Fragment]) -> None:
        """Announce fragments whose files will be checked. Files in other bases are not read ahead."""
        for fragment in fragments if self._is_concurrent else ():
            for file in fragment.files:
                if file.message.HasField("base_id") or file.version.is_legacy:
                    continue
                self._data_files.add(file.qualified_path, file)
            deleted = fragment.deletion_file
            if deleted is not None and not fragment.message.deletion_file.HasField("base_id"):
                self._fragments.add(deleted.qualified_path, fragment)

    def before_opening(self, file: DataFile) -> None:
        """Open this file and some of the following ones concurrently."""
        files = self._data_files.take_from(file.qualified_path, OPEN_AHEAD_MAX)
        if files and isinstance(codec := self._location.codec, LanceCodec):
            codec.open_ahead([FileToRead(each.qualified_path, each.size) for each in files])

    def read_deletions(self, store: Store, fragment: Fragment) -> DeletionVector | None:
        """Return the deleted rows of a fragment. The first call for an announced file also reads following ones."""
        deleted = fragment.deletion_file
        if deleted is None:
            return None
        path = deleted.qualified_path
        if path not in self._deletions:
            fragments = self._fragments.take_from(path, _DELETION_FILES_MAX)
            results = map_requests(store, lambda each: _read_or_error(lambda: read_deletions(store, each)), fragments)
            for each, vector in zip(fragments, results, strict=True):
                assert each.deletion_file is not None
                self._deletions[each.deletion_file.qualified_path] = vector
        if path not in self._deletions:
            return read_deletions(store, fragment)
        result = self._deletions.pop(path)
        if isinstance(result, LanceError):
            raise result
        return result


def _read_or_error(read: Callable[[], DeletionVector | None]) -> DeletionVector | LanceError | None:
    try:
        return read()
    except LanceError as error:
        return error
