"""The table of conflicts beside pylance's own, pair by pair: see `square.py`. All pairs are tried by `make torture`."""

import pytest

from tests.lance_core.transactions.moves import MOVES
from tests.lance_core.transactions.square import Square, made


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def square(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Square:
    return made(tmp_path_factory.mktemp("square") / "t", stable=request.param)


@pytest.mark.parametrize("theirs", MOVES)
def test_ours_after(square: Square, theirs: str) -> None:
    wrong = square.differences(theirs)
    assert not wrong, "\n".join(wrong)
