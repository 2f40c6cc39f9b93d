"""Several appends as one transaction, and each of them found again in it."""

import json
from dataclasses import replace
from uuid import UUID

import pytest

from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.operations import Append, Delete
from lance_core.format.transaction import Transaction
from lance_core.storage.memory import MemoryStore
from lance_core.transactions.fold import (
    PARTS_MAX,
    PARTS_PROPERTY,
    SharedFragment,
    can_fold,
    fold,
    part_with_uuid,
    parts_of,
    uuids_of,
)
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
        found = part_with_uuid(landed, ours.uuid)
        assert found is not None
        assert found.encode() == replace(ours, read_version=Version(3)).encode()
    assert part_with_uuid(landed, "both") == landed
    assert part_with_uuid(landed, "three") is None


def a_file_of(*rows: int) -> SharedFragment:
    return SharedFragment(fragment(MemoryStore(), "shared", sum(rows)), rows)


def test_each_finds_its_rows_in_a_file_that_it_shares() -> None:
    """As if it had come alone with them. No byte is anybody's twice, and none is nobody's."""
    ours = [an_append("p"), an_append("q", read=2), an_append("r"), an_append("own", "a", "b")]
    folded = fold(ours, "all", a_file_of(5, 1, 4))
    assert folded.properties[PARTS_PROPERTY] == '[["p",1,5],["q",0,1],["r",0,4],["own",2]]'
    assert isinstance(folded.operation, Append)
    assert [each.physical_rows for each in folded.operation.fragments] == [10, 1, 1]
    parts = parts_of(Transaction.decode(folded.encode(), path="x"))
    assert [(part.uuid, part.first_row) for part in parts] == [("p", 0), ("q", 5), ("r", 6), ("own", None)]
    shown = [[(each.physical_rows, each.files[0].path, each.files[0].size) for each in part.append.fragments]
             for part in parts]  # fmt: skip
    assert shown == [
        [(5, "shared.lance", 5)],
        [(1, "shared.lance", 1)],
        [(4, "shared.lance", 4)],
        [(1, "a.lance", 1), (1, "b.lance", 1)],
    ]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1000])
def test_bytes_of_a_shared_file_are_dealt_out_without_a_rest(size: int) -> None:
    shared = a_file_of(1, 1, 5)
    file = shared.fragment.files[0].with_size(size)
    shared = replace(shared, fragment=shared.fragment.with_files([file]))
    parts = parts_of(fold([an_append("p"), an_append("q"), an_append("r")], "all", shared))
    assert sum(file.size or 0 for part in parts for each in part.append.fragments for file in each.files) == size


@pytest.mark.parametrize(
    "told",
    [
        '[["p",0,5],["q",0,5]]', '[["p",1,5],["q",0,4]]', '[["p",1,5],["q",0,6]]', '[["p",1,5],["q",1,5]]',
        '[["p",1,10,0]]', '[["p",2,5],["q",0,5]]', '[["p",1,-1],["q",0,11]]', '[["p",1,0],["q",0,10]]',
        '[["p",1,true],["q",0,9]]', '[["p",true,10]]', '[["p",1,5],["q",0,5],["p",0,1]]', '[["p",1,"5"],["q",0,5]]',
        '[["p",1],["q",0,10]]', '[["p",1,null]]',
    ],
)  # fmt: skip
def test_rows_that_do_not_add_up_say_nothing(told: str) -> None:
    whole = Transaction(Version(1), "x", Append((a_file_of(10).fragment,)), {PARTS_PROPERTY: told})
    assert parts_of(whole) == ()
    uncounted = replace(whole, operation=Append((Fragment.of(files=(), physical_rows=0),)))
    assert parts_of(uncounted) == ()


def test_two_files_may_be_shared_and_rows_go_on_where_the_others_ended() -> None:
    told = '[["p",1,5],["own",1],["q",1,1],["r",0,2]]'
    brought = (a_file_of(5).fragment, fragment(MemoryStore(), "own"), a_file_of(3).fragment)
    parts = parts_of(Transaction(Version(1), "x", Append(brought), {PARTS_PROPERTY: told}))
    assert [(part.uuid, part.first_row, part.append.fragments[0].physical_rows) for part in parts] == [
        ("p", 0, 5),
        ("own", None, 1),
        ("q", 0, 1),
        ("r", 1, 2),
    ]


def test_as_many_as_may_go_together_are_found() -> None:
    uuids = [str(UUID(int=number)) for number in range(PARTS_MAX)]
    folded = fold([an_append(each) for each in uuids], "all", a_file_of(*[4_000_000] * 2, *[1] * (PARTS_MAX - 2)))
    assert [part.uuid for part in parts_of(folded)] == uuids


def test_one_that_came_alone_has_no_parts() -> None:
    assert parts_of(ONE) == ()
    assert uuids_of(ONE) == ("one",)
    assert part_with_uuid(ONE, "one") == ONE


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
    strange = replace(FOLDED, properties={PARTS_PROPERTY: told})
    assert parts_of(strange) == ()
    assert part_with_uuid(strange, "both") == strange
    assert part_with_uuid(strange, "one") is None


def test_only_appends_have_parts() -> None:
    told = json.dumps([["one", 0]])
    assert parts_of(Transaction(Version(1), "x", Delete((), (), "true"), {PARTS_PROPERTY: told})) == ()
