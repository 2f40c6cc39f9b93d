"""Several appends as one transaction, and each of them found again in it."""

import json
from dataclasses import replace

import pytest

from lance_core.format.ids import Version
from lance_core.format.operations import Append, Delete
from lance_core.format.transaction import Transaction
from lance_core.storage.memory import MemoryStore
from lance_core.transactions.fold import TOGETHER, can_fold, fold, found_in, parts_of, uuids_of
from tests.lance_core.world import fragment


def an_append(uuid: str, *names: str, read: int = 1, **properties: str) -> Transaction:
    fragments = tuple(fragment(MemoryStore(), name) for name in names)
    return Transaction(Version(read), uuid, Append(fragments), properties)


ONE = an_append("one", "a", "b", read=4, run="7")
TWO = an_append("two", "c", read=3, run="7")
FOLDED = fold([ONE, TWO], "both")


def test_they_are_one_transaction_planned_on_the_oldest_version() -> None:
    assert (FOLDED.uuid, FOLDED.read_version) == ("both", 3)
    assert isinstance(FOLDED.operation, Append)
    assert [part.files[0].path for part in FOLDED.operation.fragments] == ["a.lance", "b.lance", "c.lance"]
    assert FOLDED.properties["run"] == "7"


def test_each_is_found_again_after_a_way_through_bytes() -> None:
    landed = Transaction.decode(FOLDED.encode(), path="x")
    assert uuids_of(landed) == ("both", "one", "two")
    for ours in (ONE, TWO):
        found = found_in(landed, ours.uuid)
        assert found is not None
        assert found.encode() == replace(ours, read_version=Version(3)).encode()
    assert found_in(landed, "both") == landed
    assert found_in(landed, "three") is None


def test_one_that_came_alone_has_no_parts() -> None:
    assert parts_of(ONE) == ()
    assert uuids_of(ONE) == ("one",)
    assert found_in(ONE, "one") == ONE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ONE, an_append("two", "c", run="8")),
        (ONE, an_append("one", "c", run="7")),
        (ONE, FOLDED),
        (FOLDED, FOLDED),
        (ONE, replace(TWO, operation=Delete((), (), "true"))),
        (replace(ONE, operation=Delete((), (), "true")), TWO),
    ],
    ids=["other runs", "the same append", "with a folded one", "two folded ones", "a delete", "with a delete"],
)
def test_these_do_not_go_together(one: Transaction, other: Transaction) -> None:
    assert can_fold(ONE, TWO)
    assert not can_fold(one, other)


@pytest.mark.parametrize(
    "told",
    [
        "", "{", "7", "null", "[7]", '["ab"]', '[["one"]]', '[["one","2"],["two",1]]', '[["one",2]]', "[" * 10_000,
        '[["one",4],["two",-1]]', '[["one",true],["two",2]]', '[["one",1],["one",2]]', "[[7,2],[8,1]]", '{"one":3}x',
        '[["one",2],["two",1],["three",1]]', '[[["one"],2],["two",1]]',
    ],
)  # fmt: skip
def test_what_does_not_add_up_says_nothing(told: str) -> None:
    """It is somebody else's, who used our name for something."""
    strange = replace(FOLDED, properties={TOGETHER: told})
    assert parts_of(strange) == ()
    assert found_in(strange, "both") == strange
    assert found_in(strange, "one") is None


def test_only_appends_have_parts() -> None:
    told = json.dumps([["one", 0]])
    assert parts_of(Transaction(Version(1), "x", Delete((), (), "true"), {TOGETHER: told})) == ()
