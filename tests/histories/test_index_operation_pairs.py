"""Tests of two operations planned on one version, at least one of them on indices: the rows equal those of a serial
order, and no index covers rows that it does not contain, which `fsck` verifies in the files of each index.
"""

import pytest

from tests.histories.index_operations import INDEX_OPERATIONS, check_index_results, create_indexed_table
from tests.histories.operation_pairs import OperationPairs
from tests.histories.planted_defects import planted_defect
from tests.histories.table_operations import TABLE_OPERATIONS

OTHER_OPERATIONS = (
    "append",
    "delete fragment 0",
    "delete row 5",
    "update row 1",
    "update w of fragment 0",
    "update v of fragment 1",
    "update v everywhere",
    "upsert keys 0 and 100",
    "upsert v of fragment 0",
    "overwrite",
    "overwrite rows 0 and 1",
    "restore 3",
    "compact",
    "add z from v",
    "drop w",
    "rename v",
)
OPERATIONS = {**{name: TABLE_OPERATIONS[name] for name in OTHER_OPERATIONS}, **INDEX_OPERATIONS}
PAIRS = [
    (first, second)
    for first in OPERATIONS
    for second in OPERATIONS
    if first in INDEX_OPERATIONS or second in INDEX_OPERATIONS
]
PAIRS.remove(("drop the index of w", "drop the index of w"))  # both operations have the same result
EVERY = 29


def make_pairs(*, stable_row_ids: bool) -> OperationPairs:
    return OperationPairs(
        stable_row_ids, operations=OPERATIONS, create_table=create_indexed_table, check_table=check_index_results
    )


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def pairs(request: pytest.FixtureRequest) -> OperationPairs:
    return make_pairs(stable_row_ids=request.param)


def test_pairs_are_serializable(pairs: OperationPairs) -> None:
    """A sample of all pairs, different ones for each kind of row ids."""
    chosen = PAIRS[pairs.stable_row_ids :: EVERY]
    problems = [problem for pair in chosen if (problem := pairs.find_problem(*pair))]
    assert not problems, "\n".join(problems)


def test_kept_coverage_of_a_new_index_is_detected() -> None:
    pairs = make_pairs(stable_row_ids=False)
    assert not pairs.find_problem("update v everywhere", "index v")
    with planted_defect("coverage of a new index kept"):
        assert "v = 20" in pairs.find_problem("update v everywhere", "index v")


def test_kept_coverage_after_an_update_is_detected() -> None:
    pairs = make_pairs(stable_row_ids=False)
    with planted_defect("coverage kept after an update"):
        assert pairs.find_problem("index v", "update v everywhere")
