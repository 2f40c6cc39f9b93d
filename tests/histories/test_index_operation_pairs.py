"""Two changes planned on one version, at least one of them about indices: whatever came first, the rows are as they
would be in one of the orders, and no index claims what is not so, which `fsck` looks for in the files of each.
"""

import pytest

from lance_core.transactions import index_coverage, rebase
from tests.histories.index_operations import CHANGES_OF_INDICES, indexed, same_by_index
from tests.histories.operation_pairs import Pairs
from tests.histories.table_operations import CHANGES

OTHERS = (
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
ALL = {**{name: CHANGES[name] for name in OTHERS}, **CHANGES_OF_INDICES}
PAIRS = [(a, b) for a in ALL for b in ALL if a in CHANGES_OF_INDICES or b in CHANGES_OF_INDICES]
PAIRS.remove(("drop the index of w", "drop the index of w"))  # both wanted it, and it is gone
EVERY = 17


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def pairs(request: pytest.FixtureRequest) -> Pairs:
    return Pairs(stable=request.param, changes=ALL, begin=indexed, look=same_by_index)


def test_one_after_the_other(pairs: Pairs) -> None:
    """Some of all pairs, others for each kind of row ids."""
    chosen = PAIRS[pairs.stable :: EVERY]
    wrong = [text for pair in chosen if (text := pairs.broken(*pair))]
    assert not wrong, "\n".join(wrong)


def test_values_changed_under_a_new_index_that_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Pairs(stable=False, changes=ALL, begin=indexed, look=same_by_index)
    assert not tried.broken("update v everywhere", "index v")
    monkeypatch.setattr(rebase, "remove_coverage", lambda new, *_, **__: new)
    assert "v = 20" in tried.broken("update v everywhere", "index v")


def test_coverage_that_nobody_takes_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Pairs(stable=False, changes=ALL, begin=indexed, look=same_by_index)
    monkeypatch.setattr(index_coverage, "remove_coverage", lambda indices, *_, **__: indices)
    assert tried.broken("index v", "update v everywhere")
