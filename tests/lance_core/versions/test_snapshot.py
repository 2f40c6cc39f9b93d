"""What happened since a version, asked again by one who knows a part of it."""

from lance_core.format.ids import Version
from lance_core.versions.snapshot import History, read_history
from tests.lance_core.world import FaultyStore, World


def test_what_is_known_is_not_read_again_and_the_head_is_still_the_newest() -> None:
    table = World(FaultyStore())
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
