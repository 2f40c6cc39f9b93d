"""Two-phase commit of manifests: the writer is stopped between any two calls and another process continues, all in
memory. `fault_injection.py` describes the faults.
"""

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from lance_core.coordination import idempotency
from lance_core.errors import CommitUndecided, Corrupt, LanceError, RetryableConflict, StorageError, Unsupported
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.storage.manifest_stores.two_phase import TwoPhaseStore
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import Put
from lance_core.versions.snapshot import list_versions, table_exists
from tests.histories.cooperative_scheduler import CooperativeScheduler, ProcessKilled
from tests.lance_core.in_memory_table import InMemoryTable
from tests.lance_core.storage.manifest_stores.fault_injection import (
    FaultInjectingManifestStore,
    FaultInjectingStore,
    FaultPlan,
)
from tests.lance_core.storage.manifest_stores.in_memory import InMemoryManifestStore
from tests.lance_core.storage.store_contract import StoreContract

KEY = "lake/orders"
_names = itertools.count()


@dataclass
class SharedStorage:
    """The store and the database, which outlive every process."""

    store: MemoryStore
    manifests: ManifestStore

    def open_table(self, plan: FaultPlan | None = None) -> InMemoryTable:
        """Open the table as a new process does."""
        if plan is None:
            return InMemoryTable(TwoPhaseStore(self.store, self.manifests, KEY))
        stepped = FaultInjectingStore(self.store, plan)
        return InMemoryTable(TwoPhaseStore(stepped, FaultInjectingManifestStore(self.manifests, plan), KEY))

    def manifest_names(self) -> list[str]:
        return [info.path.rpartition("/")[2] for info in self.store.list(naming.VERSIONS)]


def new_storage() -> SharedStorage:
    return SharedStorage(MemoryStore(), InMemoryManifestStore())


class TestContract(StoreContract):
    @pytest.fixture
    def store(self) -> TwoPhaseStore:
        storage = new_storage()
        return TwoPhaseStore(storage.store, storage.manifests, KEY)


def test_a_commit_takes_five_steps_and_leaves_nothing_behind() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    plan = FaultPlan()
    storage.open_table(plan).append("b")
    manifest = naming.manifest_path(Version(2))
    calls_of_commit = [call for call in plan.calls if "_versions/" in call or call.startswith(("reserve", "move"))]
    staged = next(call.removeprefix("put ") for call in calls_of_commit if call.startswith("put "))
    assert staged.startswith(f"{manifest}-")
    assert calls_of_commit[calls_of_commit.index(f"put {staged}") :] == [
        f"put {staged}",
        "reserve 2",
        f"create {manifest}",
        "move 2",
        f"delete {staged}",
    ]
    assert storage.manifest_names() == [
        naming.manifest_path(Version(2)).rpartition("/")[2],
        naming.manifest_path(Version(1)).rpartition("/")[2],
    ]
    assert storage.manifests.newest_entry(KEY) == Entry(Version(2), manifest, len(storage.store.read(manifest)))


def read(storage: SharedStorage) -> None:
    assert table_exists(storage.open_table().location()) in (True, False)


def read_by_number(storage: SharedStorage) -> None:
    for version in list_versions(storage.open_table().location()).numbers:
        storage.open_table().file_names(version)


def write(storage: SharedStorage) -> None:
    try:
        storage.open_table().append("c", writer=3)
    except LanceError:
        # The killed creation left no table.
        storage.open_table().create("c", writer=3)


def do_nothing(storage: SharedStorage) -> None:
    """Recover nothing: no other process accesses the table before the retry."""


RECOVERIES = [do_nothing, read, read_by_number, write]


def create(table: InMemoryTable) -> None:
    table.create("b", writer=1, intent="b")


def append(table: InMemoryTable) -> None:
    table.append("b", writer=1, intent="b")


def check(storage: SharedStorage, *, expected: int) -> None:
    """Check that every version exists and is complete, and that `b` was added to the table `expected` times."""
    table = storage.open_table()
    numbers = list(list_versions(table.location()).numbers)
    assert numbers == list(range(1, len(numbers) + 1))
    names = [table.file_names(number) for number in numbers]
    commits = [
        number
        for number, file_names in enumerate(names)
        if "b" in file_names and (number == 0 or "b" not in names[number - 1])
    ]
    assert (names[-1].count("b"), len(commits)) == (expected, expected)
    for number in numbers:
        entry = storage.manifests.find_entry(KEY, Version(number))
        assert entry is not None
        # Moving the entry of another writer is optional; every reader resolves the entry.
        assert storage.store.read(entry.final_path) == table.store.read(naming.manifest_path(Version(number)))
    newest = storage.manifests.newest_entry(KEY)
    assert newest is not None
    assert newest.version == numbers[-1]


