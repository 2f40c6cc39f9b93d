"""What a survey tells of indices is what an upkeep then changes; figures of theirs, from metadata alone."""

import uuid
from pathlib import Path
from typing import Literal

import pytest
from pyroaring import BitMap

from lance_core import Table
from lance_core.format.index_metadata import IndexMetadata
from lance_core.format.operations import CreateIndex
from tests.lance_core.index.index_differential import rows


@pytest.mark.parametrize("remap", ["reuse", "none"])
def test_it_tells_what_an_upkeep_of_indices_changes(tmp_path: Path, remap: Literal["reuse", "none"]) -> None:
    """And after that upkeep it finds nothing."""
    table = Table.create(tmp_path / "t", rows(0, 60), max_rows_per_file=20, durable=False)
    assert table.survey().indices == ()
    table = table.create_index("id", "BTREE").table.create_index("word", "BITMAP", fragments=[0]).table
    named = {each.name: each for each in table.survey().indices}
    by_id, by_word = named["id_idx"], named["word_idx"]
    assert (by_id.uncovered_rows, by_id.joined_segments, by_id.rows, by_id.segments) == (0, 0, 60, 1)
    assert (by_word.uncovered_rows, by_word.uncovered_fragments, by_word.column) == (40, 2, "word")
    for number in range(3):
        table = table.append(rows(60 + number, 1)).table.optimize_indices(["id_idx"], merge="none").table
    named = {each.name: each for each in table.survey().indices}
    assert (named["id_idx"].segments, named["id_idx"].joined_segments, named["id_idx"].behind) == (4, 4, 0)
    table = table.delete("id = 3").table.compact(target_rows=1000, remap=remap).table
    named = {each.name: each for each in table.survey().indices}
    assert (named["id_idx"].behind, named["id_idx"].uncovered_rows) == ((1, 0) if remap == "reuse" else (0, 40))
    for told in table.index_statistics():
        found = named[told.name]
        assert (found.uncovered_rows, found.behind) == (told.uncovered_rows, told.notes_behind)
    table = table.optimize_indices().table
    for each in table.survey().indices:
        assert (each.uncovered_rows, each.joined_segments, each.behind) == (0, 0, 0), each
    assert not table.optimize_indices().attempts


def test_an_index_that_nobody_here_can_look_after_is_left_out(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 20), durable=False)
    table = table.create_index("id", "BTREE").table
    table = with_future(table, "future", [0])
    assert [each.name for each in table.survey().indices] == ["id_idx"]
    told = {each.name: each for each in table.index_statistics()}
    assert (told["future"].is_known, told["future"].is_used, told["id_idx"].is_known) == (False, False, True)
    assert told["future"].why_unused == "has an unknown index type (FutureIndexDetails)"


def test_what_another_library_covers_is_not_told_as_to_be_covered(tmp_path: Path) -> None:
    """In a segment of a kind that is not known, under the same name."""
    table = Table.create(tmp_path / "t", rows(0, 30), max_rows_per_file=10, durable=False)
    table = with_future(table.create_index("id", "BTREE", fragments=[0]).table, "id_idx", [1])
    (found,) = table.survey().indices
    assert (found.uncovered_rows, found.uncovered_fragments, found.segments) == (10, 1, 2)
    (found,) = table.optimize_indices().table.survey().indices
    assert (found.uncovered_rows, found.joined_segments) == (0, 0)


def with_future(table: Table, name: str, covers: list[int]) -> Table:
    """With a segment of a kind to come, on `id`."""
    foreign = IndexMetadata.new(
        uuid.uuid4(), name=name, field_id=0, dataset_version=table.version, covers=BitMap(covers),
        type_url="/lance.index.pb.FutureIndexDetails", details=b"", index_version=0, created_ms=0,
    )  # fmt: skip
    place = Path(table.uri, "_indices", str(foreign.uuid))
    place.mkdir()
    (place / "index.idx").write_bytes(b"of a library to come")
    return table.commit(CreateIndex((foreign,))).table


def test_live_rows_are_counted_beside_those_that_are_stored(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 40), max_rows_per_file=20, durable=False)
    table = table.create_index("id", "BTREE", fragments=[0]).table.delete("id >= 10 and id < 35").table
    (told,) = table.index_statistics()
    assert (told.covered_rows, told.uncovered_rows, told.coverage) == (20, 20, 0.5)
    assert (told.covered_live_rows, told.uncovered_live_rows, told.live_coverage) == (10, 5, 10 / 15)
