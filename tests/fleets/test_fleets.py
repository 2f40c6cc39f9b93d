"""Mixed fleet with the installed release of pylance; `make fleets` runs it with old releases too."""

import sys
from collections.abc import Iterator

import lance
import pytest

from tests.fleets.compatibility import SUPPORT
from tests.fleets.engines import Release
from tests.fleets.faults import FAULTS
from tests.fleets.histories import History, random_history, systematic_histories
from tests.fleets.running import run_history
from tests.pylance_releases import ROOT

SYSTEMATIC = tuple(systematic_histories())[::17]
SEEDS = range(2)


@pytest.fixture(scope="module")
def peer() -> Iterator[Release]:
    with Release(lance.__version__, sys.executable) as peer:
        yield peer


@pytest.mark.filterwarnings("ignore::lance_core.errors.IndexIgnored")
@pytest.mark.parametrize("history", [*SYSTEMATIC, *map(random_history, SEEDS)], ids=lambda history: history.label)
def test_every_answer_equals_a_scan(peer: Release, history: History) -> None:
    assert run_history(history, peer, ()).problems == []


def test_the_page_lists_every_release_and_fault() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    for release, support in SUPPORT.items():
        assert support.row(release) in page
    for fault in FAULTS:
        assert f"| {fault.what} |" in page
