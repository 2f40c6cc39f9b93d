"""Pylance queries: pylance finds the same rows with and without the indices that lance_core built or maintained."""

from pathlib import Path

import lance
import pytest
from hypothesis import HealthCheck, given, settings

from tests.lance_core.index.indexed_tables import TABLES, predicates

_EXAMPLES = 200
_BY_INDEX = 100
"""Fewest examples for which pylance plans an index lookup; without this minimum the comparison could prove nothing."""


@pytest.mark.parametrize("name", TABLES)
def test_a_filter_finds_the_rows_of_a_pylance_scan(name: str, tmp_path: Path) -> None:
    dataset = lance.dataset(TABLES[name](tmp_path).uri)
    by_index = 0

    @settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.nested_given])
    @given(predicate=predicates())
    def ask(predicate: str) -> None:
        nonlocal by_index

        def found(use_scalar_index: bool) -> list[int]:
            asked = dataset.scanner(
                ["id"], filter=predicate, with_row_address=True, use_scalar_index=use_scalar_index
            ).to_table()
            return sorted(asked["_rowaddr"].to_pylist())

        by_index += "ScalarIndexQuery" in dataset.scanner(["id"], filter=predicate).explain_plan()
        assert found(use_scalar_index=True) == found(use_scalar_index=False)

    ask()
    assert by_index >= _BY_INDEX
