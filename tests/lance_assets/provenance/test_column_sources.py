"""Column sources: what is recorded is read back, and what another writer records breaks nothing."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_assets.provenance.column_sources import (
    COLUMN_SOURCES,
    ColumnSource,
    encode_column_sources,
    parse_column_sources,
)

SOURCES = st.builds(
    ColumnSource, st.sampled_from(["/a", "s3://b/c"]), st.text(max_size=5), st.none() | st.text(max_size=5)
)
MALFORMED = [
    "",
    "[]",
    "{}",
    "null",
    '{"tables": [], "columns": {"a": [[0, "x"]]}}',
    '{"tables": [["/a", null]], "columns": {"a": [[-1, "x"]]}}',
    '{"tables": [["/a", null]], "columns": {"a": [[true, "x"]]}}',
    '{"tables": [["/a", null]], "columns": {"a": [[0, 1]]}}',
    '{"tables": [["/a", 7]], "columns": {}}',
    '{"tables": [["/a"]], "columns": {}}',
    '{"tables": [["/a", null]], "columns": [1]}',
    "[" * 100_000,
]


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.lists(SOURCES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_recorded_sources_are_read_back(sources: dict[str, list[ColumnSource]]) -> None:
    value = encode_column_sources(sources)
    assert value is not None
    read = parse_column_sources({COLUMN_SOURCES: value})
    assert {column: set(each) for column, each in read.items()} == {
        column: set(each) for column, each in sources.items()
    }


@pytest.mark.parametrize("value", MALFORMED, ids=lambda value: value[:60])
def test_malformed_values_are_ignored(value: str) -> None:
    assert parse_column_sources({COLUMN_SOURCES: value}) == {}


def test_large_lineage_is_left_out() -> None:
    source = ColumnSource("/a", "x" * 50)
    assert encode_column_sources({}) is None
    assert encode_column_sources({"a": []}) is None
    assert encode_column_sources({f"c{number}": [source] for number in range(5000)}) is None
    assert json.loads(encode_column_sources({"c": [source]}) or "")["columns"] == {"c": [[0, "x" * 50]]}
