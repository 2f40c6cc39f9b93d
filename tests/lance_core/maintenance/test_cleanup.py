"""Cleanup: what it removes, what it keeps and why, and that pylance reads every remaining version.

The tests set the ages of files, since the clock of the store decides.
"""

import json
import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_core import CommitUndecided, Corrupt, InvalidInput, NotFound, StorageError, Table, Unsupported
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
from lance_core.storage.memory import MemoryStore
from lance_core.versions.location import Location
from lance_core.versions.snapshot import load_at, load_latest
from tests.histories.planted_defects import planted_defect
from tests.lance_core.in_memory_table import (
    Fault,
    FaultyStore,
    InMemoryTable,
    clean_up,
    deterministic_runtime,
    on_call,
    put_fragment,
)

DAY = timedelta(days=1)
NO_AGE = timedelta(0)


def rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": range(first, first + count)})


def set_age(uri: str, by: timedelta, *patterns: str) -> None:
    """Set the age of the files that match a pattern, or of all files without a pattern."""
    for pattern in patterns or ("**/*",):
        for path in Path(uri).glob(pattern):
            then = datetime.now(UTC).timestamp() - by.total_seconds()
            os.utime(path, (then, then))


def files(uri: str) -> set[str]:
    return {str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file()}


def versions(uri: str) -> list[int]:
    return [info.version for info in Table.open(uri).versions()]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of six versions, 20 days old: rows, more rows, a delete, an overwrite, an index, more rows."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, rows(0))
    table = table.append(rows(10)).table.delete("id < 3").table.overwrite(rows(100, 20)).table
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    table.refresh().append(rows(200))
    set_age(uri, 20 * DAY)
    return uri


def check_all_versions(uri: str) -> None:
    """Check that pylance and this library read the same rows in every remaining version."""
    for version in versions(uri):
        dataset = lance.dataset(uri, version=version)
        assert Table.open(uri, version=version).to_table().equals(dataset.to_table())
        dataset.to_table(filter="id = 105")
        dataset.validate()


def test_old_versions_are_removed_and_the_rest_is_readable(uri: str) -> None:
    before = files(uri)
    size = sum((Path(uri) / path).stat().st_size for path in before)
    report = Table.open(uri).cleanup(keep=2)
    assert report.versions == (1, 2, 3, 4)
    assert versions(uri) == [5, 6]
    assert set(report.files) == before - files(uri)
    assert report.bytes == size - sum((Path(uri) / path).stat().st_size for path in files(uri))
    assert (report.orphans, report.kept) == ((), {})
    kinds = {path.partition("/")[0] for path in report.files}
    assert kinds == {"_versions", "_transactions", "_deletions", "data"}
    check_all_versions(uri)
    assert Table.open(uri).cleanup(keep=2).files == ()


def test_a_dry_run_reports_the_same_and_changes_nothing(uri: str) -> None:
    before = files(uri)
    dry = Table.open(uri).cleanup(keep=2, dry_run=True)
    assert files(uri) == before
    wet = Table.open(uri).cleanup(keep=2)
    assert dry.dry_run
    assert (dry.versions, dry.files, dry.bytes) == (wet.versions, wet.files, wet.bytes)


def test_ten_versions_and_two_weeks_are_kept_by_default(uri: str) -> None:
    assert Table.open(uri).cleanup().files == ()
    assert Table.open(uri).cleanup(keep=1, older_than=21 * DAY).files == ()
    set_age(uri, 5 * DAY, *(f"_versions/*{name}.manifest" for name in ("11", "10", "09")))
    assert Table.open(uri).cleanup(keep=1).versions == (1, 2, 3)
    assert versions(uri) == [4, 5, 6]
    check_all_versions(uri)


def test_no_version_outlives_a_later_one(uri: str) -> None:
    """A version younger than a later one was committed into a gap or copied: its number decides."""
    set_age(uri, 5 * DAY, "_versions/*13.manifest")
    assert Table.open(uri).cleanup(keep=1).versions == (1, 2, 3, 4, 5)


