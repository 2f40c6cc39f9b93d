"""Tests of `lance_core/tasks/views/`: after every refresh, a view has exactly the rows that its query gives on the
version of the source that it records, whatever happened to the source, to the view and to the process."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import IncompatibleConflict, InvalidInput, NotFound, RetryableConflict, Table
from lance_core.dml.view_definition import SOURCE_ROW_ID, SOURCE_VERSION, Select, ViewDefinition
from lance_core.format.view_records import VIEW, ViewRecord
from lance_core.storage.local import LocalStore
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.scan.read import VersionRef
from lance_core.tasks.views import RefreshReport, refresh, refresh_view
from tests.lance_core.tasks.in_process_workers import InProcessWorkers

STEPS = 22
Rows = list[dict[str, Any]]
DEFINITIONS: tuple[tuple[Select, str | None], ...] = (
    (["id", "a * 2 AS doubled"], "a % 3 = 0"),
    (["id", "a", "lang"], "lang = 'fr' AND a IS NOT NULL"),
    ({"key": "id", "text": "upper(lang)"}, None),
)


class Killed(BaseException):
    """End of a process."""


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, position: int, interrupt: Callable[[], object]) -> Iterator[None]:
    """Call `interrupt` once, before call number `position` of a local store that changes something."""
    remaining = position

    def hook(method: str) -> None:
        original = getattr(LocalStore, method)

        def call(store: LocalStore, *arguments: object) -> object:
            nonlocal remaining
            remaining -= 1
            if remaining == -1:
                interrupt()
            return original(store, *arguments)

        patched.setattr(LocalStore, method, call)

    with monkeypatch.context() as patched:
        for method in ("put", "put_unsynced", "create_after", "delete"):
            hook(method)
        yield


@dataclass
class History:
    """A source, a view of it, and the rows that each version of the source had."""

    directory: Path
    choices: random.Random
    monkeypatch: pytest.MonkeyPatch
    definition: tuple[Select, str | None] = DEFINITIONS[0]
    next_id: int = 0
    recreated: int = 0
    has_interrupted: bool = False
    reports: list[RefreshReport] = field(default_factory=list)
    contents: dict[tuple[int, int], Rows] = field(default_factory=dict)
    """Rows by the number of times the source was created and the version."""

    @property
    def source_uri(self) -> str:
        return str(self.directory / "source.lance")

    @property
    def view_uri(self) -> str:
        return str(self.directory / "view.lance")

    def source(self) -> Table:
        return Table.open(self.source_uri, durable=False)

    def view(self) -> Table:
        return Table.open(self.view_uri, durable=False)

    def create_source(self) -> None:
        shutil.rmtree(self.source_uri, ignore_errors=True)
        self.recreated += 1
        Table.create(self.source_uri, self.new_rows(), stable_row_ids=True, durable=False)
        self.note_contents()

    def note_contents(self) -> None:
        """Remember the rows of the newest versions of the source, which a cleanup may remove."""
        source = lance.dataset(self.source_uri)
        for number in source.versions():
            key = self.recreated, number["version"]
            if key not in self.contents:
                self.contents[key] = source.checkout_version(key[1]).to_table(with_row_id=True).to_pylist()

    def new_rows(self) -> pa.Table:
        ids = list(range(self.next_id, self.next_id + self.choices.randint(1, 6)))
        self.next_id = ids[-1] + 1
        values = [self.choices.choice([None, 0, 1, 2, 3, 4]) for _ in ids]
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "a": pa.array(values, pa.int64()),
                "lang": pa.array([self.choices.choice(["fr", "en"]) for _ in ids]),
            }
        )

    def condition(self) -> str:
        return f"id % {self.choices.randint(2, 4)} = {self.choices.randint(0, 1)}"

    def change_source(self) -> None:
        """Change the source by one operation of this library or of pylance."""
        source = self.source()
        match self.choices.randrange(16):
            case 0 | 1:
                source.append(self.new_rows())
            case 2:
                source.update({"a": "a + 1"}, where=self.condition())
            case 3:
                source.update({"lang": "'fr'"}, where=self.condition())
            case 4 | 5:
                source.delete(self.condition())
            case 6:
                source.compact()
            case 7:
                ids = sorted({self.choices.randrange(self.next_id + 3) for _ in range(3)})
                self.next_id = max(self.next_id, ids[-1] + 1)
                source.upsert({"id": ids, "a": [6] * len(ids), "lang": ["fr"] * len(ids)}, "id")
            case 8:
                source.restore(self.choices.choice(source.version_numbers()))
            case 9:
                lance.write_dataset(self.new_rows(), self.source_uri, mode="append")
            case 10:
                lance.dataset(self.source_uri).update({"a": "3"}, where=self.condition())
            case 11:
                lance.dataset(self.source_uri).delete(self.condition())
            case 12:
                lance.dataset(self.source_uri).optimize.compact_files()
            case 13:
                rows = pa.table({"id": pa.array([self.choices.randrange(self.next_id)]), "a": pa.array([3])})
                source.upsert(rows, "id", insert=False)
            case 14:
                lance.dataset(self.source_uri).cleanup_old_versions(timedelta(0))
            case _:
                if self.choices.random() < 0.3:
                    self.create_source()
        self.note_contents()

    def change_view(self) -> None:
        """Change the view by an operation of another writer."""
        if not Table.exists(self.view_uri):
            return
        view = self.view()
        match self.choices.randrange(6):
            case 0 | 1:
                view.compact()
            case 2:
                view.delete(f"{SOURCE_ROW_ID} % 2 = 0")
            case 3:
                view.restore(self.choices.choice(view.version_numbers()))
            case 4:
                view.append({SOURCE_ROW_ID: [10_000], SOURCE_VERSION: [1]})
            case _:
                lance.dataset(self.view_uri).optimize.compact_files()

    def refresh(self) -> RefreshReport:
        report = refresh(
            TableRef(self.view_uri, durable=False),
            VersionRef(self.source_uri),
            ViewDefinition.of(*self.definition),
            options=WriteOptions(retries=20),
            runner=InProcessWorkers(),
        )
        self.reports.append(report)
        return report

    def refresh_interrupted(self, interrupt: Callable[[], object]) -> None:
        self.has_interrupted = False
        with interrupted(self.monkeypatch, self.choices.randrange(10), interrupt):
            self.refresh()

    def change_and_refresh(self) -> None:
        """Change the source and run another refresh to its end, while the first one is under way."""
        self.has_interrupted = True
        self.change_source()
        self.refresh()

    def kill(self) -> None:
        raise Killed

    def step(self) -> None:
        match self.choices.randrange(10):
            case 0:
                with suppress(Killed):
                    self.refresh_interrupted(self.kill)
            case 1:
                self.refresh_interrupted(self.change_and_refresh)
                record = ViewRecord.decode(self.view().config[VIEW])
                assert record is not None
                assert record.source_version == self.source().version or not self.has_interrupted
            case 2:
                with suppress(RetryableConflict, NotFound):  # the source was created again, or cleaned up, meanwhile
                    self.refresh_interrupted(self.change_source)
            case 3:
                with suppress(IncompatibleConflict):
                    self.refresh_interrupted(self.change_view)
            case 4:
                self.change_view()
            case 5:
                if self.choices.random() < 0.3:
                    self.definition = self.choices.choice(DEFINITIONS)
            case _:
                self.change_source()

    def check(self) -> None:
        """Refresh the view, and compare its rows with the query of the version that it records."""
        self.refresh()
        record = ViewRecord.decode(self.view().config[VIEW])
        assert record is not None
        assert record.source_version == self.source().version
        source = self.contents[self.recreated, record.source_version]
        expected = sorted((row["_rowid"], *values) for row in source if (values := self.query(row)) is not None)
        columns = [name for name in self.view().schema.names if name != SOURCE_VERSION]
        for rows in (self.view().to_table(columns), lance.dataset(self.view_uri).to_table(columns)):
            assert sorted(tuple(row.values()) for row in rows.to_pylist()) == expected, record
        versions = self.source().to_table(["_rowid", "_row_last_updated_at_version"]).to_pylist()
        updated = {row["_rowid"]: row["_row_last_updated_at_version"] for row in versions}
        for row in self.view().to_table([SOURCE_ROW_ID, SOURCE_VERSION]).to_pylist():
            assert updated[row[SOURCE_ROW_ID]] == row[SOURCE_VERSION], row
        assert self.refresh().refresh == "unchanged"

    def query(self, row: dict[str, Any]) -> tuple[object, ...] | None:
        """Return the row of the view for a row of the source; `None` if it has none."""
        number, a, lang = row["id"], row["a"], row["lang"]
        match DEFINITIONS.index(self.definition):
            case 0:
                return (number, 2 * a) if a is not None and a % 3 == 0 else None
            case 1:
                return (number, a, lang) if lang == "fr" and a is not None else None
            case _:
                return (number, lang.upper())


@pytest.mark.parametrize("seed", range(12))
def test_a_view_equals_the_query_of_the_version_that_it_records(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path, random.Random(seed), monkeypatch)
    history.create_source()
    for _ in range(STEPS):
        history.step()
        if history.choices.random() < 0.5:
            history.check()
    history.check()
    assert any(report.refresh == "incremental" for report in history.reports)


SELECT = ["id", "a + 1 AS next"]


@pytest.fixture
def source(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "source.lance"), {"id": [1, 2, 3], "a": [1, 2, 3]}, stable_row_ids=True)


def follow(source: Table, **options: Any) -> RefreshReport:
    options = {"select": SELECT, "where": "a > 1", **options}
    return refresh_view(source.uri.replace("source", "view"), of=source.uri, **options)


def test_every_reason_for_a_rebuild_is_recorded(source: Table) -> None:
    reasons = [follow(source).reason]
    reasons.append(follow(source, select=["id"]).reason)
    reasons.append(follow(source, select=["id"], rebuild=True).reason)
    view = follow(source).committed.table
    view.delete(f"{SOURCE_ROW_ID} = 1")
    reasons.append(follow(source).reason)
    source = source.append({"id": [4], "a": [4]}).table
    lance.dataset(source.uri).cleanup_old_versions(timedelta(0))
    reasons.append(follow(source).reason)
    shutil.rmtree(source.uri)
    recreated = Table.create(source.uri, {"id": [9], "a": [9]}, stable_row_ids=True)
    reasons.append(follow(recreated).reason)
    shutil.rmtree(source.uri)
    unstable = Table.create(source.uri, {"id": [7], "a": [7]})
    follow(unstable)
    reasons.append(follow(unstable.append({"id": [8], "a": [8]}).table).reason)
    for reason, part in zip(
        reasons,
        ["new", "definition", "requested", "another writer", "cleaned up", "no version 2", "no stable row ids"],
        strict=True,
    ):
        assert part in reason, reasons
    assert Table.open(source.uri.replace("source", "view")).to_table(["id", "next"]).to_pylist() == [
        {"id": 7, "next": 8},
        {"id": 8, "next": 9},
    ]


def test_a_source_that_was_created_again_is_another_one(source: Table) -> None:
    follow(source)
    shutil.rmtree(source.uri)
    Table.create(source.uri, {"id": [5, 6], "a": [5, 6]}, stable_row_ids=True)
    again = Table.open(source.uri).append({"id": [7], "a": [7]}).table
    report = follow(again)
    assert "recreated" in report.reason
    assert report.committed.table.to_table(["id"])["id"].to_pylist() == [5, 6, 7]


def test_a_restored_view_continues_from_the_version_that_it_contains(source: Table) -> None:
    first = follow(source).committed.table
    source = source.delete("id = 2").table
    follow(source)
    Table.open(first.uri).restore(first.version)
    report = follow(source)
    assert (report.refresh, report.since, report.source_version) == ("incremental", 1, 2)
    assert report.committed.table.to_table(["id"])["id"].to_pylist() == [3]


def test_an_index_and_a_column_of_a_view_stay(source: Table) -> None:
    """Changes that leave the rows of the view as they are need no rebuild: further columns belong to others."""
    view = follow(source).committed.table
    view.create_index("id", "BTREE").table.add_columns({"note": "CASE WHEN id > 0 THEN 'kept' END"})
    source.append({"id": [4], "a": [4]})
    report = follow(source)
    assert report.refresh == "incremental"
    assert report.committed.table.to_table(["id", "note"]).to_pylist() == [
        {"id": 2, "note": "kept"},
        {"id": 3, "note": "kept"},
        {"id": 4, "note": None},
    ]
    assert [index.name for index in report.committed.table.indices] == ["id_idx"]


def test_an_intent_commits_one_version(source: Table) -> None:
    first = follow(source, intent="run 1")
    source.append({"id": [4], "a": [4]})
    again = follow(source, intent="run 1")
    assert again.committed.already_committed
    assert (again.committed.version, again.source_version) == (first.committed.version, 1)


def test_a_table_of_others_is_not_replaced(source: Table) -> None:
    with pytest.raises(InvalidInput, match="no refresh has written"):
        refresh_view(source.uri, of=source.uri)
    assert Table.open(source.uri).version == 1


def test_an_older_version_of_the_source_is_not_applied(source: Table) -> None:
    newest = source.append({"id": [4], "a": [4]}).table
    follow(newest)
    report = follow(newest, version=1)
    assert (report.refresh, report.source_version) == ("unchanged", 2)
    report = follow(newest, version=1, rebuild=True)
    assert (report.refresh, report.source_version, report.committed.table.count_rows()) == ("rebuild", 2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": ["id + 1"]}, "give an expression a name"),
        ({"select": ["other"]}, "other"),
        ({"select": ["id", "a AS id"]}, "twice"),
        ({"select": ["a AS _rowid"]}, "_rowid"),
        ({"select": []}, "no column"),
        ({"select": "id"}, "is a text"),
        ({"where": "nothing > 1"}, "nothing"),
        ({"where": "a > 1 AND now() IS NOT NULL"}, "depends on the time"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(source: Table, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        follow(source, **options)
    assert not Table.exists(source.uri.replace("source", "view"))


def test_an_upsert_applies_deletes_of_its_data(source: Table) -> None:
    """`delete_if` of an upsert: rows of the data that meet it delete their match and are not inserted."""
    source.upsert({"id": [1, 2, 8, 9], "a": [None, 20, None, 90]}, "id", delete_if="a IS NULL")
    assert Table.open(source.uri).to_table().sort_by("id").to_pylist() == [
        {"id": 2, "a": 20},
        {"id": 3, "a": 3},
        {"id": 9, "a": 90},
    ]
    with pytest.raises(InvalidInput, match="delete_if="):
        source.upsert({"id": [1], "a": [1]}, "id", matched="ignore", delete_if="a IS NULL")
