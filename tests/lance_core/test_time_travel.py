"""Time travel: versions by number, tag and time, and restoring a version, compared with pylance."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import lance
import pytest

from lance_core import InvalidInput, NotFound, Table
from lance_core.format.manifest import Manifest
from tests.lance_core.versions.test_refs import ids, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table whose version n has the rows 1 to n and the time n hours after the beginning of 2030."""
    table = Table.create(str(tmp_path / "t"), rows(1)).append(rows(2)).table.append(rows(3)).table
    for number in (1, 2, 3):
        set_timestamp(table, number, hour(number))
    return table.refresh()


def hour(number: float) -> datetime:
    return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(hours=number)


def set_timestamp(table: Table, number: int, when: datetime) -> None:
    manifest = table.at(number).manifest
    message = manifest.copy_header()
    message.timestamp.seconds, message.timestamp.nanos = int(when.timestamp()), when.microsecond * 1000
    created = Manifest.from_header(
        message, index_section=None, transaction=manifest.inline_transaction, path=manifest.path
    )
    (Path(table.uri) / manifest.path).write_bytes(created.encode())


@pytest.mark.parametrize(("when", "version"), [(1, 1), (1.5, 1), (2, 2), (2.99, 2), (3, 3), (1000, 3)])
def test_as_of_a_time(table: Table, when: float, version: int) -> None:
    for actual in (table.at(timestamp=hour(when)), Table.open(table.uri, timestamp=hour(when))):
        assert (actual.version, ids(actual)) == (version, list(range(1, version + 1)))
    if when % 1:  # pylance documents "on or before", but excludes "on"
        naive = hour(when).astimezone().replace(tzinfo=None)
        assert lance.dataset(table.uri, asof=naive).version == version


def test_any_time_zone_is_accepted(table: Table) -> None:
    assert table.at(timestamp=hour(2).astimezone(timezone(timedelta(hours=-7)))).version == 2


def test_a_time_before_the_first_version(table: Table) -> None:
    with pytest.raises(NotFound, match=r"no version of 2030-01-01T00:00:00.* its oldest version, 1, was"):
        table.at(timestamp=hour(0))


def test_a_time_without_a_zone_is_rejected(table: Table) -> None:
    with pytest.raises(InvalidInput, match="has no time zone"):
        table.at(timestamp=datetime(2030, 1, 1))  # noqa: DTZ001


def test_trap_33_clocks_may_run_backwards(table: Table) -> None:
    """Numbers order versions: the newest version until then counts, even if an earlier one has a later time."""
    set_timestamp(table, 2, hour(10))
    assert table.at(timestamp=hour(5)).version == 3
    assert table.at(timestamp=hour(2.5)).version == 1


def test_times_of_branches(table: Table) -> None:
    branch = table.branches.create("dev", 1)
    set_timestamp(branch, 1, hour(7))
    assert Table.open(table.uri, branch="dev", timestamp=hour(8)).branch == "dev"
    with pytest.raises(NotFound, match="tree/dev has no version of"):
        Table.open(table.uri, branch="dev", timestamp=hour(6))


def test_a_table_without_versions(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no Lance table"):
        Table.open(str(tmp_path), timestamp=hour(1))


def test_versions_that_do_not_exist(table: Table) -> None:
    for number in (0, -1):
        with pytest.raises(InvalidInput, match="versions count from 1"):
            table.at(number)
        with pytest.raises(InvalidInput, match="versions count from 1"):
            Table.open(table.uri, version=number, branch="main")
    with pytest.raises(NotFound, match="has no version 9; it has 1-3"):
        table.at(9)
    assert table.at().version == 3


def test_restoring_equals_that_of_pylance(tmp_path: Path) -> None:
    created = []
    for name in ("ours", "theirs"):
        table = Table.create(str(tmp_path / name), rows(1, 2), stable_row_ids=True)
        theirs = lance.dataset(table.uri)
        theirs.update_config({"a": "1"})
        theirs.insert(rows(3))
        theirs.delete("id = 1")
        created.append(table.refresh())
    ours, theirs = created[0].restore(2).table, lance.dataset(created[1].uri, version=2)
    theirs.restore()
    twin = created[1].refresh()
    assert dict(ours.config) == {**twin.config, "lance_assets.table_id": ours.id}
    for field in ("max_fragment_id", "next_row_id", "version"):
        assert getattr(ours.manifest, field) == getattr(twin.manifest, field), field
    assert ids(ours) == ids(twin) == [1, 2]
    assert lance.dataset(ours.uri).to_table()["id"].to_pylist() == [1, 2]
    assert ours.at(4).count_rows() == 2


def test_restoring_a_missing_version(table: Table) -> None:
    with pytest.raises(NotFound, match="has no version 7"):
        table.restore(7)
    assert table.refresh().version == 3


def test_restoring_once(table: Table) -> None:
    first = table.restore(1, intent="back")
    again = table.refresh().restore(1, intent="back")
    assert (first.version, again.version, again.already_committed) == (4, 4, True)
    assert (first.rows_removed, first.operation) == (2, "Restore")
