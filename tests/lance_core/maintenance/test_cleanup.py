"""Cleaning up: what goes, what stays and why, and that pylance reads every version that stayed.

Ages are set on the files, since the store's clock is what counts.
"""

import json
import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, NotFound, StorageError, Table, Unsupported
from lance_core.commit.write_protocol import StartedWrite, begin, finish
from lance_core.coordination import leases
from lance_core.coordination.leases import Lease, SweepNotice, acquire, announce_sweep, release
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Append, Progress, UpdateMemWalState
from lance_core.maintenance import cleanup
from lance_core.maintenance.cleanup import CleanupReport, Retention, choose_versions
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.storage.local import LocalStore
from lance_core.versions.location import Location
from lance_core.versions.snapshot import load_at, load_latest
from tests.lance_core.world import Fault, FaultyStore, calling, cleaned

DAY = timedelta(days=1)
NOTHING = timedelta(0)


def rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": range(first, first + count)})


def age(place: str, by: timedelta, *patterns: str) -> None:
    """Files that match become that old; all of them without a pattern."""
    for pattern in patterns or ("**/*",):
        for path in Path(place).glob(pattern):
            then = datetime.now(UTC).timestamp() - by.total_seconds()
            os.utime(path, (then, then))


def files(place: str) -> set[str]:
    return {str(path.relative_to(place)) for path in Path(place).rglob("*") if path.is_file()}


def versions(place: str) -> list[int]:
    return [info.version for info in Table.open(place).versions()]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Versions 1 to 6: rows, more rows, a delete, all replaced, an index, more rows; 20 days old."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0))
    table = table.append(rows(10)).table.delete("id < 3").table.overwrite(rows(100, 20)).table
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    table.refresh().append(rows(200))
    age(uri, 20 * DAY)
    return uri


def check_whole(place: str) -> None:
    """pylance and we read the same in every version that is there, and every file on the store is named."""
    for version in versions(place):
        dataset = lance.dataset(place, version=version)
        assert Table.open(place, version=version).to_table().equals(dataset.to_table())
        dataset.to_table(filter="id = 105")
        dataset.validate()


def test_old_versions_go_and_the_rest_is_whole(place: str) -> None:
    before = files(place)
    size = sum((Path(place) / path).stat().st_size for path in before)
    report = Table.open(place).cleanup(keep=2)
    assert report.versions == (1, 2, 3, 4)
    assert versions(place) == [5, 6]
    assert set(report.files) == before - files(place)
    assert report.bytes == size - sum((Path(place) / path).stat().st_size for path in files(place))
    assert (report.orphans, report.kept) == ((), {})
    kinds = {path.partition("/")[0] for path in report.files}
    assert kinds == {"_versions", "_transactions", "_deletions", "data"}
    check_whole(place)
    assert Table.open(place).cleanup(keep=2).files == ()


def test_a_dry_run_says_the_same_and_changes_nothing(place: str) -> None:
    before = files(place)
    dry = Table.open(place).cleanup(keep=2, dry_run=True)
    assert files(place) == before
    wet = Table.open(place).cleanup(keep=2)
    assert dry.dry_run
    assert (dry.versions, dry.files, dry.bytes) == (wet.versions, wet.files, wet.bytes)


def test_by_default_ten_versions_and_two_weeks_stay(place: str) -> None:
    assert Table.open(place).cleanup().files == ()
    assert Table.open(place).cleanup(keep=1, older_than=21 * DAY).files == ()
    age(place, 5 * DAY, *(f"_versions/*{name}.manifest" for name in ("11", "10", "09")))
    assert Table.open(place).cleanup(keep=1).versions == (1, 2, 3)
    assert versions(place) == [4, 5, 6]
    check_whole(place)


def test_no_version_outlives_one_that_came_after_it(place: str) -> None:
    """One that is younger than a later one landed in a gap, or was copied: its number says where it belongs."""
    age(place, 5 * DAY, "_versions/*13.manifest")
    assert Table.open(place).cleanup(keep=1).versions == (1, 2, 3, 4, 5)


