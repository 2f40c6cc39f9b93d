"""Index maintenance: which segments are written or dropped, and that both libraries find the same rows before and
after.
"""

from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from lance_core import InvalidInput, Table, Unsupported
from lance_core.format.fragment_reuse import FragmentReuse, content_of, reuse_entry
from lance_core.index import registry
from lance_core.index.text.inverted import Inverted
from lance_core.maintenance import index_maintenance
from lance_core.runtime import SYSTEM_RUNTIME
from lance_core.transactions.conflicts import judge
from lance_core.transactions.verdicts import Verdict
from tests.lance_core.index.index_differential import FILTER_BY_COLUMN, check_answers, covered_fragments, is_used, rows

COLUMNS = {
    "BTREE": "at.x",
    "BITMAP": "word",
    "LABEL_LIST": "tags",
    "ZONEMAP": "id",
    "BLOOMFILTER": "id",
    "NGRAM": "word",
}
INDEX_TYPES = [index_type.name for index_type in registry.all_types() if index_type.name in COLUMNS]
STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def create_table(path: Path, *, stable: bool = False) -> Table:
    table = Table.create(path / "t", rows(0, 120), max_rows_per_file=30, stable_row_ids=stable, durable=False)
    for index_type in INDEX_TYPES:
        table = table.create_index(COLUMNS[index_type], index_type, name=index_type).table
    return table


def change_rows(table: Table) -> Table:
    """Append, delete and update rows, and change values in place."""
    table = table.append(rows(120, 20)).table.delete("id % 8 = 2").table.update({"word": "'new'"}, "id = 70").table
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("id", "BTREE", name="of keys")
    change = dataset.to_table(columns=["id"], filter="id in (31, 33)").append_column("word", pa.array(["a", "b"]))
    dataset.merge_insert("id").when_matched_update_all().execute(change)
    dataset.drop_index("of keys")
    return table.refresh()


def reuse_version_count(table: Table) -> int:
    entry = reuse_entry(table.indices)
    content = None if entry is None else content_of(entry)
    return len(list(content.compactions())) if isinstance(content, FragmentReuse) else 0


FILTERS = [
    *FILTER_BY_COLUMN.values(),
    "word = 'a'",
    "word = 'new'",
    "word is null",
    "id > 100",
    "word != 'w1'",
    "contains(word, 'new')",
]


@STABLE
@pytest.mark.parametrize("merge", ["small", "all", "none"])
def test_uncovered_fragments_are_covered(tmp_path: Path, stable: bool, merge: Literal["small", "all", "none"]) -> None:
    """A fragment whose values changed in place is indexed again with its new values: the old segment still has the old
    ones.
    """
    table = change_rows(create_table(tmp_path, stable=stable))
    live = {fragment.id for fragment in table.fragments}
    done = table.optimize_indices(merge=merge)
    table = done.table
    assert done.operation == "CreateIndex"
    for each in table.index_statistics():
        assert (each.uncovered_fragments, each.uncovered_rows) == (0, 0)
        covered = [number for of in covered_fragments(table, each.name) for number in of]
        assert set(covered) >= live
        assert len(covered) == len(set(covered))
        if merge != "none":
            assert len(each.segments) == 1
    assert (done.files, done.bytes) == (
        sum(len(index.files) for index in table.indices if index.dataset_version == done.version - 1),
        sum(file.size for index in table.indices if index.dataset_version == done.version - 1 for file in index.files),
    )
    assert all(is_used(table, FILTER_BY_COLUMN[COLUMNS[index_type]]) for index_type in INDEX_TYPES)
    check_answers(table, FILTERS)
    again = table.optimize_indices(merge=merge)
    assert (again.version, again.attempts) == (done.version, 0)
    assert table.fsck().is_sound
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1_000)
    check_answers(table.refresh(), FILTERS)


def test_named_indices_only(tmp_path: Path) -> None:
    table = create_table(tmp_path).append(rows(120, 5)).table
    table = table.optimize_indices(["BITMAP"]).table
    behind = {each.name for each in table.index_statistics() if each.uncovered_fragments}
    assert behind == set(INDEX_TYPES) - {"BITMAP"}
    with pytest.raises(InvalidInput, match="there is no index 'BITMOP'; did you mean 'BITMAP'"):
        table.optimize_indices(["BITMOP"])
    with pytest.raises(InvalidInput, match=r"merge must be one of .*'some'"):
        table.optimize_indices(merge="some")  # type: ignore[arg-type]


