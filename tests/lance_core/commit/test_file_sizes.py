"""File sizes: a listing and questions together know every file, and few requests are needed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core.commit import data_files
from lance_core.commit.data_files import check_files, find_sizes
from lance_core.errors import NotFound, StorageError
from lance_core.format.file_checksum import FileChecksum
from lance_core.format.fragment import DataFile
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, SupportsConcurrency, SupportsOrderedListing
from lance_core.versions.location import Location
from tests.lance_core.in_memory_table import STORAGE_VERSION, InMemoryTable


class RemoteStore(MemoryStore, SupportsOrderedListing, SupportsConcurrency):
    """Store that behaves like one with a network, and counts its requests."""

    requests = 0

    @property
    def requests_max(self) -> int:
        return 4

    def head(self, path: str) -> ObjectInfo | None:
        self.requests += 1
        return super().head(path)

    def list_first(self, directory: str, count: int, start_after: str = "") -> Sequence[ObjectInfo]:
        self.requests += -(-count // 1000)
        return self.list(directory, start_after)[:count]


def location_of(store: MemoryStore) -> Location:
    return replace(InMemoryTable().location(), store=store)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(1, 40))
def test_sizes_are_those_of_single_questions(stored: set[int], wanted: set[int], listed: int) -> None:
    """The listing may end before it has listed all files."""
    store = RemoteStore()
    for number in stored:
        store.put(f"data/{number}.lance", bytes(number))
    paths = [f"data/{number}.lance" for number in sorted(wanted, key=str)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "QUESTIONS_MAX", 3)
        patch.setattr(data_files, "LISTED_MIN", listed)
        patch.setattr(data_files, "LISTED_PER_FILE_MAX", 1)
        sizes = list(find_sizes(location_of(store), paths))
    expected = [store.head(path) for path in paths]
    assert sizes == [None if details is None else details.size for details in expected]


def test_many_files_take_few_requests() -> None:
    store = RemoteStore()
    paths = [f"data/{number:04}.lance" for number in range(900)]
    for path in paths:
        store.put(path, b"x")
    assert list(find_sizes(location_of(store), [*paths, "data/missing.lance"])) == [*[1] * 900, None]
    assert store.requests < 20


def test_a_file_that_its_writer_verified_is_not_looked_up_again() -> None:
    store = RemoteStore()
    file = DataFile.of(path="x.lance", field_ids=[0], column_indices=[0], version=STORAGE_VERSION, size=7)
    verified = file.with_checksum(FileChecksum(7, 99))
    check_files(location_of(store), [verified])
    assert store.requests == 0
    for files, written_by_us in (([verified], False), ([file], True), ([file], False)):
        with pytest.raises(NotFound, match=r"x\.lance of this commit does not exist"):
            check_files(location_of(store), files, written_by_us=written_by_us)
    with pytest.raises(NotFound):
        check_files(location_of(MemoryStore()), [verified])  # a local file is looked up in microseconds
    store.put("data/x.lance", b"short")
    with pytest.raises(StorageError, match="has 5 bytes, not the 7 that its writer reported"):
        check_files(location_of(store), [verified], written_by_us=False)
