"""Index survey: it reports what the maintenance of indices then changes, and statistics from metadata alone."""

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
def test_the_survey_predicts_index_maintenance(tmp_path: Path, remap: Literal["reuse", "none"]) -> None:
    """After the maintenance the survey reports nothing."""
    table = Table.create(tmp_path / "t", rows(0, 60), max_rows_per_file=20, durable=False)
    assert table.survey().indices == ()
    table = table.create_index("id", "BTREE").table.create_index("word", "BITMAP", fragments=[0]).table
    surveys = {each.name: each for each in table.survey().indices}
    by_id, by_word = surveys["id_idx"], surveys["word_idx"]
    assert (by_id.uncovered_rows, by_id.joined_segments, by_id.rows, by_id.segments) == (0, 0, 60, 1)
    assert (by_word.uncovered_rows, by_word.uncovered_fragments, by_word.column) == (40, 2, "word")
    for number in range(3):
        table = table.append(rows(60 + number, 1)).table.optimize_indices(["id_idx"], merge="none").table
    surveys = {each.name: each for each in table.survey().indices}
    assert (surveys["id_idx"].segments, surveys["id_idx"].joined_segments, surveys["id_idx"].behind) == (4, 4, 0)
    table = table.delete("id = 3").table.compact(target_rows=1000, remap=remap).table
    surveys = {each.name: each for each in table.survey().indices}
    assert (surveys["id_idx"].behind, surveys["id_idx"].uncovered_rows) == ((1, 0) if remap == "reuse" else (0, 40))
    for reported in table.index_statistics():
        actual = surveys[reported.name]
        assert (actual.uncovered_rows, actual.behind) == (reported.uncovered_rows, reported.notes_behind)
    table = table.optimize_indices().table
    for each in table.survey().indices:
        assert (each.uncovered_rows, each.joined_segments, each.behind) == (0, 0, 0), each
    assert not table.optimize_indices().attempts


def test_an_index_of_unknown_type_is_left_out(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 20), durable=False)
    table = table.create_index("id", "BTREE").table
    table = add_segment_of_unknown_type(table, "future", [0])
    assert [each.name for each in table.survey().indices] == ["id_idx"]
    statistics = {each.name: each for each in table.index_statistics()}
    assert (statistics["future"].is_known, statistics["future"].is_used, statistics["id_idx"].is_known) == (
        False,
        False,
        True,
    )
    assert statistics["future"].why_unused == "has an unknown index type (FutureIndexDetails)"


def test_fragments_covered_by_another_library_are_not_reported(tmp_path: Path) -> None:
    """A segment of an unknown type with the same name covers them."""
    table = Table.create(tmp_path / "t", rows(0, 30), max_rows_per_file=10, durable=False)
    table = add_segment_of_unknown_type(table.create_index("id", "BTREE", fragments=[0]).table, "id_idx", [1])
    (actual,) = table.survey().indices
    assert (actual.uncovered_rows, actual.uncovered_fragments, actual.segments) == (10, 1, 2)
    (actual,) = table.optimize_indices().table.survey().indices
    assert (actual.uncovered_rows, actual.joined_segments) == (0, 0)


def add_segment_of_unknown_type(table: Table, name: str, covers: list[int]) -> Table:
    """Add a segment of a future index type on `id`."""
    foreign = IndexMetadata.new(
        uuid.uuid4(), name=name, field_id=0, dataset_version=table.version, covers=BitMap(covers),
        type_url="/lance.index.pb.FutureIndexDetails", details=b"", index_version=0, created_ms=0,
    )  # fmt: skip
    path = Path(table.uri, "_indices", str(foreign.uuid))
    path.mkdir()
    (path / "index.idx").write_bytes(b"of a future library")
    return table.commit(CreateIndex((foreign,))).table


def test_live_and_stored_rows_are_counted(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 40), max_rows_per_file=20, durable=False)
    table = table.create_index("id", "BTREE", fragments=[0]).table.delete("id >= 10 and id < 35").table
    (reported,) = table.index_statistics()
    assert (reported.covered_rows, reported.uncovered_rows, reported.coverage) == (20, 20, 0.5)
    assert (reported.covered_live_rows, reported.uncovered_live_rows, reported.live_coverage) == (10, 5, 10 / 15)
