"""What a version tells of where it comes from, from the table alone."""

from pathlib import Path

import lance
import pytest

from lance_core import Table
from lance_core.operations import Overwrite
from tests.lance_core.versions.test_refs import rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), rows(1, 2, 3, 4))


def test_what_a_version_was_rebased_over_is_what_its_writer_was_told(table: Table) -> None:
    table.append(rows(5))
    appended = table.append(rows(6))
    removed = table.delete("id = 1", properties={"by": "test"})
    assert (appended.version, appended.rebased_over, removed.version, removed.rebased_over) == (3, (2,), 4, (2, 3))
    told = {info.version: tuple(info.rebased_over) for info in table.versions()}
    assert told == {1: (), 2: (), 3: (2,), 4: (2, 3)}


def test_deletions_that_were_joined_tell_what_they_were_planned_on(table: Table) -> None:
    """The format has the newest version for `read_version` then."""
    table.delete("id = 1")
    table.append(rows(5))
    joined = table.delete("id = 2", properties={"by": "test"})
    assert (joined.version, joined.rebased_over) == (4, (2, 3))
    info = joined.table.version_info()
    assert (info.read_version, info.planned_on, tuple(info.rebased_over)) == (3, 1, (2, 3))
    assert info.properties["by"] == "test"
    assert lance.dataset(table.uri).to_table()["id"].to_pylist() == [3, 4, 5]


@pytest.mark.parametrize("noted", ["", "x", "-1", "1.5", "9" * 40, "²"])
def test_a_note_that_is_no_version_says_nothing(table: Table, noted: str) -> None:
    info = table.append(rows(5), properties={"lance_assets.planned_on": noted}).table.version_info()
    assert (info.planned_on, tuple(info.rebased_over)) == (1, ())


def test_a_note_of_any_size_costs_nothing(table: Table) -> None:
    info = table.append(rows(5), properties={"lance_assets.planned_on": "1"}).table.version_info()
    assert len(info.rebased_over) == 0
    info = table.append(rows(5), properties={"lance_assets.planned_on": str(10**18)}).table.version_info()
    assert len(info.rebased_over) == 0


def test_offshoots_were_rebased_over_nothing(table: Table) -> None:
    table = table.append(rows(5)).table
    for begun in (table.branches.create("dev"), table.clone(table.uri + "-c")):
        assert (begun.version_info().operation, tuple(begun.version_info().rebased_over)) == ("Clone", ())


def test_a_detached_version_is_compared_with_what_it_was_made_upon(table: Table) -> None:
    beside = table.commit(Overwrite((), table.manifest.schema), detached=True).table.version_info()
    assert (beside.rows, beside.rows_added, beside.rows_removed, tuple(beside.rebased_over)) == (0, 0, 4, ())