def calls_of(storage: SharedStorage, change: Callable[[InMemoryTable], object]) -> list[str]:
    plan = FaultPlan()
    change(storage.open_table(plan))
    return plan.calls


@pytest.mark.parametrize("change", [create, append])
@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("outcome", ["before", "after", "raises", "fails", "lost", "late"])
def test_a_retry_completes_a_write_stopped_at_any_call(
    change: Callable[[InMemoryTable], None], recover: Callable[[SharedStorage], None], outcome: str
) -> None:
    def start() -> SharedStorage:
        storage = new_storage()
        if change is append:
            storage.open_table().create("a")
        return storage

    calls = calls_of(start(), change)
    assert len(calls) > 10
    for at in range(len(calls)):
        storage, plan = start(), FaultPlan(at, outcome)
        reported = try_change(change, storage.open_table(plan))
        if reported == "acknowledged":
            check(storage, expected=1)
        recover(storage)
        plan.run_late_calls()
        if reported == "refused":
            assert not _has_file(storage, "b"), f"a write that reported a failure of {calls[at]} is committed"
        if change is create and recover is write and reported != "acknowledged" and not _has_file(storage, "b"):
            continue  # another writer has created the table meanwhile, so the creation is rejected correctly
        change(storage.open_table())
        plan.run_late_calls()
        check(storage, expected=1)


def try_change(change: Callable[[InMemoryTable], None], table: InMemoryTable) -> str:
    try:
        change(table)
    except (ProcessKilled, CommitUndecided):
        return "not known"
    except LanceError:
        return "refused"
    return "acknowledged"


def _has_file(storage: SharedStorage, name: str) -> bool:
    return table_exists(storage.open_table().location()) and name in storage.open_table().file_names()


@pytest.mark.parametrize(
    ("call", "outcome", "answer"),
    [
        ("reserve", "lost", Put.CREATED),  # the entry shows that the version is ours
        ("reserve", "fails", Put.UNKNOWN),
        ("reserve", "late", Put.UNKNOWN),
        ("create", "raises", Put.UNKNOWN),  # the next process may finish it
        ("create", "lost", Put.CREATED),
        ("create", "fails", Put.CREATED),
        ("create", "late", Put.CREATED),
        ("move", "fails", Put.CREATED),
        ("move", "lost", Put.CREATED),
        ("delete", "fails", Put.CREATED),
    ],
)
def test_only_an_undecided_put_is_answered_unknown(call: str, outcome: str, answer: Put) -> None:
    counted = FaultPlan()
    path, data = naming.manifest_path(Version(1)), b"manifest"
    assert new_storage().open_table(counted).store.create(path, data) is Put.CREATED
    at = next(at for at, each in enumerate(counted.calls) if each.startswith(call))
    storage, plan = new_storage(), FaultPlan(at, outcome)
    assert storage.open_table(plan).store.create(path, data) is answer
    plan.run_late_calls()
    if (call, outcome) == ("reserve", "fails"):
        assert storage.manifests.newest_entry(KEY) is None
        assert storage.open_table().store.create(path, data) is Put.CREATED
    assert storage.open_table().store.read(path) == data


def test_any_access_finishes_a_reserved_version() -> None:
    def storage_with_reservation() -> SharedStorage:
        storage = new_storage()
        storage.open_table().create("a")
        calls = calls_of_append(storage)
        with pytest.raises(ProcessKilled):
            storage.open_table(FaultPlan(calls.index("reserve 3"), "after")).append("c", writer=2)
        return storage

    def calls_of_append(storage: SharedStorage) -> list[str]:
        plan = FaultPlan()
        storage.open_table(plan).append("b")
        return [call.replace(" 2", " 3") for call in plan.calls]

    accesses: list[Callable[[SharedStorage], object]] = [
        lambda storage: storage.open_table().at(),
        lambda storage: storage.open_table().at(3),
        lambda storage: (
            list_versions(storage.open_table().location()).numbers == (1, 2, 3) or pytest.fail("not listed")
        ),
        lambda storage: storage.open_table().store.head(naming.manifest_path(Version(3))),
        lambda storage: storage.open_table().append("d", writer=3),
    ]
    for access in accesses:
        storage = storage_with_reservation()
        assert InMemoryTable(storage.store).file_names() == ["a", "b"], (
            "a reader without the manifest store is one version behind"
        )
        access(storage)
        assert storage.open_table().file_names(3) == InMemoryTable(storage.store).file_names(3) == ["a", "b", "c"]
        entry = storage.manifests.find_entry(KEY, Version(3))
        assert entry is not None
        assert entry.is_final
        assert not [name for name in storage.manifest_names() if not name.endswith(".manifest")]


