"""Two changes planned on one version, at least one of them about indices: whatever came first, the rows are as they would
be in one of the orders, and no index claims what is not so, which `fsck` looks for in the files of each.
"""

import pytest

from lance_core import commit
from lance_core.transactions.conflicts import Finding
from lance_core.transactions.verdicts import Verdict
from tests.histories.changes import CHANGES
from tests.histories.changes_of_indices import CHANGES_OF_INDICES, indexed
from tests.histories.pairs import Pairs

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
EVERY = 5


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable row ids"])
def pairs(request: pytest.FixtureRequest) -> Pairs:
    return Pairs(stable=request.param, changes=ALL, begin=indexed)


def test_one_after_the_other(pairs: Pairs) -> None:
    """Some of all pairs, others for each kind of row ids."""
    chosen = PAIRS[pairs.stable :: EVERY]
    wrong = [text for pair in chosen if (text := pairs.broken(*pair))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", ["compact now", "update w of fragment 0"])
def test_a_loop_that_finds_no_conflicts_is_noticed(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Pairs(stable=False, changes=ALL, begin=indexed)
    assert not tried.broken(first, "optimize")
    if first == "compact now":
        monkeypatch.setattr(commit, "judge", lambda ours, others: Finding(Verdict.COMPATIBLE, "none", None))
    else:
        monkeypatch.setattr("lance_core.transactions.rebase.without_fragments", lambda new, *_, **__: new)
    assert tried.broken(first, "optimize of w" if first != "compact now" else "optimize")
