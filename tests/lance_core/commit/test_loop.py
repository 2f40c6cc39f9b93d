"""Commit loop: committing over a store that loses answers, answers late, fails, and returns stale listings.

Each case has one of three outcomes, and the test then checks the table: committed once, definitely not committed, or
undecided, which is reported only if the outcome cannot be known.
"""

import threading
from collections.abc import Callable, Sequence
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
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import ObjectInfo, SupportsConcurrency
from lance_core.versions.snapshot import check_one_naming_scheme, list_versions, load_transaction
from tests.lance_core.in_memory_table import (
    SCHEMA,
    Condition,
    Fault,
    FaultyStore,
    InMemoryTable,
    deterministic_runtime,
    on_call,
    on_create,
    put_fragment,
)

MANIFESTS = naming.VERSIONS + "/"
PUT_OF_ANY_VERSION = on_create(MANIFESTS)


def faulty_table(*faults: Fault) -> tuple[InMemoryTable, FaultyStore]:
    """Return a table with one version, over a store with these faults from then on."""
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    store.faults += faults
    store.calls.clear()
    return table, store


def version_numbers(table: InMemoryTable) -> list[int]:
    return list(list_versions(table.location()).numbers)


def count_puts(store: FaultyStore) -> int:
    return sum(call == "create" and path.startswith(MANIFESTS) for call, path in store.calls)


def after_first_put(store: FaultyStore, condition: Condition) -> Condition:
    return lambda call, path: count_puts(store) == 1 and condition(call, path)


def on_second_put(store: FaultyStore) -> Condition:
    return lambda call, path: count_puts(store) == 2 and PUT_OF_ANY_VERSION(call, path)


def check_history(table: InMemoryTable) -> None:
    """Check that versions are dense and that no transaction is in two of them."""
    numbers = version_numbers(table)
    assert numbers == list(range(1, len(numbers) + 1))
    uuids = []
    for number in numbers:
        transaction = load_transaction(table.location(), table.at(number).manifest)
        assert transaction is not None
        uuids.append(transaction.uuid)
    assert len(set(uuids)) == len(uuids)


def test_the_first_commit_makes_version_1() -> None:
    table = InMemoryTable()
    result = table.create("a", "b")
    assert (result.snapshot.version, result.attempts, result.already_committed) == (1, 1, False)
    assert table.file_names() == ["a", "b"]
    check_history(table)


def test_a_commit_with_a_lost_answer_is_found_by_the_next_read() -> None:
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "lost"))
    result = table.append("mine")
    assert (result.snapshot.version, result.attempts, result.already_committed) == (2, 1, False)
    assert (table.file_names(), count_puts(store)) == (["first", "mine"], 1)
    check_history(table)


def test_an_unanswered_put_without_effect_is_repeated_for_the_same_version() -> None:
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "never"))
    result = table.append("mine")
    assert (result.snapshot.version, result.attempts) == (2, 2)
    assert [path for call, path in store.calls if call == "create"] == [naming.manifest_path(Version(2))] * 2
    check_history(table)


def test_a_late_put_loses_against_its_own_repetition() -> None:
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "late"))
    table.append("mine")
    assert [answer.name for answer in store.deliver_late_puts()] == ["EXISTS"]
    assert table.file_names() == ["first", "mine"]
    check_history(table)


def test_a_late_put_that_arrives_just_before_its_repetition_is_found() -> None:
    """The store answers the repetition with EXISTS; the existing version is our own."""
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "late"))
    store.faults.append(Fault(on_second_put(store), "", store.deliver_late_puts))
    result = table.append("mine")
    assert (result.snapshot.version, table.file_names()) == (2, ["first", "mine"])
    check_history(table)


def test_a_commit_of_another_writer_is_rebased_over() -> None:
    table, store = faulty_table()
    other = InMemoryTable(store.inner)
    store.faults.append(Fault(PUT_OF_ANY_VERSION, "", lambda: other.append("theirs", writer=2)))
    result = table.append("mine")
    assert (result.snapshot.version, result.attempts, result.rebased_over) == (3, 2, (2,))
    assert table.file_names() == ["first", "theirs", "mine"]
    check_history(table)


def test_an_unanswered_put_that_another_writer_overtook_is_decided() -> None:
    """The version of the other writer has the number of our put: ours can never arrive, so the loop moves on."""
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "late"))
    other = InMemoryTable(store.inner)
    store.faults.append(Fault(after_first_put(store, on_call("list")), "", lambda: other.append("theirs", writer=2)))
    result = table.append("mine")
    assert result.snapshot.version == 3
    assert [answer.name for answer in store.deliver_late_puts()] == ["EXISTS"]
    assert table.file_names() == ["first", "theirs", "mine"]
    check_history(table)