def test_a_version_of_less_than_a_minute_stays(place: str) -> None:
    """A commit that looked before it was made may be about to put its number."""
    age(place, timedelta(seconds=50), *(f"_versions/*{name}.manifest" for name in ("11", "10", "09")))
    report = Table.open(place).cleanup(keep=1, older_than=NOTHING)
    assert report.versions == (1, 2, 3)
    assert [*report.kept] == [4, 5]
    assert all("younger than 0:01:00" in why for (why,) in report.kept.values())


def test_the_newest_stays_and_so_does_what_the_caller_saw(place: str) -> None:
    assert Table.open(place, version=3).cleanup(keep=1, older_than=NOTHING).versions == (1, 2)
    assert Table.open(place).cleanup(keep=1, older_than=NOTHING).versions == (3, 4, 5)
    assert versions(place) == [6]
    check_whole(place)
    assert Table.open(place).append(rows(300)).version == 7


def test_a_tag_keeps_its_version(place: str) -> None:
    lance.dataset(place).tags.create("good", 2)
    report = Table.open(place).cleanup(keep=1)
    assert report.kept == {2: ("tag good",)}
    assert versions(place) == [2, 6]
    assert lance.dataset(place, version="good").count_rows() == 20
    check_whole(place)


def test_a_tag_of_a_branch_does_not_keep_that_number_of_the_main_line(place: str) -> None:
    dataset = lance.dataset(place)
    branch = dataset.create_branch("dev/x", 6)
    branch.insert(rows(300))
    dataset.tags.create("good", ("dev/x", 7))
    report = Table.open(place).cleanup(keep=1, older_than=NOTHING)
    assert report.kept == {}
    assert versions(place) == [6]


def test_a_branch_keeps_what_it_began_with_and_reads(place: str) -> None:
    dataset = lance.dataset(place)
    branch = dataset.create_branch("dev/x", 3)
    branch.insert(rows(300))
    branch.delete("id = 12")
    expected = branch.to_table()
    age(place, 20 * DAY)
    report = Table.open(place).cleanup(keep=1)
    assert report.kept == {3: ("branch dev/x",)}
    assert versions(place) == [3, 6]
    assert lance.dataset(place).checkout_version(("dev/x", None)).to_table().equals(expected)
    check_whole(place)


def test_a_branch_in_the_making_is_one(place: str) -> None:
    """Its directory is there before its reference is."""
    branch = lance.dataset(place).create_branch("dev", 3)
    (Path(place) / "_refs/branches/dev.json").unlink()
    dry = Table.open(place).cleanup(keep=1, dry_run=True)
    assert dry.files == Table.open(place).cleanup(keep=1).files
    assert lance.dataset(place + "/tree/dev").to_table().equals(branch.to_table())


def test_a_branch_is_cleaned_by_itself(place: str) -> None:
    dataset = lance.dataset(place)
    branch = dataset.create_branch("dev", 3)
    branch.insert(rows(300))
    branch.insert(rows(310))
    dataset.tags.create("branched", ("dev", 4))
    grandchild = branch.create_branch("dev/deep", ("dev", 5))
    expected = grandchild.to_table()
    branch.insert(rows(320))
    branch.insert(rows(330))
    age(place, 20 * DAY)
    report = Table.open(place, branch="dev").cleanup(keep=1)
    assert report.kept == {4: ("tag branched",), 5: ("branch dev/deep",)}
    assert report.versions == (3, 6)
    assert versions(place) == [1, 2, 3, 4, 5, 6]
    assert lance.dataset(place).checkout_version(("dev/deep", None)).to_table().equals(expected)
    assert lance.dataset(place).checkout_version(("dev", None)).count_rows() == 57
    check_whole(place)


def test_a_clone_of_ours_keeps_its_version(place: str, tmp_path: Path) -> None:
    """Trap 37: pylance's cleanup would break it, since nothing in the format tells the source of its clones."""
    clone = str(tmp_path / "clone")
    Table.open(place, version=3).clone(clone, shallow=True)
    expected = Table.open(place, version=3).to_table()
    age(place, 20 * DAY)
    report = Table.open(place).cleanup(keep=1)
    assert report.kept == {3: (f"clone {clone}",)}
    assert lance.dataset(clone).to_table().equals(expected)
    before = files(place)
    Table.open(clone, bases=[place]).append(rows(500)).table.append(rows(510))
    age(clone, 20 * DAY)
    Table.open(clone, bases=[place]).cleanup(keep=1)
    assert files(place) == before
    assert lance.dataset(clone).count_rows() == expected.num_rows + 20


