"""Indices that say what is not so: each is named, and what can be taken back is, by a person who chose it."""

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
from lance_core.format.fragment import StorageVersion
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


def made(place: Path, kind: str, *, stable: bool = False) -> Table:
    table = Table.create(place / "t", rows(0, 120), max_rows_per_file=30, stable_row_ids=stable, durable=False)
    table = table.delete("id % 10 = 4").table.create_index(COLUMNS[kind], kind, name="it").table
    return table.append(rows(120, 20)).table


def findings(table: Table) -> list[Finding]:
    return [each for each in table.fsck("head").findings if each.rule not in ("index_behind",)]


def wrong(table: Table) -> list[Finding]:
    """Without what may be right: of short texts, and of empty lists, there is nothing in some kinds."""
    return [each for each in findings(table) if each.rule != "index_unproven"]


def the_only(table: Table) -> IndexMetadata:
    (index,) = table.indices
    return index


@STABLE
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wrong_with_one_whatever_happened(tmp_path: Path, kind: str, stable: bool) -> None:
    table = made(tmp_path, kind, stable=stable)
    assert wrong(table) == []
    table = table.update({"word": "'new'"}, where="id % 7 = 1").table.delete("id in (3, 45)").table
    assert wrong(table) == []
    for remap in ("now",) if stable else ("now", "reuse"):
        table = table.append(rows(200, 5)).table.compact(remap=remap).table  # type: ignore[arg-type]
        assert wrong(table) == []
        table = table.optimize_indices(merge="none").table
        assert wrong(table) == []
    table = table.delete("id < 30").table
    assert wrong(table) == []
    assert wrong(table.delete("id >= 0").table) == []


@STABLE
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_coverage_bit(tmp_path: Path, kind: str, stable: bool) -> None:
    table = made(tmp_path, kind, stable=stable)
    index = the_only(table)
    assert index.covers == BitMap([0, 1, 2, 3])
    claims = index.with_coverage(BitMap([0, 1, 2, 3, 4]))
    table = table.commit(CreateIndex((claims,))).table
    (found,) = findings(table)
    assert "index 'it' covers fragment 4 but" in found.what
    if kind not in KEEP_EVERY_ROW:
        assert (found.rule, found.severity, found.automatic_repair) == (
            "index_unproven",
            Severity.INFO,
            None,
        )  # of rows without a label there is nothing
        return
    assert (found.rule, found.severity) == ("index_coverage", Severity.ERROR)
    assert "misses 20 of its rows" in found.what
    assert found.automatic_repair is not None
    assert found.automatic_repair.what.startswith("Remove fragment 4 from the coverage")
    assert "done in version" in found.automatic_repair.apply()
    table = table.refresh()
    assert findings(table) == []
    assert the_only(table).covers == BitMap([0, 1, 2, 3])
    assert "no longer covers these fragments" in found.automatic_repair.apply()
    check_answers(table)


@STABLE
def test_a_row_that_is_missing_from_it(tmp_path: Path, stable: bool) -> None:
    """It was deleted when the index was built; restoring its fragment's state alone brings it back unseen."""
    table = made(tmp_path, "BTREE", stable=stable)
    whole = table.at(1).fragments[1]
    tamper(table, lambda message: message.fragments[1].CopyFrom(whole.message))
    (found,) = findings(table.refresh())
    assert found.rule == "index_coverage"
    assert "fragment 1 but misses 3 of its rows" in found.what


def swapped(rows: pa.Table) -> pa.Table:
    order = np.arange(len(rows))
    order[[1, 2]] = order[[2, 1]]
    return rows.take(pa.array(order))


def doubled(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 1), rows.slice(0, len(rows) - 1)])


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("page_lookup.lance", swapped, "page"),
        ("page_data.lance", swapped, "page"),
        ("page_data.lance", doubled, "twice|once"),
    ],
)
def test_pages_out_of_order(tmp_path: Path, file: str, change: Callable[[pa.Table], pa.Table], what: str) -> None:
    table = Table.create(tmp_path / "t", rows(0, 120), max_rows_per_file=30, durable=False)
    table = table.create_index("id", "BTREE", name="it", zone_size=1).table
    tampered(table, file, change)
    found, *_ = findings(table)
    assert (found.rule, found.severity) == ("index_contents", Severity.ERROR)
    assert "contradicts itself" in found.what
    assert found.path == the_only(table).qualified_path
    assert found.automatic_repair is not None
    assert "done" in found.automatic_repair.apply()
    assert table.refresh().indices == ()
    check_answers(table.refresh())


def with_other_version(table: Table) -> Table:
    """The only index of the table, of version 0 in place of 1 or the other way round."""
    message = table_pb2.IndexMetadata()
    message.CopyFrom(the_only(table).message)
    message.index_version = 1 - message.index_version
    return table.commit(CreateIndex((IndexMetadata(message),))).table


