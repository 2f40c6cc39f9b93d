"""Full-text indices on JSON columns: terms, files and answers equal those of pylance."""

import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import query as peer

from lance_core import InvalidInput, Table
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.parameters import TextParameters
from lance_core.text import Boolean, Match, Phrase
from tests.lance_core.index.text.pylance_index import index_of_pylance, occurrences_of, partitions_of

WORDS = ["lance", "Running formats", "the", "été", "red fox", "x" * 45, "", "a,b;c", "Tables", "17"]
KEYS = ["title", "tags", "a.b", "Ümlaut", "n", "in"]
NUMBERS = [3, -1.5, 2.0, 1e20, 1e16, 1e15, 1e-5, 1.5e-5, 1e-6, 0.0001, 100000.0, -0.0, 12345678901234567890, -(2**63)]


def make_value(generator: random.Random, depth: int = 0) -> Any:
    kind = generator.randrange(8 if depth < 3 else 5)
    if kind < 3:
        return generator.choice(WORDS)
    if kind == 3:
        return generator.choice(NUMBERS)
    if kind == 4:
        return generator.choice([True, False, None])
    if kind == 5:
        return [make_value(generator, depth + 1) for _ in range(generator.randrange(4))]
    return {key: make_value(generator, depth + 1) for key in generator.sample(KEYS, generator.randrange(4))}


def make_values(seed: int, count: int) -> pa.Array:
    generator = random.Random(seed)
    values = [None if generator.random() < 0.05 else json.dumps(make_value(generator)) for _ in range(count)]
    return pa.array(values, pa.json_())


@pytest.mark.parametrize(
    "parameters",
    [{}, {"base_tokenizer": "whitespace", "stem": False, "remove_stop_words": False, "lower_case": False}],
    ids=["default", "whitespace"],
)
def test_terms_and_answers_are_those_of_pylance(parameters: dict[str, Any], tmp_path: Path) -> None:
    values = make_values(3, 300)
    expected, lengths = index_of_pylance(tmp_path, values, **parameters)
    uri = str(tmp_path / "ours")
    table = Table.create(uri, {"id": range(300), "body": values})
    table = table.create_index("body", "INVERTED", with_position=True, **parameters).table
    assert occurrences_of(partitions_of(table)) == (expected, lengths)

    texts = (
        *("title,str,lance", "title,str,running formats", "title,number,3", "n,bool,true", "in.title,str,fox"),
        *("in.tags,str,the red", ",str,lance;tags,str,fox", "a.b,null,null", "Ümlaut,str,ÉTÉ;title,number,0.00001"),
    )
    for round_ in range(2):
        dataset = lance.dataset(uri)
        for text in texts:
            for ours, theirs in (
                (Match(text, "body"), peer.MatchQuery(text, "body")),
                (
                    Match(text, "body", operator="AND"),
                    peer.MatchQuery(text, "body", operator=peer.FullTextOperator.AND),
                ),
                (Phrase(text, "body"), peer.PhraseQuery(text, "body")),
            ):
                answer = dataset.to_table(["id", "_score"], full_text_query=theirs, limit=1000)
                found = table.text_search(ours, 1000, select=["id"])
                assert _scores(found) == pytest.approx(_scores(answer), abs=1e-4)
        if not round_:  # rows that no index covers, and then the index over all rows
            added = {"id": range(300, 340), "body": make_values(4, 40)}
            table = table.append(added).table
            uncovered = _scores(table.text_search("title,str,lance", 1000, columns="body", select=["id"]))
            table = table.optimize_indices(merge="all").table
            rebuilt = _scores(table.text_search("title,str,lance", 1000, columns="body", select=["id"]))
            assert uncovered == pytest.approx(rebuilt, abs=1e-4)
            assert max(rebuilt) >= 300


def _scores(rows: pa.Table) -> dict[int, float]:
    return dict(zip(rows["id"].to_pylist(), rows["_score"].to_pylist(), strict=True))


def test_a_search_without_an_index_reads_json(tmp_path: Path) -> None:
    values = pa.array(['{"title": "a table", "n": 1}', None, '{"title": ["lance table", 2]}'], pa.json_())
    table = Table.create(str(tmp_path / "t"), {"id": [0, 1, 2], "j": values})
    clauses = Boolean(["title,str,table"], must_not=["n,number,1"])
    assert table.text_search(clauses, columns="j", select=["id"])["id"].to_pylist() == [2]


def test_a_query_without_columns_searches_texts(tmp_path: Path) -> None:
    values = pa.array(['{"a": "lance"}', '{"a": "table"}'], pa.json_())
    table = Table.create(str(tmp_path / "t"), {"id": [0, 1], "j": values, "body": ["a table", "a lance"]})
    table = table.create_index("j", "INVERTED").table
    assert table.text_search("a,str,lance", select=["id"])["id"].to_pylist() == [0]
    table = table.create_index("body", "INVERTED").table
    assert table.text_search("lance", select=["id"])["id"].to_pylist() == [1]


@pytest.mark.parametrize("query", ["lance", "title,str", "title,int,3", "title,str,lance;", "title, str, lance"])
def test_a_query_that_is_no_triple_is_refused(query: str) -> None:
    with pytest.raises(InvalidInput, match="a path, a type and a value"):
        analyzer_of(TextParameters(lance_tokenizer="json")).analyze(query)


def test_what_json_columns_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), {"j": pa.array(['{"a": "b"}'], pa.json_())})
    with pytest.raises(InvalidInput, match="highlight"):
        table.text_search("a,str,b", columns="j", highlight=True)
    with pytest.raises(InvalidInput, match="fuzziness"):
        table.text_search(Match("a,str,b", "j", fuzziness=1))
