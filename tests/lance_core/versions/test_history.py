"""Version history: what a version records about its commit, read from the table alone."""

from pathlib import Path

import lance
import pytest

from lance_core import Table
from lance_core.operations import Overwrite
from tests.lance_core.versions.test_refs import rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), rows(1, 2, 3, 4))


def test_a_version_records_what_its_commit_was_rebased_over(table: Table) -> None:
    table.append(rows(5))
    appended = table.append(rows(6))
    removed = table.delete("id = 1", properties={"by": "test"})
    assert (appended.version, appended.rebased_over, removed.version, removed.rebased_over) == (3, (2,), 4, (2, 3))
    reported = {info.version: tuple(info.rebased_over) for info in table.versions()}
    assert reported == {1: (), 2: (), 3: (2,), 4: (2, 3)}


def test_merged_deletions_record_the_version_they_were_planned_on(table: Table) -> None:
    """The `read_version` of the format is the newest version in this case."""
    table.delete("id = 1")
    table.append(rows(5))
    joined = table.delete("id = 2", properties={"by": "test"})
    assert (joined.version, joined.rebased_over) == (4, (2, 3))
    info = joined.table.version_info()
    assert (info.read_version, info.planned_on, tuple(info.rebased_over)) == (3, 1, (2, 3))
    assert info.properties["by"] == "test"
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == [3, 4, 5]


@pytest.mark.parametrize("recorded", ["", "x", "-1", "1.5", "9" * 40, "²"])
def test_an_invalid_recorded_version_is_ignored(table: Table, recorded: str) -> None:
    info = table.append(rows(5), properties={"lance_assets.planned_on": recorded}).table.version_info()
    assert (info.planned_on, tuple(info.rebased_over)) == (1, ())


def test_an_old_or_huge_recorded_version_costs_nothing(table: Table) -> None:
    info = table.append(rows(5), properties={"lance_assets.planned_on": "1"}).table.version_info()
    assert len(info.rebased_over) == 0
    info = table.append(rows(5), properties={"lance_assets.planned_on": str(10**18)}).table.version_info()
    assert len(info.rebased_over) == 0


def test_branches_and_clones_are_rebased_over_nothing(table: Table) -> None:
    table = table.append(rows(5)).table
    for started in (table.branches.create("dev"), table.clone(table.uri + "-c")):
        assert (started.version_info().operation, tuple(started.version_info().rebased_over)) == ("Clone", ())


def test_a_detached_version_is_compared_with_its_base(table: Table) -> None:
    detached = table.commit(Overwrite((), table.manifest.schema), detached=True).table.version_info()
    assert (detached.rows, detached.rows_added, detached.rows_removed, tuple(detached.rebased_over)) == (0, 0, 4, ())
