"""Writing to tables of old releases: rows are appended, deleted and updated, columns are dropped, files are compacted,
and after each step the current pylance reads what we read, which is the expected result.

Data files of the oldest format are never written, so such a step is refused; steps that write no data file work there
too. `UNREAD` and `DAMAGED` list all exceptions.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_core import Corrupt, Table, Unsupported
from tests.golden.reading import rows_of
from tests.golden.test_golden import READ_BETTER, REFUSED, as_json, cases, release_notes, unpacked

__all__ = ["unpacked"]  # pytest fixture

# The current pylance cannot read these unchanged tables, although the release itself could.
UNREAD = {("0.5.0", "columns_legacy"), ("0.30.0", "later_types_2.0"), ("0.30.0", "later_types_legacy")}
# An update that the release aborted left fewer row ids than rows; pylance reports it as well.
DAMAGED = {("0.30.0", "row_ids")}

Rows = dict[str, Any]
Step = Callable[[Table], object]


def writable_cases() -> list[tuple[str, str]]:
    """Return the cases with a readable newest version."""
    last = {case: max(map(int, release_notes(case[0])["tables"][case[1]]["versions"])) for case in cases()}
    return [case for case in last if last[case] not in REFUSED.get(case, ((), ""))[0]]


def address(table: Table, row: int) -> int:
    return int(table.to_table([], with_row_address=True)["_rowaddr"][row].as_py())


def rows(table: Table) -> Rows:
    return as_json(rows_of(table.to_table()))


def _first(table: Table) -> str:
    return table.schema.names[0]


STEPS: dict[str, tuple[Step, Callable[[pa.Table], pa.Table], bool]] = {
    "append": (
        lambda table: table.append(table.to_table().slice(0, 2)),
        lambda before: pa.concat_tables([before, before.slice(0, 2)]),
        True,
    ),
    "delete": (
        lambda table: table.delete(f"_rowaddr = {address(table, -1)}"),
        lambda before: before.slice(0, max(0, before.num_rows - 1)),
        False,
    ),
    "update": (
        lambda table: table.update({_first(table): f"`{_first(table)}`"}, where=f"_rowaddr = {address(table, 0)}"),
        lambda before: pa.concat_tables([before.slice(1), before.slice(0, 1)]),
        True,
    ),
    "compact": (lambda table: table.compact(), lambda before: before, True),
    "drop": (
        lambda table: table.drop_columns([_first(table)]),
        lambda before: before.drop_columns(before.column_names[:1]),
        False,
    ),
    "overwrite": (lambda table: table.overwrite(table.to_table().slice(0, 1)), lambda before: before.slice(0, 1), True),
}
"""The operation, the rows afterwards in any order, and whether it writes a data file."""


@pytest.mark.parametrize(("release", "name"), writable_cases())
def test_written_upon(unpacked: Path, release: str, name: str, tmp_path: Path) -> None:
    place = str(tmp_path / name)
    shutil.copytree(unpacked / release / name, place)
    is_legacy = Table.open(place).manifest.storage_version.is_legacy
    for step, (do, after, writes) in STEPS.items():
        table = Table.open(place, durable=False)
        before = table.to_table()
        if before.num_rows < 2 or (step == "drop" and len(before.column_names) < 2):
            continue
        if step in ("update", "compact") and (release, name) in DAMAGED:
            with pytest.raises(Corrupt, match="9 row ids for 10 rows"):
                do(table)
            continue
        if refusal_of(do, table):
            assert Table.open(place).version == table.version
            continue
        assert not (writes and is_legacy) or Table.open(place).version == table.version
        found = Table.open(place).to_table()
        assert found.num_rows == after(before).num_rows
        if (release, name) not in UNREAD:  # JSON text is normalized when it is rewritten
            assert in_any_order(found) == in_any_order(after(before)), step
        check_with_pylance(place, release, name)


def refusal_of(do: Step, table: Table) -> str:
    """Return the message of an expected refusal: the oldest format, or an index that would lose its addresses. Other
    errors propagate."""
    try:
        do(table)
    except Unsupported as error:
        message = str(error)
        if "storage version 0.1 cannot be written" in message or "stores the addresses of rows" in message:
            return message
        raise
    return ""


def check_with_pylance(place: str, release: str, name: str) -> None:
    if (release, name) in UNREAD:
        return
    theirs = lance.dataset(place)
    assert theirs.count_rows() == Table.open(place).count_rows()
    if "rows" not in str(READ_BETTER.get((release, name), {})):  # pylance returns values of other columns there
        assert as_json(rows_of(theirs.to_table())) == rows(Table.open(place))


def in_any_order(table: pa.Table) -> list[str]:
    columns = [as_json({"c": rows_of(table.slice(row, 1))}) for row in range(min(table.num_rows, 50))]
    return sorted(map(str, columns)) if table.num_rows <= 50 else [str(table.num_rows)]


@pytest.mark.parametrize("release", ["0.5.0", "0.10.5", "0.20.0", "1.0.0", "14.0.2"])
def test_values_of_dictionaries_go_from_manifest_to_manifest(unpacked: Path, release: str, tmp_path: Path) -> None:
    """In the oldest format, dictionary values lie in the manifest of each version, at offsets from its start."""
    place = str(tmp_path / "t")
    shutil.copytree(unpacked / release / "types_legacy", place)
    table = Table.open(place, durable=False)
    first = table.manifest.dictionaries
    assert first
    before = table.to_table(["dictionary"])["dictionary"].to_pylist()
    for change in (
        lambda table: table.drop_columns(["row"]),
        lambda table: table.alter_column("dictionary", rename="d"),
        lambda table: table.set_config({"a": "b"}),
        lambda table: table.delete(f"_rowaddr = {address(table, -1)}"),
        lambda table: table.set_field_metadata({"d": {"a": "b"}}),
    ):
        table = change(table).table
        assert table.manifest.dictionaries == first
        seen = lance.dataset(place).to_table()
        name = "d" if "d" in seen.column_names else "dictionary"
        assert seen[name].to_pylist() == table.to_table([name])[name].to_pylist() == before[: seen.num_rows]