def test_a_version_younger_than_a_minute_is_kept(uri: str) -> None:
    """A commit that has read the history before this version may be about to put its number."""
    set_age(uri, timedelta(seconds=50), *(f"_versions/*{name}.manifest" for name in ("11", "10", "09")))
    report = Table.open(uri).cleanup(keep=1, older_than=NO_AGE)
    assert report.versions == (1, 2, 3)
    assert [*report.kept] == [4, 5]
    assert all("younger than 0:01:00" in why for (why,) in report.kept.values())


def test_the_newest_and_the_opened_version_are_kept(uri: str) -> None:
    assert Table.open(uri, version=3).cleanup(keep=1, older_than=NO_AGE).versions == (1, 2)
    assert Table.open(uri).cleanup(keep=1, older_than=NO_AGE).versions == (3, 4, 5)
    assert versions(uri) == [6]
    check_all_versions(uri)
    assert Table.open(uri).append(rows(300)).version == 7


def test_a_tag_keeps_its_version(uri: str) -> None:
    lance.dataset(uri).tags.create("good", 2)
    report = Table.open(uri).cleanup(keep=1)
    assert report.kept == {2: ("tag good",)}
    assert versions(uri) == [2, 6]
    assert lance.dataset(uri, version="good").count_rows() == 20
    check_all_versions(uri)


def test_a_tag_of_a_branch_does_not_keep_that_version_of_the_main_branch(uri: str) -> None:
    dataset = lance.dataset(uri)
    branch = dataset.create_branch("dev/x", 6)
    branch.insert(rows(300))
    dataset.tags.create("good", ("dev/x", 7))
    report = Table.open(uri).cleanup(keep=1, older_than=NO_AGE)
    assert report.kept == {}
    assert versions(uri) == [6]


def test_a_branch_keeps_the_version_it_started_from(uri: str) -> None:
    dataset = lance.dataset(uri)
    branch = dataset.create_branch("dev/x", 3)
    branch.insert(rows(300))
    branch.delete("id = 12")
    expected = branch.to_table()
    set_age(uri, 20 * DAY)
    report = Table.open(uri).cleanup(keep=1)
    assert report.kept == {3: ("branch dev/x",)}
    assert versions(uri) == [3, 6]
    assert lance.dataset(uri).checkout_version(("dev/x", None)).to_table().equals(expected)
    check_all_versions(uri)


def test_an_incomplete_branch_keeps_its_version(uri: str) -> None:
    """The directory of a branch exists before its reference does."""
    branch = lance.dataset(uri).create_branch("dev", 3)
    (Path(uri) / "_refs/branches/dev.json").unlink()
    dry = Table.open(uri).cleanup(keep=1, dry_run=True)
    assert dry.files == Table.open(uri).cleanup(keep=1).files
    assert lance.dataset(uri + "/tree/dev").to_table().equals(branch.to_table())


def test_a_branch_is_cleaned_up_separately(uri: str) -> None:
    dataset = lance.dataset(uri)
    branch = dataset.create_branch("dev", 3)
    branch.insert(rows(300))
    branch.insert(rows(310))
    dataset.tags.create("branched", ("dev", 4))
    grandchild = branch.create_branch("dev/deep", ("dev", 5))
    expected = grandchild.to_table()
    branch.insert(rows(320))
    branch.insert(rows(330))
    set_age(uri, 20 * DAY)
    report = Table.open(uri, branch="dev").cleanup(keep=1)
    assert report.kept == {4: ("tag branched",), 5: ("branch dev/deep",)}
    assert report.versions == (3, 6)
    assert versions(uri) == [1, 2, 3, 4, 5, 6]
    assert lance.dataset(uri).checkout_version(("dev/deep", None)).to_table().equals(expected)
    assert lance.dataset(uri).checkout_version(("dev", None)).count_rows() == 57
    check_all_versions(uri)


def test_a_clone_of_this_library_keeps_its_version(uri: str, tmp_path: Path) -> None:
    """Trap 37: a cleanup of pylance would break the clone, since the format does not record the clones of a table."""
    clone = str(tmp_path / "clone")
    Table.open(uri, version=3).clone(clone, shallow=True)
    expected = Table.open(uri, version=3).to_table()
    set_age(uri, 20 * DAY)
    report = Table.open(uri).cleanup(keep=1)
    assert report.kept == {3: (f"clone {clone}",)}
    assert lance.dataset(clone).to_table().equals(expected)
    before = files(uri)
    Table.open(clone, bases=[uri]).append(rows(500)).table.append(rows(510))
    set_age(clone, 20 * DAY)
    Table.open(clone, bases=[uri]).cleanup(keep=1)
    assert files(uri) == before
    assert lance.dataset(clone).count_rows() == expected.num_rows + 20