# Orphans


def orphan(place: str, name: str, old: timedelta) -> str:
    path = Path(place) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1234")
    then = datetime.now(UTC).timestamp() - old.total_seconds()
    os.utime(path, (then, then))
    return name


def test_orphans_go_after_their_grace_period(place: str) -> None:
    old = {
        orphan(place, name, 8 * DAY)
        for name in (
            "data/000011110000111100001111aa.lance",
            "_deletions/0-1-77.arrow",
            "_transactions/1-left.txn",
            "_indices/0b5a3c9e-0000-4000-8000-000000000000/index.idx",
            "_versions/.tmp-leftover",
            "data/.tmpabcdef",
        )
    }
    orphan(place, "data/young.lance", 6 * DAY)
    for name in ("data/notes.txt", "_refs/tags/x.bak", "elsewhere/x.lance", "_indices/readme", "_lance_assets/x/y"):
        orphan(place, name, 800 * DAY)
    before = files(place)
    report = Table.open(place).cleanup()
    assert set(report.orphans) == old == before - files(place)
    assert report.files == ()
    assert Table.open(place).cleanup(orphan_grace=timedelta(hours=1)).orphans == ("data/young.lance",)


def test_no_argument_makes_the_grace_period_shorter_than_an_hour(place: str) -> None:
    with pytest.raises(InvalidInput, match="must be at least 1:00:00"):
        Table.open(place).cleanup(orphan_grace=timedelta(minutes=59))


@pytest.mark.parametrize(
    ("arguments", "message"), [({"keep": 0}, "keep=0"), ({"older_than": timedelta(days=-1)}, "older_than=-1 day")]
)
def test_what_makes_no_sense_is_refused(place: str, arguments: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.open(place).cleanup(**arguments)


def test_it_stops_and_asks_where_most_files_look_like_orphans(place: str) -> None:
    for number in range(30):
        orphan(place, f"data/{number}.lance", 30 * DAY)
    before = files(place)
    assert Table.open(place).cleanup(dry_run=True).seems_wrong
    with pytest.raises(InvalidInput, match=r"no version references 30 of"):
        Table.open(place).cleanup()
    assert files(place) == before
    assert len(Table.open(place).cleanup(force=True).orphans) == 30


def test_a_blob_beside_a_data_file_goes_with_it(place: str) -> None:
    named = Table.open(place, version=1).fragments[0].files[0].path.removesuffix(".lance")
    stays = Table.open(place).fragments[0].files[0].path.removesuffix(".lance")
    blob = f"{7:032b}.blob"
    orphan(place, f"data/{named}/{blob}", 20 * DAY)
    orphan(place, f"data/{stays}/{blob}", 20 * DAY)
    report = Table.open(place).cleanup(keep=1)
    assert f"data/{named}/{blob}" in report.files
    assert f"data/{stays}/{blob}" in files(place)


def test_an_index_that_no_version_has_goes(place: str) -> None:
    lance.dataset(place).drop_index("id_idx")
    Table.open(place).append(rows(400))
    age(place, 20 * DAY)
    report = Table.open(place).cleanup(keep=1)
    assert {path.partition("/")[0] for path in report.files} >= {"_indices"}
    assert list(Path(place, "_indices").iterdir()) == []
    check_whole(place)


def test_nothing_outside_the_table_is_touched(place: str, tmp_path: Path) -> None:
    """A link is nobody's file, whatever it leads to."""
    outside = orphan(str(tmp_path), "outside/precious.lance", 800 * DAY)
    os.symlink(tmp_path / "outside", Path(place) / "data" / "linked")
    os.symlink(tmp_path / outside, Path(place) / "data" / "link.lance")
    Table.open(place).cleanup(keep=1)
    assert (tmp_path / outside).exists()
    assert os.path.islink(Path(place) / "data" / "link.lance")


# Work under way


def test_files_of_a_live_intent_stay(place: str) -> None:
    name = orphan(place, "data/written.lance", 30 * DAY)
    record = {
        "intent": "load", "verb": "append", "base_version": 6, "transaction_uuid": "u", "begun_ns": 1,
        "heartbeat_ns": 1, "files": ["written.lance"], "landing": None,
    }  # fmt: skip
    path = Path(place) / "_lance_assets/intents/a.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    assert Table.open(place).cleanup().orphans == ()
    age(place, 8 * DAY, "_lance_assets/intents/*.json")
    assert Table.open(place).cleanup().orphans == (name,)
    assert path.exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b'{"intent": "x", "ve', b"[]", b"[" * 100_000, b'{"base_version": -1}', b"\xff\x00", b"," * 3_000_000],
)
def test_a_damaged_record_of_an_intent_is_reported_and_protects_orphans(place: str, damage: bytes) -> None:
    """Versions go, and orphans stay until the record is older than their grace period: they may be its files."""
    Table.open(place).append(rows(0), intent="i")
    (record,) = Path(place, "_lance_assets", "intents").iterdir()
    record.write_bytes(damage)
    old = orphan(place, "data/orphan.lance", timedelta(days=30))
    report = cleaned(Table.open(place))
    assert report.versions
    assert (report.orphans, report.damaged) == ((), (f"_lance_assets/intents/{record.name}",))
    assert old in files(place)
    check_whole(place)
    with pytest.raises((Corrupt, Unsupported)):
        Table.open(place).append(rows(0), intent="i")
    age(place, timedelta(days=8), "_lance_assets/intents/*")
    report = cleaned(Table.open(place))
    assert (report.orphans, report.damaged) == (("data/orphan.lance",), ())
    age(place, timedelta(days=80), "_lance_assets/intents/*")
    assert cleaned(Table.open(place)).intents == ()
    assert record.exists()


