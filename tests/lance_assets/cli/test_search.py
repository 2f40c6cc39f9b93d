"""`lance-assets search`: the best rows with the words that matched."""

from pathlib import Path

import pytest

from lance_core import Table
from tests.lance_assets.cli.conftest import Shell


@pytest.fixture
def articles(tmp_path: Path) -> str:
    rows = {
        "id": [1, 2, 3],
        "title": ["A table format", "Knights", "Other"],
        "tags": [["fencing", "old lance"], [], ["x"]],
        "body": ["Lance\n\tstores tables.", "The \x1blance of a knight.", "word " * 30 + "lance formats"],
    }
    table = Table.create(tmp_path / "articles.lance", rows, durable=False)
    for column in ("title", "tags", "body"):
        table = table.create_index(column, "INVERTED").table
    return str(tmp_path / "articles.lance")


def test_rows_are_printed_with_the_words_that_matched(articles: str, shell: Shell) -> None:
    answer = shell("search", articles, "lance format", "--column", "body", "--column", "tags", "--show", "title")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "3 rows"
    assert "  body: [Lance]  stores tables." in lines
    assert "  tags: old [lance]" in lines
    assert any(line.startswith("  body: …") and line.endswith("[lance] [formats]") for line in lines)
    assert "\x1b" not in answer.out
    assert any(line.endswith("title Knights") for line in lines)
    assert shell("search", articles, "lance", "-k", "1", "--filter", "id = 2", "--json").json[0]["id"] == 2


def test_overlapping_n_grams_are_marked_once(tmp_path: Path, shell: Shell) -> None:
    table = Table.create(tmp_path / "t.lance", {"id": [1], "body": ["a balance"]}, durable=False)
    table.create_index("body", "INVERTED", base_tokenizer="ngram")
    assert "  body: a ba[lance]" in shell("search", str(tmp_path / "t.lance"), "lance").out.splitlines()


def test_a_table_without_an_index_needs_a_column(tmp_path: Path, shell: Shell) -> None:
    Table.create(tmp_path / "t.lance", {"id": [1], "body": ["lance"]}, durable=False)
    assert "pass columns=" in shell("search", str(tmp_path / "t.lance"), "lance").err
    assert "[lance]" in shell("search", str(tmp_path / "t.lance"), "lance", "--column", "body", "--exact").out