def test_deleted_files_are_not_kept_open(tmp_path: Path) -> None:
    """An open file keeps its space on the disk."""
    uri = str(tmp_path / "large")
    numbers = pa.table({"number": np.random.default_rng(1).random(1_000_000)})
    overwritten = Table.create(uri, numbers, durable=False).overwrite(rows(0)).table
    assert Table.open(uri, version=1).count_rows("number > 2") == 0
    assert open_data_files(uri)
    set_age(uri, timedelta(days=20), "**/*")
    assert overwritten.cleanup(keep=1).versions == (1,)
    assert open_data_files(uri) == []


def open_data_files(uri: str) -> list[str]:
    """Return the data files of a table that this process has open."""
    paths = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            paths.append(os.readlink(each))
    return [path for path in paths if path.startswith(f"{uri}/data/")]


# Orphan files


def put_orphan(uri: str, name: str, age: timedelta) -> str:
    path = Path(uri) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1234")
    then = datetime.now(UTC).timestamp() - age.total_seconds()
    os.utime(path, (then, then))
    return name


def test_orphan_files_are_removed_after_their_grace_period(uri: str) -> None:
    old = {
        put_orphan(uri, name, 8 * DAY)
        for name in (
            "data/000011110000111100001111aa.lance",
            "_deletions/0-1-77.arrow",
            "_transactions/1-left.txn",
            "_indices/0b5a3c9e-0000-4000-8000-000000000000/index.idx",
            "_versions/.tmp-leftover",
            "data/.tmpabcdef",
            ".tmp-in-the-root",
            "_refs/.tmp-1",
            "_refs/tags/.tmp-2",
            "_lance_assets/.tmp-3",
            "_lance_assets/intents/.tmp-4",
        )
    }
    put_orphan(uri, "data/young.lance", 6 * DAY)
    for name in ("data/notes.txt", "_refs/tags/x.bak", "elsewhere/x.lance", "_indices/readme", "_lance_assets/x/y"):
        put_orphan(uri, name, 800 * DAY)
    before = files(uri)
    report = Table.open(uri).cleanup()
    assert set(report.orphans) == old == before - files(uri)
    assert report.files == ()
    assert Table.open(uri).cleanup(orphan_grace=timedelta(hours=1)).orphans == ("data/young.lance",)


def test_no_argument_makes_the_grace_period_shorter_than_an_hour(uri: str) -> None:
    with pytest.raises(InvalidInput, match="must be at least 1:00:00"):
        Table.open(uri).cleanup(orphan_grace=timedelta(minutes=59))


