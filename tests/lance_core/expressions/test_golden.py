"""Golden predicates: over a table of every type, results equal those of pylance, except for known differences."""

import json
import pathlib

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInput
from lance_core.expressions import METADATA_COLUMNS, Predicate
from tests.golden.predicates_table import table
from tests.lance_core.expressions.known_differences import DIFFERENCES

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "predicates.json").read_text(encoding="utf-8"))[
    "answers"
]


def batch() -> pa.RecordBatch:
    """Return the golden table with the system columns that it has as one fragment in version 1."""
    rows = table()
    counted = pa.array(range(rows.num_rows), pa.uint64())
    first = pa.array([1] * rows.num_rows, pa.uint64())
    for field in METADATA_COLUMNS:
        rows = rows.append_column(field, first if field.name.endswith("_version") else counted)
    return rows.combine_chunks().to_batches()[0]


BATCH = batch()


def matching_rows(predicate: Predicate) -> list[int]:
    return [row for row, matches in enumerate(predicate.mask(BATCH).to_pylist()) if matches]


def matching_rows_or_none(sql: str) -> list[int] | None:
    try:
        return matching_rows(Predicate.parse(sql, BATCH.schema))
    except InvalidInput:
        return None


@pytest.mark.parametrize("group", GOLDEN)
def test_results_equal_those_of_pylance(group: str) -> None:
    predicates = [sql for sql in GOLDEN[group] if sql not in DIFFERENCES]
    theirs = {sql: None if isinstance(GOLDEN[group][sql], str) else GOLDEN[group][sql] for sql in predicates}
    assert {sql: matching_rows_or_none(sql) for sql in predicates} == theirs


def test_differences_are_as_listed() -> None:
    assert {sql: matching_rows_or_none(sql) for sql in DIFFERENCES} == DIFFERENCES


def test_listed_differences_differ() -> None:
    theirs = {sql: result for group in GOLDEN.values() for sql, result in group.items()}
    equal = [
        sql for sql, ours in DIFFERENCES.items() if ours == (None if isinstance(theirs[sql], str) else theirs[sql])
    ]
    assert equal == []


@pytest.mark.parametrize("group", GOLDEN)
def test_a_predicate_built_from_its_tree_answers_the_same(group: str) -> None:
    for sql in GOLDEN[group]:
        if matching_rows_or_none(sql) is None:
            continue
        parsed = Predicate.parse(sql, BATCH.schema)
        assert matching_rows(Predicate.from_node(parsed.tree, BATCH.schema)) == matching_rows(parsed), sql


@pytest.mark.parametrize("group", GOLDEN)
def test_the_conjuncts_are_equivalent_to_the_predicate(group: str) -> None:
    for sql in GOLDEN[group]:
        if matching_rows_or_none(sql) is None:
            continue
        parsed = Predicate.parse(sql, BATCH.schema)
        parts = parsed.conjuncts()
        matching = set.intersection(*(set(matching_rows(part)) for part in parts))
        assert sorted(matching) == matching_rows(parsed), sql
        assert {name for part in parts for name in part.columns} == set(parsed.columns), sql
