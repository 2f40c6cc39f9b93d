"""The commit loop over a store that loses answers, answers late, fails, and lists what was true a moment ago.

Each case ends in one of three ways, and the table is looked at afterwards: committed once, definitely not committed,
or undecided, which is said only when nobody can know.
"""

from dataclasses import replace

import pytest

from lance_core import (
    AlreadyExists,
    CommitUndecided,
    IncompatibleConflict,
    InvalidInput,
    NotFound,
    RetryableConflict,
    StorageError,
    Unsupported,
)
from lance_core.commit.loop import ATTEMPTS
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.format import naming
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Append, Overwrite
from lance_core.format.transaction import Transaction
from lance_core.versions.snapshot import check_one_naming_scheme, list_versions, load_transaction
from tests.lance_core.world import SCHEMA, Condition, Fault, FaultyStore, World, calling, creating, fragment, runtime

MANIFESTS = naming.VERSIONS + "/"
EVERY_MANIFEST = creating(MANIFESTS)


def world(*faults: Fault) -> tuple[World, FaultyStore]:
    """A table with one version, and a store that will fail from now on."""
    store = FaultyStore()
    table = World(store)
    table.create("first")
    store.faults += faults
    store.calls.clear()
    return table, store


def versions(table: World) -> list[int]:
    return list(list_versions(table.location()).numbers)


def puts(store: FaultyStore) -> int:
    return sum(call == "create" and path.startswith(MANIFESTS) for call, path in store.calls)


def after_a_put(store: FaultyStore, condition: Condition) -> Condition:
    return lambda call, path: puts(store) == 1 and condition(call, path)


def second_put(store: FaultyStore) -> Condition:
    return lambda call, path: puts(store) == 2 and EVERY_MANIFEST(call, path)


def check_history(table: World) -> None:
    """Versions are dense, and no transaction is in two of them."""
    numbers = versions(table)
    assert numbers == list(range(1, len(numbers) + 1))
    uuids = []
    for number in numbers:
        transaction = load_transaction(table.location(), table.at(number).manifest)
        assert transaction is not None
        uuids.append(transaction.uuid)
    assert len(set(uuids)) == len(uuids)


def test_the_first_commit_makes_version_1() -> None:
    table = World()
    written = table.create("a", "b")
    assert (written.snapshot.version, written.attempts, written.already_committed) == (1, 1, False)
    assert table.names() == ["a", "b"]
    check_history(table)


def test_an_answer_that_never_came_is_found_by_the_next_look() -> None:
    table, store = world(Fault(EVERY_MANIFEST, "lost"))
    written = table.append("mine")
    assert (written.snapshot.version, written.attempts, written.already_committed) == (2, 1, False)
    assert (table.names(), puts(store)) == (["first", "mine"], 1)
    check_history(table)


def test_an_unanswered_put_that_did_not_land_is_repeated_at_the_same_place() -> None:
    table, store = world(Fault(EVERY_MANIFEST, "never"))
    written = table.append("mine")
    assert (written.snapshot.version, written.attempts) == (2, 2)
    assert [path for call, path in store.calls if call == "create"] == [naming.manifest_path(Version(2))] * 2
    check_history(table)


def test_a_put_that_lands_late_loses_against_its_own_repetition() -> None:
    table, store = world(Fault(EVERY_MANIFEST, "late"))
    table.append("mine")
    assert [answer.name for answer in store.land()] == ["EXISTS"]
    assert table.names() == ["first", "mine"]
    check_history(table)


def test_a_put_that_lands_late_just_before_its_repetition_is_found() -> None:
    """The repetition is told that something exists; it is our own."""
    table, store = world(Fault(EVERY_MANIFEST, "late"))
    store.faults.append(Fault(second_put(store), "", store.land))
    written = table.append("mine")
    assert (written.snapshot.version, table.names()) == (2, ["first", "mine"])
    check_history(table)


def test_exists_by_somebody_else_goes_round_and_keeps_both() -> None:
    table, store = world()
    other = World(store.inner)
    store.faults.append(Fault(EVERY_MANIFEST, "", lambda: other.append("theirs", writer=2)))
    written = table.append("mine")
    assert (written.snapshot.version, written.attempts, written.rebased_over) == (3, 2, (2,))
    assert table.names() == ["first", "theirs", "mine"]
    check_history(table)


