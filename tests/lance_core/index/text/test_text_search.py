"""Full-text search in tables: what the differential test against pylance leaves open."""

import gc
import itertools
import random
import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import (
    IndexIgnored,
    InvalidInput,
    MissingDependency,
    Table,
    Unsupported,
    cache_statistics,
    resize_cache,
)
from lance_core.index.text import builder
from lance_core.index.text.analyzers import analyzer_of
from lance_core.index.text.inverted import Inverted
from lance_core.index.text.text_lookup import TextLookup
from lance_core.text import Boolean, Boost, CombinedFields, Match, MultiMatch, Phrase, bind_columns, parse_query
from tests.lance_core.index.text.pylance_index import partitions_of
from tests.lance_core.index.text.text_differential import QUERIES, compare, make_corpus, make_query

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
VERBATIM: dict[str, Any] = {"stem": False, "remove_stop_words": False, "with_position": True}


@pytest.mark.parametrize("seed", [3, 8, 13, 16])
def test_answers_equal_those_of_pylance(tmp_path: Path, seed: int) -> None:
    corpus = make_corpus(tmp_path, seed)
    assert compare(corpus, QUERIES, seed) == []


def make_rows(generator: random.Random, first: int, count: int) -> pa.Table:
    texts = [
        " ".join(generator.choices(WORDS, weights=[9, 5, 3, 2, 1, 1], k=generator.randrange(1, 9)))
        for _ in range(count)
    ]
    return pa.table(
        {"id": range(first, first + count), "year": [n % 7 for n in range(count)], "body": texts, "title": texts[::-1]}
    )


def make_table(uri: Path, generator: random.Random, *, stable_row_ids: bool) -> Table:
    """Return a table with two segments, deleted and updated rows, and compacted fragments."""
    table = Table.create(uri, make_rows(generator, 0, 60), stable_row_ids=stable_row_ids, durable=False)
    table = table.append(make_rows(generator, 100, 40)).table
    for column in ("body", "title"):
        table = table.create_index(column, "INVERTED", **VERBATIM).table
    table = table.append(make_rows(generator, 200, 30)).table
    table = table.optimize_indices(merge="none").table
    table = table.delete("id % 5 = 3").table
    table = table.update({"body": "'beta beta zeta'"}, where="id % 11 = 2").table
    return table.compact(target_rows=64, remap="reuse" if not stable_row_ids else None).table


@pytest.mark.parametrize("stable_row_ids", [False, True])
def test_a_search_finds_the_rows_that_reading_all_texts_finds(tmp_path: Path, stable_row_ids: bool) -> None:
    generator = random.Random(7)
    table = make_table(tmp_path / "t", generator, stable_row_ids=stable_row_ids)
    old = table.at(2)
    table = table.append(make_rows(generator, 300, 20)).table
    for version in (table, old):
        for _ in range(40):
            query = make_query(generator, WORDS, has_positions=True)
            options: dict[str, Any] = {"columns": ["body", "title"], "filter": generator.choice([None, "year > 2"])}
            found, read = (
                version.text_search(query, 1000, select=["id"], exact=exact, **options) for exact in (False, True)
            )
            assert sorted(found["id"].to_pylist()) == sorted(read["id"].to_pylist()), query
            if version is table and not isinstance(query, MultiMatch | CombinedFields | Boost | Boolean):
                assert found["_score"].to_pylist() == pytest.approx(read["_score"].to_pylist(), abs=1e-5), query


def matches_phrase(text: str, words: Sequence[str], slop: int) -> bool:
    tokens = text.split()
    choices = [[at for at, token in enumerate(tokens) if token == word] for word in words]
    return any(
        all(0 <= later - earlier - 1 <= slop for earlier, later in itertools.pairwise(chain))
        for chain in itertools.product(*choices)
    )


