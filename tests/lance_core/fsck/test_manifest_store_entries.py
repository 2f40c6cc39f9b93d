"""Manifest store entries: outdated, wrong or missing entries are reported and repaired on request only."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Corrupt, Table
from lance_core.__main__ import main
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.fsck import Finding, Severity
from lance_core.fsck.examine import examine
from lance_core.storage.manifest_stores.dynamodb import DynamoDBManifestStore
from lance_core.storage.manifest_stores.manifest_store import Entry, ManifestStore
from lance_core.storage.manifest_stores.sql import SqlManifestStore
from lance_core.storage.store import Put
from lance_core.versions.location import locate
from tests.lance_core.in_memory_table import clean_up
from tests.lance_core.storage.manifest_stores.conftest import aws, dynamodb_table, monkeypatch_session
from tests.lance_core.storage.manifest_stores.in_memory import InMemoryManifestStore

__all__ = ["aws", "dynamodb_table", "monkeypatch_session"]
STAGED = "0b5a3c9e-0000-4000-8000-000000000000"


class TableWithEntries:
    """A table of four versions in a directory with its entries in a manifest store."""

    def __init__(self, root: Path, manifests: ManifestStore) -> None:
        self.root, self.manifests = root, manifests
        self.key = manifests.table_key(str(root))
        table = Table.create(root, rows(1), manifest_store=manifests, durable=False)
        for number in (2, 3, 4):
            table = table.append(rows(number)).table

    def path(self, version: int) -> Path:
        return self.root / naming.manifest_path(Version(version))

    def entry(self, version: int) -> Entry:
        actual = self.manifests.find_entry(self.key, Version(version))
        assert actual is not None
        return actual

    def entries(self) -> list[Entry]:
        return list(self.manifests.list_entries(self.key))

    def remove_entry(self, version: int) -> None:
        self.manifests.remove_entry(self.key, self.entry(version))

    def reserve(self, version: int) -> Entry:
        entry = Entry(Version(version), f"{naming.manifest_path(Version(version))}-{STAGED}")
        assert self.manifests.reserve(self.key, entry) is Put.CREATED
        return entry

    def undo_commit(self, version: int, *, keep_final: bool) -> None:
        """Set a version back to the state after its reservation, optionally with its final manifest in place."""
        entry = self.entry(version)
        staged = replace(entry, path=f"{entry.path}-{STAGED}")
        (self.root / staged.path).write_bytes(self.path(version).read_bytes())
        assert self.manifests.move_entry(self.key, entry, staged)
        if not keep_final:
            self.path(version).unlink()

    def examine(self) -> list[Finding]:
        """Return the findings about entries; nothing is written and no version is finished."""
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
def stored_table(request: pytest.FixtureRequest, tmp_path: Path) -> TableWithEntries:
    manifests: ManifestStore = InMemoryManifestStore()
    if request.param == "sqlite":
        manifests = SqlManifestStore(f"sqlite:///{tmp_path}/manifests.db")
    elif request.param == "dynamodb":
        options = request.getfixturevalue("aws")
        manifests = DynamoDBManifestStore(request.getfixturevalue("dynamodb_table"), options)
    return TableWithEntries(tmp_path / "orders", manifests)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(table: Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def check(
    stored_table: TableWithEntries,
    rule: str,
    severity: Severity,
    what: str,
    *,
    done: str | None,
    after: Callable[[], object] = lambda: 0,
) -> None:
    """Check that this is the only finding, that the repair announces and fixes it, and that nothing is found
    afterwards.
    """
    (finding,) = stored_table.examine()
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
    assert stored_table.examine() == []


def test_ordinary_work_has_no_findings(stored_table: TableWithEntries) -> None:
    assert stored_table.examine() == []
    clean_up(stored_table.open(), keep=2)
    assert stored_table.examine() == []
    branch = stored_table.open().branches.create("dev").append(rows(9)).table
    assert [each.rule for each in branch.fsck().findings] == []


def test_a_reserved_version_without_its_final_manifest(stored_table: TableWithEntries) -> None:
    stored_table.undo_commit(4, keep_final=False)
    check(
        stored_table, "entry_unfinished", Severity.WARNING,
        "version 4 is reserved for this file, which is not published yet",
        done=f"version 4 is at {naming.manifest_path(Version(4))}",
    )  # fmt: skip
    assert stored_table.entry(4).is_final
    assert ids(stored_table.open()) == [1, 2, 3, 4]


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_final_manifest_whose_entry_was_not_moved(
    stored_table: TableWithEntries, version: int, dropped: bool
) -> None:
    stored_table.undo_commit(version, keep_final=True)
    if dropped:
        (stored_table.root / stored_table.entry(version).path).unlink()
    check(
        stored_table, "entry_untidy", Severity.INFO, f"version {version} is published", done=f"version {version} is at "
    )
    assert stored_table.entry(version).is_final
    assert not list(stored_table.root.glob(f"_versions/*-{STAGED}"))


def test_a_reservation_of_a_missing_manifest(stored_table: TableWithEntries) -> None:
    stored_table.reserve(5)
    check(
        stored_table, "entry_of_nothing", Severity.WARNING, "version 5 is reserved for this file, which does not exist",
        done="the entry of version 5 was removed",
    )  # fmt: skip
    assert stored_table.open().append(rows(5)).version == 5


def test_a_committed_version_without_its_manifest(stored_table: TableWithEntries) -> None:
    """The commit was acknowledged, so no repair hides the loss."""
    stored_table.path(4).unlink()
    check(
        stored_table, "manifest_gone", Severity.ERROR, "version 4 was committed, but its manifest does not "
        "exist; the newest existing one is 3", done=None,
    )  # fmt: skip
    assert stored_table.open().append(rows(5)).version == 4
    assert stored_table.examine() == []


def test_entries_left_by_a_cleanup_of_another_library(stored_table: TableWithEntries) -> None:
    for version in (1, 2):
        stored_table.path(version).unlink()
    check(
        stored_table, "entry_left", Severity.INFO, "has entries of versions without manifests: 1-2",
        done="the entry of version 1 was removed; the entry of version 2 was removed",
    )  # fmt: skip
    assert [entry.version for entry in stored_table.entries()] == [3, 4]


def test_a_version_committed_without_the_manifest_store(stored_table: TableWithEntries) -> None:
    stored_table.remove_entry(4)
    check(
        stored_table, "no_entry", Severity.WARNING, "version 4 was committed without ",
        done="an entry of version 4 was added",
    )  # fmt: skip
    assert stored_table.entry(4) == Entry(
        Version(4), naming.manifest_path(Version(4)), stored_table.path(4).stat().st_size
    )


def test_versions_from_before_the_manifest_store(stored_table: TableWithEntries) -> None:
    for version in (1, 2):
        stored_table.remove_entry(version)
    check(
        stored_table, "no_entry", Severity.INFO, "no entry of versions 1-2, which are found by their names", done=None
    )


def test_an_entry_of_another_size(stored_table: TableWithEntries) -> None:
    entry = stored_table.entry(3)
    assert stored_table.manifests.move_entry(stored_table.key, entry, replace(entry, size=7))
    check(
        stored_table, "entry_size", Severity.WARNING, f"has {entry.size} bytes, but ",
        done="the entry of version 3 was corrected", after=lambda: stored_table.entry(3) == entry,
    )  # fmt: skip


def test_an_entry_without_a_size_is_not_a_finding(stored_table: TableWithEntries) -> None:
    entry = stored_table.entry(3)
    assert stored_table.manifests.move_entry(stored_table.key, entry, replace(entry, size=None))
    assert stored_table.examine() == []


@pytest.mark.parametrize("path", ["../../etc/passwd", "_versions/7.manifest", "data/x.lance"])
def test_an_entry_with_an_invalid_path(stored_table: TableWithEntries, path: str) -> None:
    entry = stored_table.entry(4)
    assert stored_table.manifests.move_entry(stored_table.key, entry, replace(entry, path=path))
    with pytest.raises(Corrupt, match="which cannot be its manifest"):
        stored_table.open()
    check(
        stored_table,
        "entry_path",
        Severity.ERROR,
        "which cannot be its manifest",
        done="the entry of version 4 was corrected",
    )
    assert stored_table.entry(4) == entry
    assert ids(stored_table.open()) == [1, 2, 3, 4]


def test_an_entry_with_an_invalid_path_and_no_version(stored_table: TableWithEntries) -> None:
    entry = stored_table.reserve(9)
    assert stored_table.manifests.move_entry(stored_table.key, entry, replace(entry, path="../x"))
    check(stored_table, "entry_path", Severity.ERROR, "which cannot be its manifest", done=None)


def test_a_repair_of_a_changed_entry_does_nothing(stored_table: TableWithEntries) -> None:
    entry = stored_table.reserve(5)
    (finding,) = stored_table.examine()
    assert finding.automatic_repair is not None
    other = replace(entry, path=entry.path[:-1] + "7")
    assert stored_table.manifests.move_entry(stored_table.key, entry, other)
    assert finding.automatic_repair.apply() == "the entry of version 5 has changed and was not removed"
    assert stored_table.entry(5) == other
    (stored_table.root / other.path).write_bytes(b"1")
    assert finding.automatic_repair.apply() == "the entry of version 5 has changed and was not removed"


def test_entries_without_a_table(tmp_path: Path) -> None:
    """The table was deleted without its entries."""
    stored_table = TableWithEntries(tmp_path / "orders", InMemoryManifestStore())
    for path in (stored_table.root / "_versions").iterdir():
        path.unlink()
    report = examine(locate(str(stored_table.root), manifest_store=stored_table.manifests))
    assert {finding.rule for finding in report.findings} == {"manifest_gone"}
    assert report.versions == ()


def test_the_newest_version_is_moved_aside_with_its_entry(stored_table: TableWithEntries) -> None:
    stored_table.path(4).write_bytes(b"x" * stored_table.path(4).stat().st_size)
    (finding,) = [
        each
        for each in examine(locate(str(stored_table.root), manifest_store=stored_table.manifests)).findings
        if each.automatic_repair
    ]
    assert finding.automatic_repair is not None
    assert "was moved to _versions/" in finding.automatic_repair.apply()
    assert [entry.version for entry in stored_table.entries()] == [1, 2, 3]
    assert stored_table.open().append(rows(7)).version == 4
    assert stored_table.examine() == []


def test_the_command_repairs_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/manifests.db"
    stored_table = TableWithEntries(tmp_path / "orders", SqlManifestStore(url))
    stored_table.remove_entry(4)
    command = ["fsck", str(stored_table.root), "--manifest-store", url]
    for arguments, code in (([], 1), (["--repair", "entries"], 1), (["--repair", "entries", "--apply"], 0), ([], 0)):
        assert main([*command, *arguments]) == code
        message = capsys.readouterr().out
        assert ("entries: Add an entry of version 4 to sqlite" in message) is bool(arguments)


def test_an_unavailable_manifest_store_is_not_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/manifests.db"
    stored_table = TableWithEntries(tmp_path / "orders", SqlManifestStore(url))
    assert main(["fsck", str(stored_table.root), "--manifest-store", "postgresql+psycopg://127.0.0.1:1/orders"]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("the examination failed: ")
