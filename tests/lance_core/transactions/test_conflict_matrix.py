"""Conflict matrix: pylance's verdicts agree with ours, pair by pair. `make torture` tries all pairs."""

import pytest

from tests.lance_core.transactions.conflict_matrix import ConflictMatrix, create_matrix
from tests.lance_core.transactions.example_operations import PLANS


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ConflictMatrix:
    return create_matrix(tmp_path_factory.mktemp("matrix") / "t", stable=request.param)


@pytest.mark.parametrize("theirs", PLANS)
def test_verdicts_agree_after(matrix: ConflictMatrix, theirs: str) -> None:
    differences = matrix.find_differences(theirs)
    assert not differences, "\n".join(differences)
