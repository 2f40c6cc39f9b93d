"""Beginning a write that has landed before: what is acknowledged then is as durable as if it landed now."""

import pytest

from lance_core import CommitUndecided
from lance_core.format import naming
from lance_core.format.ids import Version
from tests.lance_core.world import Fault, FaultyStore, World

INTENTS = naming.PROJECT_DIRECTORY + "/intents/"
MANIFEST_2 = naming.manifest_path(Version(2))


def test_a_landing_found_in_the_history_is_settled_before_it_is_acknowledged() -> None:
    """Whoever put it was told nothing, and may have died before the disk had it."""
    store = FaultyStore()
    table = World(store)
    table.create("first")
    noting = Fault(
        lambda call, path: call == "put" and path.startswith(INTENTS) and ("create", MANIFEST_2) in store.calls, "fails"
    )
    store.faults.append(noting)
    with pytest.raises(CommitUndecided):
        table.append("mine", intent="load 7")
    store.calls.clear()
    again = table.append("mine", intent="load 7", writer=2)
    assert (again.snapshot.version, again.already_committed) == (2, True)
    settled = store.calls.index(("settle", MANIFEST_2))
    assert settled < next(
        at for at, (call, path) in enumerate(store.calls) if call == "put" and path.startswith(INTENTS)
    )
