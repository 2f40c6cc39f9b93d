"""Snapshots: a known version is not read again, and a writer refuses a table with manifests of both naming schemes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core.errors import Corrupt, NotFound
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.naming import NamingScheme
from lance_core.format.operations import Append
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, SupportsOrderedListing
from lance_core.versions import snapshot
from lance_core.versions.snapshot import History, list_versions, load_latest, read_history
from tests.lance_core.in_memory_table import FaultyStore, InMemoryTable


class OrderedStore(MemoryStore, SupportsOrderedListing):
    """Store that lists in the order of names, page by page, and records the paths that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def list_first(self, directory: str, count: int, start_after: str = "") -> Sequence[ObjectInfo]:
        return self.list(directory, start_after)[:count]

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.reads.append(path)
        return super().read(path, start, length)


def table_with_versions(count: int) -> InMemoryTable:
    table = InMemoryTable(OrderedStore())
    table.create("f1")
    for number in range(2, count + 1):
        table.append(f"f{number}", writer=number)
    return table


def test_known_commits_are_not_read_again() -> None:
    table = InMemoryTable(FaultyStore())
    table.create("a")
    table.append("b")
    table.append("c")
    location, base = table.location(), table.at(1)
    first = read_history(location, Version(1), base=base)
    assert isinstance(first, History)
    store = table.store
    assert isinstance(store, FaultyStore)
    store.calls.clear()
    again = read_history(location, Version(1), base=base, known=first.others)
    assert isinstance(again, History)
    assert again.head.version == 3
    assert again.head.manifest.encode() == first.head.manifest.encode()
    assert again.others == first.others
    assert [path for call, path in store.calls if call == "read"] == [first.head.manifest.path]


def test_a_version_of_another_table_is_read() -> None:
    """The table was dropped and created again by another process. Its version 2 has the size of our own version 2."""
    table, other = table_with_versions(2), table_with_versions(1)
    other.append("g2", writer=2)
    own = table.at(2)
    assert len(own.manifest.encode()) == len(other.at(2).manifest.encode())
    for info in list(table.store.walk("_versions")):
        table.store.delete(info.path)
    for info in other.store.walk("_versions"):
        table.store.put(info.path, other.store.read(info.path))
    base, path = table.at(1), other.at(2).manifest.path
    history = read_history(table.location(), base.version, base=base)
    assert history is not None
    assert history.head.manifest.encode() == other.store.read(path) != own.manifest.encode()


@pytest.mark.parametrize(("count", "page"), [(3, 1000), (25, 1000), (25, 20), (31, 1000)])
@pytest.mark.parametrize("stray", ["1.manifest", "7.manifest"])
def test_a_writer_refuses_both_naming_schemes(
    monkeypatch: pytest.MonkeyPatch, count: int, page: int, stray: str
) -> None:
    """Names of the old scheme sort before or after those of the new one, and the first names of a listing may not show
    them. The table is listed whole, or its last names are listed as well."""
    monkeypatch.setattr(snapshot, "LISTED_WHOLE_MAX", 30)
    monkeypatch.setattr(snapshot, "PAGE_NAMES", page)
    written = table_with_versions(count)
    table = InMemoryTable(OrderedStore())  # like another process, which has not checked the table
    for info in written.store.walk("_versions"):
        table.store.put(info.path, written.store.read(info.path))
    base = load_latest(table.location())
    snapshot._uniform_names.clear()  # the load of a small table has seen all names
    table.store.put(f"_versions/{stray}", b"")
    names = [info.path for info in table.store.walk("_versions")]
    with pytest.raises(Corrupt, match="both naming schemes"):
        table.write(Append(table.fragments("new")), base=base, writer=99)
    assert [info.path for info in table.store.walk("_versions")] == names


@given(
    new=st.sets(st.integers(1, 40), max_size=6),
    old=st.sets(st.integers(1, 2_000), max_size=2),
    others=st.sets(st.sampled_from(["0", "latest_version_hint.json", "d12.manifest", "a.manifest", "~"])),
)
def test_the_newest_version_is_the_last_one_of_a_listing(new: set[int], old: set[int], others: set[str]) -> None:
    """The result is the same whether names are parsed one by one or not. The files are empty, so the error names the
    chosen one."""
    table = InMemoryTable()
    for scheme, numbers in ((NamingScheme.V2, new), (NamingScheme.V1, old)):
        for number in numbers:
            table.store.put(naming.manifest_path(Version(number), scheme), b"")
    for name in others:
        table.store.put(f"{naming.VERSIONS}/{name}", b"")
    location = table.location()
    with pytest.raises((Corrupt, NotFound)) as raised:
        load_latest(location)
    if new and old:
        assert "both naming schemes" in str(raised.value)
    elif new or old:
        scheme = NamingScheme.V2 if new else NamingScheme.V1
        assert naming.manifest_path(list_versions(location).numbers[-1], scheme) in str(raised.value)
    else:
        assert isinstance(raised.value, NotFound)
