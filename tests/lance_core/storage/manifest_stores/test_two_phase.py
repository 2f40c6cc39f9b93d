"""A table whose versions are reserved first, stopped between every two calls, and gone on with by somebody else: all in
memory. `stepping.py` says how a call goes wrong.
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
from tests.lance_core.storage.contract import StoreContract
from tests.lance_core.storage.manifest_stores.memory import MemoryManifestStore
from tests.lance_core.storage.manifest_stores.stepping import SteppedManifests, SteppedStore, Steps
from tests.lance_core.world import World

KEY = "lake/orders"
_names = itertools.count()


@dataclass
class Place:
    """What outlives every process: the store and the database."""

    stored: MemoryStore
    manifests: ManifestStore

    def world(self, steps: Steps | None = None) -> World:
        """As a new process sees it."""
        if steps is None:
            return World(TwoPhaseStore(self.stored, self.manifests, KEY))
        stepped = SteppedStore(self.stored, steps)
        return World(TwoPhaseStore(stepped, SteppedManifests(self.manifests, steps), KEY))

    def names_in_versions(self) -> list[str]:
        return [info.path.rpartition("/")[2] for info in self.stored.list(naming.VERSIONS)]


def new_place() -> Place:
    return Place(MemoryStore(), MemoryManifestStore())


class TestContract(StoreContract):
    @pytest.fixture
    def store(self) -> TwoPhaseStore:
        place = new_place()
        return TwoPhaseStore(place.stored, place.manifests, KEY)


def test_five_steps_and_nothing_is_left_over() -> None:
    place = new_place()
    place.world().create("a")
    steps = Steps()
    place.world(steps).append("b")
    manifest = naming.manifest_path(Version(2))
    written = [call for call in steps.calls if "_versions/" in call or call.startswith(("reserve", "move"))]
    staged = next(call.removeprefix("put ") for call in written if call.startswith("put "))
    assert staged.startswith(f"{manifest}-")
    assert written[written.index(f"put {staged}") :] == [
        f"put {staged}",
        "reserve 2",
        f"create {manifest}",
        "move 2",
        f"delete {staged}",
    ]
    assert place.names_in_versions() == [
        naming.manifest_path(Version(2)).rpartition("/")[2],
        naming.manifest_path(Version(1)).rpartition("/")[2],
    ]
    assert place.manifests.newest_entry(KEY) == Entry(Version(2), manifest, len(place.stored.read(manifest)))


def read(place: Place) -> None:
    assert table_exists(place.world().location()) in (True, False)


def read_by_number(place: Place) -> None:
    for version in list_versions(place.world().location()).numbers:
        place.world().names(version)


def write(place: Place) -> None:
    try:
        place.world().append("c", writer=3)
    except LanceError:
        # The creation that was killed left no table.
        place.world().create("c", writer=3)


def nobody(place: Place) -> None:
    """Nobody looks before the same is tried again."""


RECOVERIES = [nobody, read, read_by_number, write]


def create(world: World) -> None:
    world.create("b", writer=1, intent="b")


def append(world: World) -> None:
    world.append("b", writer=1, intent="b")


def check(place: Place, *, expected: int) -> None:
    """Every version is there, finished, and `b` is in the table as often as expected."""
    world = place.world()
    numbers = list(list_versions(world.location()).numbers)
    assert numbers == list(range(1, len(numbers) + 1))
    names = [world.names(number) for number in numbers]
    landed = [
        number for number, here in enumerate(names) if "b" in here and (number == 0 or "b" not in names[number - 1])
    ]
    assert (names[-1].count("b"), len(landed)) == (expected, expected)
    for number in numbers:
        entry = place.manifests.find_entry(KEY, Version(number))
        assert entry is not None
        # Nobody needs to tidy behind somebody else; whoever looks finds what the entry means.
        assert place.stored.read(entry.final_path) == world.store.read(naming.manifest_path(Version(number)))
    newest = place.manifests.newest_entry(KEY)
    assert newest is not None
    assert newest.version == numbers[-1]


def calls_of(place: Place, change: Callable[[World], object]) -> list[str]:
    steps = Steps()
    change(place.world(steps))
    return steps.calls


@pytest.mark.parametrize("change", [create, append])
@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("how", ["before", "after", "raises", "fails", "lost", "late"])
def test_wherever_it_stops_the_next_one_goes_on(
    change: Callable[[World], None], recover: Callable[[Place], None], how: str
) -> None:
    def begun() -> Place:
        place = new_place()
        if change is append:
            place.world().create("a")
        return place

    calls = calls_of(begun(), change)
    assert len(calls) > 10
    for at in range(len(calls)):
        place, steps = begun(), Steps(at, how)
        outcome = tried(change, place.world(steps))
        if outcome == "acknowledged":
            check(place, expected=1)
        recover(place)
        steps.land()
        if outcome == "refused":
            assert not _has(place, "b"), f"what was said to have failed at {calls[at]} is there"
        if change is create and recover is write and outcome != "acknowledged" and not _has(place, "b"):
            continue  # somebody else has made the table meanwhile: the creation is refused, and rightly
        change(place.world())
        steps.land()
        check(place, expected=1)


def tried(change: Callable[[World], None], world: World) -> str:
    try:
        change(world)
    except (ProcessKilled, CommitUndecided):
        return "not known"
    except LanceError:
        return "refused"
    return "acknowledged"


def _has(place: Place, name: str) -> bool:
    return table_exists(place.world().location()) and name in place.world().names()


@pytest.mark.parametrize(
    ("call", "how", "answer"),
    [
        ("reserve", "lost", Put.CREATED),  # the entry tells that it is ours
        ("reserve", "fails", Put.UNKNOWN),
        ("reserve", "late", Put.UNKNOWN),
        ("create", "raises", Put.UNKNOWN),  # the next one may finish it
        ("create", "lost", Put.CREATED),
        ("create", "fails", Put.CREATED),
        ("create", "late", Put.CREATED),
        ("move", "fails", Put.CREATED),
        ("move", "lost", Put.CREATED),
        ("delete", "fails", Put.CREATED),
    ],
)
def test_only_what_is_not_known_is_answered_so(call: str, how: str, answer: Put) -> None:
    counted = Steps()
    path, data = naming.manifest_path(Version(1)), b"manifest"
    assert new_place().world(counted).store.create(path, data) is Put.CREATED
    at = next(at for at, each in enumerate(counted.calls) if each.startswith(call))
    place, steps = new_place(), Steps(at, how)
    assert place.world(steps).store.create(path, data) is answer
    steps.land()
    if (call, how) == ("reserve", "fails"):
        assert place.manifests.newest_entry(KEY) is None
        assert place.world().store.create(path, data) is Put.CREATED
    assert place.world().store.read(path) == data


def test_a_reserved_version_is_finished_by_whoever_looks() -> None:
    def reserved() -> Place:
        place = new_place()
        place.world().create("a")
        calls = calls_of_append(place)
        with pytest.raises(ProcessKilled):
            place.world(Steps(calls.index("reserve 3"), "after")).append("c", writer=2)
        return place

    def calls_of_append(place: Place) -> list[str]:
        steps = Steps()
        place.world(steps).append("b")
        return [call.replace(" 2", " 3") for call in steps.calls]

    looks: list[Callable[[Place], object]] = [
        lambda place: place.world().at(),
        lambda place: place.world().at(3),
        lambda place: list_versions(place.world().location()).numbers == (1, 2, 3) or pytest.fail("not listed"),
        lambda place: place.world().store.head(naming.manifest_path(Version(3))),
        lambda place: place.world().append("d", writer=3),
    ]
    for look in looks:
        place = reserved()
        assert World(place.stored).names() == ["a", "b"], "who does not know the manifest store is one version behind"
        look(place)
        assert place.world().names(3) == World(place.stored).names(3) == ["a", "b", "c"]
        entry = place.manifests.find_entry(KEY, Version(3))
        assert entry is not None
        assert entry.is_final
        assert not [name for name in place.names_in_versions() if not name.endswith(".manifest")]


def test_who_loses_the_reservation_goes_on_upon_the_winner() -> None:
    place = new_place()
    place.world().create("a")
    before_it_reserves = calls_of(place, lambda world: world.append("b")).index("reserve 2")
    steps = Steps()

    def another_is_first() -> None:
        if len(steps.calls) == before_it_reserves:
            place.world().append("c", writer=2)

    steps.taking_turns = another_is_first
    written = place.world(steps).append("d", writer=3)
    assert (written.snapshot.version, written.attempts) == (4, 2)
    assert place.world().names() == ["a", "b", "c", "d"]


def test_a_finished_version_keeps_its_entry() -> None:
    place = new_place()
    place.world().create("a")
    steps = Steps()
    path = naming.manifest_path(Version(1))
    assert place.world(steps).store.create(path, b"another") is Put.EXISTS
    assert [call.partition(" ")[0] for call in steps.calls] == ["put", "reserve", "find", "head", "delete"]
    assert place.names_in_versions() == [path.rpartition("/")[2]]


def test_a_writer_without_the_manifest_store_is_not_overwritten() -> None:
    """It commits the version that is reserved meanwhile; then that is the version, and the reserved one comes after."""
    place = new_place()
    place.world().create("a")
    calls = calls_of(place, lambda world: world.append("b"))
    with pytest.raises(ProcessKilled):
        place.world(Steps(calls.index("reserve 2"), "after")).append("c", writer=2, intent="c")
    World(place.stored).append("d", writer=3)
    assert World(place.stored).names() == place.world().names() == ["a", "b", "d"]
    place.world().append("c", writer=4, intent="c")
    assert World(place.stored).names() == place.world().names() == ["a", "b", "d", "c"]
    assert [place.world().names(version) for version in (2, 3)] == [["a", "b"], ["a", "b", "d"]]


def test_versions_of_writers_without_the_manifest_store_are_seen() -> None:
    place = new_place()
    World(place.stored).create("a")
    assert place.world().names() == ["a"]
    place.world().append("b")
    World(place.stored).append("c", writer=2)
    World(place.stored).append("d", writer=3)
    assert place.world().names() == ["a", "b", "c", "d"]
    assert place.world().append("e", writer=4).snapshot.version == 5


def test_an_entry_that_stayed_behind_is_not_the_newest() -> None:
    """Others committed past the manifest store, and cleaned up between the last entry and their own."""
    place = new_place()
    place.world().create("a")
    for number in range(2, 6):
        World(place.stored).append(str(number), writer=number)
    for version in (2, 3):
        place.stored.delete(naming.manifest_path(Version(version)))
    assert place.world().at().version == 5
    assert place.world().append("z", writer=9).snapshot.version == 6


def test_a_table_deleted_by_hand_is_made_anew() -> None:
    place = new_place()
    place.world().create("a")
    place.world().append("b")
    again = Place(MemoryStore(), place.manifests)
    assert not table_exists(again.world().location())
    again.world().create("c", writer=2)
    again.world().append("d", writer=3)
    assert again.world().names() == ["c", "d"]
    assert [again.world().at(version).version for version in (1, 2)] == [1, 2]


def test_a_newest_version_without_a_file_is_refused_instead_of_an_older_one() -> None:
    """The table format: a reader that cannot publish what is staged refuses to load. fsck offers the removal."""
    place = new_place()
    place.world().create("a")
    calls = calls_of(place, lambda world: world.append("b"))
    with pytest.raises(ProcessKilled):
        place.world(Steps(calls.index("reserve 2"), "after")).append("c", writer=2)
    entry = place.manifests.newest_entry(KEY)
    assert entry is not None
    staged = place.stored.read(entry.path)
    place.stored.delete(entry.path)
    uses: list[Callable[[], object]] = [
        lambda: place.world().at(),
        lambda: list_versions(place.world().location()),
        lambda: place.world().append("d", writer=3),
    ]
    for use in uses:
        with pytest.raises(Corrupt, match=r"reserves version 3, the newest one.*--repair entries"):
            use()
    assert place.world().at(2).version == 2, "an older version is opened by its number"
    place.stored.put(entry.path, staged)
    assert place.world().names() == ["a", "b", "c"]


def test_a_staged_version_that_nobody_acknowledged_is_given_up_by_removing_its_entry() -> None:
    place = new_place()
    place.world().create("a")
    calls = calls_of(place, lambda world: world.append("b"))
    with pytest.raises(ProcessKilled):
        place.world(Steps(calls.index("reserve 2"), "after")).append("c", writer=2)
    entry = place.manifests.newest_entry(KEY)
    assert entry is not None
    place.stored.delete(entry.path)
    place.manifests.remove_entry(KEY, entry)
    assert place.world().names() == ["a", "b"]
    place.world().append("d", writer=3)
    assert place.world().names() == ["a", "b", "d"]


@pytest.mark.parametrize("how", ["raises", "fails"])
def test_a_staged_version_that_cannot_be_copied_is_refused(how: str) -> None:
    """Whatever the copy answers, no older version is loaded in its place."""
    place = new_place()
    place.world().create("a")
    calls = calls_of(place, lambda world: world.append("b"))
    with pytest.raises(ProcessKilled):
        place.world(Steps(calls.index("reserve 2"), "after")).append("c", writer=2)

    class Unwritable(MemoryStore):
        def create(self, path: str, data: bytes) -> Put:
            if how == "raises":
                raise StorageError("access denied")
            return Put.UNKNOWN

    unwritable = Unwritable()
    for info in place.stored.walk(naming.VERSIONS):
        unwritable.put(info.path, place.stored.read(info.path))
    with pytest.raises(StorageError, match=r"access denied|got no answer 5 times"):
        World(TwoPhaseStore(unwritable, place.manifests, KEY)).at()


def test_an_entry_is_moved_though_what_was_staged_is_gone() -> None:
    """Another helper has finished the version and died before it could say so."""
    place = new_place()
    place.world().create("a")
    before_it_tidies = calls_of(place, lambda world: world.append("b")).index("move 2")
    with pytest.raises(ProcessKilled):
        place.world(Steps(before_it_tidies, "before")).append("c", writer=2)
    entry = place.manifests.newest_entry(KEY)
    assert entry is not None
    place.stored.delete(entry.path)
    assert place.world().at().version == 3
    assert place.manifests.newest_entry(KEY) == Entry(Version(3), entry.final_path, entry.size)


def test_a_removed_version_leaves_no_entry() -> None:
    place = new_place()
    place.world().create("a")
    before_it_tidies = calls_of(place, lambda world: world.append("b")).index("move 2")
    with pytest.raises(ProcessKilled):
        place.world(Steps(before_it_tidies, "before")).append("c", writer=2)
    assert len(place.names_in_versions()) == 4, "three versions, and what was staged of the last"
    for version in (1, 3):
        place.world().store.delete(naming.manifest_path(Version(version)))
        assert place.manifests.find_entry(KEY, Version(version)) is None
    assert place.names_in_versions() == [naming.manifest_path(Version(2)).rpartition("/")[2]]
    assert list_versions(place.world().location()).numbers == (2,)


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
def test_an_entry_is_not_believed_about_other_files(path: str) -> None:
    place = new_place()
    place.world().create("a")
    place.world().append("b")
    place.manifests.reserve(KEY, Entry(Version(3), path, 1))
    with pytest.raises(Corrupt, match="version 3"):
        place.world().at()


def test_what_was_staged_is_not_finished_where_it_is_cut_short() -> None:
    place = new_place()
    place.world().create("a")
    staged = f"{naming.manifest_path(Version(2))}-0b5a3c9e-0000-4000-8000-000000000000"
    place.stored.put(staged, b"short")
    place.manifests.reserve(KEY, Entry(Version(2), staged, 6))
    with pytest.raises(Corrupt, match=r"5 bytes.* 6"):
        place.world().at()
    assert place.stored.head(naming.manifest_path(Version(2))) is None


def test_versions_beside_the_line_are_not_reserved() -> None:
    place = new_place()
    place.world().create("a")
    detached = naming.manifest_path(naming.detached_version(7))
    assert place.world().store.create(detached, b"x") is Put.CREATED
    assert place.world().store.create(detached, b"y") is Put.EXISTS
    assert place.manifests.newest_entry(KEY) == place.manifests.find_entry(KEY, Version(1))


class Careless(MemoryStore):
    """A store that says of itself that it puts under no condition. It puts what it was asked to, and tells."""

    def create(self, path: str, data: bytes) -> Put:
        raise Unsupported(f"{self.description} puts everything, also where something is")


def careless_place() -> Place:
    return Place(Careless(f"careless-{next(_names)}"), MemoryManifestStore())


@pytest.fixture
def careless() -> Place:
    return careless_place()


class TestContractWithoutConditions(StoreContract):
    @pytest.fixture
    def store(self, careless: Place) -> TwoPhaseStore:
        return TwoPhaseStore(careless.stored, careless.manifests, KEY)


def test_where_the_store_has_no_conditions_everything_is_reserved(careless: Place) -> None:
    careless.world().create("a", intent="a")
    careless.world().append("b", intent="b")
    assert careless.world().append("b", intent="b").already_committed
    assert careless.world().names() == ["a", "b"]
    record = idempotency.path_of("b")
    entry = careless.manifests.find_entry(f"{KEY}/{record}", Version(0))
    assert entry is not None
    assert entry.path == record
    careless.world().store.delete(record)
    assert careless.world().store.create(record, b"anew") is Put.CREATED


@pytest.mark.parametrize("how", ["before", "after", "fails", "lost"])
def test_where_the_store_has_no_conditions_the_next_one_goes_on(how: str) -> None:
    def begun() -> Place:
        place = careless_place()
        place.world().create("a")
        return place

    for at in range(len(calls_of(begun(), append))):
        place = begun()
        with suppress(ProcessKilled, LanceError):
            append(place.world(Steps(at, how)))
        append(place.world())
        check(place, expected=1)


def play(place: Place, seed: int) -> None:
    """Two writers and a reader take turns at every call, and one of the writers may be killed at any."""
    scheduler = CooperativeScheduler(seed)
    draw = random.Random(seed)
    acknowledged: list[str] = []
    seen: list[int] = []

    def writer(number: int) -> Callable[[], None]:
        def act() -> None:
            for turn in range(2):
                name = f"w{number}t{turn}"
                at = draw.randrange(60) if draw.random() < 0.5 else None
                for attempt in range(3):
                    steps = Steps(at if attempt == 0 else None, draw.choice(["before", "after", "lost", "fails"]))
                    steps.taking_turns = scheduler.yield_control
                    try:
                        place.world(steps).append(name, writer=number * 100 + turn * 10 + attempt, intent=name)
                    except (ProcessKilled, CommitUndecided, RetryableConflict, LanceError):
                        continue
                    acknowledged.append(name)
                    break

        return act

    def reader() -> None:
        steps = Steps(taking_turns=scheduler.yield_control)
        for _ in range(4):
            seen.append(place.world(steps).at().version)

    scheduler.run_actors({"one": writer(1), "two": writer(2), "reader": reader})
    names = place.world().names()
    assert sorted(names) == sorted({"a", *acknowledged}), f"seed {seed}: {names}, acknowledged {acknowledged}"
    assert seen == sorted(seen)
    assert list(list_versions(place.world().location()).numbers) == list(range(1, len(names) + 1))
    assert World(place.stored).names() == names


@pytest.mark.parametrize("make", [new_place, careless_place])
@pytest.mark.parametrize("start", range(0, 200, 50))
def test_two_writers_and_a_reader_in_any_order(make: Callable[[], Place], start: int) -> None:
    for seed in range(start, start + 50):
        place = make()
        place.world().create("a")
        play(place, seed)