def test_a_stale_listing_costs_one_attempt() -> None:
    table, store = faulty_table()
    base = table.at()
    InMemoryTable(store.inner).append("theirs", writer=2)
    check_one_naming_scheme(table.location())  # the first write of a process to a table lists it once more
    store.faults.append(Fault(on_call("list"), "stale"))
    result = table.write(Append(table.fragments("mine")), base=base)
    assert (result.snapshot.version, result.attempts) == (3, 2)
    assert table.file_names() == ["first", "theirs", "mine"]
    check_history(table)


def test_a_listing_with_a_gap_does_not_hide_our_own_version() -> None:
    """The listing shows version 3 but not 2, which is ours: a read of version 2 by name finds it."""
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "lost"))
    hidden = naming.manifest_path(Version(2))
    other = InMemoryTable(store.inner)
    listed = store.inner.list

    def commit_and_hide() -> None:
        other.append("theirs", writer=2)
        store.inner.list = lambda directory, start_after="": [  # type: ignore[method-assign]
            info for info in listed(directory, start_after) if info.path != hidden
        ]

    store.faults.append(Fault(after_first_put(store, on_call("list")), "", commit_and_hide))
    result = table.append("mine")
    store.inner.list = listed  # type: ignore[method-assign]
    assert (result.snapshot.version, table.file_names()) == (2, ["first", "mine", "theirs"])
    check_history(table)


def test_a_failure_before_the_first_put_is_definite() -> None:
    table, _ = faulty_table(Fault(PUT_OF_ANY_VERSION, "fails"))
    with pytest.raises(StorageError, match="injected failure of create"):
        table.append("mine")
    assert version_numbers(table) == [1]


@pytest.mark.parametrize("next_call", [on_call("list"), PUT_OF_ANY_VERSION])
def test_a_failure_after_an_unanswered_put_is_undecided(next_call: Condition) -> None:
    """The put may still arrive after any later failure; a definite error would make the caller commit twice."""
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "late"))
    next_failure = after_first_put(store, next_call)
    store.faults.append(Fault(next_failure if next_call is not PUT_OF_ANY_VERSION else on_second_put(store), "fails"))
    with pytest.raises(CommitUndecided, match="was committed as version 2: ") as caught:
        table.append("mine", intent="once")
    assert caught.value.version == 2
    store.deliver_late_puts()
    result = table.append("mine", intent="once", writer=2)
    assert (result.snapshot.version, result.already_committed) == (2, True)
    assert table.file_names() == ["first", "mine"]
    check_history(table)


def test_our_version_that_cannot_be_read_back_is_undecided() -> None:
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "lost"))
    store.faults.append(Fault(on_call("ensure_durable"), "fails"))
    with pytest.raises(CommitUndecided, match="it exists, but reading it back failed"):
        table.append("mine")


def test_a_version_found_instead_of_acknowledged_is_made_durable_first() -> None:
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "lost"))
    table.append("mine")
    assert ("ensure_durable", naming.manifest_path(Version(2))) in store.calls


def test_puts_without_any_answer_end_undecided_after_a_last_read() -> None:
    table, store = faulty_table(*[Fault(PUT_OF_ANY_VERSION, "never") for _ in range(3)])
    with pytest.raises(CommitUndecided, match="3 puts were not answered") as caught:
        table.write(Append(table.fragments("mine")), base=table.at(), attempts=3)
    assert store.calls[-1][0] in ("list", "read")
    assert caught.value.version == 2
    assert "Look for its transaction" in str(caught.value)


def test_the_last_read_finds_the_commit() -> None:
    table, _ = faulty_table(Fault(PUT_OF_ANY_VERSION, "lost"))
    result = table.write(Append(table.fragments("mine")), base=table.at(), attempts=1)
    assert result.snapshot.version == 2


def test_losing_every_race_is_exhausted_and_definite() -> None:
    table, store = faulty_table()
    other = InMemoryTable(store.inner)
    theirs = iter(range(2, 5))
    for _ in range(3):
        store.faults.append(
            Fault(PUT_OF_ANY_VERSION, "", lambda: other.append(f"theirs{len(store.faults)}", writer=next(theirs)))
        )
    with pytest.raises(
        RetryableConflict, match="lost the race for the next version 3 times and was not committed"
    ) as caught:
        table.write(Append(table.fragments("mine")), base=table.at(), attempts=3)
    assert caught.value.rule == "exhausted"
    assert "mine" not in table.file_names()
    check_history(table)


def test_an_unchanged_transaction_is_written_once() -> None:
    """A late put must not reference a transaction file with other content."""
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "never"), Fault(PUT_OF_ANY_VERSION, "never"))
    table.append("mine")
    paths = [path for call, path in store.calls if call == "put" and path.startswith(naming.TRANSACTIONS)]
    assert len(paths) == 1
    head = table.at().manifest
    assert head.transaction_file is not None
    separate = Transaction.decode(store.read(f"{naming.TRANSACTIONS}/{head.transaction_file}"), path="")
    inline = load_transaction(table.location(), head)
    assert inline is not None
    assert (separate.parent, inline.parent) == (None, table.at(1).manifest.as_parent)
    assert separate == replace(inline, parent=None)