def test_a_writer_that_loses_the_reservation_rebases_on_the_winner() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    reservation_position = calls_of(storage, lambda table: table.append("b")).index("reserve 2")
    plan = FaultPlan()

    def commit_first() -> None:
        if len(plan.calls) == reservation_position:
            storage.open_table().append("c", writer=2)

    plan.before_each_call = commit_first
    result = storage.open_table(plan).append("d", writer=3)
    assert (result.snapshot.version, result.attempts) == (4, 2)
    assert storage.open_table().file_names() == ["a", "b", "c", "d"]


def test_a_finished_version_keeps_its_entry() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    plan = FaultPlan()
    path = naming.manifest_path(Version(1))
    assert storage.open_table(plan).store.create(path, b"another") is Put.EXISTS
    assert [call.partition(" ")[0] for call in plan.calls] == ["put", "reserve", "find", "head", "delete"]
    assert storage.manifest_names() == [path.rpartition("/")[2]]


def test_a_writer_without_the_manifest_store_is_not_overwritten() -> None:
    """The other writer commits the reserved version first; the reserved change becomes the next version."""
    storage = new_storage()
    storage.open_table().create("a")
    calls = calls_of(storage, lambda table: table.append("b"))
    with pytest.raises(ProcessKilled):
        storage.open_table(FaultPlan(calls.index("reserve 2"), "after")).append("c", writer=2, intent="c")
    InMemoryTable(storage.store).append("d", writer=3)
    assert InMemoryTable(storage.store).file_names() == storage.open_table().file_names() == ["a", "b", "d"]
    storage.open_table().append("c", writer=4, intent="c")
    assert InMemoryTable(storage.store).file_names() == storage.open_table().file_names() == ["a", "b", "d", "c"]
    assert [storage.open_table().file_names(version) for version in (2, 3)] == [["a", "b"], ["a", "b", "d"]]


def test_versions_of_writers_without_the_manifest_store_are_read() -> None:
    storage = new_storage()
    InMemoryTable(storage.store).create("a")
    assert storage.open_table().file_names() == ["a"]
    storage.open_table().append("b")
    InMemoryTable(storage.store).append("c", writer=2)
    InMemoryTable(storage.store).append("d", writer=3)
    assert storage.open_table().file_names() == ["a", "b", "c", "d"]
    assert storage.open_table().append("e", writer=4).snapshot.version == 5


def test_an_outdated_entry_is_not_the_newest_version() -> None:
    """Other writers committed without the manifest store, and a cleanup removed versions between the last entry and
    theirs.
    """
    storage = new_storage()
    storage.open_table().create("a")
    for number in range(2, 6):
        InMemoryTable(storage.store).append(str(number), writer=number)
    for version in (2, 3):
        storage.store.delete(naming.manifest_path(Version(version)))
    assert storage.open_table().at().version == 5
    assert storage.open_table().append("z", writer=9).snapshot.version == 6


def test_a_table_deleted_by_hand_can_be_recreated() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    storage.open_table().append("b")
    again = SharedStorage(MemoryStore(), storage.manifests)
    assert not table_exists(again.open_table().location())
    again.open_table().create("c", writer=2)
    again.open_table().append("d", writer=3)
    assert again.open_table().file_names() == ["c", "d"]
    assert [again.open_table().at(version).version for version in (1, 2)] == [1, 2]


def test_a_newest_version_without_a_file_is_refused_instead_of_an_older_one() -> None:
    """The table format: a reader that cannot publish what is staged refuses to load. fsck offers the removal."""
    storage = new_storage()
    storage.open_table().create("a")
    calls = calls_of(storage, lambda table: table.append("b"))
    with pytest.raises(ProcessKilled):
        storage.open_table(FaultPlan(calls.index("reserve 2"), "after")).append("c", writer=2)
    entry = storage.manifests.newest_entry(KEY)
    assert entry is not None
    staged = storage.store.read(entry.path)
    storage.store.delete(entry.path)
    uses: list[Callable[[], object]] = [
        lambda: storage.open_table().at(),
        lambda: list_versions(storage.open_table().location()),
        lambda: storage.open_table().append("d", writer=3),
    ]
    for use in uses:
        with pytest.raises(Corrupt, match=r"reserves version 3, the newest one.*--repair entries"):
            use()
    assert storage.open_table().at(2).version == 2, "an older version is opened by its number"
    storage.store.put(entry.path, staged)
    assert storage.open_table().file_names() == ["a", "b", "c"]


