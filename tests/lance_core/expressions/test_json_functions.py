"""JSON functions: results for single documents equal those of pylance, and unsupported paths are rejected."""

import json
import math
import pathlib

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInput
from lance_core.expressions import Predicate, Projection
from lance_core.expressions.json_functions import UnsupportedPath, parse_path

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "predicates_json.json").read_text(encoding="utf-8"))
JSON = pa.json_(pa.string())
SCHEMA = pa.schema([("js", JSON)])

Result = bool | int | float | str | None


def batch(*documents: str | None) -> pa.RecordBatch:
    stored = pa.array(documents, pa.string())
    return pa.RecordBatch.from_arrays([pa.ExtensionArray.from_storage(JSON, stored)], schema=SCHEMA)


def evaluate_documents(sql: str) -> list[Result]:
    """Return the result for each document; `refused` stands for a failed conversion or an invalid path."""
    try:
        projection = Projection.parse({"found": sql}, SCHEMA)
    except InvalidInput:
        return ["refused" if document is not None else None for document in GOLDEN["documents"]]
    results: list[Result] = []
    for document in GOLDEN["documents"]:
        try:
            results.append(projection.evaluate(batch(document))["found"][0].as_py())
        except InvalidInput:
            results.append("refused")
    return results


def without_nan(values: list[Result]) -> list[Result]:
    return ["not a number" if isinstance(each, float) and math.isnan(each) else each for each in values]


@pytest.mark.parametrize("sql", GOLDEN["answers"])
def test_results_equal_those_of_pylance(sql: str) -> None:
    assert without_nan(evaluate_documents(sql)) == without_nan(GOLDEN["answers"][sql])


@pytest.mark.parametrize("text", ["$.a[*]", "$.*", "$.a[last]", "$..a", "$.a[-1]", "$.a[0,1]", "$.a ? (@ > 1)", "$x"])
def test_unsupported_paths_are_rejected_before_the_first_row(text: str) -> None:
    with pytest.raises(UnsupportedPath, match="is not supported; write names and positions"):
        parse_path(text)
    with pytest.raises(InvalidInput, match="is not supported; write names and positions"):
        Predicate.parse(f"json_exists(js, '{text}')", SCHEMA)


def test_slices_and_nulls() -> None:
    rows = batch('{"a": 1}', None, '{"a": 2}', "{}")
    predicate = Predicate.parse("json_get_int(js, 'a') >= 1", SCHEMA)
    assert predicate.mask(rows).to_pylist() == [True, False, True, False]
    assert predicate.mask(rows.slice(1)).to_pylist() == [False, True, False]


def test_a_value_that_does_not_convert_is_named() -> None:
    with pytest.raises(InvalidInput, match=r'failed on a row: .*the JSON value "x" is not a number'):
        Predicate.parse("json_get_int(js, 'a') = 1", SCHEMA).mask(batch('{"a": "x"}'))


def test_a_pickle_contains_the_function_by_name() -> None:
    predicate = Predicate.parse("json_get_int(js, 'a') = 1", SCHEMA)
    assert b"json_get_int" in predicate.compiled.encoded
    assert b"cloudpickle" not in predicate.compiled.encoded