@pytest.mark.parametrize(
    ("arguments", "message"), [({"keep": 0}, "keep=0"), ({"older_than": timedelta(days=-1)}, "older_than=-1 day")]
)
def test_invalid_arguments_are_rejected(uri: str, arguments: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.open(uri).cleanup(**arguments)


def test_cleanup_stops_if_most_files_look_like_orphans(uri: str) -> None:
    for number in range(30):
        put_orphan(uri, f"data/{number}.lance", 30 * DAY)
    before = files(uri)
    assert Table.open(uri).cleanup(dry_run=True).seems_wrong
    with pytest.raises(InvalidInput, match=r"no version references 30 of"):
        Table.open(uri).cleanup()
    assert files(uri) == before
    assert len(Table.open(uri).cleanup(force=True).orphans) == 30


def test_blob_files_are_removed_with_their_data_file(uri: str) -> None:
    removed = Table.open(uri, version=1).fragments[0].files[0].path.removesuffix(".lance")
    retained = Table.open(uri).fragments[0].files[0].path.removesuffix(".lance")
    blob = f"{7:032b}.blob"
    put_orphan(uri, f"data/{removed}/{blob}", 20 * DAY)
    put_orphan(uri, f"data/{retained}/{blob}", 20 * DAY)
    report = Table.open(uri).cleanup(keep=1)
    assert f"data/{removed}/{blob}" in report.files
    assert f"data/{retained}/{blob}" in files(uri)


def test_an_index_without_a_version_is_removed(uri: str) -> None:
    lance.dataset(uri).drop_index("id_idx")
    Table.open(uri).append(rows(400))
    set_age(uri, 20 * DAY)
    report = Table.open(uri).cleanup(keep=1)
    assert {path.partition("/")[0] for path in report.files} >= {"_indices"}
    assert list(Path(uri, "_indices").iterdir()) == []
    check_all_versions(uri)


def test_nothing_outside_the_table_is_touched(uri: str, tmp_path: Path) -> None:
    """A symbolic link is not a file of the table, whatever its target."""
    outside = put_orphan(str(tmp_path), "outside/precious.lance", 800 * DAY)
    os.symlink(tmp_path / "outside", Path(uri) / "data" / "linked")
    os.symlink(tmp_path / outside, Path(uri) / "data" / "link.lance")
    Table.open(uri).cleanup(keep=1)
    assert (tmp_path / outside).exists()
    assert os.path.islink(Path(uri) / "data" / "link.lance")


# Writes in progress


def test_files_of_an_active_intent_are_kept(uri: str) -> None:
    name = put_orphan(uri, "data/written.lance", 30 * DAY)
    record = {
        "intent": "load", "verb": "append", "base_version": 6, "transaction_uuid": "u", "begun_ns": 1,
        "heartbeat_ns": 1, "files": ["written.lance"], "landing": None,
    }  # fmt: skip
    path = Path(uri) / "_lance_assets/intents/a.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    assert Table.open(uri).cleanup().orphans == ()
    set_age(uri, 8 * DAY, "_lance_assets/intents/*.json")
    assert Table.open(uri).cleanup().orphans == (name,)
    assert path.exists()
    set_age(uri, 31 * DAY, "_lance_assets/intents/*.json")
    assert len(Table.open(uri).cleanup().intents) == 1


@pytest.mark.parametrize(
    "damage",
    [b"", b'{"intent": "x", "ve', b"[]", b"[" * 100_000, b'{"base_version": -1}', b"\xff\x00", b"," * 3_000_000],
)
def test_a_damaged_record_of_an_intent_is_reported_and_protects_orphans(uri: str, damage: bytes) -> None:
    """Versions go, and orphans stay until the record is older than their grace period: they may be its files."""
    Table.open(uri).append(rows(0), intent="i")
    (record,) = Path(uri, "_lance_assets", "intents").iterdir()
    record.write_bytes(damage)
    old = put_orphan(uri, "data/orphan.lance", timedelta(days=30))
    report = clean_up(Table.open(uri))
    assert report.versions
    assert (report.orphans, report.damaged) == ((), (f"_lance_assets/intents/{record.name}",))
    assert old in files(uri)
    check_all_versions(uri)
    with pytest.raises((Corrupt, Unsupported)):
        Table.open(uri).append(rows(0), intent="i")
    set_age(uri, timedelta(days=8), "_lance_assets/intents/*")
    report = clean_up(Table.open(uri))
    assert (report.orphans, report.damaged) == (("data/orphan.lance",), ())
    set_age(uri, timedelta(days=80), "_lance_assets/intents/*")
    assert clean_up(Table.open(uri)).intents == ()
    assert record.exists()


@pytest.mark.parametrize("damage", [b"", b'{"what": "x", "ver', b"[]", b"[" * 100_000, b'{"what": 1}', b"\xff\x00"])
def test_a_damaged_lease_keeps_what_it_may_cover(uri: str, damage: bytes) -> None:
    lease = Path(uri, acquire(LocalStore(Path(uri)), Lease("restoring it", 3), SYSTEM_RUNTIME))
    lease.write_bytes(damage)
    old = put_orphan(uri, "data/orphan.lance", timedelta(days=20))
    before = files(uri)
    name = str(lease.relative_to(uri))
    report = clean_up(Table.open(uri))
    assert (report.versions, report.orphans, report.damaged) == ((), (), (name,))
    assert all(reasons == (f"damaged lease {name}",) for reasons in report.kept.values())
    assert files(uri) == before
    set_age(uri, 31 * DAY, name)
    report = clean_up(Table.open(uri))
    assert report.versions
    assert (report.orphans, report.damaged) == ((old,), ())


def test_a_damaged_sweep_notice_does_not_end_a_cleanup(uri: str) -> None:
    """Writers that need a lease are refused beside it, since it may announce the removal of what they use."""
    notice = Path(uri, "_lance_assets/notices/a.json")
    notice.parent.mkdir(parents=True, exist_ok=True)
    notice.write_bytes(b"{")
    report = clean_up(Table.open(uri))
    assert report.versions
    assert report.damaged == ("_lance_assets/notices/a.json",)
    with pytest.raises(Corrupt, match=r"a damaged sweep notice, which may announce the removal of any file.*fsck"):
        Table.open(uri).tags.create("x", 6)
    set_age(uri, 31 * DAY, "_lance_assets/notices/a.json")
    assert clean_up(Table.open(uri)).damaged == ()
    assert not notice.exists()


def test_old_records_of_committed_intents_are_removed(uri: str) -> None:
    Table.open(uri).append(rows(500), intent="once")
    assert Table.open(uri).cleanup().intents == ()
    set_age(uri, 31 * DAY, "_lance_assets/intents/*.json")
    assert len(Table.open(uri).cleanup().intents) == 1
    assert not list((Path(uri) / "_lance_assets/intents").iterdir())


def test_an_intent_is_found_after_its_version_was_removed(uri: str) -> None:
    Table.open(uri).append(rows(500), intent="once")
    Table.open(uri).append(rows(600))
    set_age(uri, 20 * DAY)
    Table.open(uri).cleanup(keep=1)
    again = Table.open(uri).append(rows(500), intent="once")
    assert again.already_committed
    assert Table.open(uri).count_rows() == 50


# Errors that stop a cleanup


def test_an_unreadable_manifest_stops_the_cleanup(uri: str) -> None:
    (Path(uri) / f"_versions/{2**64 - 1 - 3:020d}.manifest").write_bytes(b"nonsense")
    set_age(uri, 20 * DAY)
    before = files(uri)
    with pytest.raises(Corrupt, match="too short for a manifest"):
        Table.open(uri).cleanup(keep=1)
    assert files(uri) == before


def test_the_choice_of_versions() -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    modified = {Version(number): now - (11 - number) * DAY for number in range(1, 11)}

    def chosen(keep: int, days: int, loaded: int = 10, **named: list[str]) -> tuple[list[int], dict]:
        names = {Version(int(number[1:])): writer_id for number, writer_id in named.items()}
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


# Concurrent writers: a fault runs a function before a call of the store


def clean_with_fault(uri: str, fault: Fault, *, keep: int) -> CleanupReport:
    local = LocalStore(Path(uri))
    location = Location(uri, FaultyStore(local, [fault]), LanceCodec(local))
    retention = Retention(timedelta(days=14), keep)
    return cleanup.clean(load_latest(location), retention, dry_run=False, force=True, runtime=SYSTEM_RUNTIME)


@pytest.mark.parametrize("deletes", range(1, 30, 2))
def test_an_interrupted_cleanup_leaves_every_version_readable(uri: str, deletes: int) -> None:
    deletes_left = deletes

    def is_last_delete(call: str, path: str) -> bool:
        nonlocal deletes_left
        deletes_left -= call == "delete" and not path.startswith("_lance_assets/clock")
        return not deletes_left

    with suppress(StorageError):
        clean_with_fault(uri, Fault(is_last_delete, "fails"), keep=2)
    check_all_versions(uri)
    set_age(uri, 20 * DAY)
    Table.open(uri).cleanup(keep=2, force=True)
    assert versions(uri) == [5, 6]
    assert not Table.open(uri).cleanup(keep=2, force=True).orphans
    check_all_versions(uri)


def test_a_version_tagged_during_its_removal_is_put_back(uri: str) -> None:
    def tag() -> None:
        lance.dataset(uri).tags.create("late", 3)

    report = clean_with_fault(uri, Fault(on_call("delete", "_versions"), "", tag), keep=1)
    assert report.versions == (1, 2, 4, 5)
    assert report.kept == {3: ("tag late",)}
    assert set(report.files).isdisjoint(files(uri))
    assert versions(uri) == [3, 6]
    assert lance.dataset(uri, version="late").count_rows() == 17
    check_all_versions(uri)


def test_a_version_restored_during_its_removal_keeps_its_files(uri: str) -> None:
    expected = lance.dataset(uri, version=3).to_table()

    def restore() -> None:
        lance.dataset(uri, version=3).restore()

    report = clean_with_fault(uri, Fault(on_call("delete", "_versions"), "", restore), keep=1)
    assert versions(uri) == [6, 7]
    assert lance.dataset(uri).to_table().equals(expected)
    assert set(report.files).isdisjoint(files(uri))
    check_all_versions(uri)


def test_a_concurrent_append_is_readable(uri: str) -> None:
    def append() -> None:
        Table.open(uri).append(rows(900))

    clean_with_fault(uri, Fault(on_call("walk", "data"), "", append), keep=1)
    assert versions(uri) == [6, 7]
    check_all_versions(uri)


def test_a_version_being_removed_cannot_be_referenced(uri: str) -> None:
    """This library rejects a tag, a branch and a restore as soon as the sweep notice exists."""
    rejected: list[str] = []

    def try_to_reference() -> None:
        table = Table.open(uri)
        for name, reference_version in {
            "tag": lambda: table.tags.create("late", 3),
            "branch": lambda: table.branches.create("late", 3),
            "restore": lambda: table.restore(3),
        }.items():
            with pytest.raises(StorageError, match="a cleanup may be removing"):
                reference_version()
            rejected.append(name)

    assert clean_with_fault(uri, Fault(on_call("delete", "_versions"), "", try_to_reference), keep=1).versions == (
        1,
        2,
        3,
        4,
        5,
    )
    assert rejected == ["tag", "branch", "restore"]
    table = Table.open(uri)
    assert (table.tags.list(), table.branches.list(), table.version_numbers()) == ({}, {}, (6,))
    assert not list((Path(uri) / "_lance_assets/notices").iterdir())
    assert not list((Path(uri) / "_lance_assets/holds").iterdir())
    check_all_versions(uri)


def test_a_leased_version_is_kept(uri: str) -> None:
    """A restore in progress has a lease when the sweep starts: its version stays, and the report says why."""
    lease = acquire(LocalStore(Path(uri)), Lease("restoring it", 3), SYSTEM_RUNTIME)
    report = Table.open(uri).cleanup(keep=1)
    assert report.kept == {3: ("restoring it",)}
    set_age(uri, 31 * DAY, lease)
    assert Table.open(uri).cleanup(keep=1).versions == (3,)


def test_leased_files_are_kept(uri: str) -> None:
    name = put_orphan(uri, "data/000011110000111100001111ab.lance", 30 * DAY)
    lease = acquire(LocalStore(Path(uri)), Lease("this commit", files=(name,)), SYSTEM_RUNTIME)
    assert Table.open(uri).cleanup().orphans == ()
    release(LocalStore(Path(uri)), lease)
    assert Table.open(uri).cleanup().orphans == (name,)


def test_the_notice_of_a_dead_cleanup_is_removed_by_the_next_one(uri: str) -> None:
    with suppress(StorageError):
        clean_with_fault(uri, Fault(on_call("delete", "_versions"), "fails"), keep=1)
    assert len(list((Path(uri) / "_lance_assets/notices").iterdir())) == 1
    with pytest.raises(StorageError, match="it announced so in"):
        Table.open(uri).tags.create("x", 4)
    Table.open(uri).cleanup(keep=1)
    assert not list((Path(uri) / "_lance_assets/notices").iterdir())


@pytest.mark.parametrize("hours", [-48, -24, -1, 1, 24, 48])
def test_clocks_that_differ_stop_the_cleanup(uri: str, hours: int) -> None:
    before = files(uri)
    local = LocalStore(Path(uri))
    shifted_runtime = replace(SYSTEM_RUNTIME, now_ns=lambda: SYSTEM_RUNTIME.now_ns() + hours * 3600 * 10**9)
    with pytest.raises(StorageError, match=r"by the clock of the store.*nothing was removed"):
        cleanup.clean(
            load_latest(Location(uri, local, LanceCodec(local))),
            Retention(NO_AGE, 1), dry_run=False, force=True, runtime=shifted_runtime,
        )  # fmt: skip
    assert files(uri) == before


def test_a_clock_that_is_set_back_during_a_cleanup_stops_it() -> None:
    """The file is new, but older than the time at which the cleanup began."""
    now = [datetime(2026, 1, 8, tzinfo=UTC)]
    store = MemoryStore(now=lambda: now[0])
    InMemoryTable(store).create("a")

    def set_clock_back() -> None:
        now[0] -= timedelta(hours=2)
        put_fragment(store, "new")

    def clean() -> CleanupReport:
        location = InMemoryTable(FaultyStore(store, [Fault(on_call("walk", "data"), "", set_clock_back)])).location()
        runtime = replace(deterministic_runtime(), now_ns=lambda: int(now[0].timestamp() * 10**9))
        retention = Retention(NO_AGE, 1, orphan_grace=timedelta(hours=1))
        return cleanup.clean(load_latest(location), retention, dry_run=False, force=True, runtime=runtime)

    with pytest.raises(StorageError, match="was set while this cleanup listed the files"):
        clean()
    assert store.head("data/new.lance") is not None
    with planted_defect("clock set during a cleanup ignored"):
        assert clean().orphans == ("data/new.lance",)


def test_spellings_of_a_uri_mean_the_same_table(uri: str) -> None:
    """Files are identified by their path within the table, so no file looks like an orphan."""
    set_age(uri, 400 * DAY)
    before = files(uri)
    parent, _, name = uri.rpartition("/")
    os.symlink(uri, f"{parent}/link")
    for spelling in (uri, f"{uri}/", f"file://{uri}", f"{parent}/./x/../{name}", f"{parent}/link"):
        report = Table.open(spelling).cleanup(keep=100)
        assert (report.files, report.orphans) == ((), ())
    assert files(uri) == before


def test_a_listing_without_the_newest_version_does_no_harm(uri: str) -> None:
    """The cleanup requests versions of the last minute by name."""
    shared_file = Table.open(uri, version=1).fragments[0].files[0].path
    lance.dataset(uri, version=1).restore()
    local = LocalStore(Path(uri))
    stale = FaultyStore(local, [Fault(on_call("list", "_versions"), "stale") for _ in range(4)])
    base = load_at(Location(uri, local, LanceCodec(local)), Version(6))
    location = Location(uri, stale, LanceCodec(local))
    cleanup.clean(
        replace(base, location=location), Retention(NO_AGE, 1), dry_run=False, force=True, runtime=SYSTEM_RUNTIME
    )
    assert versions(uri) == [6, 7]
    assert f"data/{shared_file}" in files(uri)
    check_all_versions(uri)


def test_a_large_sweep_is_announced_in_several_notices(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every notice stays small enough for its readers."""
    monkeypatch.setattr(leases, "FILES_PER_RECORD", 2)
    names = tuple(put_orphan(uri, f"data/00001111000011110000111{number}ab.lance", 30 * DAY) for number in range(5))
    announced: list[SweepNotice] = []

    def read_notices() -> None:
        announced.extend(notice for _info, notice in leases.sweep_notices(LocalStore(Path(uri))) if notice)

    report = clean_with_fault(uri, Fault(on_call("delete", "_versions"), "", read_notices), keep=1)
    assert report.orphans == names
    assert len(announced) == 3
    assert sorted(file for notice in announced for file in notice.files) == sorted(names)
    assert sorted(version for notice in announced for version in notice.versions) == list(report.versions)
    assert not list((Path(uri) / "_lance_assets/notices").iterdir())


def test_a_restore_checks_the_files_that_it_references(uri: str) -> None:
    """The version may have been committed late, after a cleanup counted one of its files among the orphans."""
    store, table = LocalStore(Path(uri)), Table.open(uri)
    restored = {file.path for part in table.at(version=3).manifest.fragments for file in part.files}
    key = f"data/{min(restored - {file.path for part in table.manifest.fragments for file in part.files})}"
    notice = announce_sweep(store, SweepNotice((), (key,)), SYSTEM_RUNTIME)
    with pytest.raises(StorageError, match=f"may be removing 1 of its files, such as {key}, at this moment"):
        table.restore(3)
    release(store, notice)
    assert table.restore(3).version == 7
    table.overwrite(rows(0))
    (Path(uri) / key).unlink()
    with pytest.raises(NotFound, match=f"1 files of this commit do not exist any more, such as {key}"):
        Table.open(uri).restore(3)
    assert versions(uri)[-1] == 8
    assert not list(Path(uri, "_lance_assets/holds").iterdir())


@pytest.mark.parametrize("detached", [False, True], ids=["on the branch", "detached"])
def test_files_of_a_raw_commit_are_checked(uri: str, detached: bool) -> None:
    """The files of a raw commit have an unknown age: a cleanup may be counting them among the orphans."""
    store, table = LocalStore(Path(uri)), Table.open(uri)
    part = table.manifest.fragments[-1]
    name = put_orphan(uri, "data/000011110000111100001111ab.lance", 30 * DAY)
    (Path(uri) / name).write_bytes((Path(uri) / "data" / part.files[0].path).read_bytes())
    message = type(part.files[0].message)()
    message.CopyFrom(part.files[0].message)
    message.path = Path(name).name
    append = Append((Fragment.of(files=[DataFile(message)], physical_rows=part.physical_rows),))
    before = files(uri)
    notice = announce_sweep(store, SweepNotice((), (name,)), SYSTEM_RUNTIME)
    with pytest.raises(StorageError, match=f"may be removing 1 of its files, such as {name}, at this moment"):
        table.commit(append, detached=detached)
    release(store, notice)
    assert not list(Path(uri, "_versions").glob("d*"))
    assert versions(uri)[-1] == 6
    done = table.commit(append, detached=detached)
    assert done.rows_added == part.physical_rows
    assert done.table.count_rows() == table.count_rows() + part.physical_rows
    assert not list(Path(uri, "_lance_assets/holds").iterdir())
    assert len(files(uri) - before) <= 4


def test_an_index_within_the_manifest_needs_no_files(tmp_path: Path) -> None:
    """The rows that a compaction moved and the progress of a log need no file while they are small."""
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
    set_age(uri, 20 * DAY)
    assert Table.open(uri).cleanup(keep=2).versions
    check_all_versions(uri)


def test_a_lease_released_by_its_commit_leaves_no_gap(uri: str) -> None:
    """The lease is released between the listing of leases and the reading of this one: a cleanup that listed the
    versions before would miss both.
    """
    local, table = LocalStore(Path(uri)), Table.open(uri)
    part = table.manifest.fragments[-1]
    (file,) = part.files
    name = put_orphan(uri, "data/000011110000111100001111ab.lance", 30 * DAY)
    (Path(uri) / name).write_bytes((Path(uri) / "data" / file.path).read_bytes())
    set_age(uri, 30 * DAY, name)
    leases_acquired: list[str] = []

    def acquire_lease() -> None:
        leases_acquired.append(acquire(local, Lease("this commit", files=(name,)), SYSTEM_RUNTIME))

    def commit_and_release() -> None:
        message = type(file.message)()
        message.CopyFrom(file.message)
        message.path = Path(name).name
        created = Fragment.of(files=[DataFile(message)], physical_rows=part.physical_rows)
        writer_location = Location(uri, local, LanceCodec(local))
        started = begin(
            writer_location, load_latest(writer_location), verb="append", intent=None, runtime=SYSTEM_RUNTIME
        )
        assert isinstance(started, StartedWrite)
        # The file is older than the commit, as if the clock had jumped, and the cleanup has announced its removal.
        with pytest.raises(CommitUndecided, match="a cleanup may be removing 1 of its files"):
            finish(started, Append((created,)), properties={}, attempts=10)
        release(local, leases_acquired[0])

    faults = [
        Fault(on_call("put", leases.NOTICE_DIRECTORY), "", acquire_lease),
        Fault(on_call("read", leases.LEASE_DIRECTORY), "", commit_and_release),
    ]
    location = Location(uri, FaultyStore(local, faults), LanceCodec(local))
    report = cleanup.clean(
        load_latest(location), Retention(14 * DAY, 10), dry_run=False, force=True, runtime=SYSTEM_RUNTIME
    )
    assert leases_acquired
    assert report.orphans == ()
    assert lance.dataset(uri).count_rows() == table.count_rows() + part.physical_rows
    check_all_versions(uri)
