"""Hash chain: every version that this library commits contains the hash of its predecessor, for any operation and any
order of concurrent commits; versions of other engines contain none, and the chain restarts there.
"""

import hashlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_core import InvalidInput, Table
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.manifest import PARENT, ParentHash
from lance_core.format.operations import Append
from lance_core.format.transaction import INLINE_BYTES_MAX, Transaction
from lance_core.fsck import Severity
from lance_core.versions.snapshot import load_transaction
from tests.lance_core.in_memory_table import Fault, FaultyStore, InMemoryTable, on_create


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "word": [f"w{number}" for number in ids]})


def create_table(path: Path) -> Table:
    """Create four versions; every version but the last has a successor."""
    table = Table.create(str(path / "t"), rows(1, 2, 3), durable=False, stable_row_ids=True)
    table = table.append(rows(4, 5)).table
    return table.update({"word": "'new'"}, where="id = 2").table.append(rows(6)).table


def parent_of(table: Table) -> ParentHash | None:
    transaction = table.transaction()
    assert transaction is not None
    return transaction.parent


def hash_of_version(table: Table, version: int) -> ParentHash:
    """Return the hash of the stored manifest bytes."""
    data = (Path(table.uri) / naming.manifest_path(Version(version))).read_bytes()
    return ParentHash(Version(version), hashlib.sha256(data).hexdigest())


# The recorded hash


VERBS: list[Callable[[Table], Table]] = [
    lambda t: t.append(rows(9)).table,
    lambda t: t.overwrite(rows(9)).table,
    lambda t: t.delete("id = 1").table,
    lambda t: t.update({"word": "'x'"}, where="id = 2").table,
    lambda t: t.upsert(rows(2, 20), on="id").table,
    lambda t: t.add_columns({"n": "id + 1"}).table,
    lambda t: t.merge_columns(pa.table({"id": pa.array([1], pa.int64()), "m": ["x"]}), on="id").table,
    lambda t: t.alter_column("word", rename="text").table,
    lambda t: t.reorder_columns(["word", "id"]).table,
    lambda t: t.drop_columns(["word"]).table,
    lambda t: t.set_config({"a": "b"}).table,
    lambda t: t.set_metadata({"a": "b"}).table,
    lambda t: t.set_field_metadata({"id": {"a": "b"}}).table,
    lambda t: t.compact().table,
    lambda t: t.restore(1).table,
]


