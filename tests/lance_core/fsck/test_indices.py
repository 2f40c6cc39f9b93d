"""Index checks: wrong content of an index is reported, and a repair that the caller chooses removes what can be
rebuilt.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Table
from lance_core.__main__ import main
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import StorageVersion, record_checksum
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.manifest import Manifest
from lance_core.format.operations import CreateIndex
from lance_core.fsck import Finding, Severity
from lance_core.index import registry
from lance_core.index.segment_files import read_all_rows
from tests.lance_core.index.index_differential import FILTERS, check_answers, rows

COLUMNS = {"BTREE": "id", "BITMAP": "word", "ZONEMAP": "id", "BLOOMFILTER": "id", "LABEL_LIST": "tags", "NGRAM": "word"}
KINDS = [kind.name for kind in registry.all_types() if kind.name in COLUMNS]
KEEP_EVERY_ROW = {"BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"}
STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def create_table(path: Path, kind: str, *, stable: bool = False) -> Table:
    table = Table.create(path / "t", rows(0, 120), max_rows_per_file=30, stable_row_ids=stable, durable=False)
    table = table.delete("id % 10 = 4").table.create_index(COLUMNS[kind], kind, name="it").table
    return table.append(rows(120, 20)).table


def findings(table: Table) -> list[Finding]:
    return [each for each in table.fsck("head").findings if each.rule not in ("index_behind",)]


def proven_findings(table: Table) -> list[Finding]:
    """Return the findings without those that may be correct: some index types have no entries for short texts and empty
    lists.
    """
    return [each for each in findings(table) if each.rule != "index_unproven"]


def only_index(table: Table) -> IndexMetadata:
    (index,) = table.indices
    return index


@STABLE
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_with_a_long_history_has_no_findings(tmp_path: Path, kind: str, stable: bool) -> None:
    table = create_table(tmp_path, kind, stable=stable)
    assert proven_findings(table) == []
    table = table.update({"word": "'new'"}, where="id % 7 = 1").table.delete("id in (3, 45)").table
    assert proven_findings(table) == []
    for remap in ("now",) if stable else ("now", "reuse"):
        table = table.append(rows(200, 5)).table.compact(remap=remap).table  # type: ignore[arg-type]
        assert proven_findings(table) == []
        table = table.optimize_indices(merge="none").table
        assert proven_findings(table) == []
    table = table.delete("id < 30").table
    assert proven_findings(table) == []
    assert proven_findings(table.delete("id >= 0").table) == []


@STABLE
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_coverage_bit(tmp_path: Path, kind: str, stable: bool) -> None:
    table = create_table(tmp_path, kind, stable=stable)
    index = only_index(table)
    assert index.covers == BitMap([0, 1, 2, 3])
    claims = index.with_coverage(BitMap([0, 1, 2, 3, 4]))
    table = table.commit(CreateIndex((claims,))).table
    (actual,) = findings(table)
    assert "index 'it' covers fragment 4 but" in actual.what
    if kind not in KEEP_EVERY_ROW:
        assert (actual.rule, actual.severity, actual.automatic_repair) == (
            "index_unproven",
            Severity.INFO,
            None,
        )  # rows without a label have no entries
        return
    assert (actual.rule, actual.severity) == ("index_coverage", Severity.ERROR)
    assert "misses 20 of its rows" in actual.what
    assert actual.automatic_repair is not None
    assert actual.automatic_repair.what.startswith("Remove fragment 4 from the coverage")
    assert "done in version" in actual.automatic_repair.apply()
    table = table.refresh()
    assert findings(table) == []
    assert only_index(table).covers == BitMap([0, 1, 2, 3])
    assert "no longer covers these fragments" in actual.automatic_repair.apply()
    check_answers(table)


@STABLE
def test_a_missing_row(tmp_path: Path, stable: bool) -> None:
    """The row was deleted when the index was built; restoring the state of its fragment alone restores it without an
    entry.
    """
    table = create_table(tmp_path, "BTREE", stable=stable)
    original = table.at(1).fragments[1]
    tamper_with_manifest(table, lambda message: message.fragments[1].CopyFrom(original.message))
    (actual,) = findings(table.refresh())
    assert actual.rule == "index_coverage"
    assert "fragment 1 but misses 3 of its rows" in actual.what


def swap_rows(rows: pa.Table) -> pa.Table:
    order = np.arange(len(rows))
    order[[1, 2]] = order[[2, 1]]
    return rows.take(pa.array(order))


def repeat_first_row(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 1), rows.slice(0, len(rows) - 1)])


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("page_lookup.lance", swap_rows, "page"),
        ("page_data.lance", swap_rows, "page"),
        ("page_data.lance", repeat_first_row, "twice|once"),
    ],
)
def test_pages_out_of_order(tmp_path: Path, file: str, change: Callable[[pa.Table], pa.Table], what: str) -> None:
    table = Table.create(tmp_path / "t", rows(0, 120), max_rows_per_file=30, durable=False)
    table = table.create_index("id", "BTREE", name="it", zone_size=1).table
    tamper_with_file(table, file, change)
    actual, *_ = findings(table)
    assert (actual.rule, actual.severity) == ("index_contents", Severity.ERROR)
    assert "contradicts itself" in actual.what
    assert actual.path == only_index(table).qualified_path
    assert actual.automatic_repair is not None
    assert "done" in actual.automatic_repair.apply()
    assert table.refresh().indices == ()
    check_answers(table.refresh())


def with_other_version(table: Table) -> Table:
    """Commit the only index of the table with version 0 instead of 1, or the other way round."""
    message = table_pb2.IndexMetadata()
    message.CopyFrom(only_index(table).message)
    message.index_version = 1 - message.index_version
    return table.commit(CreateIndex((IndexMetadata(message),))).table


def test_addresses_treated_as_row_ids(tmp_path: Path) -> None:
    """Both confusions return no rows and no error to a query."""
    for number, kind in enumerate(("BTREE", "BITMAP")):
        table = Table.create(
            tmp_path / str(number), rows(0, 120), max_rows_per_file=30, stable_row_ids=True, durable=False
        )
        lance.dataset(table.uri).create_scalar_index("id", cast(Any, kind), name="it")
        actual, *_ = findings(with_other_version(table.refresh()))
        if kind == "BITMAP":
            assert actual.rule == "index_unknown"  # the content of a future version is unknown
            continue
        assert (actual.rule, actual.severity) == ("index_rows", Severity.ERROR)
        assert "should contain row ids, but contains" in actual.what
        assert actual.automatic_repair is not None


def test_row_ids_treated_as_addresses(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 120), max_rows_per_file=30, stable_row_ids=True, durable=False)
    actual, *_ = findings(with_other_version(table.create_index("id", "BTREE", name="it").table))
    assert actual.rule == "index_rows"
    assert "should contain row addresses, but contains row 119 of fragment 0, which has 30" in actual.what


def test_rows_of_fragments_that_never_existed(tmp_path: Path) -> None:
    table = create_table(tmp_path, "BTREE")

    def far(rows: pa.Table) -> pa.Table:
        ids = rows["ids"].to_numpy() + np.uint64(77 << 32)
        return rows.set_column(1, rows.schema.field("ids"), pa.array(ids))

    tamper_with_file(table, "page_data.lance", far)
    actual, *_ = findings(table)
    assert actual.rule == "index_rows"
    assert "one in fragment 77, which never existed" in actual.what


def test_an_unknown_index_type_is_reported(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 20), durable=False)
    lance.dataset(table.uri).create_scalar_index("word", lance.indices.IndexConfig("fm", {}))
    (actual,) = findings(table.refresh())
    assert (actual.rule, actual.severity) == ("index_unknown", Severity.INFO)
    assert "has an unknown index type" in actual.what


def test_missing_and_invalid_files(tmp_path: Path) -> None:
    table = create_table(tmp_path, "BTREE")
    index = only_index(table)
    file = Path(table.uri) / index.qualified_path / "page_data.lance"
    original = file.read_bytes()
    file.write_bytes(b"x" * len(original))
    assert [each.rule for each in findings(table)] == ["index_contents"]
    file.write_bytes(original[:-5])
    assert "index_file" in [each.rule for each in findings(table)]
    file.unlink()
    assert [each.rule for each in findings(table)] == ["index_file"]


def test_a_segment_that_was_merged(tmp_path: Path) -> None:
    table = create_table(tmp_path, "BITMAP").compact(remap="reuse").table
    index = next(each for each in table.indices if not each.is_system)
    table = table.commit(CreateIndex((index.with_coverage(BitMap([0, 2, 3])),))).table
    (actual,) = findings(table)
    assert (actual.rule, actual.severity) == ("index_reuse", Severity.WARNING)
    assert "covers fragment 0 but not 1; both were compacted to fragment" in actual.what
    assert actual.automatic_repair is not None
    assert "done" in actual.automatic_repair.apply()
    assert findings(table.refresh()) == []
    check_answers(table.refresh())


def test_the_command_reports_a_repair_before_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = create_table(tmp_path, "BTREE")
    table = table.commit(CreateIndex((only_index(table).with_coverage(BitMap([0, 1, 2, 3, 4])),))).table
    assert main(["fsck", table.uri, "--head", "--repair", "indices"]) == 1
    assert "Remove fragment 4 from the coverage" in capsys.readouterr().out
    assert table.refresh().version == table.version
    assert main(["fsck", table.uri, "--head", "--repair", "indices", "--apply"]) == 0
    assert table.refresh().version == table.version + 1
    check_answers(table.refresh(), FILTERS)


def tamper_with_file(table: Table, file: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a file of the only index with changed rows and update its recorded checksum."""
    location, index = table._location, only_index(table)
    path = f"{index.qualified_path}/{file}"
    opened = location.codec.open(path)
    before, notes = read_all_rows(opened), dict(opened.metadata)
    schema = opened.schema
    after = change(before).cast(schema.remove_metadata())
    writer = location.codec.create(path, schema.remove_metadata(), StorageVersion(2, 2))
    for batch in after.combine_chunks().to_batches():
        writer.write(batch)
    for key, value in notes.items():
        writer.add_metadata(key, value)
    checksum = writer.finish()
    message = table_pb2.IndexMetadata()
    message.CopyFrom(index.message)
    for each in message.files:
        if each.path == file:
            record_checksum(each, checksum)
    tamper_with_manifest(table, section=table_pb2.IndexSection(indices=[message]).SerializeToString())


def tamper_with_manifest(
    table: Table, change: Callable[[table_pb2.Manifest], object] = lambda message: None, *, section: bytes | None = None
) -> None:
    """Rewrite the newest manifest with a change applied to it."""
    manifest = table.manifest
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    change(message)
    changed = Manifest.from_header(
        message,
        index_section=section or manifest.index_section,
        transaction=manifest.inline_transaction,
        path=manifest.path,
    )
    (Path(table.uri) / manifest.path).write_bytes(changed.encode())