def test_an_unanswered_put_that_somebody_else_overtook_is_settled() -> None:
    """Their version sits where ours might have landed: ours never can, so it moves on."""
    table, store = world(Fault(EVERY_MANIFEST, "late"))
    other = World(store.inner)
    store.faults.append(Fault(after_a_put(store, calling("list")), "", lambda: other.append("theirs", writer=2)))
    written = table.append("mine")
    assert written.snapshot.version == 3
    assert [answer.name for answer in store.land()] == ["EXISTS"]
    assert table.names() == ["first", "theirs", "mine"]
    check_history(table)


def test_a_stale_listing_costs_a_turn_and_nothing_else() -> None:
    table, store = world()
    base = table.at()
    World(store.inner).append("theirs", writer=2)
    check_one_naming_scheme(table.location())  # the first write of a process to a table lists it once more
    store.faults.append(Fault(calling("list"), "stale"))
    written = table.write(Append(table.fragments("mine")), base=base)
    assert (written.snapshot.version, written.attempts) == (3, 2)
    assert table.names() == ["first", "theirs", "mine"]
    check_history(table)


def test_a_listing_with_a_hole_does_not_hide_our_own_version() -> None:
    """It shows version 3 and misses 2, which is ours: asking for 2 by name finds it."""
    table, store = world(Fault(EVERY_MANIFEST, "lost"))
    hidden = naming.manifest_path(Version(2))
    other = World(store.inner)
    listed = store.inner.list

    def then_hide() -> None:
        other.append("theirs", writer=2)
        store.inner.list = lambda directory, start_after="": [  # type: ignore[method-assign]
            info for info in listed(directory, start_after) if info.path != hidden
        ]

    store.faults.append(Fault(after_a_put(store, calling("list")), "", then_hide))
    written = table.append("mine")
    store.inner.list = listed  # type: ignore[method-assign]
    assert (written.snapshot.version, table.names()) == (2, ["first", "mine", "theirs"])
    check_history(table)


def test_a_failing_create_is_definite_before_anything_was_put() -> None:
    table, _ = world(Fault(EVERY_MANIFEST, "fails"))
    with pytest.raises(StorageError, match="told to fail at create"):
        table.append("mine")
    assert versions(table) == [1]


@pytest.mark.parametrize("then", [calling("list"), EVERY_MANIFEST])
def test_a_failure_after_an_unanswered_put_is_undecided(then: Condition) -> None:
    """Whatever fails then, the put may land yet; saying "failed" would invite doing it twice."""
    table, store = world(Fault(EVERY_MANIFEST, "late"))
    put_again = after_a_put(store, then)
    store.faults.append(Fault(put_again if then is not EVERY_MANIFEST else second_put(store), "fails"))
    with pytest.raises(CommitUndecided, match="was committed as version 2: ") as caught:
        table.append("mine", intent="once")
    assert caught.value.version == 2
    store.land()
    written = table.append("mine", intent="once", writer=2)
    assert (written.snapshot.version, written.already_committed) == (2, True)
    assert table.names() == ["first", "mine"]
    check_history(table)


def test_our_version_that_cannot_be_read_back_is_undecided() -> None:
    table, store = world(Fault(EVERY_MANIFEST, "lost"))
    store.faults.append(Fault(calling("settle"), "fails"))
    with pytest.raises(CommitUndecided, match="it exists, but reading it back failed"):
        table.append("mine")


def test_a_version_found_instead_of_acknowledged_is_made_durable_first() -> None:
    table, store = world(Fault(EVERY_MANIFEST, "lost"))
    table.append("mine")
    assert ("settle", naming.manifest_path(Version(2))) in store.calls


def test_no_answers_at_all_end_undecided_after_a_last_look() -> None:
    table, store = world(*[Fault(EVERY_MANIFEST, "never") for _ in range(3)])
    with pytest.raises(CommitUndecided, match="3 puts were not answered") as caught:
        table.write(Append(table.fragments("mine")), base=table.at(), attempts=3)
    assert store.calls[-1][0] in ("list", "read")
    assert caught.value.version == 2
    assert "Look for its transaction" in str(caught.value)