def test_records_of_intents_that_landed_long_ago_go(place: str) -> None:
    Table.open(place).append(rows(500), intent="once")
    assert Table.open(place).cleanup().intents == ()
    age(place, 31 * DAY, "_lance_assets/intents/*.json")
    assert len(Table.open(place).cleanup().intents) == 1
    assert not list((Path(place) / "_lance_assets/intents").iterdir())


def test_an_intent_is_answered_after_its_version_went(place: str) -> None:
    Table.open(place).append(rows(500), intent="once")
    Table.open(place).append(rows(600))
    age(place, 20 * DAY)
    Table.open(place).cleanup(keep=1)
    again = Table.open(place).append(rows(500), intent="once")
    assert again.already_committed
    assert Table.open(place).count_rows() == 50


# What stops it


def test_a_manifest_that_cannot_be_read_stops_it(place: str) -> None:
    (Path(place) / f"_versions/{2**64 - 1 - 3:020d}.manifest").write_bytes(b"nonsense")
    age(place, 20 * DAY)
    before = files(place)
    with pytest.raises(Corrupt, match="too short for a manifest"):
        Table.open(place).cleanup(keep=1)
    assert files(place) == before


def test_the_choice() -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    modified = {Version(number): now - (11 - number) * DAY for number in range(1, 11)}

    def chosen(keep: int, days: int, loaded: int = 10, **named: list[str]) -> tuple[list[int], dict]:
        names = {Version(int(number[1:])): who for number, who in named.items()}
        choice = choose_versions(
            modified, names, loaded=Version(loaded), retention=Retention(days * DAY, keep), now=now
        )
        return list(choice.versions), dict(choice.kept)

    assert chosen(1, 0) == ([1, 2, 3, 4, 5, 6, 7, 8, 9], {})
    assert chosen(3, 0) == ([1, 2, 3, 4, 5, 6, 7], {})
    assert chosen(1, 8) == ([1, 2, 3], {})
    assert chosen(9, 8) == ([1], {})
    assert chosen(1, 0, loaded=3) == ([1, 2], {})
    assert chosen(8, 0, v2=["tag a"]) == ([1], {2: ("tag a",)})


# Others at the same time: something happens before a call of the store


def clean(place: str, fault: Fault, *, keep: int) -> CleanupReport:
    local = LocalStore(Path(place))
    location = Location(place, FaultyStore(local, [fault]), LanceCodec(local))
    retention = Retention(timedelta(days=14), keep)
    return cleanup.clean(load_latest(location), retention, dry_run=False, force=True, runtime=SYSTEM_RUNTIME)


