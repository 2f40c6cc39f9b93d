"""Index statistics: computed from metadata alone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

import lance

from lance_core import Table
from lance_core.format.fragment import Fragment
from lance_core.index.statistics import index_statistics
from lance_core.versions.location import locate
from lance_core.versions.snapshot import Snapshot, load_latest
from tests.lance_core.index.index_differential import rows


def test_statistics_of_each_index(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 100), max_rows_per_file=20, durable=False)
    table = table.create_index("at.x", "BTREE").table.create_index("id", "ZONEMAP", name="zones").table
    table = table.append(rows(100, 30)).table.delete("id < 5").table
    nested, zones = table.index_statistics()
    assert (nested.name, nested.kind, nested.column) == ("at.x_idx", "BTREE", "at.x")
    assert (zones.name, zones.kind, zones.column) == ("zones", "ZONEMAP", "id")
    assert (nested.covered_fragments, nested.uncovered_fragments) == (5, 1)
    assert (nested.covered_rows, nested.uncovered_rows, nested.coverage) == (100, 30, 100 / 130)
    assert nested.bytes == sum(file.size for file in table.indices[0].files)
    assert nested.created_at is not None
    assert timedelta(0) <= datetime.now(UTC) - nested.created_at < timedelta(minutes=5)
    assert (nested.dataset_version, zones.dataset_version) == (1, 2)
    assert nested.is_used
    assert (nested.why_unused, nested.notes_behind) == (None, 0)
    table = table.optimize_indices(["at.x_idx"], merge="none").table
    nested = next(each for each in table.index_statistics() if each.name == "at.x_idx")
    assert [(each.fragments, each.rows, each.dataset_version) for each in nested.segments] == [(5, 100, 1), (1, 30, 5)]
    assert (nested.uncovered_rows, nested.coverage, nested.dataset_version) == (0, 1.0, 1)
    table = table.compact(remap="reuse").table
    assert {each.name: each.notes_behind for each in table.index_statistics()} == {"zones": 0, "at.x_idx": 1}


def test_an_unknown_index_type_is_unused(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 20), durable=False)
    lance.dataset(table.uri).create_scalar_index("word", lance.indices.IndexConfig("fm", {}))
    (text,) = table.refresh().index_statistics()
    assert (text.kind, text.column, text.is_used, text.coverage) == ("FMIndexDetails", "word", False, 0.0)
    assert text.why_unused == "has an unknown index type (FMIndexDetails)"
    assert text.segments[0].unused == text.why_unused


def test_statistics_of_many_fragments_are_fast(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0, 20), durable=False)
    for number in range(5):
        table = table.create_index("id", "BTREE", name=f"index {number}").table
    first = table.fragments[0]
    fragments = (Fragment(first.message).with_id(number) for number in range(50_000))
    base = load_latest(locate(table.uri))
    snapshot = Snapshot(base.location, base.manifest.with_fragments(fragments), base.scheme)
    started = perf_counter()
    statistics = index_statistics(snapshot)
    assert perf_counter() - started < 1
    assert {(each.covered_fragments, each.uncovered_fragments, each.covered_rows) for each in statistics} == {
        (1, 49_999, 20)
    }