def test_phrases_allow_gaps_between_neighbours(tmp_path: Path) -> None:
    generator = random.Random(2)
    rows = make_rows(generator, 0, 200)
    table = Table.create(tmp_path / "t", rows, durable=False)
    table = table.create_index("body", "INVERTED", **VERBATIM).table
    for slop, count in itertools.product((0, 1, 2, 5), (2, 3, 4)):
        words = generator.choices(WORDS[:4], k=count)
        found = table.text_search(Phrase(" ".join(words), "body", slop=slop), 1000, select=["id"])
        texts = zip(rows["id"].to_pylist(), rows["body"].to_pylist(), strict=True)
        assert sorted(found["id"].to_pylist()) == [id for id, text in texts if matches_phrase(text, words, slop)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    rows = pa.table(
        {
            "id": [0, 1, 2, 3, 4],
            "year": [2019, 2020, 2021, 2022, 2023],
            "body": [
                "Lance is a table format",
                "the lance of a knight",
                None,
                "formats of tables, such as Lance",
                "lance",
            ],
            "tags": [["fencing club", "lance"], ["table"], [], None, ["lance"]],
        }
    )
    created = Table.create(tmp_path_factory.mktemp("texts") / "t", rows, max_rows_per_file=2, durable=False)
    created = created.create_index("body", "INVERTED", with_position=True).table
    return created.create_index("tags", "INVERTED", with_position=True).table


def ids(found: pa.Table) -> list[int]:
    return list(found["id"].to_pylist())


def test_equal_scores_come_in_table_order_and_filters_do_not_reduce_k(table: Table) -> None:
    rows = pa.table({"id": range(40), "body": ["same text"] * 40})
    same = Table.create(table.uri + "-same", rows, durable=False).create_index("body", "INVERTED").table
    assert ids(same.text_search("text", 5, select=["id"])) == [0, 1, 2, 3, 4]
    assert ids(same.text_search("text", 3, filter="id >= 30", select=["id"])) == [30, 31, 32]


def test_a_query_without_columns_searches_the_indexed_ones(table: Table) -> None:
    assert set(ids(table.text_search("lance"))) == {0, 1, 3, 4}
    assert set(ids(table.text_search("lance", columns="tags"))) == {0, 4}
    assert ids(table.text_search('{"match": {"column": "body", "terms": "knight"}}')) == [1]
    assert ids(table.text_search({"boolean": {"must": [{"match": {"terms": "format"}}]}}, columns=["body"])) == [0, 3]
    assert "body_idx (INVERTED)" in table.explain_text_search("lance")
    assert "4 rows by BM25" in table.explain_text_search("lance", 4, filter="year > 1")


def test_highlights_are_the_ranges_that_match(table: Table) -> None:
    found = table.text_search(Match("lances format", "body"), highlight=True, select=["id", "body"])
    by_id = {row["id"]: row for row in found.to_pylist()}
    marked = {
        id: [row["body"][span["start"] : span["end"]] for span in row["_highlights"]] for id, row in by_id.items()
    }
    assert marked == {0: ["Lance", "format"], 1: ["lance"], 3: ["formats", "Lance"], 4: ["lance"]}
    found = table.text_search(Phrase("table format", "body"), highlight=True, select=["body"])
    assert [(span["start"], span["end"]) for span in found["_highlights"][0].as_py()] == [(11, 16), (17, 23)]
    found = table.text_search(Match("lance", "tags"), highlight=True, select=["id"], filter="id = 0")
    assert found["_highlights"].to_pylist() == [[{"column": "tags", "element": 1, "start": 0, "end": 5}]]


def test_every_n_gram_of_a_phrase_is_highlighted(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {"body": ["lance format"]}, durable=False)
    table = table.create_index("body", "INVERTED", base_tokenizer="ngram", with_position=True).table
    (spans,) = table.text_search(Phrase("lance", "body"), highlight=True)["_highlights"].to_pylist()
    assert [(span["start"], span["end"]) for span in spans] == [(0, 3), (1, 4), (2, 5)]


@pytest.mark.parametrize("slop", [1, 3, 1 << 40])
def test_a_phrase_has_the_words_that_some_chain_of_neighbours_has(tmp_path: Path, slop: int) -> None:
    """Every combination of positions is tried; documents are not searched across their borders."""
    generator = random.Random(slop)
    texts = [" ".join(generator.choices(["alpha", "beta", "gamma", "x"], k=7)) for _ in range(60)]
    table = Table.create(tmp_path / "t", {"id": range(60), "body": texts}, durable=False)
    table = table.create_index("body", "INVERTED", **VERBATIM).table
    expected = {}
    for number, text in enumerate(texts):
        words = text.split()
        places = [[at for at, word in enumerate(words) if word == each] for each in ("alpha", "beta", "gamma")]
        chains = [
            c for c in itertools.product(*places) if all(1 <= b - a <= slop + 1 for a, b in itertools.pairwise(c))
        ]
        if chains:
            expected[number] = sorted({at for chain in chains for at in chain})
    found = table.text_search(Phrase("alpha beta gamma", "body", slop=slop), 100, highlight=True).to_pylist()
    marked = {row["id"]: [row["body"][: span["start"]].count(" ") for span in row["_highlights"]] for row in found}
    assert marked == expected


def test_searches_keep_the_lookups_of_few_versions(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {"body": ["alpha"]}, durable=False)
    table = table.create_index("body", "INVERTED").table
    lookups = []
    for _ in range(12):
        table.text_search("alpha", 1)
        lookups.append(weakref.ref(TextLookup.of(table._snapshot)))
        table = table.append({"body": ["alpha"]}).table
    gc.collect()
    assert lookups[0]() is None
    assert sum(each() is not None for each in lookups) <= 8


def test_memory_that_searches_keep_is_counted_and_adjustable(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", random.Random(3), stable_row_ids=False)
    table = table.append(make_rows(random.Random(4), 300, 20)).table

    def found() -> pa.Table:
        return table.text_search("beta zeta", 50, columns="body", filter="year > 2", select=["id"])

    expected, names = found(), ("index pages", "searched texts")
    kept = {name: cache_statistics()[name] for name in names}
    try:
        for name in names:
            resize_cache(name, 0)
        assert [cache_statistics()[name].weight for name in names] == [0, 0]
        assert found() == expected
        resize_cache("searched texts", 2_000)
        assert found() == expected
        assert 0 < cache_statistics()["searched texts"].weight <= 2_000
    finally:
        for name in names:
            resize_cache(name, kept[name].capacity)
    assert min(each.weight for each in kept.values()) > 0


def test_a_damaged_index_is_read_around(table: Table) -> None:
    copy = table.clone(table.uri + "-copy", shallow=False)
    for file in Path(copy.uri).glob("_indices/*/*_invert.lance"):
        content = bytearray(file.read_bytes())
        content[:200] = bytes(200)
        file.write_bytes(content)
    expected = table.text_search("lance format", columns="body", exact=True, select=["id"])
    with pytest.warns(IndexIgnored, match="body_idx"):
        found = copy.text_search("lance format", columns="body", select=["id"])
    assert found == expected


def test_an_index_of_a_newer_format_is_not_used_and_its_analyzer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inverted, "max_readable_version", 2)
    rows = pa.table({"id": [0, 1], "body": ["running", "run"]})
    dataset = lance.write_dataset(rows, tmp_path / "t")
    dataset.create_scalar_index("body", "INVERTED", stem=False, block_size=256)
    table = Table.open(str(tmp_path / "t"))
    with pytest.warns(IndexIgnored, match="versions up to 2 can be read"):
        assert ids(table.text_search("running", columns="body", select=["id"])) == [0]


def test_a_missing_library_is_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    analyzer_of.cache_clear()
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(MissingDependency, match=r"body_idx.*lance-assets\[search\]"):
        table.at(table.version).text_search("lance", columns="body", exact=True)
    analyzer_of.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": "x", "columns": "year"}, "has the type int64"),
        ({"query": Match("x", "nosuch")}, "nosuch"),
        ({"query": 7}, "query must be a text"),
        ({"query": "x", "k": 0}, "k=0"),
        ({"query": '{"match": {"column": "body"}}'}, "needs 'terms'"),
        ({"query": {"matches": {}}}, "'matches' is not a query"),
    ],
)
def test_wrong_arguments_are_named(table: Table, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.text_search(**arguments)  # type: ignore[arg-type]


def test_queries_in_json_are_those_of_pylance() -> None:
    text = """{"boost": {"positive": {"multi_match": {"match_queries": [{"column": "a", "terms": "x", "boost": 2}]}},
        "negative": {"phrase": {"terms": "y z", "slop": 1, "column": "b"}}, "negative_boost": 0.3}}"""
    query = parse_query(text)
    assert isinstance(query, Boost)
    assert query.negative == Phrase("y z", "b", slop=1)
    assert query.positive.queries == (Match("x", "a", boost=2.0),)  # type: ignore[union-attr]
    combined = parse_query({"combined_fields": {"query": "x", "columns": ["a", "b"], "boost": [1, 2]}})
    assert combined == CombinedFields("x", ["a", "b"], boosts=[1.0, 2.0])
    with pytest.raises(InvalidInput, match=r"from 1 to 1,048,576, not 0\.5"):
        CombinedFields("x", ["a"], boosts=[0.5])
    with pytest.raises(InvalidInput, match="must_not= only excludes"):
        Boolean(must_not=["x"])
    with pytest.raises(InvalidInput, match="boost=-1"):
        Match("x", boost=-1)
    with pytest.raises(InvalidInput, match="boost=1e\\+300 must be a number from 0 to 1,000,000,000"):
        Match("x", boost=1e300)


VALUES: list[Any] = [
    None,
    True,
    -1,
    3,
    1.5,
    float("nan"),
    "",
    "x",
    [],
    [3],
    ["x", None],
    {},
    {"match": 3},
    {"a": {"b": []}},
]
"""Values of JSON of every type."""
JSON_QUERIES: list[dict[str, Any]] = [
    {"match": {"column": "a", "terms": "x", "boost": 1, "fuzziness": 1, "max_expansions": 2, "operator": "AND"}},
    {"match": {"terms": "x", "prefix_length": 1}},
    {"phrase": {"column": "a", "terms": "x y", "slop": 1}},
    {"multi_match": {"query": "x", "columns": ["a", "b"], "boost": [1, 2], "operator": "OR"}},
    {"multi_match": {"match_queries": [{"terms": "x"}]}},
    {"combined_fields": {"query": "x", "columns": ["a", "b"], "boost": [1, 2], "operator": "OR"}},
    {"boost": {"positive": {"match": {"terms": "x"}}, "negative": {"phrase": {"terms": "y"}}, "negative_boost": 1}},
    {"boolean": {"must": [{"match": {"terms": "x"}}], "should": [], "must_not": [{"match": {"terms": "y"}}]}},
]


@pytest.mark.parametrize("query", JSON_QUERIES, ids=lambda query: next(iter(query)))
def test_json_with_values_of_other_types_is_refused(query: dict[str, Any]) -> None:
    """Every value in a query is replaced by values of other types: the query parses, or is invalid."""
    parse_query(query)
    ((kind, content),) = query.items()
    outcomes = Counter[bool]()
    for key in content:
        for value in VALUES:
            for given in (value, [value, *content[key]] if isinstance(content[key], list) else {"match": value}):
                try:
                    parsed = bind_columns(parse_query({kind: {**content, key: given}}), ["a", "b"])
                    outcomes[bool(parsed.columns)] += 1
                except (InvalidInput, Unsupported):
                    outcomes[False] += 1
    assert outcomes[False] > len(VALUES)


def test_a_hybrid_search_adds_reciprocal_ranks(tmp_path: Path) -> None:
    generator = random.Random(4)
    vectors = [[generator.gauss(0, 1) for _ in range(8)] for _ in range(120)]
    rows = make_rows(generator, 0, 120).append_column("v", pa.array(vectors, pa.list_(pa.float32(), 8)))
    table = Table.create(tmp_path / "t", rows, durable=False).create_index("body", "INVERTED", **VERBATIM).table
    near = table.search("v", vectors[5], 30, filter="year < 5", columns=["id"])["id"].to_pylist()
    text = table.text_search("zeta gamma", 30, filter="year < 5", columns="body", select=["id"])["id"].to_pylist()
    expected: dict[int, float] = {}
    for weight, found in ((1.0, near), (2.0, text)):
        for rank, id in enumerate(found, start=1):
            expected[id] = expected.get(id, 0.0) + weight / (60 + rank)
    best = sorted(expected, key=lambda id: (-expected[id], id))[:7]
    answer = table.hybrid_search(
        "v",
        vectors[5],
        "zeta gamma",
        7,
        columns="body",
        weights=(1, 2),
        candidates=30,
        filter="year < 5",
        select=["id"],
    )
    assert answer["id"].to_pylist() == best
    assert answer["_score"].to_pylist() == pytest.approx([expected[id] for id in best])
    assert [value is not None for value in answer["_distance"].to_pylist()] == [id in near for id in best]
    assert [value is not None for value in answer["_text_score"].to_pylist()] == [id in text for id in best]
    with pytest.raises(InvalidInput, match="two numbers"):
        table.hybrid_search("v", vectors[5], "zeta", weights=(0, 0))


def test_partitions_of_one_segment_are_searched_as_one_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(random.Random(11), 0, 400)
    whole, parts = (Table.create(tmp_path / name, rows, durable=False) for name in ("whole", "parts"))
    whole = whole.create_index("body", "INVERTED", **VERBATIM).table
    monkeypatch.setattr(builder, "DOCUMENTS_MAX", 70)
    monkeypatch.setattr(builder, "PORTION_BYTES", 1 << 10)
    parts = parts.create_index("body", "INVERTED", **VERBATIM).table
    assert len(partitions_of(whole)) == 1
    assert len(partitions_of(parts)) > 3
    for _ in range(2):
        generator = random.Random(5)
        for _ in range(30):
            query = make_query(generator, WORDS, has_positions=True)
            expected, found = (each.text_search(query, 50, select=["id"]) for each in (whole, parts))
            assert found.equals(expected), query
        whole, parts = (each.delete("id % 5 = 3").table for each in (whole, parts))


def test_a_branch_is_searched_with_its_own_rows(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", {"id": [0, 1], "body": ["alpha", "beta"]}, durable=False)
    table = table.create_index("body", "INVERTED", **VERBATIM).table
    branch = table.branches.create("trial").append({"id": [2], "body": ["alpha gamma"]}).table
    branch = branch.delete("id = 1").table
    for version in (branch, branch.optimize_indices().table):
        assert version.text_search("alpha gamma", select=["id"])["id"].to_pylist() == [2, 0]
        assert version.text_search("beta").num_rows == 0
    assert table.refresh().text_search("alpha beta gamma", select=["id"])["id"].to_pylist() == [0, 1]


def test_threads_search_one_table_at_once(tmp_path: Path) -> None:
    generator = random.Random(4)
    table = make_table(tmp_path / "t", generator, stable_row_ids=False)
    queries = [make_query(generator, WORDS, has_positions=True) for _ in range(24)]
    expected = [table.text_search(query, 20, select=["id"]) for query in queries]
    for _ in range(3):
        cold = Table.open(table.uri)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda query, version=cold: version.text_search(query, 20, select=["id"]), queries))
        assert all(one.equals(other) for one, other in zip(found, expected, strict=True))


def test_partitions_that_pylance_built_are_searched_as_one_corpus(tmp_path: Path) -> None:
    terms = pa.array([f"term{number}" for number in range(40_000)])
    generator = np.random.default_rng(3)
    words = terms.take(pa.array(np.minimum(generator.zipf(1.2, 300_000) - 1, len(terms) - 1)))
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(range(0, 300_001, 6), pa.int32()), words), " ")
    tables = []
    settings: dict[str, dict[str, Any]] = {"whole": VERBATIM, "parts": VERBATIM | {"memory_limit": 1}}
    for name, parameters in settings.items():
        dataset = lance.write_dataset(
            pa.table({"id": range(len(texts)), "body": texts, "title": texts}), tmp_path / name
        )
        dataset.create_scalar_index("body", "INVERTED", **parameters)
        tables.append(Table.open(str(tmp_path / name)))
    assert [len(partitions_of(table)) > 1 for table in tables] == [False, True]
    queries, frequent = random.Random(6), terms[:20].to_pylist()
    for _ in range(30):
        query = make_query(queries, frequent, has_positions=True)
        expected, found = (table.text_search(query, 20, columns=["body"], select=["id"]) for table in tables)
        assert found.equals(expected), query
