"""Overlay conflicts: our verdicts after a `DataOverlay` of pylance agree with its own, and so do the rows."""

import pyarrow as pa
import pytest

from tests.interop.overlays import ALLOWED, commit_overlay
from tests.lance_core.transactions.conflict_matrix import ConflictMatrix, create_matrix

OVERLAYS = {
    "rows 0 and 1 of fragment 0": (0, [0, 1]),
    "row 3 of fragment 0": (0, [3]),
    "row 2 of fragment 1": (1, [2]),
}


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ConflictMatrix:
    return create_matrix(tmp_path_factory.mktemp("matrix") / "t", stable=request.param)


@pytest.mark.parametrize("label", OVERLAYS)
def test_verdicts_agree_after_an_overlay(matrix: ConflictMatrix, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "1")
    fragment_id, offsets = OVERLAYS[label]
    values = pa.table({"v": pa.array([-1 - offset for offset in offsets], pa.int64())})
    commit_overlay(matrix.directory, fragment_id, values, [1], offsets)
    try:
        differences = matrix.find_differences_after_commit(f"DataOverlay of {label}", matrix.operations_of_pylance)
    finally:
        matrix.remove_versions_after(matrix.base)
    assert not differences, "\n".join(differences)