@pytest.mark.parametrize("calls", range(1, 30, 2))
def test_one_that_dies_leaves_every_version_whole(place: str, calls: int) -> None:
    left = calls

    def comes(call: str, path: str) -> bool:
        nonlocal left
        left -= call == "delete" and not path.startswith("_lance_assets/clock")
        return not left

    with suppress(StorageError):
        clean(place, Fault(comes, "fails"), keep=2)
    check_whole(place)
    age(place, 20 * DAY)
    Table.open(place).cleanup(keep=2, force=True)
    assert versions(place) == [5, 6]
    assert not Table.open(place).cleanup(keep=2, force=True).orphans
    check_whole(place)


def test_a_version_that_is_tagged_while_it_goes_is_put_back(place: str) -> None:
    def tag() -> None:
        lance.dataset(place).tags.create("late", 3)

    report = clean(place, Fault(calling("delete", "_versions"), "", tag), keep=1)
    assert report.versions == (1, 2, 4, 5)
    assert report.kept == {3: ("tag late",)}
    assert set(report.files).isdisjoint(files(place))
    assert versions(place) == [3, 6]
    assert lance.dataset(place, version="late").count_rows() == 17
    check_whole(place)


def test_a_version_that_is_restored_while_it_goes_keeps_its_files(place: str) -> None:
    expected = lance.dataset(place, version=3).to_table()

    def restore() -> None:
        lance.dataset(place, version=3).restore()

    report = clean(place, Fault(calling("delete", "_versions"), "", restore), keep=1)
    assert versions(place) == [6, 7]
    assert lance.dataset(place).to_table().equals(expected)
    assert set(report.files).isdisjoint(files(place))
    check_whole(place)


def test_an_append_while_it_runs_is_whole(place: str) -> None:
    def append() -> None:
        Table.open(place).append(rows(900))

    clean(place, Fault(calling("walk", "data"), "", append), keep=1)
    assert versions(place) == [6, 7]
    check_whole(place)


def test_ours_cannot_name_what_is_going(place: str) -> None:
    """A tag, a branch and a restore are refused from the moment on that notice was given of it."""
    asked: list[str] = []

    def ask() -> None:
        table = Table.open(place)
        for name, use in {
            "tag": lambda: table.tags.create("late", 3),
            "branch": lambda: table.branches.create("late", 3),
            "restore": lambda: table.restore(3),
        }.items():
            with pytest.raises(StorageError, match="a cleanup may be removing"):
                use()
            asked.append(name)

    assert clean(place, Fault(calling("delete", "_versions"), "", ask), keep=1).versions == (1, 2, 3, 4, 5)
    assert asked == ["tag", "branch", "restore"]
    table = Table.open(place)
    assert (table.tags.list(), table.branches.list(), table.version_numbers()) == ({}, {}, (6,))
    assert not list((Path(place) / "_lance_assets/notices").iterdir())
    assert not list((Path(place) / "_lance_assets/holds").iterdir())
    check_whole(place)


def test_what_was_begun_before_is_spared(place: str) -> None:
    """A restore that was at work when the notice was given: its version stays, and why is told."""
    held = acquire(LocalStore(Path(place)), Lease("restoring it", 3), SYSTEM_RUNTIME)
    report = Table.open(place).cleanup(keep=1)
    assert report.kept == {3: ("restoring it",)}
    age(place, 31 * DAY, held)
    assert Table.open(place).cleanup(keep=1).versions == (3,)


def test_files_that_are_about_to_be_named_stay(place: str) -> None:
    name = orphan(place, "data/000011110000111100001111ab.lance", 30 * DAY)
    held = acquire(LocalStore(Path(place)), Lease("this commit", files=(name,)), SYSTEM_RUNTIME)
    assert Table.open(place).cleanup().orphans == ()
    release(LocalStore(Path(place)), held)
    assert Table.open(place).cleanup().orphans == (name,)


