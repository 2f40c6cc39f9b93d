"""Indices that other engines maintain: b-trees of row ids stay true, and segments that claim fragments without listing
their rows are noticed by queries, fsck, compactions and index maintenance."""

import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import Table
from lance_core.datafiles.codec import FileWriter
from lance_core.errors import IndexIgnored
from lance_core.format.fragment import StorageVersion
from lance_core.format.index_metadata import IndexMetadata, SegmentFile
from lance_core.index import build, registry
from lance_core.index.coverage import Coverage
from lance_core.index.index_type import MergeInput, SegmentBuild
from lance_core.index.row_remap import Unchanged
from lance_core.operations import CreateIndex
from lance_core.versions.location import Location, locate
from lance_core.versions.snapshot import load_latest
from tests.fleets.rows import FILTERS, INDEXED, rows

KEY = "key_idx"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings are expected, once per segment, in these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IndexIgnored)
        yield


def created(tmp_path: Path, *, stable: bool = True, count: int = 60, per_file: int = 15) -> Table:
    return Table.create(
        tmp_path / "t", rows(range(count)), stable_row_ids=stable, max_rows_per_file=per_file, durable=False
    )


def segments(table: Table, name: str = KEY) -> list[IndexMetadata]:
    return [index for index in table.refresh().manifest.indices if index.name == name]


def covered(table: Table, name: str = KEY) -> set[int]:
    """Return the fragments of the newest version that the index claims."""
    live = {int(fragment.id) for fragment in table.refresh().fragments}
    return live & {id for index in segments(table, name) for id in index.covers or ()}


def check_answers(table: Table, *, by_pylance: bool = True) -> None:
    table, dataset = table.refresh(), lance.dataset(table.uri)
    for text in (text for texts in FILTERS.values() for text in texts):
        expected = table.to_table(["id"], text, use_indices=False)
        assert table.to_table(["id"], text) == expected, text
        if by_pylance:
            assert dataset.to_table(["id"], filter=text).sort_by("id") == expected.sort_by("id"), text


def built_by_pylance(tmp_path: Path) -> Table:
    """A table with a b-tree of row addresses beside stable row ids, as pylance 14 writes it."""
    table = created(tmp_path)
    lance.dataset(table.uri).create_scalar_index("key", "BTREE", name=KEY)
    (index,) = segments(table)
    assert index.message.index_version == 1
    assert index.stores_addresses
    return table.refresh()


def with_coverage_carried_on(tmp_path: Path) -> Table:
    """The same after a compaction by pylance 12 or 13, which claims the new fragments and leaves the files."""
    table = built_by_pylance(tmp_path).compact(remap="none").table
    (index,) = segments(table)
    live = BitMap(fragment.id for fragment in table.fragments)
    return table.commit(CreateIndex((index.with_coverage(live),))).table


# b-trees of row ids


def test_a_btree_stores_row_ids_where_they_are_stable(tmp_path: Path) -> None:
    table = created(tmp_path).create_index("key", "BTREE").table
    (index,) = segments(table)
    assert index.message.index_version == 0
    assert not index.stores_addresses
    check_answers(table)
    lance.dataset(table.uri).optimize.compact_files()
    assert len(table.refresh().fragments) == 1
    assert covered(table) == {4}
    check_answers(table)


def test_an_update_of_another_column_leaves_the_coverage_alone(tmp_path: Path) -> None:
    table = created(tmp_path, count=2000, per_file=1000).create_index("key", "BTREE").table
    table = table.update({"other": "other + 1"}, where="id in (10, 1500)").table
    assert len(table.fragments) == 3, "the rows moved"
    assert covered(table) == {0, 1, 2}
    check_answers(table)
    table = table.update({"key": "key + 1000000"}, where="id = 3").table
    assert covered(table) == {0, 1, 2} < {int(fragment.id) for fragment in table.fragments}
    check_answers(table)


def test_our_compaction_writes_a_btree_of_addresses_anew(tmp_path: Path) -> None:
    table = built_by_pylance(tmp_path).compact().table
    (index,) = segments(table)
    assert index.message.index_version == 0
    assert covered(table) == {int(fragment.id) for fragment in table.fragments}
    check_answers(table)


@pytest.mark.parametrize("merge", ["none", "small", "all"])
def test_no_index_mixes_row_ids_and_addresses(tmp_path: Path, merge: Literal["none", "small", "all"]) -> None:
    """pylance 14 refuses to search one that does."""
    table = built_by_pylance(tmp_path).append(rows(range(100, 120))).table.optimize_indices(merge=merge).table
    assert {index.message.index_version for index in segments(table)} == {0}
    assert covered(table) == {int(fragment.id) for fragment in table.fragments}
    check_answers(table)


# Segments that claim fragments without listing their rows


def test_a_query_scans_what_a_segment_claims_and_does_not_list(tmp_path: Path) -> None:
    table = with_coverage_carried_on(tmp_path)
    assert lance.dataset(table.uri).count_rows("key = 21") == 0, "pylance 14 reads it as 12 and 13 leave it"
    check_answers(table, by_pylance=False)


def test_the_warning_names_the_index_and_the_repair(tmp_path: Path) -> None:
    table = with_coverage_carried_on(tmp_path)
    with pytest.warns(IndexIgnored, match=r"claims 1 fragments without listing .* optimize_indices\(\['key_idx'\]\)"):
        assert table.count_rows("key = 21") == 1