def test_a_staged_version_that_no_writer_acknowledged_is_given_up_by_removing_its_entry() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    calls = calls_of(storage, lambda table: table.append("b"))
    with pytest.raises(ProcessKilled):
        storage.open_table(FaultPlan(calls.index("reserve 2"), "after")).append("c", writer=2)
    entry = storage.manifests.newest_entry(KEY)
    assert entry is not None
    storage.store.delete(entry.path)
    storage.manifests.remove_entry(KEY, entry)
    assert storage.open_table().file_names() == ["a", "b"]
    storage.open_table().append("d", writer=3)
    assert storage.open_table().file_names() == ["a", "b", "d"]


@pytest.mark.parametrize("outcome", ["raises", "fails"])
def test_a_staged_version_that_cannot_be_copied_is_refused(outcome: str) -> None:
    """No older version is loaded in its place, whether the copy raises or fails."""
    storage = new_storage()
    storage.open_table().create("a")
    calls = calls_of(storage, lambda table: table.append("b"))
    with pytest.raises(ProcessKilled):
        storage.open_table(FaultPlan(calls.index("reserve 2"), "after")).append("c", writer=2)

    class Unwritable(MemoryStore):
        def create(self, path: str, data: bytes) -> Put:
            if outcome == "raises":
                raise StorageError("access denied")
            return Put.UNKNOWN

    unwritable = Unwritable()
    for info in storage.store.walk(naming.VERSIONS):
        unwritable.put(info.path, storage.store.read(info.path))
    with pytest.raises(StorageError, match=r"access denied|got no answer 5 times"):
        InMemoryTable(TwoPhaseStore(unwritable, storage.manifests, KEY)).at()


def test_an_entry_is_moved_after_its_staged_manifest_was_deleted() -> None:
    """Another process finished the version and died before it moved the entry."""
    storage = new_storage()
    storage.open_table().create("a")
    move_position = calls_of(storage, lambda table: table.append("b")).index("move 2")
    with pytest.raises(ProcessKilled):
        storage.open_table(FaultPlan(move_position, "before")).append("c", writer=2)
    entry = storage.manifests.newest_entry(KEY)
    assert entry is not None
    storage.store.delete(entry.path)
    assert storage.open_table().at().version == 3
    assert storage.manifests.newest_entry(KEY) == Entry(Version(3), entry.final_path, entry.size)


def test_a_removed_version_leaves_no_entry() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    move_position = calls_of(storage, lambda table: table.append("b")).index("move 2")
    with pytest.raises(ProcessKilled):
        storage.open_table(FaultPlan(move_position, "before")).append("c", writer=2)
    assert len(storage.manifest_names()) == 4, "three versions and the staged manifest of the last"
    for version in (1, 3):
        storage.open_table().store.delete(naming.manifest_path(Version(version)))
        assert storage.manifests.find_entry(KEY, Version(version)) is None
    assert storage.manifest_names() == [naming.manifest_path(Version(2)).rpartition("/")[2]]
    assert list_versions(storage.open_table().location()).numbers == (2,)


@pytest.mark.parametrize(
    "path",
    [
        "../orders/_versions/3.manifest",
        "_versions/../../3.manifest",
        "_versions/4.manifest",
        "_versions/4.manifest-0b5a3c9e-0000-4000-8000-000000000000",
        "data/3.manifest",
        "s3://elsewhere/_versions/3.manifest",
        "_versions/d3.manifest",
        "",
    ],
)
def test_an_entry_with_a_foreign_path_is_rejected(path: str) -> None:
    storage = new_storage()
    storage.open_table().create("a")
    storage.open_table().append("b")
    storage.manifests.reserve(KEY, Entry(Version(3), path, 1))
    with pytest.raises(Corrupt, match="version 3"):
        storage.open_table().at()


def test_a_truncated_staged_manifest_is_not_finished() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    staged = f"{naming.manifest_path(Version(2))}-0b5a3c9e-0000-4000-8000-000000000000"
    storage.store.put(staged, b"short")
    storage.manifests.reserve(KEY, Entry(Version(2), staged, 6))
    with pytest.raises(Corrupt, match=r"5 bytes.* 6"):
        storage.open_table().at()
    assert storage.store.head(naming.manifest_path(Version(2))) is None