def test_the_notice_of_one_that_died_is_taken_back_by_the_next(place: str) -> None:
    with suppress(StorageError):
        clean(place, Fault(calling("delete", "_versions"), "fails"), keep=1)
    assert len(list((Path(place) / "_lance_assets/notices").iterdir())) == 1
    with pytest.raises(StorageError, match="it announced so in"):
        Table.open(place).tags.create("x", 4)
    Table.open(place).cleanup(keep=1)
    assert not list((Path(place) / "_lance_assets/notices").iterdir())


@pytest.mark.parametrize("hours", [-48, -24, -1, 1, 24, 48])
def test_two_clocks_that_differ_are_refused(place: str, hours: int) -> None:
    before = files(place)
    local = LocalStore(Path(place))
    wrong = replace(SYSTEM_RUNTIME, now_ns=lambda: SYSTEM_RUNTIME.now_ns() + hours * 3600 * 10**9)
    with pytest.raises(StorageError, match=r"by the clock of the store.*nothing was removed"):
        cleanup.clean(
            load_latest(Location(place, local, LanceCodec(local))),
            Retention(NOTHING, 1), dry_run=False, force=True, runtime=wrong,
        )  # fmt: skip
    assert files(place) == before


def test_it_is_the_same_table_however_it_is_spelt(place: str) -> None:
    """Files are known by where they are in the table, so nothing looks like an orphan."""
    age(place, 400 * DAY)
    before = files(place)
    above, _, name = place.rpartition("/")
    os.symlink(place, f"{above}/link")
    for spelling in (place, f"{place}/", f"file://{place}", f"{above}/./x/../{name}", f"{above}/link"):
        report = Table.open(spelling).cleanup(keep=100)
        assert (report.files, report.orphans) == ((), ())
    assert files(place) == before


def test_a_listing_that_misses_the_newest_harms_nothing(place: str) -> None:
    """Of versions of this minute: they are asked for by their names."""
    stay = Table.open(place, version=1).fragments[0].files[0].path
    lance.dataset(place, version=1).restore()
    local = LocalStore(Path(place))
    stale = FaultyStore(local, [Fault(calling("list", "_versions"), "stale") for _ in range(4)])
    base = load_at(Location(place, local, LanceCodec(local)), Version(6))
    location = Location(place, stale, LanceCodec(local))
    cleanup.clean(
        replace(base, location=location), Retention(NOTHING, 1), dry_run=False, force=True, runtime=SYSTEM_RUNTIME
    )
    assert versions(place) == [6, 7]
    assert f"data/{stay}" in files(place)
    check_whole(place)


