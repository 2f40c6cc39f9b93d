"""Listing view: its listings equal those of the store at the moment of the walk, and everything else passes through."""

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lance_core.storage.listing_view import ListingView, view_of_directory, view_of_small_store
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, SupportsShortWalk

DIRECTORIES = ("a", "a/b", "a-b", "b", "_a", "a/b/c")
NAMES = st.sampled_from(["x", "x.json", "y", "\U0010fffe"])
PATHS = st.builds("{}/{}".format, st.sampled_from(DIRECTORIES), NAMES)


class RemoteStore(MemoryStore, SupportsShortWalk):
    walks = 0

    def walk_first(self, directory: str, count: int) -> Sequence[ObjectInfo]:
        self.walks += 1
        return [info for info in self._all() if info.path.startswith(f"{directory}/" if directory else "")][:count]

    def walk(self, directory: str) -> Sequence[ObjectInfo]:
        self.walks += 1
        return super().walk(directory)

    def _all(self) -> Sequence[ObjectInfo]:
        found = (self.head(path) for path in sorted(self._objects))
        return [info for info in found if info is not None]


def store_with(paths: set[str]) -> RemoteStore:
    store = RemoteStore()
    for path in paths:
        store.put(path, path.encode())
    return store


@given(st.sets(PATHS), st.sampled_from(("", *DIRECTORIES)), NAMES, st.randoms())
def test_listings_are_those_of_the_store(paths: set[str], root: str, start_after: str, order: Random) -> None:
    """A store may walk in any order: one with real directories lists `a/x` before `a-b/x`."""
    store = store_with(paths)
    walked = list(store.walk_first(root, 1000))
    order.shuffle(walked)
    view = ListingView(store, root, walked)
    for directory in DIRECTORIES:
        assert view.list(directory) == store.list(directory)
        assert view.list(directory, start_after) == store.list(directory, start_after)
        assert view.walk(directory) == store.walk(directory)
    assert all(view.has(path) for path in paths if path.startswith(f"{root}/" if root else ""))
    assert not view.has("a/absent")


def test_a_view_takes_one_walk_and_shows_one_moment() -> None:
    store = store_with({"a/x", "b/y"})
    view = view_of_small_store(store)
    assert view is not None
    store.put("a/later", b"")
    assert [info.path for info in view.walk("a")] == ["a/x"]
    assert (view.list("b")[0].path, store.walks) == ("b/y", 1)
    details = view.head("a/later")
    assert details is not None
    assert (details.path, view.read("a/x")) == ("a/later", b"a/x")


def test_a_large_store_and_a_local_one_have_no_view() -> None:
    assert view_of_small_store(store_with({f"a/{number}" for number in range(1000)})) is None
    local = MemoryStore()
    assert view_of_small_store(local) is None
    assert view_of_directory(local, "a") is local
