"""Tests of what a terminal and a notebook show of a table and of its parts."""

import re
import rlcompleter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lance_core import Table
from lance_core.format.ids import Version
from lance_core.table.display import sparkline

LONGEST_REPR = 200


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = pa.table({"id": range(100), "city": ["Oslo"] * 100})
    created = Table.create(tmp_path / "t", rows, durable=False, max_rows_per_file=10)
    created.tags.create("spring")
    created.branches.create("dev")
    return created.create_index("id", "BTREE").table.delete("id < 5").table


def test_representations_are_short_and_have_the_facts(table: Table) -> None:
    committed = table.append({"id": [7], "city": ["Lima"]}, properties={"run": "r1"})
    shown = {
        "table": (table, rf"Table\('{table.uri}', version=3, rows=95\)"),
        "committed": (committed, r"Committed\(version=4, operation='Append', rows_added=1, files=1, bytes=\d+\)"),
        "version": (
            committed.table.version_info(),
            r"VersionInfo\(version=4, timestamp='[\d: -]+', action='append', rows=96, rows_added=1, .*r1.*\)",
        ),
        "tags": (table.tags, r"Tags\(spring=1\)"),
        "tag": (table.tags.list()["spring"], r"Tag\(version=1, created='[\dT:-]{19}'\)"),
        "branches": (table.branches, r"Branches\(dev=1\)"),
        "branch": (table.branches.list()["dev"], r"Branch\(parent='main:1', created='[\dT:-]{19}'\)"),
        "fragment": (table.fragments[0], r"Fragment\(id=0, live_rows=5, deleted_rows=5, files=1, bytes=\d+\)"),
        "index": (table.indices[0], r"IndexMetadata\(name='id_idx', type='BTree', fields=\[0\], fragments=10, .*…'\)"),
        "index statistics": (
            table.index_statistics()[0],
            r"IndexStatistics\(name='id_idx', kind='BTREE', column='id', segments=1, covered_rows=100, .* bytes=\d+\)",
        ),
        "segment": (
            table.index_statistics()[0].segments[0],
            r"SegmentStatistics\(uuid='[\da-f]{8}…', kind='BTREE', fragments=10, rows=100, bytes=\d+\)",
        ),
        "manifest": (
            table.manifest,
            r"Manifest\(version=3, fragments=10, columns=\['id', 'city'\], writer='lance-.*'\)",
        ),
    }
    for name, (value, pattern) in shown.items():
        assert re.fullmatch(pattern, repr(value)), (name, repr(value))
        assert len(repr(value)) < LONGEST_REPR
    assert repr(table.fragments).count("Fragment(") == 5
    assert repr(table.fragments).endswith("… 10 in all]")


def test_completion_offers_methods_and_hides_internal_names(table: Table) -> None:
    completer = rlcompleter.Completer({"t": table})
    offered = [completer.complete("t.", number) for number in range(200)]
    names = {name.removeprefix("t.").rstrip("()") for name in offered if name}
    assert {"append", "scan", "compact", "schema", "to_pandas", "versions"} <= names
    assert not [name for name in dir(table) if name.startswith("_") and not name.startswith("__")]
    assert "runtime" not in dir(table)
    assert {"to_pandas", "explain", "columns"} <= set(dir(table.scan()))
    assert not {"create", "check", "snapshot"} & set(dir(table.scan()))


def test_a_notebook_shows_rows_columns_and_versions(table: Table, tmp_path: Path) -> None:
    html = table.append({"id": range(300), "city": ["x"] * 300}).table._repr_html_()
    assert "<small>int64" in html
    assert html.index("<td>append</td>") < html.index("<td>delete</td>") < html.index("<td>create</td>")
    assert 'aria-label="rows of 4 versions: 95 to 395, now 395"' in html
    assert "to 100, now 95" in table._repr_html_()  # later versions are not shown
    unsafe = Table.create(tmp_path / "unsafe", {"<b>": ["<script>", "x" * 100]}, durable=False)._repr_html_()
    assert "&lt;script&gt;" in unsafe
    assert "<script>" not in unsafe
    assert "&lt;b&gt;<br><small>string" in unsafe
    assert "x" * 61 not in unsafe
    times = pa.table({"at": pa.array([2**60, None], pa.timestamp("ms")), "n": [1, 2]})
    late = Table.create(tmp_path / "late", times, durable=False)._repr_html_()
    assert "<tr><td>(out of range)</td><td>1</td></tr><tr><td>None</td><td>2</td></tr>" in late


def test_a_damaged_history_does_not_hide_the_rows(table: Table) -> None:
    for manifest in (Path(table.uri) / "_versions").glob("*.manifest"):
        manifest.write_bytes(b"damaged")
    assert "<td>Oslo</td>" in table._repr_html_()
    assert "polyline" not in table._repr_html_()


def test_a_sparkline_of_equal_values_is_a_line_at_the_bottom() -> None:
    assert 'points="3.0,29.0 157.0,29.0"' in sparkline([5, 5])
    assert "circle" in sparkline([0])


def test_a_write_that_was_rebased_often_has_a_short_representation(table: Table) -> None:
    committed = table.append({"id": [7], "city": ["Lima"]})
    for count, expected in ((5, "rebased_over=(1, 2, 3, 4, 5)"), (150, "rebased_over=(1, 2, ..., 150: 150 in all)")):
        rebased = replace(
            committed,
            rebased_over=tuple(Version(number) for number in range(1, count + 1)),
            uncovered=tuple(f"index {number}" for number in range(count)),
        )
        assert expected in repr(rebased)
    assert len(repr(rebased)) < LONGEST_REPR + 50