def test_what_is_too_much_for_one_notice_is_told_in_several(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has to read them can."""
    monkeypatch.setattr(leases, "_FILES_PER_RECORD", 2)
    names = tuple(orphan(place, f"data/00001111000011110000111{number}ab.lance", 30 * DAY) for number in range(5))
    told: list[SweepNotice] = []

    def look() -> None:
        told.extend(notice for _info, notice in leases.sweep_notices(LocalStore(Path(place))))

    report = clean(place, Fault(calling("delete", "_versions"), "", look), keep=1)
    assert report.orphans == names
    assert len(told) == 3
    assert sorted(file for notice in told for file in notice.files) == sorted(names)
    assert sorted(version for notice in told for version in notice.versions) == list(report.versions)
    assert not list((Path(place) / "_lance_assets/notices").iterdir())


def test_a_restore_asks_for_the_files_that_it_names_once_more(place: str) -> None:
    """The version may have come late, when a cleanup had counted one of them among those that nobody names."""
    store, table = LocalStore(Path(place)), Table.open(place)
    again = {file.path for part in table.at(version=3).manifest.fragments for file in part.files}
    key = f"data/{min(again - {file.path for part in table.manifest.fragments for file in part.files})}"
    noticed = announce_sweep(store, SweepNotice((), (key,)), SYSTEM_RUNTIME)
    with pytest.raises(StorageError, match=f"may be removing 1 of its files, such as {key}, at this moment"):
        table.restore(3)
    release(store, noticed)
    assert table.restore(3).version == 7
    table.overwrite(rows(0))
    (Path(place) / key).unlink()
    with pytest.raises(NotFound, match=f"1 files of this commit do not exist any more, such as {key}"):
        Table.open(place).restore(3)
    assert versions(place)[-1] == 8
    assert not list(Path(place, "_lance_assets/holds").iterdir())


@pytest.mark.parametrize("detached", [False, True], ids=["on the line", "detached"])
def test_files_that_were_there_before_are_asked_for(place: str, detached: bool) -> None:
    """Nobody knows how long a caller of `commit` has had them: a cleanup may be counting them among those that nobody
    names."""
    store, table = LocalStore(Path(place)), Table.open(place)
    part = table.manifest.fragments[-1]
    name = orphan(place, "data/000011110000111100001111ab.lance", 30 * DAY)
    (Path(place) / name).write_bytes((Path(place) / "data" / part.files[0].path).read_bytes())
    message = type(part.files[0].message)()
    message.CopyFrom(part.files[0].message)
    message.path = Path(name).name
    brought = Append((Fragment.of(files=[DataFile(message)], physical_rows=part.physical_rows),))
    before = files(place)
    noticed = announce_sweep(store, SweepNotice((), (name,)), SYSTEM_RUNTIME)
    with pytest.raises(StorageError, match=f"may be removing 1 of its files, such as {name}, at this moment"):
        table.commit(brought, detached=detached)
    release(store, noticed)
    assert not list(Path(place, "_versions").glob("d*"))
    assert versions(place)[-1] == 6
    done = table.commit(brought, detached=detached)
    assert done.rows_added == part.physical_rows
    assert done.table.count_rows() == table.count_rows() + part.physical_rows
    assert not list(Path(place, "_lance_assets/holds").iterdir())
    assert len(files(place) - before) <= 4


def test_an_index_that_lies_in_the_manifest_misses_no_files(tmp_path: Path) -> None:
    """Which rows a compaction moved, and how far a log is read, need no file while they are small."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0)).append(rows(10)).table
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    table = table.refresh().compact(remap="reuse").table
    assert "__lance_frag_reuse" in {index.name for index in table.manifest.indices}
    progress = table.commit(UpdateMemWalState((Progress(SYSTEM_RUNTIME.new_uuid().bytes, 3),)))
    assert "__lance_mem_wal" in {index.name for index in progress.table.manifest.indices}
    last = progress.table.overwrite(rows(50))
    assert not last.table.manifest.indices
    assert last.table.restore(progress.version).table.count_rows() == 20
    age(uri, 20 * DAY)
    assert Table.open(uri).cleanup(keep=2).versions
    check_whole(uri)


def test_a_hold_that_goes_because_its_version_came_is_no_gap(place: str) -> None:
    """Between the listing of holds and the reading of one: whoever had looked for versions before would miss both."""
    local, table = LocalStore(Path(place)), Table.open(place)
    part = table.manifest.fragments[-1]
    (file,) = part.files
    name = orphan(place, "data/000011110000111100001111ab.lance", 30 * DAY)
    (Path(place) / name).write_bytes((Path(place) / "data" / file.path).read_bytes())
    age(place, 30 * DAY, name)
    held: list[str] = []

    def begins() -> None:
        held.append(acquire(local, Lease("this commit", files=(name,)), SYSTEM_RUNTIME))

    def lands() -> None:
        message = type(file.message)()
        message.CopyFrom(file.message)
        message.path = Path(name).name
        made = Fragment.of(files=[DataFile(message)], physical_rows=part.physical_rows)
        mine = Location(place, local, LanceCodec(local))
        begun = begin(mine, load_latest(mine), verb="append", intent=None, runtime=SYSTEM_RUNTIME)
        assert isinstance(begun, StartedWrite)
        finish(begun, Append((made,)), properties={}, attempts=10)
        release(local, held[0])

    faults = [Fault(calling("walk", "data"), "", begins), Fault(calling("read", leases.LEASE_DIRECTORY), "", lands)]
    location = Location(place, FaultyStore(local, faults), LanceCodec(local))
    report = cleanup.clean(
        load_latest(location), Retention(14 * DAY, 10), dry_run=False, force=True, runtime=SYSTEM_RUNTIME
    )
    assert held
    assert report.orphans == ()
    assert lance.dataset(place).count_rows() == table.count_rows() + part.physical_rows
    check_whole(place)
