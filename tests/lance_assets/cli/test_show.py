"""`lance-assets show`: the contents and the lineage of one version."""

from pathlib import Path

import lance
import pyarrow as pa

from lance_assets.common.text import format_bytes
from lance_core import Table
from lance_core.operations import Append
from tests.lance_assets.cli.conftest import FROM_RUN, RUN, Shell, reading, rows
from tests.lance_core.commit.test_detached import write_fragments
from tests.lance_core.versions.test_refs import rows as bare_rows

_OF_A_RUN = """\
orders.lance@2
  committed   TIME UTC by append
  rows        5 (+2)
  files       2 files, SIZE
  fragments   2
  format      2.2
  written by  lance-assets 0.2.0
  table id    UUID

lineage
  run            RUN
  asset          lake/orders_append
  partition      2026-01-02
  code location  shop
  intent         once
  read           customers.lance@1
  read           raw.lance@2
  parent         1
  transaction    UUID

column  type    null
id      int64   yes
city    string  yes

config
  lance_assets.table_id  UUID
"""

_REBASED = """\
orders.lance@3
  committed   TIME UTC by delete
  rows        3 (-1)
  files       2 files, SIZE
  fragments   2, 1 deleted row in 1 of them
  tags        spring
  format      2.2
  written by  lance-assets 0.2.0
  table id    UUID

lineage
  parent        2
  planned on    1
  rebased over  2
  transaction   UUID

column  type    null
id      int64   yes
city    string  yes

config
  lance_assets.table_id  UUID
"""


def test_version_of_a_run(shell: Shell, tmp_path: Path) -> None:
    raw = Table.create(str(tmp_path / "raw.lance"), rows(1), durable=False).append(rows(2)).table
    customers = Table.create(str(tmp_path / "customers.lance"), rows(1), durable=False)
    orders = Table.create(str(tmp_path / "orders.lance"), rows(1, 2, 3), durable=False)
    orders.append(rows(4, 5), properties={**FROM_RUN, **reading(raw, customers)})
    answer = shell("show", f"{orders.uri}@2")
    assert (answer.code, answer.err) == (0, "")
    assert answer.drawn(tmp_path) == _OF_A_RUN


def test_rebased_version(orders: Table, shell: Shell, tmp_path: Path) -> None:
    assert shell("show", f"{orders.uri}@spring").drawn(tmp_path) == _REBASED


def test_group_commit(shell: Shell, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), bare_rows(1), durable=False)
    together = {"lance_assets.together": '[["one",1],["two",1]]', **FROM_RUN}
    table.commit(Append((*write_fragments(table, 2), *write_fragments(table, 3, 4))), properties=together)
    output = shell("show", table.uri, "--json").json
    assert output["parts"] == [{"transaction": "one", "rows": 1}, {"transaction": "two", "rows": 2}]
    assert (output["together"], output["run_id"]) == (["one", "two"], RUN)
    text = shell("show", table.uri).out
    assert "  append         one, 1 row\n  append         two, 2 rows\n" in text
    assert "combines 2 appends" in shell("history", table.uri).out


def test_branches_and_clones_name_their_source(orders: Table, shell: Shell, tmp_path: Path) -> None:
    orders.branches.create("dev")
    orders.clone(str(tmp_path / "copy.lance"))
    for first in (f"{orders.uri}@dev:", tmp_path / "copy.lance"):
        text = shell("show", first).drawn(tmp_path)
        assert "  begins as    orders.lance@5\n" in text
        assert "parent" not in text
    assert "  branch      dev\n" in shell("show", f"{orders.uri}@dev:").out
    assert "  restored     orders.lance@2\n" in shell("show", orders.uri).drawn(tmp_path)


def test_detached_version(orders: Table, shell: Shell) -> None:
    made_by = orders.transaction(2)
    assert made_by is not None
    assert isinstance(made_by.operation, Append)
    beside = orders.at(1).commit(made_by.operation, detached=True, properties=FROM_RUN).version
    output = shell("show", f"{orders.uri}@{beside}", "--json").json
    assert (output["version"], output["parent"], output["rebased_over"], output["run_id"]) == (beside, 1, [], RUN)


def test_json(shell: Shell, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.list_(pa.float32(), 2))])
    table = Table.create(uri, pa.table([[1, 2], [[1.0, 2.0], None]], schema=schema), stable_row_ids=True, durable=False)
    lance.dataset(uri).create_scalar_index("id", "BTREE", name="by_id")
    table = table.refresh().append(pa.table([[3], [None]], schema=schema)).table.delete("id = 1").table
    (index,) = table.index_statistics()
    assert index.created_at is not None
    output = shell("show", uri, "--json").json
    assert output["columns"] == [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "v", "type": "fixed_size_list<item: float>[2]", "nullable": True},
    ]
    assert output["indices"] == [
        {
            "name": "by_id", "kind": "BTREE", "columns": ["id"], "segments": 1, "fragments_covered": 1,
            "fragments_not_covered": 1, "rows_not_covered": 1, "bytes": index.bytes, "unused": None,
            "created_at": index.created_at.isoformat(),
        }
    ]  # fmt: skip
    assert (output["rows"], output["deleted_rows"], output["fragments"], output["fragments_with_deletions"]) == (
        2,
        1,
        2,
        1,
    )
    assert (output["files"], output["bytes"]) == (
        2,
        sum(each.stat().st_size for each in (tmp_path / "t/data").iterdir()),
    )
    assert (output["stable_row_ids"], output["table_id"], output["tags"]) == (True, table.id, [])
    line = next(each for each in shell("show", uri).out.splitlines() if each.startswith("by_id"))
    assert line.split()[:8] == ["by_id", "BTREE", "id", "1", "of", "2", "1", "1"]
    assert line.split()[8:] == [*format_bytes(index.bytes).split(), *f"{index.created_at:%Y-%m-%d %H:%M:%S}".split()]


def test_wide_table(shell: Shell, tmp_path: Path) -> None:
    wide = Table.create(str(tmp_path / "t"), pa.table({f"c{n}": [n] for n in range(150)}), durable=False)
    assert "… and 50 more, with --json" in shell("show", wide.uri).out
    assert len(shell("show", wide.uri, "--json").json["columns"]) == 150


def test_unparsable_inputs(shell: Shell, tmp_path: Path) -> None:
    properties = {"lance_assets.inputs": "[1, 2"}
    table = Table.create(str(tmp_path / "t"), rows(1), properties=properties, durable=False)
    assert "  inputs       cannot be parsed: [1, 2\n" in shell("show", table.uri).out
    assert shell("show", table.uri, "--json").json["unreadable_inputs"] == "[1, 2"


def test_control_characters_in_settings_are_escaped(shell: Shell, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False)
    table.set_config({"a\x1b]0;owned\x07\nb": "c"})
    answer = shell("show", table.uri)
    assert answer.code == 0
    assert "  a�]0;owned��b  " in answer.out
    assert "\x1b" not in answer.out
