"""Fold: several appends become one transaction in which each can be found again."""

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
from tests.lance_core.in_memory_table import put_fragment


def append(uuid: str, *names: str, read: int = 1, **properties: str) -> Transaction:
    fragments = tuple(put_fragment(MemoryStore(), name) for name in names)
    return Transaction(Version(read), uuid, Append(fragments), properties)


ONE = append("one", "a", "b", read=4, run="7")
TWO = append("two", "c", read=3, run="7")
FOLDED = fold([ONE, TWO], "both")


def test_folded_appends_are_planned_on_the_oldest_version() -> None:
    assert (FOLDED.uuid, FOLDED.read_version) == ("both", 3)
    assert isinstance(FOLDED.operation, Append)
    assert [part.files[0].path for part in FOLDED.operation.fragments] == ["a.lance", "b.lance", "c.lance"]
    assert FOLDED.properties["run"] == "7"


def test_each_append_is_found_after_encoding_and_decoding() -> None:
    decoded = Transaction.decode(FOLDED.encode(), path="x")
    assert uuids_of(decoded) == ("both", "one", "two")
    for ours in (ONE, TWO):
        part = part_with_uuid(decoded, ours.uuid)
        assert part is not None
        assert part.encode() == replace(ours, read_version=Version(3)).encode()
    assert part_with_uuid(decoded, "both") == decoded
    assert part_with_uuid(decoded, "three") is None


def shared_file_of(*rows: int) -> SharedFragment:
    return SharedFragment(put_fragment(MemoryStore(), "shared", sum(rows)), rows)


def test_each_append_finds_its_rows_in_a_shared_file() -> None:
    """The parts equal appends that commit alone. Every byte of the file counts for exactly one append."""
    ours = [append("p"), append("q", read=2), append("r"), append("own", "a", "b")]
    folded = fold(ours, "all", shared_file_of(5, 1, 4))
    assert folded.properties[PARTS_PROPERTY] == '[["p",1,5],["q",0,1],["r",0,4],["own",2]]'
    assert isinstance(folded.operation, Append)
    assert [each.physical_rows for each in folded.operation.fragments] == [10, 1, 1]
    parts = parts_of(Transaction.decode(folded.encode(), path="x"))
    assert [(part.uuid, part.first_row) for part in parts] == [("p", 0), ("q", 5), ("r", 6), ("own", None)]
    rows_and_files = [[(each.physical_rows, each.files[0].path, each.files[0].size) for each in part.append.fragments]
             for part in parts]  # fmt: skip
    assert rows_and_files == [
        [(5, "shared.lance", 5)],
        [(1, "shared.lance", 1)],
        [(4, "shared.lance", 4)],
        [(1, "a.lance", 1), (1, "b.lance", 1)],
    ]


@pytest.mark.parametrize("size", [0, 1, 2, 7, 1000])
def test_all_bytes_of_a_shared_file_are_distributed(size: int) -> None:
    shared = shared_file_of(1, 1, 5)
    file = shared.fragment.files[0].with_size(size)
    shared = replace(shared, fragment=shared.fragment.with_files([file]))
    parts = parts_of(fold([append("p"), append("q"), append("r")], "all", shared))
    assert sum(file.size or 0 for part in parts for each in part.append.fragments for file in each.files) == size


@pytest.mark.parametrize(
    "parts_property",
    [
        '[["p",0,5],["q",0,5]]', '[["p",1,5],["q",0,4]]', '[["p",1,5],["q",0,6]]', '[["p",1,5],["q",1,5]]',
        '[["p",1,10,0]]', '[["p",2,5],["q",0,5]]', '[["p",1,-1],["q",0,11]]', '[["p",1,0],["q",0,10]]',
        '[["p",1,true],["q",0,9]]', '[["p",true,10]]', '[["p",1,5],["q",0,5],["p",0,1]]', '[["p",1,"5"],["q",0,5]]',
        '[["p",1],["q",0,10]]', '[["p",1,null]]',
    ],
)  # fmt: skip
def test_inconsistent_row_counts_are_ignored(parts_property: str) -> None:
    transaction = Transaction(Version(1), "x", Append((shared_file_of(10).fragment,)), {PARTS_PROPERTY: parts_property})
    assert parts_of(transaction) == ()
    uncounted = replace(transaction, operation=Append((Fragment.of(files=(), physical_rows=0),)))
    assert parts_of(uncounted) == ()


def test_appends_may_share_two_files() -> None:
    parts_property = '[["p",1,5],["own",1],["q",1,1],["r",0,2]]'
    files = (shared_file_of(5).fragment, put_fragment(MemoryStore(), "own"), shared_file_of(3).fragment)
    parts = parts_of(Transaction(Version(1), "x", Append(files), {PARTS_PROPERTY: parts_property}))
    assert [(part.uuid, part.first_row, part.append.fragments[0].physical_rows) for part in parts] == [
        ("p", 0, 5),
        ("own", None, 1),
        ("q", 0, 1),
        ("r", 1, 2),
    ]


def test_the_maximum_number_of_parts_is_found() -> None:
    uuids = [str(UUID(int=number)) for number in range(PARTS_MAX)]
    folded = fold([append(each) for each in uuids], "all", shared_file_of(*[4_000_000] * 2, *[1] * (PARTS_MAX - 2)))
    assert [part.uuid for part in parts_of(folded)] == uuids


def test_a_single_append_has_no_parts() -> None:
    assert parts_of(ONE) == ()
    assert uuids_of(ONE) == ("one",)
    assert part_with_uuid(ONE, "one") == ONE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ONE, append("two", "c", run="8")),
        (ONE, append("one", "c", run="7")),
        (ONE, FOLDED),
        (FOLDED, FOLDED),
        (ONE, replace(TWO, operation=Delete((), (), "true"))),
        (replace(ONE, operation=Delete((), (), "true")), TWO),
    ],
    ids=["other runs", "the same append", "with a folded one", "two folded ones", "a delete", "with a delete"],
)
def test_appends_that_cannot_be_folded(one: Transaction, other: Transaction) -> None:
    assert can_fold(ONE, TWO)
    assert not can_fold(one, other)


@pytest.mark.parametrize(
    "parts_property",
    [
        "", "{", "7", "null", "[7]", '["ab"]', '[["one"]]', '[["one","2"],["two",1]]', '[["one",2]]', "[" * 10_000,
        '[["one",4],["two",-1]]', '[["one",true],["two",2]]', '[["one",1],["one",2]]', "[[7,2],[8,1]]", '{"one":3}x',
        '[["one",2],["two",1],["three",1]]', '[[["one"],2],["two",1]]',
    ],
)  # fmt: skip
def test_inconsistent_parts_are_ignored(parts_property: str) -> None:
    """Another writer may use the property name for something else."""
    foreign = replace(FOLDED, properties={PARTS_PROPERTY: parts_property})
    assert parts_of(foreign) == ()
    assert part_with_uuid(foreign, "both") == foreign
    assert part_with_uuid(foreign, "one") is None


def test_only_appends_have_parts() -> None:
    parts_property = json.dumps([["one", 0]])
    assert parts_of(Transaction(Version(1), "x", Delete((), (), "true"), {PARTS_PROPERTY: parts_property})) == ()