def test_a_lost_race_costs_two_calls() -> None:
    """The winner is read by its name and the next version is put; nothing is listed and nothing else is rewritten."""
    table, store = faulty_table()
    other = InMemoryTable(store.inner)
    base = table.at()
    fragments = table.fragments("mine")
    store.faults.append(Fault(PUT_OF_ANY_VERSION, "", lambda: other.append("theirs", writer=2)))
    store.calls.clear()
    table.write(Append(fragments), base=base)
    lost_put, calls = [("create", naming.manifest_path(Version(2)))], store.calls
    assert calls[calls.index(lost_put[0]) + 1 :] == [
        ("read", naming.manifest_path(Version(2))),
        ("create", naming.manifest_path(Version(3))),
    ]


def test_nothing_is_ever_deleted() -> None:
    table, store = faulty_table(Fault(PUT_OF_ANY_VERSION, "lost"), Fault(on_call("ensure_durable"), "fails"))
    with pytest.raises(CommitUndecided):
        table.append("mine")
    assert "delete" not in {call for call, _ in store.calls}


def test_an_append_planned_before_an_overwrite_conflicts() -> None:
    table, _ = faulty_table()
    base = table.at()
    table.overwrite("new")
    with pytest.raises(IncompatibleConflict, match="conflicts with the Overwrite of version 2") as caught:
        table.write(Append(table.fragments("mine")), base=base, writer=3)
    assert (caught.value.ours, caught.value.theirs, caught.value.version) == ("Append", "Overwrite", 2)
    assert table.file_names() == ["new"]


def test_an_overwrite_planned_before_an_append_commits() -> None:
    table, _ = faulty_table()
    base = table.at()
    table.append("theirs")
    table.write(Overwrite(table.fragments("mine"), SCHEMA), base=base, writer=3)
    assert table.file_names() == ["mine"]


def test_a_removed_version_in_between_is_a_conflict() -> None:
    table, store = faulty_table()
    base = table.at()
    table.append("two", writer=2)
    table.append("three", writer=3)
    store.delete(naming.manifest_path(Version(2)))
    with pytest.raises(RetryableConflict, match="unrecorded change of version 2"):
        table.write(Append(table.fragments("mine")), base=base, writer=4)


def test_creating_twice_makes_one_table() -> None:
    table, _ = faulty_table()
    with pytest.raises(AlreadyExists, match="at version 1"):
        table.create("again", writer=2)
    assert table.file_names() == ["first"]


def test_creating_concurrently_makes_one_table() -> None:
    store = FaultyStore()
    table, other = InMemoryTable(store), InMemoryTable(store.inner)
    store.faults.append(Fault(PUT_OF_ANY_VERSION, "", lambda: other.create("theirs", writer=2)))
    with pytest.raises(AlreadyExists):
        table.create("mine")
    assert table.file_names() == ["theirs"]


def test_creating_with_a_lost_answer() -> None:
    store = FaultyStore(faults=[Fault(PUT_OF_ANY_VERSION, "lost")])
    table = InMemoryTable(store)
    assert table.create("mine").snapshot.version == 1
    check_history(table)


def test_a_missing_data_file_is_rejected() -> None:
    """The check precedes the put of a manifest that references the file."""
    table, store = faulty_table()
    fragments = table.fragments("here", "gone")
    store.delete("data/gone.lance")
    with pytest.raises(NotFound, match=r"the data file gone\.lance of this commit does not exist"):
        table.write(Append(fragments), base=table.at())
    assert version_numbers(table) == [1]


def test_a_truncated_data_file_is_rejected() -> None:
    table, store = faulty_table()
    whole = put_fragment(store, "cut", rows=10)
    store.put("data/cut.lance", bytes(9))
    with pytest.raises(StorageError, match=r"cut\.lance of this commit has 9 bytes, not the 10"):
        table.write(Append((whole,)), base=table.at())
    assert version_numbers(table) == [1]


def test_all_of_many_data_files_are_checked() -> None:
    table, store = faulty_table()
    fragments = table.fragments(*(f"f{number}" for number in range(30)))
    store.delete("data/f17.lance")
    with pytest.raises(NotFound, match=r"f17\.lance"):
        table.write(Append(fragments), base=table.at())


