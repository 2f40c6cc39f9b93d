"""Pylance queries: pylance finds the same rows with and without the indices that lance_core built or maintained."""

from pathlib import Path

import lance
import pytest
from hypothesis import HealthCheck, given, settings

from tests.lance_core.index.indexed_tables import TABLES, predicates

_EXAMPLES = 200
_INDEX_PLANS_MIN = 100
"""Fewest examples for which pylance plans an index lookup; without this minimum the comparison could prove nothing."""


@pytest.mark.parametrize("name", TABLES)
def test_a_filter_finds_the_rows_of_a_pylance_scan(name: str, tmp_path: Path) -> None:
    dataset = lance.dataset(TABLES[name](tmp_path).uri)
    index_plans = 0

    @settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.nested_given])
    @given(predicate=predicates())
    def compare(predicate: str) -> None:
        nonlocal index_plans

        def matching_addresses(use_scalar_index: bool) -> list[int]:
            found_rows = dataset.scanner(
                ["id"], filter=predicate, with_row_address=True, use_scalar_index=use_scalar_index
            ).to_table()
            return sorted(found_rows["_rowaddr"].to_pylist())

        index_plans += "ScalarIndexQuery" in dataset.scanner(["id"], filter=predicate).explain_plan()
        assert matching_addresses(use_scalar_index=True) == matching_addresses(use_scalar_index=False)

    compare()
    assert index_plans >= _INDEX_PLANS_MIN
