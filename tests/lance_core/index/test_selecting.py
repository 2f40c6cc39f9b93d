"""What indices answer, beside a scan that uses none: the same rows, in the same order."""

import warnings
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_core import IndexIgnored, Table
from tests.lance_core.index.tables import TABLES, predicates


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return TABLES[request.param](tmp_path_factory.mktemp("table"))


def check(table: Table, predicate: str, columns: Sequence[str] | None, limit: int | None, offset: int | None) -> None:
    asked = {"limit": limit, "offset": offset, "with_row_id": True, "with_row_address": True}
    scanned = table.to_table(columns, predicate, use_indices=False, **asked)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error", IndexIgnored)
        found = table.to_table(columns, predicate, **asked)  # type: ignore[arg-type]
        count = table.count_rows(predicate)
    assert found.schema == scanned.schema
    assert found["_rowaddr"].equals(scanned["_rowaddr"]), table.explain(predicate)
    assert found.to_pylist() == scanned.to_pylist() or str(found.to_pylist()) == str(scanned.to_pylist())
    assert count == table.count_rows(predicate, use_indices=False)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    predicate=predicates(),
    columns=st.sampled_from([None, [], ["plain"], ["id", "s.x"], ["word", "_rowid"]]),
    limit=st.sampled_from([None, None, None, 0, 1, 7]),
    offset=st.sampled_from([None, None, 3]),
)
def test_a_filter_finds_what_a_scan_finds(
    table: Table, predicate: str, columns: Sequence[str] | None, limit: int | None, offset: int | None
) -> None:
    check(table, predicate, columns, limit, offset)
