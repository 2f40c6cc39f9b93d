"""Some random histories of tables with vector indices; `make interop` runs more."""

from pathlib import Path

import pytest

from tests.interop.vector_histories import VectorHistory


@pytest.mark.parametrize("ids", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("seed", range(2))
def test_both_libraries_answer_exactly(tmp_path: Path, seed: int, ids: bool) -> None:
    VectorHistory(tmp_path / "t", seed, ids).run(4)
