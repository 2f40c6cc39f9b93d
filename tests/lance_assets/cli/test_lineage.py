"""`lance-assets lineage`: the ancestry of real tables, including missing, unreachable and contradictory inputs."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import lance
import pytest

from lance_assets.lineage import ancestry_of
from lance_assets.provenance.column_sources import COLUMN_SOURCES, ColumnSource, encode_column_sources
from lance_core import Table
from lance_core.format.ids import Version
from lance_core.format.naming import manifest_path
from lance_core.runtime import SYSTEM_RUNTIME
from tests.lance_assets.cli.conftest import FROM_RUN, RUN, Shell, reading, rows

_DIAMOND = """\
features.lance@2  append  TIME  run RUN  asset lake/orders_append  partition 2026-01-02
├─ customers.lance@1  create (Overwrite)  TIME
│  └─ raw.lance@1  create (Overwrite)  TIME
└─ orders.lance@2  append  TIME  run RUN  asset lake/orders_append  partition 2026-01-02
   └─ raw.lance@1  (see above)
"""


@pytest.fixture
def features(tmp_path: Path) -> Table:
    """Table whose lineage is a diamond of four tables."""
    raw = Table.create(str(tmp_path / "raw.lance"), rows(1), durable=False)
    customers = Table.create(str(tmp_path / "customers.lance"), rows(1), properties=reading(raw), durable=False)
    orders = Table.create(str(tmp_path / "orders.lance"), rows(1), durable=False)
    orders = orders.append(rows(2), properties={**FROM_RUN, **reading(raw)}).table
    features = Table.create(str(tmp_path / "features.lance"), rows(1), durable=False)
    return features.append(rows(2), properties={**FROM_RUN, **reading(orders, customers)}).table


def append_with_inputs(table: Table, inputs: object) -> Table:
    return table.append(rows(9), properties={"lance_assets.inputs": json.dumps(inputs)}).table


def test_diamond(features: Table, shell: Shell, tmp_path: Path) -> None:
    answer = shell("lineage", features.uri)
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path) == _DIAMOND


def test_python_function(features: Table) -> None:
    ancestry = ancestry_of(features)
    assert [Path(name.uri).name for name in ancestry.origins] == [
        "features.lance", "customers.lance", "orders.lance", "raw.lance",
    ]  # fmt: skip
    assert ancestry.is_complete


def test_parent_versions(features: Table, shell: Shell, tmp_path: Path) -> None:
    lines = shell("lineage", features.uri, "--parents").drawn(tmp_path).splitlines()
    assert lines[-1] == "└─ follows features.lance@1  create (Overwrite)  TIME"
    assert "│  └─ follows orders.lance@1  create (Overwrite)  TIME" in lines


def test_cycle(features: Table, shell: Shell, tmp_path: Path) -> None:
    """A correct history has no cycle, but a table restored from a backup may."""
    raw = Table.open(str(tmp_path / "raw.lance"))
    append_with_inputs(raw, {features.uri: 4})
    last = append_with_inputs(features, {raw.uri: 2})
    assert last.version == 3
    last = append_with_inputs(last, {raw.uri: 2})
    lines = shell("lineage", features.uri).drawn(tmp_path).splitlines()
    assert lines == [
        "features.lance@4  append  TIME",
        "└─ raw.lance@2  append  TIME",
        "   └─ features.lance@4  (a cycle: an ancestor of itself)",
    ]


def test_restores_clones_and_branches(features: Table, shell: Shell, tmp_path: Path) -> None:
    orders = Table.open(str(tmp_path / "orders.lance"))
    back = orders.restore(2).table
    copied = back.clone(str(tmp_path / "copy.lance"))
    branch = copied.branches.create("dev")
    assert shell("lineage", branch.uri).drawn(tmp_path).splitlines() == [
        "copy.lance/tree/dev@3  create branch (Clone)  TIME",
        "└─ begins as copy.lance@3  clone  TIME",
        "   └─ begins as orders.lance@3  restore  TIME",
        "      └─ restored orders.lance@2  append  TIME  run RUN  asset lake/orders_append  partition 2026-01-02",
        "         └─ raw.lance@1  create (Overwrite)  TIME",
    ]


def test_versions_of_other_libraries(shell: Shell, tmp_path: Path) -> None:
    theirs = lance.write_dataset(rows(1), str(tmp_path / "theirs"))
    theirs.create_branch("dev")
    theirs.shallow_clone(str(tmp_path / "copy"), 1)
    for path in (tmp_path / "theirs/tree/dev", tmp_path / "copy"):
        lines = shell("lineage", path).drawn(tmp_path).splitlines()
        assert lines[1] == "└─ begins as theirs@1  create (Overwrite)  TIME"


def test_branch_of_a_branch(features: Table, shell: Shell, tmp_path: Path) -> None:
    features.branches.create("dev").append(rows(3)).table.branches.create("dev/more")
    lines = shell("lineage", f"{features.uri}@dev/more:").drawn(tmp_path).splitlines()
    assert lines == [
        "features.lance/tree/dev/more@3  create branch (Clone)  TIME",
        "└─ begins as features.lance/tree/dev@3  append  TIME",
    ]


def test_missing_and_unreachable_inputs_are_lines(features: Table, shell: Shell, tmp_path: Path) -> None:
    raw = Table.open(str(tmp_path / "raw.lance")).append(rows(2)).table
    (Path(raw.uri) / manifest_path(Version(1))).unlink()
    shutil.rmtree(tmp_path / "customers.lance")
    (tmp_path / "orders.lance" / manifest_path(Version(2))).write_bytes(b"LANC")
    damaged = f"orders.lance/{manifest_path(Version(2))}"
    too_short = "is 4 bytes long, which is too short for a manifest"
    answer = shell("lineage", features.uri)
    assert answer.code == 0
    assert answer.drawn(tmp_path).splitlines()[1:] == [
        "├─ customers.lance@1  (unknown: no table exists at this location)",
        f"└─ orders.lance@2  (unknown: it cannot be read: {damaged}: {too_short})",
    ]
    assert shell("lineage", append_with_inputs(raw, {raw.uri: 1}).uri).drawn(tmp_path).splitlines()[1:] == [
        "└─ raw.lance@1  (unknown: this version no longer exists; the table has 2-3)"
    ]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("orders.lance", "(unknown: the recorded location is not absolute)"),
        ("", "(unknown: the recorded location is not absolute)"),
        ("gopher://x/y", "(unknown: it cannot be read: unknown scheme 'gopher'"),
        ("memory://x", "(unknown: it cannot be read: memory://x: memory:// is for tests"),
        ("/dev/null", "(unknown: it cannot be read: /dev/null is a file"),
        ("/a\0b", "(unknown: it cannot be read:"),
        ("s3://me:s3cr3t-of-theirs@lake/t", "(unknown: it cannot be read:"),
    ],
)
def test_inputs_that_are_not_tables(features: Table, shell: Shell, uri: str, message: str) -> None:
    append_with_inputs(features, {uri: 1})
    answer = shell("lineage", features.uri)
    assert answer.code == 0
    assert message in answer.out
    assert "s3cr3t" not in answer.out + shell("lineage", features.uri, "--json").out + shell("show", features.uri).out


@pytest.mark.parametrize("inputs", [[1], "x", {"/t": "1"}, {"/t": 0}, {"/t": True}, {"/t": 2**65}, {"/t": None}, 7])
def test_unparsable_record_of_inputs(features: Table, shell: Shell, inputs: object) -> None:
    append_with_inputs(features, inputs)
    answer = shell("lineage", features.uri)
    assert (answer.code, answer.out.count("\n")) == (0, 1)
    assert "(its recorded inputs cannot be parsed)" in answer.out


def test_replaced_table(features: Table, shell: Shell, tmp_path: Path) -> None:
    raw = tmp_path / "raw.lance"
    shutil.rmtree(raw)
    Table.create(str(raw), rows(7), durable=False)
    assert "younger than" not in shell("lineage", features.uri).out
    shutil.rmtree(raw)
    later = time.time_ns() + 3600 * 10**9

    class FutureTable(Table):
        runtime = replace(SYSTEM_RUNTIME, now_ns=lambda: later)

    FutureTable.create(str(raw), rows(7), durable=False)
    assert "(younger than the version made from it: the table was replaced" in shell("lineage", features.uri).out


def test_limits(features: Table, shell: Shell, tmp_path: Path) -> None:
    short = shell("lineage", features.uri, "--depth", 1)
    of_run = "run RUN  asset lake/orders_append  partition 2026-01-02"
    assert short.drawn(tmp_path).splitlines()[1:] == [
        "├─ customers.lance@1  create (Overwrite)  TIME  (not followed further)",
        f"└─ orders.lance@2  append  TIME  {of_run}  (not followed further)",
        "",
        "2 versions not followed further; increase --depth or --most",
    ]
    assert len(shell("lineage", features.uri, "--most", 1, "--json").json["versions"]) == 1
    for wrong in (("--depth", -1), ("--most", 0)):
        refused = shell("lineage", features.uri, *wrong)
        assert (refused.code, refused.err) == (2, "error: --depth must be at least 0, and --most at least 1\n")


def test_json(features: Table, shell: Shell, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "customers.lance")
    output = shell("lineage", features.uri, "--json").json
    assert (output["uri"], output["version"], output["not_followed"]) == (features.uri, 2, [])
    first, missing, orders, raw = output["versions"]
    assert first["inputs"] == [
        {"uri": str(tmp_path / "customers.lance"), "version": 1},
        {"uri": str(tmp_path / "orders.lance"), "version": 2},
    ]
    assert missing == {
        "uri": str(tmp_path / "customers.lance"), "version": 1, "unknown": "no table exists at this location",
    }  # fmt: skip
    assert (orders["run_id"], orders["asset"], orders["intent"], orders["code_location"]) == (
        RUN, "lake/orders_append", "once", "shop",
    )  # fmt: skip
    assert raw["operation"] == "Overwrite"


def test_narrow_terminal(features: Table, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert all(len(line) <= 60 for line in shell("lineage", features.uri).out.splitlines())
    assert os.environ["COLUMNS"] == "60"


def test_columns(tmp_path: Path, shell: Shell) -> None:
    sources = {"id": [ColumnSource("/lake/a.lance", "key"), ColumnSource("s3://user:secret@b/c", "id", "lake/c")]}
    properties = {COLUMN_SOURCES: encode_column_sources(sources) or ""}
    table = Table.create(str(tmp_path / "t.lance"), rows(1), properties=properties, durable=False)
    answer = shell("lineage", table.uri, "--columns")
    assert (answer.code, answer.err) == (0, "")
    assert [line.split() for line in answer.out.splitlines()] == [
        ["column", "version", "from", "table", "from", "column"],
        ["id", "1", "/lake/a.lance", "key"],
        ["id", "1", "s3://b/c", "id"],
    ]
    upserted = Table.create(str(tmp_path / "upserted.lance"), rows(1), durable=False)
    upserted.upsert(rows(2), on="id")
    shown = [line.split() for line in shell("lineage", upserted.uri, "--columns").out.splitlines()]
    assert shown[1] == ["id", "2", "(rows", "of", "the", "caller)", "id"]
    given = json.loads(shell("lineage", upserted.uri, "--columns", "--json").out)["columns"]["id"]["sources"]
    assert given == [{"uri": None, "asset": None, "column": "id"}]
    plain = Table.create(str(tmp_path / "plain.lance"), rows(1), durable=False)
    assert "records the sources of a column" in shell("lineage", plain.uri, "--columns").out
    printed = json.loads(shell("lineage", table.uri, "--columns", "--json").out)
    assert printed["columns"]["id"]["sources"][1] == {"uri": "s3://b/c", "asset": "lake/c", "column": "id"}
