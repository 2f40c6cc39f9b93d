"""Some random histories of tables with vector indices; `make interop` runs more, of all types and makers."""

from pathlib import Path

import pytest

from tests.interop.vector_histories import VectorHistory, history_of


@pytest.mark.parametrize("seed", range(5))
def test_both_libraries_answer_exactly(tmp_path: Path, seed: int) -> None:
    history: VectorHistory = history_of(tmp_path / "t", seed)
    history.run(4)