def test_every_operation_records_its_predecessor(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    assert parent_of(table.at(1)) is None
    for operation in VERBS:
        before = table.refresh().overwrite(rows(1, 2)).table.append(rows(3)).table
        after = operation(before)
        assert after.version > before.version
        assert parent_of(after) == hash_of_version(table, after.version - 1)
    report = table.fsck()
    assert report.is_clean, str(report)
    assert report.chain.verified == tuple(range(1, table.refresh().version))
    assert report.chain.begins == (1,)
    ours = lance.dataset(table.uri)
    assert ours.version == table.refresh().version
    assert ours.to_table().num_rows == table.refresh().count_rows()


def test_the_predecessor_is_not_the_read_version(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    stale = table.at(2)
    late = stale.append(rows(7)).table
    assert late.transaction().read_version == 2  # type: ignore[union-attr]
    assert parent_of(late) == hash_of_version(table, 4)
    late = stale.delete("id = 4").table
    assert parent_of(late) == hash_of_version(table, 5)
    assert table.fsck().is_clean


def test_the_hash_changes_with_every_lost_race() -> None:
    store = FaultyStore()
    table = InMemoryTable(store)
    table.create("first")
    other = InMemoryTable(store.inner)
    for number in range(3):
        first = partial(other.append, f"theirs{number}", writer=number + 2)
        store.faults.append(Fault(on_create(naming.VERSIONS), "", first))
    result = table.append("mine")
    assert result.snapshot.version == 5
    for version in range(2, 6):
        at = table.at(version)
        transaction = load_transaction(table.location(), at.manifest)
        assert transaction is not None
        before = table.at(version - 1).manifest
        assert transaction.parent == before.as_parent
        assert before.as_parent.sha256 == hashlib.sha256(before.encode()).hexdigest()


def test_a_transaction_too_large_for_a_copy_has_the_hash_in_its_file(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    table = table.append(rows(7), properties={"note": "x" * INLINE_BYTES_MAX}).table
    assert table.manifest.inline_transaction is None
    assert parent_of(table) == hash_of_version(table, 4)
    near = "x" * (INLINE_BYTES_MAX - 400)
    table = table.append(rows(8), properties={"note": near}).table
    assert parent_of(table) == hash_of_version(table, 5)
    assert table.fsck().is_clean


def test_callers_cannot_set_the_hash(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    for act in (
        lambda: table.append(rows(1), properties={PARENT: "1"}),
        lambda: table.commit(Append(()), properties={PARENT: "1"}, detached=True),
        lambda: Table.create(str(tmp_path / "u"), rows(1), properties={PARENT: "1"}),
    ):
        with pytest.raises(InvalidInput, match=r"the property lance_assets\.parent .*; only a commit sets it"):
            act()
    assert table.refresh().version == 4


# The beginning of a branch


def test_a_branch_begins_at_a_version_of_another_branch(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    branch = table.at(2).branches.create("dev")
    assert parent_of(branch) == hash_of_version(table, 2)
    branch = branch.append(rows(9)).table
    deeper = branch.branches.create("deep/er").append(rows(10)).table
    assert (parent_of(branch), parent_of(deeper.at(3))) == (hash_of_version(branch, 2), hash_of_version(branch, 3))
    for line in (branch, deeper):
        report = line.fsck()
        assert report.is_clean, str(report)
        assert report.chain.begins == ()


def test_a_branch_detects_a_change_of_its_source(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    branch = table.at(2).branches.create("dev")
    flip_bit(Path(table.uri) / table.at(2).manifest.path, 100)
    (finding,) = [each for each in branch.fsck().findings if each.rule == "chain"]
    assert finding.severity is Severity.ERROR
    assert "version 2 was based on other bytes" in finding.what


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_records_its_source_and_starts_a_chain(tmp_path: Path, shallow: bool) -> None:
    table = create_table(tmp_path)
    clone = table.at(3).clone(str(tmp_path / "clone"), shallow=shallow)
    assert parent_of(clone) == hash_of_version(table, 3)
    clone = clone.append(rows(9)).table
    report = clone.fsck()
    assert report.is_clean, str(report)
    assert report.chain.verified == (3,)
    flip_bit(Path(table.uri) / table.at(3).manifest.path, 100)
    assert clone.fsck().is_clean, "what became of another table is asked of that table"


def test_a_detached_version_and_its_published_one(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    operation = table.transaction().operation  # type: ignore[union-attr]
    assert isinstance(operation, Append)
    fresh = table.append(rows(50)).table.transaction().operation  # type: ignore[union-attr]
    table = table.refresh().restore(4).table
    detached = table.commit(fresh, detached=True, properties={"by": "me"}).table
    assert parent_of(detached) == hash_of_version(table, 6)
    table.append(rows(8))
    published = table.publish(detached.version).table
    assert (published.version, parent_of(published)) == (8, hash_of_version(table, 7))
    assert published.transaction().properties == {"by": "me"}  # type: ignore[union-attr]
    report = table.fsck()
    assert report.is_clean, str(report)
    flip_bit(Path(table.uri) / table.at(6).manifest.path, 100)
    actual = [each for each in table.fsck().findings if each.rule in ("chain", "manifest")]
    assert {finding.version for finding in actual} == {6}
    assert len(actual) == 2, "version 7 has the hash, and so does the detached version"


# Other engines


def properties_read_by_lance(table: Table, version: int) -> dict[str, str]:
    """Return the properties of a transaction as Lance reads them."""
    transaction = lance.dataset(table.uri).read_transaction(version)
    assert transaction is not None
    assert transaction.transaction_properties is not None
    return dict(transaction.transaction_properties)


def test_other_engines_ignore_the_hash_and_the_chain_restarts(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    lance.write_dataset(rows(7), table.uri, mode="append")
    theirs = lance.dataset(table.uri)
    theirs.update({"word": "'theirs'"}, where="id = 7")
    ours = table.refresh().append(rows(8)).table
    assert (parent_of(ours.at(5)), parent_of(ours.at(6)), parent_of(ours)) == (None, None, hash_of_version(table, 6))
    assert properties_read_by_lance(table, 4)[PARENT] == str(hash_of_version(table, 3))
    report = ours.fsck()
    assert report.is_clean, str(report)
    assert (report.chain.verified, report.chain.begins) == ((1, 2, 3, 6), (1, 5, 6))
    assert "hashes match for versions 1-3, 6; the chain begins at 1, 5-6" in str(report)


def test_a_transaction_repeated_by_another_engine_is_not_trusted(tmp_path: Path) -> None:
    """The other engine copies the properties of the transaction, and its hash with them."""
    table = create_table(tmp_path)
    properties = properties_read_by_lance(table, 4)
    assert PARENT in properties
    lance.LanceDataset.commit(
        table.uri,
        lance.Transaction(4, lance.LanceOperation.Append([]), "u", transaction_properties=properties),
    )
    again = table.refresh()
    assert (again.version, parent_of(again)) == (5, parent_of(table))
    report = again.append(rows(9)).table.fsck()
    assert report.is_clean, str(report)
    assert report.chain.begins == (1, 5)


# Detected changes


def flip_bit(path: Path, bit: int) -> bytes:
    """Flip one bit of a file and return the bytes before."""
    before = path.read_bytes()
    changed = bytearray(before)
    changed[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(changed))
    return before


def detects_change(table: Table, version: int, bit: int) -> bool:
    """Tell whether a flipped bit of this version is detected, by whatever rule."""
    path = Path(table.uri) / naming.manifest_path(Version(version))
    before = flip_bit(path, bit)
    try:
        report = Table.check(table.uri)
        return not report.is_sound and any(each.version == version or each.path in str(path) for each in report.errors)
    finally:
        path.write_bytes(before)


def test_a_change_to_any_byte_of_a_chained_manifest_is_found(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False).append(rows(2)).table
    draw = random.Random(0)
    size = len(table.at(1).manifest.encode())
    assert size > 500
    missed = [at for at in range(size) if not detects_change(table, 1, 8 * at + draw.randrange(8))]
    assert missed == []
    assert table.fsck().is_clean


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_change_of_any_bit_of_a_version_with_a_successor_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "chained"
    table = Table.open(str(path / "t"), durable=False) if Table.exists(str(path / "t")) else create_table(path)
    version = data.draw(st.integers(1, table.version - 1))
    bit = data.draw(st.integers(0, 8 * len(table.at(version).manifest.encode()) - 1))
    assert detects_change(table, version, bit)


def test_a_replaced_version_is_found(tmp_path: Path) -> None:
    """The replacement is complete, valid and of the same number, but not the one that was committed."""
    table = create_table(tmp_path)
    other = (
        Table.create(str(tmp_path / "u"), rows(1, 2, 3), durable=False, stable_row_ids=True).append(rows(4, 5)).table
    )
    (Path(table.uri) / table.at(2).manifest.path).write_bytes(other.manifest.encode())
    actual = [each for each in Table.check(table.uri).findings if each.rule == "chain"]
    assert [each.version for each in actual] == [1, 2], "what it says of its own parent is another table's too"
    assert actual[1].path == table.at(2).manifest.path
    assert "version 3 was based on other bytes: version 2 had the SHA-256" in actual[1].what


def test_a_version_with_an_invalid_hash(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    for version, text in ((4, str(ParentHash(Version(2), "0" * 64))), (4, "nonsense")):
        path = Path(table.uri) / table.at(version).manifest.path
        before = path.read_bytes()
        transaction = Transaction.decode(table.at(version).manifest.inline_transaction or b"", path="")
        old = str(transaction.parent).encode()
        new = text.encode().ljust(len(old), b" ")
        path.write_bytes(before.replace(old, new))
        (finding,) = [each for each in Table.check(table.uri).findings if each.rule == "chain"]
        assert "it records '" in finding.what or "records version 2 as" in finding.what
        path.write_bytes(before)


def test_one_version_alone_is_compared_with_its_neighbours(tmp_path: Path) -> None:
    table = create_table(tmp_path)
    flip_bit(Path(table.uri) / table.at(3).manifest.path, 8 * 310)
    assert [each.version for each in Table.open(table.uri).fsck("head").findings if each.rule == "chain"] == [3]
