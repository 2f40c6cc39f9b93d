"""Write protocol: a repeated write that finds its earlier commit makes it durable before it acknowledges it."""

import pytest

from lance_core import CommitUndecided
from lance_core.format import naming
from lance_core.format.ids import Version
from tests.lance_core.in_memory_table import Fault, FaultyStore, InMemoryTable

INTENTS = naming.PROJECT_DIRECTORY + "/intents/"
MANIFEST_2 = naming.manifest_path(Version(2))


def test_a_commit_found_in_the_history_is_made_durable_before_it_is_acknowledged() -> None:
    """The process that put it got no answer and may have died before the disk had it."""
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    record_fault = Fault(
        lambda call, path: call == "put" and path.startswith(INTENTS) and ("create", MANIFEST_2) in store.calls, "fails"
    )
    store.faults.append(record_fault)
    with pytest.raises(CommitUndecided):
        table.append("mine", intent="load 7")
    store.calls.clear()
    again = table.append("mine", intent="load 7", writer=2)
    assert (again.snapshot.version, again.already_committed) == (2, True)
    made_durable = store.calls.index(("ensure_durable", MANIFEST_2))
    assert made_durable < next(
        at for at, (call, path) in enumerate(store.calls) if call == "put" and path.startswith(INTENTS)
    )
