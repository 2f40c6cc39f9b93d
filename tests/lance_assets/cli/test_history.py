"""`lance-assets history`: its output, the order of the versions, and the number of reads."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.format.ids import Version
from lance_core.format.naming import manifest_path
from lance_core.storage.local import LocalStore
from tests.lance_assets.cli.conftest import RUN, Shell, rows

_SHOWN = """\
orders.lance: 5 versions

version  when (UTC)           action               rows  change  run       asset               partition   notes
      5  TIME  restore                 4      +1                                            restored 2
      4  TIME  add columns (Merge)     3
      3  TIME  delete                  3      -1                                            rebased over 2
      2  TIME  append                  4      +1  3f1c9f0e  lake/orders_append  2026-01-02
      1  TIME  create (Overwrite)      3      +3
"""


def test_newest_first_with_run_asset_and_partition(orders: Table, shell: Shell, tmp_path: Path) -> None:
    answer = shell("history", orders.uri)
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path) == _SHOWN


def test_limit(orders: Table, shell: Shell, tmp_path: Path) -> None:
    some = shell("history", orders.uri, "--limit", 2).drawn(tmp_path)
    assert some.startswith("orders.lance: 5 versions; the newest 2, --limit 0 for all\n")
    assert [line.split()[0] for line in some.splitlines()[3:]] == ["5", "4"]
    assert shell("history", orders.uri, "--limit", 0).drawn(tmp_path) == _SHOWN
    refused = shell("history", orders.uri, "--limit", -1)
    assert (refused.code, refused.err) == (2, "error: --limit must be at least 0, not -1; 0 shows all versions\n")


def test_start_version(orders: Table, shell: Shell) -> None:
    lines = shell("history", f"{orders.uri}@spring", "--limit", 2).out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["3", "2"]


def test_branch_starts_at_a_version_of_its_source(orders: Table, shell: Shell, tmp_path: Path) -> None:
    orders.branches.create("dev").append(rows(9))
    assert shell("history", f"{orders.uri}@dev:").drawn(tmp_path) == (
        "orders.lance/tree/dev: 2 versions\n\n"
        "version  when (UTC)           action                 rows  change  notes\n"
        "      6  TIME  append                    5      +1\n"
        "      5  TIME  create branch (Clone)     4          begins as orders.lance@5\n"
    )


def test_detached_version(orders: Table, shell: Shell) -> None:
    made_by = orders.transaction(2)
    assert made_by is not None
    beside = orders.at(1).commit(made_by.operation, detached=True).version
    lines = shell("history", f"{orders.uri}@{beside}").out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == [str(beside), "1"]


def test_gap_after_cleanup(orders: Table, shell: Shell) -> None:
    (Path(orders.uri) / manifest_path(Version(2))).unlink()
    lines = shell("history", orders.uri).out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["5", "4", "3", "1"]
    assert lines[5].split()[3:6] == ["delete", "3", "rebased"]  # the operations of removed versions are unknown


def test_damaged_version_is_listed_with_the_others(orders: Table, shell: Shell) -> None:
    (Path(orders.uri) / manifest_path(Version(2))).write_bytes(b"LANC")
    answer = shell("history", orders.uri)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["5", "4", "3", "2", "1"]
    assert "cannot be read" in lines[6]
    assert "is 4 bytes long, which is too short for a manifest" in lines[6]
    damaged = shell("history", orders.uri, "--json").json["history"][3]
    assert damaged.keys() == {"uri", "version", "unknown"}


def test_json(orders: Table, shell: Shell) -> None:
    output = shell("history", orders.uri, "--json").json
    assert (output["uri"], output["versions"]) == (orders.uri, 5)
    assert [each["version"] for each in output["history"]] == [5, 4, 3, 2, 1]
    restored, _, deleted, appended, first = output["history"]
    assert (restored["sources"], restored["inputs"]) == ([{"uri": orders.uri, "version": 2, "bond": "restored"}], [])
    assert (deleted["planned_on"], deleted["rebased_over"], deleted["parent"]) == (1, [2], 2)
    assert (appended["run_id"], appended["asset"], appended["partition"]) == (RUN, "lake/orders_append", "2026-01-02")
    assert (appended["rows"], appended["rows_added"], appended["rows_removed"]) == (4, 1, 0)
    assert (first["parent"], first["planned_on"], first["together"]) == (None, None, [])


def test_versions_of_other_writers(shell: Shell, tmp_path: Path) -> None:
    uri = str(tmp_path / "theirs")
    lance.write_dataset(rows(1, 2), uri)
    lance.write_dataset(rows(3), uri, mode="append")
    output = shell("history", uri, "--json").json["history"]
    assert [(each["operation"], each["rows"], each["run_id"]) for each in output] == [
        ("Append", 3, None),
        ("Overwrite", 2, None),
    ]


def test_output_fits_the_terminal(orders: Table, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for width in (200, 100, 80, 40, 20):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = shell("history", orders.uri).out.splitlines()
        assert all(len(line) <= width for line in lines[2:])
        assert [line.split()[0] for line in lines[3:]] == ["5", "4", "3", "2", "1"]
    monkeypatch.setenv("COLUMNS", "80")
    assert "lake" in shell("history", orders.uri).out


def test_control_characters_are_escaped(orders: Table, shell: Shell) -> None:
    evil = {"dagster.asset_key": "\x1b]0;owned\x07\nasset", "dagster.run_id": "\x1b[31m-red", "dagster.partition": "‮"}
    orders.append(rows(9), properties=evil)
    for command in ("history", "show", "lineage"):
        out = shell(command, orders.uri).out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "\u202e" not in out


def test_only_listed_versions_are_read(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1]}), durable=False)
    for number in range(60):
        table = table.set_config({"n": str(number)}).table
    read: list[str] = []
    original_read = LocalStore.read

    def counted(store: LocalStore, path: str, *args: int) -> bytes:
        read.append(path)
        return original_read(store, path, *args)

    monkeypatch.setattr(LocalStore, "read", counted)
    assert len(shell("history", table.uri, "--limit", 5, "--json").json["history"]) == 5
    assert len({path for path in read if path.endswith(".manifest")}) <= 6
    read.clear()
    assert len(shell("history", f"{table.uri}@20", "--limit", 5, "--json").json["history"]) == 5
    assert len({path for path in read if path.endswith(".manifest")}) <= 6