def test_assigned_fragment_ids_are_rejected() -> None:
    """The appended fragment has the id of an existing one."""
    table, _ = faulty_table()
    table.append("second")
    taken = Fragment.of(files=table.fragments("third")[0].files, physical_rows=1)
    taken.message.id = 1
    with pytest.raises(InvalidInput, match="a fragment with id 1, but ids up to 1 are already assigned"):
        table.write(Append((taken,)), base=table.at())


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x9a\x07\x00", "DataOverlay"),
        (b"\xa2\x07\x00", "AppendFragmentReuseTransitions"),
        (b"\xc2\x3e\x00", "unknown"),
        (b"\x8a\x07\x00", "Clone"),
    ],
)
def test_an_operation_without_support_is_not_committed(data: bytes, name: str) -> None:
    table, _ = faulty_table()
    operation = Transaction.decode(data, path="").operation
    with pytest.raises(Unsupported, match=f"{name} can be read, but not committed"):
        table.write(operation, base=table.at())


def test_the_deadline_ends_the_attempts() -> None:
    """An hour passes between two reads of the clock."""
    assert ATTEMPTS == 100
    table, store = faulty_table()
    other = InMemoryTable(store.inner)
    theirs = iter(range(2, 50))

    def commit_first() -> None:
        number = next(theirs)
        other.append(f"theirs{number}", writer=number)
        store.faults.append(Fault(PUT_OF_ANY_VERSION, "", commit_first))

    store.faults.append(Fault(PUT_OF_ANY_VERSION, "", commit_first))
    hours = iter(range(0, 3600 * 10**12, 3600 * 10**9))
    started = begin(
        table.location(),
        table.at(),
        verb="append",
        intent=None,
        runtime=replace(deterministic_runtime(1), elapsed_ns=lambda: next(hours)),
    )
    assert isinstance(started, StartedWrite)
    with pytest.raises(RetryableConflict, match="lost the race for the next version") as caught:
        finish(started, Append(table.fragments("mine")), properties={}, attempts=ATTEMPTS)
    assert caught.value.rule == "exhausted"
    assert len(version_numbers(table)) < 20
    check_history(table)


def test_a_listing_older_than_the_base_is_not_used_twice() -> None:
    """The listing lacks the opened version while an earlier put of ours arrives: a second read of the newest version
    alone would skip our own version.
    """
    table, store = faulty_table()
    table.append("second", writer=2)
    base = table.at()
    store.calls.clear()
    store.faults.append(Fault(PUT_OF_ANY_VERSION, "late"))
    store.faults.append(Fault(after_first_put(store, on_call("list")), "stale", lambda: None))
    store.faults.append(Fault(after_first_put(store, on_call("list")), "", store.deliver_late_puts))
    table.write(Append(table.fragments("mine")), base=base, writer=3)
    store.deliver_late_puts()
    assert table.file_names() == ["first", "second", "mine"]
    check_history(table)


class RemoteStore(MemoryStore, SupportsConcurrency):
    """Store that serves concurrent requests. `before` runs before a put of a transaction or a listing of versions."""

    before: Callable[[str], object] = staticmethod(lambda call: None)

    @property
    def requests_max(self) -> int:
        return 2

    def put(self, path: str, data: bytes) -> None:
        if path.startswith(naming.TRANSACTIONS):
            self.before("put")
        super().put(path, data)

    def list(self, directory: str, start_after: str = "") -> Sequence[ObjectInfo]:
        if directory == naming.VERSIONS:
            self.before("list")
        return super().list(directory, start_after)


def test_a_remote_transaction_is_written_while_the_history_is_read() -> None:
    """The two requests meet. A transaction that is rebased unchanged keeps its file."""
    store = RemoteStore()
    table = InMemoryTable(store)
    table.create("a")
    base = table.at()
    begun = {"put": threading.Event(), "list": threading.Event()}

    def wait_for_other(call: str) -> None:
        begun[call].set()
        assert begun["list" if call == "put" else "put"].wait(30)

    added = Append(table.fragments("b"))
    started = begin(table.location(), base, verb="Append", intent=None, runtime=deterministic_runtime(1))
    assert isinstance(started, StartedWrite)
    store.before = wait_for_other
    first = finish(started, added, properties={}, attempts=1)
    store.before = lambda call: None
    second = table.append("c", base=1, writer=2)
    assert table.file_names() == ["a", "b", "c"]
    for result in (first, second):
        name = result.snapshot.manifest.transaction_file
        assert store.read(f"{naming.TRANSACTIONS}/{name}")
    assert len(store.list(naming.TRANSACTIONS)) == 3


def test_a_failed_write_ahead_of_a_transaction_is_repeated() -> None:
    store = RemoteStore()
    table = InMemoryTable(store)
    table.create("a")
    calls: list[str] = []

    def fail_first_put(call: str) -> None:
        calls.append(call)
        if calls.count("put") == 1 and call == "put":
            raise StorageError("the network is down")

    store.before = fail_first_put
    result = table.append("b")
    assert calls.count("put") == 2
    assert store.read(f"{naming.TRANSACTIONS}/{result.snapshot.manifest.transaction_file}")