def test_addresses_that_are_taken_for_row_ids(tmp_path: Path) -> None:
    """And the other way round: both give no rows, and no error, to whoever queries."""
    for number, kind in enumerate(("BTREE", "BITMAP")):
        table = Table.create(
            tmp_path / str(number), rows(0, 120), max_rows_per_file=30, stable_row_ids=True, durable=False
        )
        lance.dataset(table.uri).create_scalar_index("id", cast(Any, kind), name="it")
        found, *_ = findings(with_other_version(table.refresh()))
        if kind == "BITMAP":
            assert found.rule == "index_unknown"  # of a version that is yet to come, nothing is known
            continue
        assert (found.rule, found.severity) == ("index_rows", Severity.ERROR)
        assert "should contain row ids, but contains" in found.what
        assert found.automatic_repair is not None


def test_row_ids_that_are_taken_for_addresses(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 120), max_rows_per_file=30, stable_row_ids=True, durable=False)
    found, *_ = findings(with_other_version(table.create_index("id", "BTREE", name="it").table))
    assert found.rule == "index_rows"
    assert "should contain row addresses, but contains row 119 of fragment 0, which has 30" in found.what


def test_rows_of_fragments_that_never_were(tmp_path: Path) -> None:
    table = made(tmp_path, "BTREE")

    def far(rows: pa.Table) -> pa.Table:
        ids = rows["ids"].to_numpy() + np.uint64(77 << 32)
        return rows.set_column(1, rows.schema.field("ids"), pa.array(ids))

    tampered(table, "page_data.lance", far)
    found, *_ = findings(table)
    assert found.rule == "index_rows"
    assert "one in fragment 77, which never existed" in found.what


def test_what_is_not_known_is_told(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 20), durable=False)
    lance.dataset(table.uri).create_scalar_index("word", "INVERTED")
    (found,) = findings(table.refresh())
    assert (found.rule, found.severity) == ("index_unknown", Severity.INFO)
    assert "has an unknown index type" in found.what


def test_files_that_are_gone_or_no_files(tmp_path: Path) -> None:
    table = made(tmp_path, "BTREE")
    index = the_only(table)
    file = Path(table.uri) / index.qualified_path / "page_data.lance"
    whole = file.read_bytes()
    file.write_bytes(b"x" * len(whole))
    assert [each.rule for each in findings(table)] == ["index_contents"]
    file.write_bytes(whole[:-5])
    assert "index_file" in [each.rule for each in findings(table)]
    file.unlink()
    assert [each.rule for each in findings(table)] == ["index_file"]


def test_a_part_of_what_became_one(tmp_path: Path) -> None:
    table = made(tmp_path, "BITMAP").compact(remap="reuse").table
    index = next(each for each in table.indices if not each.is_system)
    table = table.commit(CreateIndex((index.with_coverage(BitMap([0, 2, 3])),))).table
    (found,) = findings(table)
    assert (found.rule, found.severity) == ("index_reuse", Severity.WARNING)
    assert "covers fragment 0 but not 1; both were compacted to fragment" in found.what
    assert found.automatic_repair is not None
    assert "done" in found.automatic_repair.apply()
    assert findings(table.refresh()) == []
    check_answers(table.refresh())


def test_from_a_shell_it_is_told_before_it_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = made(tmp_path, "BTREE")
    table = table.commit(CreateIndex((the_only(table).with_coverage(BitMap([0, 1, 2, 3, 4])),))).table
    assert main(["fsck", table.uri, "--head", "--repair", "indices"]) == 1
    assert "Remove fragment 4 from the coverage" in capsys.readouterr().out
    assert table.refresh().version == table.version
    assert main(["fsck", table.uri, "--head", "--repair", "indices", "--apply"]) == 0
    assert table.refresh().version == table.version + 1
    check_answers(table.refresh(), FILTERS)


def tampered(table: Table, file: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """A file of the only index with other rows, of the size that is noted for it."""
    location, index = table._location, the_only(table)
    place = f"{index.qualified_path}/{file}"
    opened = location.codec.open(place)
    before, notes = read_all_rows(opened), dict(opened.metadata)
    schema = opened.schema
    after = change(before).cast(schema.remove_metadata())
    writer = location.codec.create(place, schema.remove_metadata(), StorageVersion(2, 2))
    for batch in after.combine_chunks().to_batches():
        writer.write(batch)
    for key, value in notes.items():
        writer.add_metadata(key, value)
    size = writer.finish()
    message = table_pb2.IndexMetadata()
    message.CopyFrom(index.message)
    for each in message.files:
        if each.path == file:
            each.size_bytes = size
    tamper(table, section=table_pb2.IndexSection(indices=[message]).SerializeToString())


def tamper(
    table: Table, change: Callable[[table_pb2.Manifest], object] = lambda message: None, *, section: bytes | None = None
) -> None:
    """The newest version with something else in it."""
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
