"""Fragment checks: fragments that do not fit the table are rejected."""

import pyarrow as pa
import pytest

from lance_core import InvalidInput
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.operations import Append, Operation, Overwrite
from lance_core.format.schema import Field, TableSchema
from lance_core.format.transaction import Transaction
from lance_core.transactions.apply import CommitContext, NewTable, apply

V22 = StorageVersion(2, 2)
INNER = pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.int8())])
SCHEMA = TableSchema.from_arrow(
    pa.schema([pa.field("id", pa.int64()), pa.field("k", INNER, nullable=False), pa.field("z", pa.int8())])
)
"""Ids: id 0, k 1 with x 2 and y 3, z 4."""
NOW = CommitContext(now_ns=10**18, library_version="1.2.3", transaction_file="0-x.txn")


def new_fragment(*files: tuple[str, list[int]]) -> Fragment:
    return Fragment.of(
        files=[
            DataFile.of(path=path, field_ids=ids, column_indices=range(len(ids)), version=V22, size=1)
            for path, ids in files
        ],
        physical_rows=1,
    )


def apply_operation(head: Manifest | NewTable, operation: Operation) -> Manifest:
    return apply(head, Transaction(Version(1), "uuid", operation), NOW)


HEAD = apply_operation(NewTable(V22), Overwrite((new_fragment(("first", [0, 2, 3, 4])),), SCHEMA))


@pytest.mark.parametrize("ids", [[2], [1], [0, 2, 3, 4], [-2, 3]], ids=str)
def test_matching_fragments_are_accepted(ids: list[int]) -> None:
    """A column counts as stored if any of its leaves or the column itself is stored; a dead column does not count."""
    assert len(apply_operation(HEAD, Append((new_fragment(("new", ids)),))).fragments) == 2


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 77], "the fragment of new stores field 77, which the table does not have"),
        ([0, 4], "the fragment of new does not store column 'k', which is not nullable"),
    ],
)
def test_fields_that_do_not_fit_are_rejected(ids: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        apply_operation(HEAD, Append((new_fragment(("good", [2])), new_fragment(("new", ids)))))
    with pytest.raises(InvalidInput, match=message):
        apply_operation(HEAD, Overwrite((new_fragment(("new", ids)),), SCHEMA))


def test_a_column_may_be_in_any_file_of_a_fragment() -> None:
    assert len(apply_operation(HEAD, Append((new_fragment(("one", [0]), ("two", [3])),))).fragments) == 2


@pytest.mark.parametrize("others", [0, 40], ids=["searched for", "parsed"])
def test_an_existing_file_is_not_added_again(others: int) -> None:
    new = tuple(new_fragment((f"new{number}", [2])) for number in range(others))
    with pytest.raises(InvalidInput, match="data file first is already part of version 1"):
        apply_operation(HEAD, Append((*new, new_fragment(("first", [2])))))


def test_a_file_name_in_the_transaction_alone_is_free() -> None:
    """The manifest contains its transaction: file names that it no longer references can still occur in its bytes."""
    without_fragments = HEAD.with_fragments(())
    assert b"first" in without_fragments.encode()
    assert len(apply_operation(without_fragments, Append((new_fragment(("first", [2])),))).fragments) == 1


def test_a_file_is_not_listed_twice_in_one_change() -> None:
    fragments = (new_fragment(("new", [2])), new_fragment(("new", [2])))
    for operation in (Append(fragments), Overwrite(fragments, SCHEMA)):
        with pytest.raises(InvalidInput, match="data file new is listed twice in one change"):
            apply_operation(HEAD, operation)


def test_an_overwrite_may_keep_files() -> None:
    """They replace the current files, so no row is duplicated."""
    assert len(apply_operation(HEAD, Overwrite((new_fragment(("first", [2])),), SCHEMA)).fragments) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([Field(0, "a", "hologram", True, {})], "unknown logical type 'hologram'"),
        ([Field(0, "a", "int8", True, {}), Field(1, "a", "int8", True, {})], "two columns have the name 'a'"),
        ([Field(0, "a", "int8", True, {}), Field(0, "b", "int8", True, {})], "two fields have the id 0"),
    ],
)
def test_an_unreadable_schema_is_rejected(fields: list[Field], message: str) -> None:
    with pytest.raises(InvalidInput, match=f"this schema is not valid for a table: .*{message}"):
        apply_operation(HEAD, Overwrite((), TableSchema(tuple(fields), {})))
