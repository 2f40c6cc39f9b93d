"""Entries of a manifest store that are behind, ahead, wrong or gone: told without being touched, repaired when it is
chosen, in every kind of manifest store.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.__main__ import main
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.fsck import Finding, Severity, examine
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.storage.manifest_stores.sql import SqlManifestStore
from lance_core.storage.store import Put
from lance_core.versions.location import locate
from tests.lance_core.storage.manifest_stores.conftest import aws, dynamodb_table, monkeypatch_session
from tests.lance_core.storage.manifest_stores.memory import MemoryManifestStore
from tests.lance_core.world import cleaned

__all__ = ["aws", "dynamodb_table", "monkeypatch_session"]
STAGED = "0b5a3c9e-0000-4000-8000-000000000000"


class Place:
    """A table of four versions in a directory, its entries in a manifest store."""

    def __init__(self, root: Path, manifests: ManifestStore) -> None:
        self.root, self.manifests = root, manifests
        self.key = manifests.table_key(str(root))
        table = Table.create(root, rows(1), manifest_store=manifests, durable=False)
        for number in (2, 3, 4):
            table = table.append(rows(number)).table

    def path(self, version: int) -> Path:
        return self.root / naming.manifest_path(Version(version))

    def entry(self, version: int) -> Entry:
        found = self.manifests.find_entry(self.key, Version(version))
        assert found is not None
        return found

    def entries(self) -> list[Entry]:
        return list(self.manifests.list_entries(self.key))

    def forget(self, version: int) -> None:
        self.manifests.remove_entry(self.key, self.entry(version))

    def reserve(self, version: int) -> Entry:
        entry = Entry(Version(version), f"{naming.manifest_path(Version(version))}-{STAGED}")
        assert self.manifests.reserve(self.key, entry) is Put.CREATED
        return entry

    def set_back(self, version: int, *, keep_final: bool) -> None:
        """To where its writer had reserved it, and perhaps put it in place."""
        entry = self.entry(version)
        staged = replace(entry, path=f"{entry.path}-{STAGED}")
        (self.root / staged.path).write_bytes(self.path(version).read_bytes())
        assert self.manifests.move_entry(self.key, entry, staged)
        if not keep_final:
            self.path(version).unlink()

    def look(self) -> list[Finding]:
        """What is told of entries; nothing is written, and nothing finished."""
        before = self.files(), self.entries()
        report = examine(locate(str(self.root), manifest_store=self.manifests))
        assert (self.files(), self.entries()) == before
        ours = ("entr", "no_entry", "manifest_gone")
        return [finding for finding in report.findings if finding.rule.startswith(ours)]

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def open(self) -> Table:
        return Table.open(self.root, manifest_store=self.manifests, durable=False)


@pytest.fixture(params=["memory", "sqlite", "dynamodb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    manifests: ManifestStore = MemoryManifestStore()
    if request.param == "sqlite":
        manifests = SqlManifestStore(f"sqlite:///{tmp_path}/manifests.db")
    elif request.param == "dynamodb":
        options = request.getfixturevalue("aws")
        manifests = DynamoDBManifestStore(request.getfixturevalue("dynamodb_table"), options)
    return Place(tmp_path / "orders", manifests)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def check(
    place: Place, rule: str, severity: Severity, what: str, *, done: str | None, after: Callable[[], object] = lambda: 0
) -> None:
    """This alone is found; the repair says what it will do, does it, and then nothing is found."""
    (finding,) = place.look()
    assert (finding.rule, finding.severity) == (rule, severity)
    assert what in finding.what
    assert finding.repair.endswith(".")
    if done is None:
        assert finding.automatic_repair is None
        return
    assert finding.automatic_repair is not None
    assert finding.automatic_repair.what.endswith(".")
    assert done in finding.automatic_repair.apply()
    after()
    assert place.look() == []


def test_nothing_is_wrong_after_ordinary_work(place: Place) -> None:
    assert place.look() == []
    cleaned(place.open(), keep=2)
    assert place.look() == []
    branch = place.open().branches.create("dev").append(rows(9)).table
    assert [each.rule for each in branch.fsck().findings] == []


def test_a_version_that_was_reserved_and_is_not_in_place(place: Place) -> None:
    place.set_back(4, keep_final=False)
    check(
        place, "entry_unfinished", Severity.WARNING, "version 4 is reserved for this file, which is not published yet",
        done=f"version 4 is at {naming.manifest_path(Version(4))}",
    )  # fmt: skip
    assert place.entry(4).is_final
    assert ids(place.open()) == [1, 2, 3, 4]


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_version_in_place_whose_entry_was_not_moved(place: Place, version: int, dropped: bool) -> None:
    place.set_back(version, keep_final=True)
    if dropped:
        (place.root / place.entry(version).path).unlink()
    check(place, "entry_untidy", Severity.INFO, f"version {version} is published", done=f"version {version} is at ")
    assert place.entry(version).is_final
    assert not list(place.root.glob(f"_versions/*-{STAGED}"))


def test_a_reservation_of_a_file_that_is_gone(place: Place) -> None:
    place.reserve(5)
    check(
        place, "entry_of_nothing", Severity.WARNING, "version 5 is reserved for this file, which does not exist",
        done="the entry of version 5 was removed",
    )  # fmt: skip
    assert place.open().append(rows(5)).version == 5


def test_a_committed_version_whose_manifest_is_gone(place: Place) -> None:
    """It was acknowledged: no repair hides that."""
    place.path(4).unlink()
    check(
        place, "manifest_gone", Severity.ERROR, "version 4 was committed, but its manifest does not "
        "exist; the newest existing one is 3", done=None,
    )  # fmt: skip
    assert place.open().append(rows(5)).version == 4
    assert place.look() == []


def test_entries_that_another_librarys_cleanup_left(place: Place) -> None:
    for version in (1, 2):
        place.path(version).unlink()
    check(
        place, "entry_left", Severity.INFO, "has entries of versions without manifests: 1-2",
        done="the entry of version 1 was removed; the entry of version 2 was removed",
    )  # fmt: skip
    assert [entry.version for entry in place.entries()] == [3, 4]


def test_a_version_committed_past_the_manifest_store(place: Place) -> None:
    place.forget(4)
    check(
        place, "no_entry", Severity.WARNING, "version 4 was committed without ", done="an entry of version 4 was added",
    )  # fmt: skip
    assert place.entry(4) == Entry(Version(4), naming.manifest_path(Version(4)), place.path(4).stat().st_size)


def test_versions_from_before_the_manifest_store(place: Place) -> None:
    for version in (1, 2):
        place.forget(version)
    check(place, "no_entry", Severity.INFO, "no entry of versions 1-2, which are found by their names", done=None)


def test_an_entry_of_another_size(place: Place) -> None:
    entry = place.entry(3)
    assert place.manifests.move_entry(place.key, entry, replace(entry, size=7))
    check(
        place, "entry_size", Severity.WARNING, f"has {entry.size} bytes, but ",
        done="the entry of version 3 was corrected", after=lambda: place.entry(3) == entry,
    )  # fmt: skip


def test_an_entry_of_an_old_writer_without_a_size_is_none(place: Place) -> None:
    entry = place.entry(3)
    assert place.manifests.move_entry(place.key, entry, replace(entry, size=None))
    assert place.look() == []


@pytest.mark.parametrize("path", ["../../etc/passwd", "_versions/7.manifest", "data/x.lance"])
def test_an_entry_that_cannot_be_believed(place: Place, path: str) -> None:
    entry = place.entry(4)
    assert place.manifests.move_entry(place.key, entry, replace(entry, path=path))
    with pytest.raises(Corrupt, match="which cannot be its manifest"):
        place.open()
    check(
        place,
        "entry_path",
        Severity.ERROR,
        "which cannot be its manifest",
        done="the entry of version 4 was corrected",
    )
    assert place.entry(4) == entry
    assert ids(place.open()) == [1, 2, 3, 4]


def test_an_entry_that_cannot_be_believed_of_no_version(place: Place) -> None:
    entry = place.reserve(9)
    assert place.manifests.move_entry(place.key, entry, replace(entry, path="../x"))
    check(place, "entry_path", Severity.ERROR, "which cannot be its manifest", done=None)


def test_a_repair_of_an_entry_that_changed_meanwhile_does_nothing(place: Place) -> None:
    entry = place.reserve(5)
    (finding,) = place.look()
    assert finding.automatic_repair is not None
    other = replace(entry, path=entry.path[:-1] + "7")
    assert place.manifests.move_entry(place.key, entry, other)
    assert finding.automatic_repair.apply() == "the entry of version 5 has changed and was not removed"
    assert place.entry(5) == other
    (place.root / other.path).write_bytes(b"1")
    assert finding.automatic_repair.apply() == "the entry of version 5 has changed and was not removed"


def test_all_that_is_reserved_and_nothing_is_there(tmp_path: Path) -> None:
    """A table that was deleted without its entries."""
    place = Place(tmp_path / "orders", MemoryManifestStore())
    for path in (place.root / "_versions").iterdir():
        path.unlink()
    report = examine(locate(str(place.root), manifest_store=place.manifests))
    assert {finding.rule for finding in report.findings} == {"manifest_gone"}
    assert report.versions == ()


def test_a_head_is_moved_aside_with_its_entry(place: Place) -> None:
    place.path(4).write_bytes(b"x" * place.path(4).stat().st_size)
    (finding,) = [
        each
        for each in examine(locate(str(place.root), manifest_store=place.manifests)).findings
        if each.automatic_repair
    ]
    assert finding.automatic_repair is not None
    assert "was moved to _versions/" in finding.automatic_repair.apply()
    assert [entry.version for entry in place.entries()] == [1, 2, 3]
    assert place.open().append(rows(7)).version == 4
    assert place.look() == []


def test_from_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/manifests.db"
    place = Place(tmp_path / "orders", SqlManifestStore(url))
    place.forget(4)
    command = ["fsck", str(place.root), "--manifest-store", url]
    for arguments, code in (([], 1), (["--repair", "entries"], 1), (["--repair", "entries", "--apply"], 0), ([], 0)):
        assert main([*command, *arguments]) == code
        said = capsys.readouterr().out
        assert ("entries: Add an entry of version 4 to sqlite" in said) is bool(arguments)


def test_a_manifest_store_that_is_down_is_no_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/manifests.db"
    place = Place(tmp_path / "orders", SqlManifestStore(url))
    assert main(["fsck", str(place.root), "--manifest-store", "postgresql+psycopg://127.0.0.1:1/orders"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("the examination failed: ")