def test_the_last_look_still_finds() -> None:
    table, _ = world(Fault(EVERY_MANIFEST, "lost"))
    written = table.write(Append(table.fragments("mine")), base=table.at(), attempts=1)
    assert written.snapshot.version == 2


def test_losing_every_race_is_exhausted_and_definite() -> None:
    table, store = world()
    other = World(store.inner)
    theirs = iter(range(2, 5))
    for _ in range(3):
        store.faults.append(
            Fault(EVERY_MANIFEST, "", lambda: other.append(f"theirs{len(store.faults)}", writer=next(theirs)))
        )
    with pytest.raises(
        RetryableConflict, match="lost the race for the next version 3 times and was not committed"
    ) as caught:
        table.write(Append(table.fragments("mine")), base=table.at(), attempts=3)
    assert caught.value.rule == "exhausted"
    assert "mine" not in table.names()
    check_history(table)


def test_a_transaction_is_written_once_for_as_long_as_it_stays_the_same() -> None:
    """A put that lands late must not find its transaction file saying something else."""
    table, store = world(Fault(EVERY_MANIFEST, "never"), Fault(EVERY_MANIFEST, "never"))
    table.append("mine")
    written = [path for call, path in store.calls if call == "put" and path.startswith(naming.TRANSACTIONS)]
    assert len(written) == 1
    head = table.at().manifest
    assert head.transaction_file is not None
    on_its_own = Transaction.decode(store.read(f"{naming.TRANSACTIONS}/{head.transaction_file}"), path="")
    inline = load_transaction(table.location(), head)
    assert inline is not None
    assert (on_its_own.parent, inline.parent) == (None, table.at(1).manifest.as_parent)
    assert on_its_own == replace(inline, parent=None)


def test_a_lost_race_costs_two_calls() -> None:
    """What was first is read by its name, and the next version put; nothing is listed, nothing else written again."""
    table, store = world()
    other = World(store.inner)
    base = table.at()
    fragments = table.fragments("mine")
    store.faults.append(Fault(EVERY_MANIFEST, "", lambda: other.append("theirs", writer=2)))
    store.calls.clear()
    table.write(Append(fragments), base=base)
    alone, calls = [("create", naming.manifest_path(Version(2)))], store.calls
    assert calls[calls.index(alone[0]) + 1 :] == [
        ("read", naming.manifest_path(Version(2))),
        ("create", naming.manifest_path(Version(3))),
    ]


def test_nothing_is_ever_deleted() -> None:
    table, store = world(Fault(EVERY_MANIFEST, "lost"), Fault(calling("settle"), "fails"))
    with pytest.raises(CommitUndecided):
        table.append("mine")
    assert "delete" not in {call for call, _ in store.calls}


def test_an_append_planned_before_an_overwrite_does_not_stand() -> None:
    table, _ = world()
    base = table.at()
    table.overwrite("new")
    with pytest.raises(IncompatibleConflict, match="conflicts with the Overwrite of version 2") as caught:
        table.write(Append(table.fragments("mine")), base=base, writer=3)
    assert (caught.value.ours, caught.value.theirs, caught.value.version) == ("Append", "Overwrite", 2)
    assert table.names() == ["new"]


def test_an_overwrite_planned_before_an_append_stands() -> None:
    table, _ = world()
    base = table.at()
    table.append("theirs")
    table.write(Overwrite(table.fragments("mine"), SCHEMA), base=base, writer=3)
    assert table.names() == ["mine"]


def test_a_version_that_was_cleaned_up_cannot_be_judged() -> None:
    table, store = world()
    base = table.at()
    table.append("two", writer=2)
    table.append("three", writer=3)
    store.delete(naming.manifest_path(Version(2)))
    with pytest.raises(RetryableConflict, match="unrecorded change of version 2"):
        table.write(Append(table.fragments("mine")), base=base, writer=4)


def test_creating_twice_makes_one_table() -> None:
    table, _ = world()
    with pytest.raises(AlreadyExists, match="at version 1"):
        table.create("again", writer=2)
    assert table.names() == ["first"]


