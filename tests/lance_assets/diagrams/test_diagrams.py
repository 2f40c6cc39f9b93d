"""Diagrams of a table: their content, and that they stay small, well-formed and escaped."""

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from lance_assets.common.version_stats import FragmentStats
from lance_assets.diagrams import fragment_map as fragment_map_module
from lance_assets.diagrams.fragment_map import bytes_text, draw_fragment_map, draw_fragment_strip
from lance_assets.diagrams.svg import BLUE, ORANGE, RED, Picture
from lance_assets.diagrams.version_graph import draw_version_graph
from lance_core import Table

BYTES_MAX = 10_000
SHOWN_AT_ONCE = 1_000
"""Dagster 1.13 hides longer markdown behind a link."""
HOSTILE = "<script>alert('&')<\x00"
ROW = pa.table({"id": [1, 2]})


def drawn(picture: Picture) -> list[str]:
    """Return the texts of a diagram; check that it is well-formed and small."""
    assert len(picture.markdown("x")) < BYTES_MAX
    return [each.text or "" for each in ElementTree.fromstring(picture.svg()).iter() if each.tag.endswith("text")]


def grown(path: Path) -> Table:
    table = Table.create(path, ROW, properties={"dagster.run_id": "r", "dagster.asset_key": f"lake/{HOSTILE}"})
    for _ in range(14):
        table = table.append(ROW).table
    return table


def test_versions_around_one(tmp_path: Path) -> None:
    table = grown(tmp_path / "t")
    table.tags.create("golden", 5)
    table.branches.create("dev", 7)
    words = drawn(draw_version_graph(table.at(8)))
    assert [word for word in words if re.fullmatch(r"v\d+", word)] == [f"v{n}" for n in range(11, 0, -1)]
    assert words[0] == "version 8 on the main branch, which has 15 versions"
    assert "4 newer" in words
    assert words[words.index("v5") : words.index("v4")][-1] == "tag golden"
    assert words[words.index("v7") : words.index("v6")][-1] == "branch dev"
    assert "<script>alert" in "".join(words)
    assert "<script" not in draw_version_graph(table.at(8)).svg()
    assert "3 older" in drawn(draw_version_graph(table.at(11)))


def test_removed_versions(tmp_path: Path) -> None:
    table = grown(tmp_path / "t")
    for number in (3, 4, 6):
        path = table.at(number).manifest.path
        (tmp_path / "t" / "_versions" / path.rpartition("/")[2]).unlink()
    words = drawn(draw_version_graph(table.at(5)))
    assert words[0].endswith("which has 12 versions")
    assert ("1 version removed" in words, "2 versions removed" in words) == (True, True)


def test_branch_names_its_source(tmp_path: Path) -> None:
    table = grown(tmp_path / "t")
    table.branches.create("dev", 4)
    dev = Table.open(table.uri, branch="dev").append(ROW).table
    table.tags.create("of_main", dev.version)
    table.branches.create("of_main_too", dev.version)
    words = drawn(draw_version_graph(dev))
    assert words[0].startswith(f"version {dev.version} on branch dev")
    assert "created at version 4 of the main branch" in words
    assert not [word for word in words if "of_main" in word]


def test_many_names_are_counted(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", ROW)
    for number in range(9):
        table.tags.create(f"a-tag-with-quite-a-long-name-{number}")
    assert "+6" in drawn(draw_version_graph(table))


def test_damaged_neighbour_does_not_hide_the_others(tmp_path: Path) -> None:
    table = grown(tmp_path / "t")
    name = table.at(9).manifest.path.rpartition("/")[2]
    (tmp_path / "t" / "_versions" / name).write_bytes(b"nonsense")
    words = drawn(draw_version_graph(table.at(8)))
    assert words[words.index("v9") + 1] == "Corrupt"


def piece(number: int, rows: int, deleted: int = 0, *, is_small: bool = False) -> FragmentStats:
    return FragmentStats(number, rows, deleted, files=1, bytes=rows, files_without_size=0, is_small=is_small)


MAPS: tuple[tuple[str, list[FragmentStats], str], ...] = (
    ("one", [piece(0, 10)], "one bar per fragment; the highest has 10 rows"),
    ("sixteen", [piece(n, 10 + n * 37, n, is_small=True) for n in range(16)], "the highest has 580 rows"),
    ("eleven", [piece(n, 1_000 - n * 37, 500) for n in range(11)], "one bar per fragment"),
    ("eighty", [piece(n, n * 37, n, is_small=n % 3 == 0) for n in range(80)], "one bar per fragment"),
    ("many", [piece(n, n % 977, n % 91, is_small=n % 7 == 0) for n in range(5_000)], "the mean of 63 neighbours"),
    ("very many", [piece(n, n % 977, 5) for n in range(100_000)], "the mean of 1250 neighbours"),
    ("empty ones", [piece(n, 0) for n in range(3)], "the highest has 1 rows"),
)  # fmt: skip


@pytest.mark.parametrize(("fragments", "text"), [case[1:] for case in MAPS], ids=[case[0] for case in MAPS])
def test_fragment_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fragments: Sequence[FragmentStats], text: str
) -> None:
    monkeypatch.setattr(fragment_map_module, "fragment_stats", lambda table: iter(fragments))
    picture = draw_fragment_map(Table.create(tmp_path / "t", ROW))
    assert any(text in word for word in drawn(picture))
    once = picture.svg()
    strip = draw_fragment_strip(Table.create(tmp_path / "u", ROW))
    assert len(strip.markdown("rows by fragment")) < SHOWN_AT_ONCE
    assert (RED in strip.svg(), BLUE in strip.svg()) == (any(each.deleted for each in fragments), True)
    marked = (once.count(RED) > 1, once.count(ORANGE) > 1)  # each occurs once in the legend
    assert marked == (any(each.deleted for each in fragments), any(each.is_small for each in fragments))


def test_fragment_map_of_a_real_table(tmp_path: Path) -> None:
    table = grown(tmp_path / "t").delete("id = 1").table.add_columns({"x": "id"}).table
    words = drawn(draw_fragment_map(table))
    assert words[0] == "version 17: 15 fragments, 15 rows"
    assert "30 files, up to 2 per fragment" in words[1]
    assert ("15 deleted (50.0%)" in words, "15 small" in words) == (True, True)
    assert "no fragments: the version holds no rows" in drawn(
        draw_fragment_map(Table.create(tmp_path / "e", ROW.schema))
    )


def test_sizes() -> None:
    texts = [bytes_text(size) for size in (0, 1, 1023, 1024, 1536, 3 * 1024**2, 1024**4, 5 * 1024**5)]
    assert texts == ["0 B", "1 B", "1023 B", "1.0 KiB", "1.5 KiB", "3.0 MiB", "1.0 TiB", "5,120.0 TiB"]