def test_detached_versions_are_not_reserved() -> None:
    storage = new_storage()
    storage.open_table().create("a")
    detached = naming.manifest_path(naming.detached_version(7))
    assert storage.open_table().store.create(detached, b"x") is Put.CREATED
    assert storage.open_table().store.create(detached, b"y") is Put.EXISTS
    assert storage.manifests.newest_entry(KEY) == storage.manifests.find_entry(KEY, Version(1))


class UnconditionalStore(MemoryStore):
    """A store that documents that it has no conditional puts, and puts without a condition."""

    def create(self, path: str, data: bytes) -> Put:
        raise Unsupported(f"{self.description} puts everything, also where something is")


def unconditional_storage() -> SharedStorage:
    return SharedStorage(UnconditionalStore(f"careless-{next(_names)}"), InMemoryManifestStore())


@pytest.fixture
def unconditional() -> SharedStorage:
    return unconditional_storage()


class TestContractWithoutConditions(StoreContract):
    @pytest.fixture
    def store(self, unconditional: SharedStorage) -> TwoPhaseStore:
        return TwoPhaseStore(unconditional.store, unconditional.manifests, KEY)


def test_without_conditional_puts_every_creation_is_reserved(unconditional: SharedStorage) -> None:
    unconditional.open_table().create("a", intent="a")
    unconditional.open_table().append("b", intent="b")
    assert unconditional.open_table().append("b", intent="b").already_committed
    assert unconditional.open_table().file_names() == ["a", "b"]
    record = idempotency.path_of("b")
    entry = unconditional.manifests.find_entry(f"{KEY}/{record}", Version(0))
    assert entry is not None
    assert entry.path == record
    unconditional.open_table().store.delete(record)
    assert unconditional.open_table().store.create(record, b"again") is Put.CREATED


@pytest.mark.parametrize("outcome", ["before", "after", "fails", "lost"])
def test_without_conditional_puts_a_retry_completes_a_stopped_write(outcome: str) -> None:
    def start() -> SharedStorage:
        storage = unconditional_storage()
        storage.open_table().create("a")
        return storage

    for at in range(len(calls_of(start(), append))):
        storage = start()
        with suppress(ProcessKilled, LanceError):
            append(storage.open_table(FaultPlan(at, outcome)))
        append(storage.open_table())
        check(storage, expected=1)


def run_schedule(storage: SharedStorage, seed: int) -> None:
    """Two writers and a reader alternate at every call, and a writer may be killed at any call."""
    scheduler = CooperativeScheduler(seed)
    choices = random.Random(seed)
    acknowledged: list[str] = []
    versions_read: list[int] = []

    def writer(number: int) -> Callable[[], None]:
        def write() -> None:
            for step in range(2):
                name = f"w{number}t{step}"
                at = choices.randrange(60) if choices.random() < 0.5 else None
                for attempt in range(3):
                    plan = FaultPlan(at if attempt == 0 else None, choices.choice(["before", "after", "lost", "fails"]))
                    plan.before_each_call = scheduler.yield_control
                    try:
                        storage.open_table(plan).append(name, writer=number * 100 + step * 10 + attempt, intent=name)
                    except (ProcessKilled, CommitUndecided, RetryableConflict, LanceError):
                        continue
                    acknowledged.append(name)
                    break

        return write

    def reader() -> None:
        plan = FaultPlan(before_each_call=scheduler.yield_control)
        for _ in range(4):
            versions_read.append(storage.open_table(plan).at().version)

    scheduler.run_actors({"one": writer(1), "two": writer(2), "reader": reader})
    names = storage.open_table().file_names()
    assert sorted(names) == sorted({"a", *acknowledged}), f"seed {seed}: {names}, acknowledged {acknowledged}"
    assert versions_read == sorted(versions_read)
    assert list(list_versions(storage.open_table().location()).numbers) == list(range(1, len(names) + 1))
    assert InMemoryTable(storage.store).file_names() == names


@pytest.mark.parametrize("make", [new_storage, unconditional_storage])
@pytest.mark.parametrize("start", range(0, 200, 50))
def test_two_writers_and_a_reader_in_any_schedule(make: Callable[[], SharedStorage], start: int) -> None:
    for seed in range(start, start + 50):
        storage = make()
        storage.open_table().create("a")
        run_schedule(storage, seed)