def test_creating_while_somebody_else_does() -> None:
    store = FaultyStore()
    table, other = World(store), World(store.inner)
    store.faults.append(Fault(EVERY_MANIFEST, "", lambda: other.create("theirs", writer=2)))
    with pytest.raises(AlreadyExists):
        table.create("mine")
    assert table.names() == ["theirs"]


def test_creating_with_a_lost_answer() -> None:
    store = FaultyStore(faults=[Fault(EVERY_MANIFEST, "lost")])
    table = World(store)
    assert table.create("mine").snapshot.version == 1
    check_history(table)


def test_a_missing_data_file_is_refused() -> None:
    """Before a manifest names it."""
    table, store = world()
    fragments = table.fragments("here", "gone")
    store.delete("data/gone.lance")
    with pytest.raises(NotFound, match=r"the data file gone\.lance of this commit does not exist"):
        table.write(Append(fragments), base=table.at())
    assert versions(table) == [1]


def test_a_truncated_data_file_is_refused() -> None:
    table, store = world()
    whole = fragment(store, "cut", rows=10)
    store.put("data/cut.lance", bytes(9))
    with pytest.raises(StorageError, match=r"cut\.lance of this commit has 9 bytes, not the 10"):
        table.write(Append((whole,)), base=table.at())
    assert versions(table) == [1]


def test_many_data_files_are_all_looked_at() -> None:
    table, store = world()
    fragments = table.fragments(*(f"f{number}" for number in range(30)))
    store.delete("data/f17.lance")
    with pytest.raises(NotFound, match=r"f17\.lance"):
        table.write(Append(fragments), base=table.at())


def test_ids_that_are_taken_are_refused() -> None:
    """A fragment that brings the id of one that is there."""
    table, _ = world()
    table.append("second")
    taken = Fragment.of(files=table.fragments("third")[0].files, physical_rows=1)
    taken.message.id = 1
    with pytest.raises(InvalidInput, match="a fragment with id 1, but ids up to 1 are already assigned"):
        table.write(Append((taken,)), base=table.at())


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        (b"\x9a\x07\x00", "DataOverlay"),
        (b"\xa2\x07\x00", "AppendFragmentReuseTransitions"),
        (b"\xc2\x3e\x00", "unknown"),
        (b"\x8a\x07\x00", "Clone"),
    ],
)
def test_an_operation_of_others_is_not_committed(wire: bytes, name: str) -> None:
    table, _ = world()
    operation = Transaction.decode(wire, path="").operation
    with pytest.raises(Unsupported, match=f"{name} can be read, but not committed"):
        table.write(operation, base=table.at())


def test_the_time_is_over_before_the_attempts_are() -> None:
    """An hour passes at each look at the clock."""
    assert ATTEMPTS == 100
    table, store = world()
    other = World(store.inner)
    theirs = iter(range(2, 50))

    def race() -> None:
        number = next(theirs)
        other.append(f"theirs{number}", writer=number)
        store.faults.append(Fault(EVERY_MANIFEST, "", race))

    store.faults.append(Fault(EVERY_MANIFEST, "", race))
    hours = iter(range(0, 3600 * 10**12, 3600 * 10**9))
    begun = begin(
        table.location(),
        table.at(),
        verb="append",
        intent=None,
        runtime=replace(runtime(1), elapsed_ns=lambda: next(hours)),
    )
    assert isinstance(begun, StartedWrite)
    with pytest.raises(RetryableConflict, match="lost the race for the next version") as caught:
        finish(begun, Append(table.fragments("mine")), properties={}, attempts=ATTEMPTS)
    assert caught.value.rule == "exhausted"
    assert len(versions(table)) < 20
    check_history(table)


def test_a_listing_older_than_the_base_is_not_believed_twice() -> None:
    """It misses what we have opened, while an earlier put of ours lands: looking again for the head alone would step
    over our own version."""
    table, store = world()
    table.append("second", writer=2)
    base = table.at()
    store.calls.clear()
    store.faults.append(Fault(EVERY_MANIFEST, "late"))
    store.faults.append(Fault(after_a_put(store, calling("list")), "stale", lambda: None))
    store.faults.append(Fault(after_a_put(store, calling("list")), "", store.land))
    table.write(Append(table.fragments("mine")), base=base, writer=3)
    store.land()
    assert table.names() == ["first", "second", "mine"]
    check_history(table)
