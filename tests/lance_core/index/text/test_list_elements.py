"""Indices that score each element of a list by itself: answers equal those of pylance, whichever library built
or merged the index."""

import random
from pathlib import Path
from typing import Any

import lance
import lance.query as peer
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table
from lance_core.text import Boolean, Boost, Match, Phrase, Query
from tests.lance_core.index.text.text_differential import TOLERANCE

WORDS = ["red", "blue", "green", "the", "running", "run"]
ELEMENTS = peer.DocumentGranularity.LIST_ELEMENT


def make_rows(generator: random.Random, first: int, count: int) -> pa.Table:
    def text() -> str | None:
        return None if generator.random() < 0.1 else " ".join(generator.choices(WORDS, k=generator.randrange(6)))

    lists = [
        None if generator.random() < 0.1 else [text() for _ in range(generator.randrange(4))] for _ in range(count)
    ]
    return pa.table({"id": range(first, first + count), "tags": pa.array(lists, pa.list_(pa.string()))})


def make_queries(generator: random.Random) -> tuple[Query, Any]:
    """Return a query, and the query of pylance that means the same."""

    def leaf() -> tuple[Match | Phrase, Any]:
        words = " ".join(generator.choices(WORDS, k=generator.choice([1, 2, 3])))
        if generator.random() < 0.3:
            return Phrase(words, "tags"), peer.PhraseQuery(words, "tags", document_granularity=ELEMENTS)
        if generator.random() < 0.5:
            return Match(words, "tags"), peer.MatchQuery(words, "tags", document_granularity=ELEMENTS)
        operator = peer.FullTextOperator.AND
        theirs = peer.MatchQuery(words, "tags", operator=operator, document_granularity=ELEMENTS)
        return Match(words, "tags", operator="AND"), theirs

    (first, their_first), (second, their_second), (third, their_third) = leaf(), leaf(), leaf()
    kind = generator.random()
    if kind < 0.6:
        return first, their_first
    if kind < 0.8:
        occurs = (peer.Occur.MUST, peer.Occur.SHOULD, peer.Occur.MUST_NOT)
        clauses = list(zip(occurs, (their_first, their_second, their_third), strict=True))
        return Boolean([first], [second], [third]), peer.BooleanQuery(clauses)
    return Boost(first, second), peer.BoostQuery(their_first, their_second)


def scores(found: pa.Table) -> dict[tuple[int, int], float]:
    assert found.schema.field("_doc_index").type == pa.list_(pa.field("item", pa.uint32(), nullable=False))
    by_element = {(row["id"], *row["_doc_index"]): row["_score"] for row in found.to_pylist()}
    assert len(by_element) == len(found)
    return by_element


def check_equals_pylance(table: Table, generator: random.Random, peer_table: Table | None = None) -> None:
    """Compare answers. `peer_table` is the version that pylance searches, by default the same one."""
    dataset = lance.dataset(table.uri, version=(peer_table or table).version)
    for _ in range(12):
        ours, theirs = make_queries(generator)
        condition = generator.choice([None, "id % 2 = 0"])
        options: dict[str, Any] = {"full_text_query": theirs, "filter": condition, "limit": 10_000}
        expected = scores(dataset.scanner(columns=["id", "_score"], **options).to_table())
        found = table.text_search(ours, 10_000, select=["id"], filter=condition)
        assert scores(found) == pytest.approx(expected, abs=TOLERANCE), ours


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("builder", ["ours", "pylance"])
def test_answers_equal_those_of_pylance(tmp_path: Path, builder: str, stable: bool) -> None:
    generator = random.Random(len(builder) + stable)
    table = Table.create(
        tmp_path / "t", make_rows(generator, 0, 60), max_rows_per_file=25, stable_row_ids=stable, durable=False
    )

    def build() -> Table:
        options: dict[str, Any] = {"with_position": True, "replace": True}
        if builder == "ours":
            return (
                table.refresh().create_index("tags", "INVERTED", document_granularity="list_element", **options).table
            )
        lance.dataset(table.uri).create_scalar_index("tags", "INVERTED", document_granularity=ELEMENTS, **options)
        return table.refresh()

    table = build().delete("id % 7 = 3").table
    assert [index.name for index in table.indices] == ["tags_list_element_idx"]
    check_equals_pylance(table, generator)
    table = table.append(make_rows(generator, 100, 20)).table
    uncovered, table = table, build()
    check_equals_pylance(uncovered, generator, table)
    table = table.append(make_rows(generator, 200, 20)).table.optimize_indices().table.compact().table
    table = table.optimize_indices().table
    check_equals_pylance(table, generator)
    table = table.append(make_rows(generator, 300, 20)).table
    lance.dataset(table.uri).optimize.optimize_indices()
    table = table.refresh()
    check_equals_pylance(table, generator)
    assert not [each for each in table.fsck("head").findings if each.rule.startswith("index_")]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = {"id": [0, 1], "title": ["red", "blue"], "tags": [["blue red", "red"], ["green"]]}
    table = Table.create(tmp_path / "t", rows, durable=False)
    return table.create_index("tags", "INVERTED", document_granularity="list_element").table


def test_an_element_is_highlighted_and_named(table: Table) -> None:
    found = table.text_search("red", select=["id"], highlight=True)
    assert found.column_names == ["id", "_doc_index", "_score", "_highlights"]
    assert [(row["_doc_index"], row["_highlights"]) for row in found.to_pylist()] == [
        ([1], [{"column": "tags", "element": 1, "start": 0, "end": 3}]),
        ([0], [{"column": "tags", "element": 0, "start": 5, "end": 8}]),
    ]
    assert "elements of lists" in table.explain_text_search("red")


def test_rows_and_elements_are_searched_by_their_own_indices(table: Table) -> None:
    table = table.create_index("title", "INVERTED").table
    assert table.text_search("red").column_names == ["id", "title", "tags", "_score"]
    table = table.create_index("tags", "INVERTED").table
    assert [index.name for index in table.indices] == ["tags_list_element_idx", "title_idx", "tags_idx"]
    assert len(table.text_search(Match("red", "tags", document_granularity="row"))) == 1
    elements = {"match": {"column": "tags", "terms": "red", "document_granularity": "list_element"}}
    assert len(table.text_search(elements)) == 2
    with pytest.raises(InvalidInput, match="rows and of list elements"):
        table.text_search(Match("red", "tags"))
    with pytest.raises(InvalidInput, match="rows in one part"):
        table.text_search({"boolean": {"must": [elements, {"match": {"column": "title", "terms": "red"}}]}})


def test_elements_of_one_column_are_searched(table: Table) -> None:
    table = table.add_columns({"more": "tags"}).table
    leaves = [Match("red", column, document_granularity="list_element") for column in ("tags", "more")]
    with pytest.raises(InvalidInput, match="searches one column"):
        table.text_search(Boolean(leaves))
    with pytest.raises(InvalidInput, match="needs a column of lists"):
        table.text_search(Match("red", "title", document_granularity="list_element"))
    with pytest.raises(InvalidInput, match="needs a list of texts"):
        table.create_index("title", "INVERTED", document_granularity="list_element")
    with pytest.raises(InvalidInput, match="document_granularity='x' is unknown"):
        table.create_index("tags", "INVERTED", document_granularity="x", replace=True)
