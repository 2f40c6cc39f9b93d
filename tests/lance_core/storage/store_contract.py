"""Store contract: the behaviour that every store guarantees, as a class of tests that `test_<store>.py` inherits.

The class contains the guarantees of the store protocol alone. Tests of a single store cover how it achieves them,
durability for one.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from lance_core import NotFound
from lance_core.storage.store import Put, Store

WRITERS = 8


class StoreContract:
    """Tests of a `store` fixture that a subclass defines: an empty store for each test."""

    def test_put_data_is_read(self, store: Store) -> None:
        store.put("deep/er/name", b"0123456789")
        assert store.read("deep/er/name") == b"0123456789"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 3, b"012"), (3, None, b"3456789"), (8, 5, b"89"), (10, 1, b""), (0, 0, b"")],
    )
    def test_a_range_is_read(self, store: Store, start: int, length: int | None, expected: bytes) -> None:
        store.put("name", b"0123456789")
        assert store.read("name", start, length) == expected

    def test_put_replaces(self, store: Store) -> None:
        store.put("name", b"long content")
        store.put("name", b"short")
        assert store.read("name") == b"short"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put("name", b"")
        assert store.read("name") == b""
        assert store.create("name", b"x") is Put.EXISTS
        info = store.head("name")
        assert info is not None
        assert info.size == 0

    def test_a_missing_object(self, store: Store) -> None:
        assert store.head("a/name") is None
        assert list(store.list("a")) == []
        store.delete("a/name")
        with pytest.raises(NotFound, match="name"):
            store.read("a/name")

    def test_head_knows_size_and_time(self, store: Store) -> None:
        store.put("a/name", b"12345")
        info = store.head("a/name")
        assert info is not None
        assert (info.path, info.size) == ("a/name", 5)
        assert abs(info.modified - datetime.now(UTC)) < timedelta(minutes=1)

    def test_a_directory_is_no_object(self, store: Store) -> None:
        store.put("a/b/name", b"x")
        assert [info.path for info in store.list("a")] == []
        assert [info.path for info in store.list("a/b")] == ["a/b/name"]

    def test_listing_is_by_name_and_may_start_in_the_middle(self, store: Store) -> None:
        for name in ("b", "a", "c", "Z"):
            store.put(f"d/{name}", name.encode() * 3)
        store.put("other/a", b"")
        assert [(info.path, info.size) for info in store.list("d")] == [("d/Z", 3), ("d/a", 3), ("d/b", 3), ("d/c", 3)]
        assert [info.path for info in store.list("d", start_after="a")] == ["d/b", "d/c"]
        assert [info.path for info in store.list("d", start_after="aa")] == ["d/b", "d/c"]

    def test_a_walk_finds_what_is_below_by_path(self, store: Store) -> None:
        for name in ("d/b/x", "d/a", "d/b/c/y", "d2/a", "e", "d/.tmp-1"):
            store.put(name, b"12")
        entries = [(info.path, info.size) for info in store.walk("d")]
        assert entries == [("d/.tmp-1", 2), ("d/a", 2), ("d/b/c/y", 2), ("d/b/x", 2)]
        assert [info.path for info in store.walk("d/b")] == ["d/b/c/y", "d/b/x"]
        assert list(store.walk("nowhere")) == []

    def test_delete_removes(self, store: Store) -> None:
        store.put("d/name", b"x")
        store.delete("d/name")
        store.delete("d/name")
        assert store.head("d/name") is None
        assert list(store.list("d")) == []

    def test_create_succeeds_once(self, store: Store) -> None:
        assert store.create("d/name", b"first") is Put.CREATED
        assert store.create("d/name", b"second") is Put.EXISTS
        assert store.read("d/name") == b"first"
        store.delete("d/name")
        assert store.create("d/name", b"third") is Put.CREATED

    def test_ensure_durable_changes_no_data(self, store: Store) -> None:
        store.put("d/name", b"x")
        store.ensure_durable(["d/name"])
        assert store.read("d/name") == b"x"

    def test_one_of_several_concurrent_creators_wins(self, store: Store) -> None:
        """Each name has one winner among many threads and has the complete data of the winner."""
        rounds = 25
        barrier = threading.Barrier(WRITERS)

        def create(writer: int) -> list[Put]:
            answers = []
            for number in range(rounds):
                barrier.wait()
                answers.append(store.create(f"d/{number}", str(writer).encode() * 10_000))
            return answers

        with ThreadPoolExecutor(WRITERS) as pool:
            answers = list(pool.map(create, range(WRITERS)))
        for number in range(rounds):
            winners = [writer for writer in range(WRITERS) if answers[writer][number] is Put.CREATED]
            assert len(winners) == 1
            assert store.read(f"d/{number}") == str(winners[0]).encode() * 10_000
        assert {answer for row in answers for answer in row} == {Put.CREATED, Put.EXISTS}

    @pytest.mark.parametrize("method", ["put", "create"])
    def test_a_reader_never_sees_half_an_object(self, store: Store, method: str) -> None:
        """A concurrent reader sees no object or one complete object, the earlier or the later one."""
        size, rounds = 300_000, 40
        write: Callable[[str, bytes], object] = store.put if method == "put" else store.create
        done = threading.Event()
        observed: set[tuple[int, int]] = set()

        def read() -> None:
            while not done.is_set():
                for info in store.list("d"):
                    try:
                        data = store.read(info.path)
                    except NotFound:
                        continue
                    observed.add((len(data), len(set(data))))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(rounds):
            write("d/name" if method == "put" else f"d/{number}", bytes([number]) * size)
        done.set()
        reader.join()
        assert observed <= {(size, 1)}