def test_fsck_builds_it_again(tmp_path: Path) -> None:
    table = with_coverage_carried_on(tmp_path)
    (found,) = table.fsck().errors
    assert found.rule == "index_coverage"
    assert found.automatic_repair is not None
    assert "Build index 'key_idx' again" in found.automatic_repair.what
    assert "done" in found.automatic_repair.apply()
    assert table.refresh().fsck().findings == ()
    assert covered(table) == {int(fragment.id) for fragment in table.refresh().fragments}
    check_answers(table)
    assert "does not exist any more" in found.automatic_repair.apply()


def test_fsck_offers_to_build_a_btree_of_addresses_again(tmp_path: Path) -> None:
    table = built_by_pylance(tmp_path)
    report = table.fsck()
    (found,) = report.findings
    assert report.is_clean
    assert found.rule == "index_addresses"
    assert found.automatic_repair is not None
    assert "done" in found.automatic_repair.apply()
    assert [index.message.index_version for index in segments(table)] == [0]
    assert table.refresh().fsck().findings == ()
    check_answers(table)


@pytest.mark.parametrize("repair", ["optimize", "compact"])
def test_maintenance_reads_the_rows_that_a_segment_does_not_list(tmp_path: Path, repair: str) -> None:
    table = with_coverage_carried_on(tmp_path).append(rows(range(100, 120))).table
    if repair == "compact":
        lance.dataset(table.uri).delete("id % 2 = 1")
        table = table.refresh().compact().table
    table.optimize_indices()
    assert covered(table) == {int(fragment.id) for fragment in table.refresh().fragments}
    assert table.refresh().fsck().findings == ()
    check_answers(table)


@pytest.mark.parametrize("repair", [None, "optimize", "compact"])
def test_a_segment_that_lost_rows_beside_a_reuse_index(tmp_path: Path, repair: str | None) -> None:
    """pylance 8 leaves such a segment when it optimizes after a compaction whose remapping was deferred."""
    table = created(tmp_path, stable=False).create_index("key", "BTREE").table
    table = table.compact(remap="reuse").table.append(rows(range(100, 120))).table
    new = BitMap(fragment.id for fragment in table.fragments)
    table = table.create_index("key", "BTREE", name="of_the_last", fragments=[max(new)]).table
    (partial,), (old,) = segments(table, "of_the_last"), segments(table)
    table = table.commit(CreateIndex((partial.with_coverage(new),), (old,))).table
    assert lance.dataset(table.uri).count_rows("key = 21") == 0
    check_answers(table, by_pylance=False)
    if repair == "optimize":
        table = table.optimize_indices().table
    if repair == "compact":
        table = table.compact().table
    if repair:
        check_answers(table)
        assert covered(table, "of_the_last") == {int(fragment.id) for fragment in table.fragments}


# Segments of row ids that another engine merged


@dataclass(frozen=True)
class ForeignSink:
    """Writes index files as another engine does: without the mark of this library."""

    location: Location
    directory: str

    def create(self, name: str, schema: pa.Schema) -> FileWriter:
        return self.location.codec.create(f"{self.directory}/{name}", schema, StorageVersion(2, 1))


def with_old_values_merged(tmp_path: Path, column: str) -> Table:
    """A table with changed rows and a segment as pylance 8 merges it: it lists them by their old and new values."""
    kind = registry.by_name(INDEXED[column])
    table = created(tmp_path).create_index(column, kind.name).table
    table = table.upsert(rows([3, 7, 11, 25, 300], 1), on="id").table
    base = load_latest(locate(table.uri, durable=False))
    (old,) = segments(table, f"{column}_idx")
    coverage, identity = Coverage(base), uuid.uuid4()
    sink = ForeignSink(base.location, f"_indices/{identity}")
    chain = (base.manifest.schema.field(column),)
    added = [fragment for fragment in base.manifest.fragments if fragment.id not in (old.covers or ())]
    merged = [MergeInput(coverage.segment_of(old), Unchanged())]
    values = build.read_values(base, chain, added, addresses=False)
    segment_build = SegmentBuild(build.arrow_of(base.manifest.schema, chain), values, merged, kind.parse_options({}))
    details = kind.write(sink, segment_build)
    new = IndexMetadata.new(
        identity,
        name=old.name,
        field_id=chain[0].id,
        dataset_version=base.version,
        covers=BitMap(fragment.id for fragment in base.manifest.fragments),
        type_url=kind.type_url,
        details=details,
        index_version=0,
        created_ms=0,
        files=[SegmentFile(path.name, path.stat().st_size) for path in Path(table.uri, sink.directory).iterdir()],
    )
    return table.commit(CreateIndex((new,), (old,))).table


@pytest.mark.parametrize("column", ["key", "shade"])
def test_rows_that_a_foreign_segment_lists_by_old_values_are_checked(tmp_path: Path, column: str) -> None:
    table = with_old_values_merged(tmp_path, column)
    assert [found.rule for found in table.fsck("head").findings] == ["index_contents"]
    check_answers(table, by_pylance=False)
    table = table.append(rows(range(100, 120))).table.optimize_indices(merge="all").table
    assert table.fsck("head").findings == ()
    assert covered(table, f"{column}_idx") == {int(fragment.id) for fragment in table.fragments}
    check_answers(table)
