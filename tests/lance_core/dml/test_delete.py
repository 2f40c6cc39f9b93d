"""Delete compared with pylance: rows, counts and deletion files."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_core import InvalidInput, Table

ROWS = pa.table({"id": range(12_000), "word": [None if n % 7 == 0 else f"w{n}" for n in range(12_000)]})


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    location = str(tmp_path / "t")
    Table.create(location, ROWS, max_rows_per_file=6_000, stable_row_ids=request.param)
    return location


@pytest.mark.parametrize(
    "predicate",
    [
        "id = 5",
        "id % 2 = 0",  # many rows: a bitmap in each fragment
        "id < 6000",  # a whole fragment
        "word is null and id > 6000",
        "id < 0",  # nothing
        "_rowaddr = 4294967296",
        "true",
    ],
)
def test_the_same_rows_as_pylance(uri: str, tmp_path: Path, predicate: str) -> None:
    stable = Table.open(uri).manifest.has_stable_row_ids
    theirs = lance.write_dataset(ROWS, str(tmp_path / "theirs"), max_rows_per_file=6_000, enable_stable_row_ids=stable)
    theirs.delete(predicate)
    committed = Table.open(uri).delete(predicate)
    ours = lance.dataset(uri)
    assert ours.to_table().equals(theirs.to_table())
    assert committed.table.to_table().equals(theirs.to_table())
    assert committed.rows_removed == ROWS.num_rows - theirs.count_rows()
    assert ours.count_rows() == committed.table.count_rows() == theirs.count_rows()
    kinds = [
        [(fragment.fragment_id, deleted and (deleted.file_type, deleted.num_deleted_rows)) for fragment in fragments
         for deleted in [fragment.metadata.deletion_file]]
        for fragments in (ours.get_fragments(), theirs.get_fragments())
    ]  # fmt: skip
    assert str(kinds[0]) == str(kinds[1])


def test_deleting_twice_keeps_what_was_deleted(uri: str) -> None:
    table = Table.open(uri).delete("id < 3").table.delete("id < 5").table
    assert table.to_table(["id"], limit=2)["id"].to_pylist() == [5, 6]
    assert table.versions()[-1].rows_removed == 2
    lance.dataset(uri).delete("id = 5")
    assert table.refresh().to_table(["id"], limit=1)["id"].to_pylist() == [6]


def test_an_invalid_predicate_changes_nothing(uri: str) -> None:
    with pytest.raises(InvalidInput, match="there is no column 'ident'"):
        Table.open(uri).delete("ident = 5")
    assert Table.open(uri).version == 1


def test_an_intent_deletes_once(uri: str) -> None:
    first = Table.open(uri).delete("id < 3", intent="forget")
    again = Table.open(uri).delete("id < 3", intent="forget")
    assert (again.version, again.already_committed, again.rows_removed) == (first.version, True, 3)