def test_segments_grow_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large segment is rewritten only once many rows were added."""
    monkeypatch.setattr(index_maintenance, "SMALL_SEGMENT_ROWS", 10)
    table = Table.create(tmp_path / "t", rows(0, 100), durable=False).create_index("id", "BTREE").table
    sizes = []
    for number in range(16):
        table = table.append(rows(100 + 10 * number, 10)).table.optimize_indices().table
        sizes.append(sorted(segment.rows for segment in table.index_statistics()[0].segments))
    assert sizes[:4] == [[10, 100], [20, 100], [10, 20, 100], [40, 100]]
    assert max(map(len, sizes)) <= 5
    assert sizes[-1] == [260]
    check_answers(table)


@STABLE
def test_useless_segments_are_dropped(tmp_path: Path, stable: bool) -> None:
    table = create_table(tmp_path, stable=stable).append(rows(120, 20)).table.optimize_indices(merge="none").table
    assert len(covered_fragments(table, "BTREE")) == 2
    table = table.delete("id >= 120").table
    assert len(covered_fragments(table, "BTREE")) == 1, "deleting does it"
    table = table.delete("id >= 0").table
    table = table.append(rows(0, 10)).table.optimize_indices().table
    assert [len(covered_fragments(table, index_type)) for index_type in INDEX_TYPES] == [1] * len(INDEX_TYPES)
    check_answers(table)
    emptied = table.delete("id >= 0").table
    assert emptied.optimize_indices().version == emptied.version, "one stays, so that the index does not vanish"


def test_moved_rows_are_remapped_and_the_reuse_entry_is_trimmed(tmp_path: Path) -> None:
    table = change_rows(create_table(tmp_path)).compact(remap="reuse").table
    table = table.delete("id % 5 = 1").table.append(rows(300, 40)).table.compact(target_rows=1_000, remap="reuse").table
    assert reuse_version_count(table) == 2
    check_answers(table, FILTERS)
    table = table.optimize_indices(INDEX_TYPES[:2]).table
    assert reuse_version_count(table) == 2, "the others need them"
    check_answers(table, FILTERS)
    done = table.optimize_indices()
    table = done.table
    assert reuse_version_count(table) == 0
    assert done.attempts == 2
    assert reuse_entry(table.indices) is not None
    assert all(each.uncovered_fragments == each.notes_behind == 0 for each in table.index_statistics())
    check_answers(table, FILTERS)
    assert table.optimize_indices().version == table.version
    assert table.fsck().is_sound
    # Both libraries continue on the result.
    lance.dataset(table.uri).delete("id = 7")
    table = table.refresh().append(rows(400, 40)).table.compact(target_rows=2_000, remap="reuse").table
    assert reuse_version_count(table) == 1
    check_answers(table, FILTERS)
    lance.dataset(table.uri).optimize.optimize_indices()
    check_answers(table.refresh(), FILTERS)
    table = table.refresh().optimize_indices().table
    assert reuse_version_count(table) == 0
    check_answers(table, FILTERS)


def test_a_compaction_over_a_reuse_entry_rewrites_the_indices(tmp_path: Path) -> None:
    table = change_rows(create_table(tmp_path)).compact(remap="reuse").table
    before = reuse_version_count(table)
    table = table.delete("id % 5 = 1").table.append(rows(300, 40)).table.optimize_indices(["BTREE"]).table
    done = table.compact(target_rows=1_000)
    assert (before, reuse_version_count(done.table)) == (1, 1)
    check_answers(done.table, FILTERS)
    zones = {index_type for index_type in INDEX_TYPES if index_type in ("ZONEMAP", "BLOOMFILTER")}
    assert set(done.uncovered) <= zones
    table = done.table.optimize_indices().table
    assert reuse_version_count(table) == 0
    check_answers(table, FILTERS)


def test_an_index_of_unknown_type_keeps_its_reuse_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inverted, "max_readable_version", 2)
    table = create_table(tmp_path)
    lance.dataset(table.uri).create_scalar_index("word", "INVERTED", name="text", block_size=256)
    table = table.refresh().compact(remap="reuse").table.append(rows(120, 10)).table
    text = [index for index in table.indices if index.name == "text"]
    with pytest.raises(Unsupported, match=r"index 'text' cannot be optimized: it is INVERTED of version 3"):
        table.optimize_indices(["text"])
    table = table.optimize_indices().table
    assert [index for index in table.indices if index.name == "text"] == text
    assert reuse_version_count(table) == 1
    check_answers(table, FILTERS)
    actual = lance.dataset(table.uri).to_table(full_text_query="w3", columns=["id"])
    assert set(actual["id"].to_pylist()) == {n for n in range(130) if n % 7 == 3 and n % 11}
    lance.dataset(table.uri).drop_index("text")
    assert reuse_version_count(table.refresh().optimize_indices().table) == 0


def test_a_reuse_entry_is_kept_for_segments_that_only_claim_to_be_current(tmp_path: Path) -> None:
    """pylance records current fragments for a segment whose files it does not change."""
    table = create_table(tmp_path)
    version = table.version
    table = table.compact(remap="reuse").table
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("at.y", "BTREE")
    table = table.refresh()
    assert version < table.version
    assert index_maintenance.trim_reuse_index(table._snapshot, (), runtime=SYSTEM_RUNTIME) is None
    table = table.optimize_indices().table
    assert reuse_version_count(table) == 0
    check_answers(table, [*FILTERS, "at.y = 7"])


def test_a_reuse_entry_is_kept_for_segments_written_just_before_it(tmp_path: Path) -> None:
    """Another writer compacts between the new segments and the trimming of the entry that they were written for."""
    lance.write_dataset(pa.table({"id": range(80)}), tmp_path / "t", max_rows_per_file=10)
    table = Table.open(str(tmp_path / "t")).create_index("id", "BTREE").table
    fresh = table.indices
    table = table.compact(remap="reuse", target_rows=20).table
    assert index_maintenance.trim_reuse_index(table._snapshot, fresh, runtime=SYSTEM_RUNTIME) is None


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("index_type", ["BTREE", "BITMAP"])
def test_former_values_of_a_fragment_are_not_found(tmp_path: Path, index_type: str, compacted: bool) -> None:
    """The only file of the last fragment was replaced, and nothing distinguishes the fragment from a new one. pylance
    uses the entries of any segment for a fragment that one of them covers.
    """
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": range(30)}), uri, max_rows_per_file=5 if compacted else 10)
    table = Table.open(uri).create_index("a", index_type).table
    if compacted:
        table.compact(remap="now", target_rows=10)
    dataset = lance.dataset(uri)
    last = dataset.get_fragments()[2]
    (old,) = last.metadata.files
    path = tmp_path / "t" / "data" / "replaced.lance"
    with LanceFileWriter(str(path), version=dataset.data_storage_version) as writer:
        writer.write_batch(pa.record_batch({"a": range(100, 110)}))
    new = lance.fragment.DataFile(
        path.name, old.fields, old.column_indices, old.file_major_version, old.file_minor_version, path.stat().st_size
    )
    group = lance.LanceOperation.DataReplacementGroup(last.fragment_id, new)
    lance.LanceDataset.commit(uri, lance.LanceOperation.DataReplacement([group]), read_version=dataset.version)
    table.refresh().optimize_indices(merge="none")
    dataset = lance.dataset(uri)
    assert dataset.count_rows("a = 25") == 0
    assert dataset.count_rows("a = 105") == 1
    assert dataset.count_rows("a > 15") == 14


def test_a_new_index_and_a_trimmed_reuse_entry_conflict(tmp_path: Path) -> None:
    """The second of the two is replanned: its index may be built on fragments that the trimmed entry maps."""
    from lance_core.format.ids import Version
    from lance_core.format.operations import CreateIndex
    from lance_core.format.transaction import Transaction
    from lance_core.transactions.committed_transaction import CommittedTransaction

    table = create_table(tmp_path).compact(remap="reuse").table
    entry = reuse_entry(table.indices)
    assert entry is not None
    trim, build = CreateIndex((entry,), (entry,)), CreateIndex((table.indices[0],))
    for ours, theirs in ((trim, build), (build, trim)):
        committed = CommittedTransaction(Version(9), Transaction(Version(8), "them", theirs, {}))
        assert judge(Transaction(Version(8), "us", ours, {}), [committed]).verdict is Verdict.RETRY


@pytest.mark.parametrize("index_type", INDEX_TYPES)
@pytest.mark.parametrize("operation", ["compact", "optimize"])
def test_an_unreadable_segment_is_rebuilt_from_the_rows(tmp_path: Path, index_type: str, operation: str) -> None:
    table = Table.create(tmp_path / "t", rows(0, 120), max_rows_per_file=30, durable=False)
    table = table.create_index(COLUMNS[index_type], index_type).table.append(rows(120, 20)).table
    for file in (Path(table.uri) / table.indices[0].qualified_path).iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    after = (table.compact() if operation == "compact" else table.optimize_indices()).table
    assert after.fsck("head").is_sound
    assert len(covered_fragments(after, after.indices[0].name)) == 1
    assert index_type == "NGRAM" or is_used(after, FILTER_BY_COLUMN[COLUMNS[index_type]])
    check_answers(after)
