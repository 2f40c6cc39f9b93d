"""History of a snapshot: a repeated read reuses the commits that are known already."""

from lance_core.format.ids import Version
from lance_core.versions.snapshot import History, read_history
from tests.lance_core.in_memory_table import FaultyStore, InMemoryTable


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
