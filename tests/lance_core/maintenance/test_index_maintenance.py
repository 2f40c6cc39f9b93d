"""Indices kept in shape: what is written, what is dropped, and that both libraries find the same before and after."""

from pathlib import Path
from typing import Literal

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from lance_core import InvalidInput, Table, Unsupported
from lance_core.format.fragment_reuse import FragmentReuse, content_of, reuse_entry
from lance_core.index import registry
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
KINDS = [kind.name for kind in registry.all_types() if kind.name in COLUMNS]
STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])


def made(place: Path, *, stable: bool = False) -> Table:
    table = Table.create(place / "t", rows(0, 120), max_rows_per_file=30, stable_row_ids=stable, durable=False)
    for kind in KINDS:
        table = table.create_index(COLUMNS[kind], kind, name=kind).table
    return table


def grown(table: Table) -> Table:
    """More rows, fewer rows, other rows, and values that were changed in place."""
    table = table.append(rows(120, 20)).table.delete("id % 8 = 2").table.update({"word": "'new'"}, "id = 70").table
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("id", "BTREE", name="of keys")
    change = dataset.to_table(columns=["id"], filter="id in (31, 33)").append_column("word", pa.array(["a", "b"]))
    dataset.merge_insert("id").when_matched_update_all().execute(change)
    dataset.drop_index("of keys")
    return table.refresh()


def notes(table: Table) -> int:
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
def test_what_is_not_covered_is_covered(tmp_path: Path, stable: bool, merge: Literal["small", "all", "none"]) -> None:
    """A fragment whose values changed in place comes back with its new ones: the old segment still has the old."""
    table = grown(made(tmp_path, stable=stable))
    live = {fragment.id for fragment in table.fragments}
    done = table.optimize_indices(merge=merge)
    table = done.table
    assert done.operation == "CreateIndex"
    for each in table.index_statistics():
        assert (each.uncovered_fragments, each.uncovered_rows) == (0, 0)
        assert {number for of in covered_fragments(table, each.name) for number in of} >= live
        assert sum(map(len, covered_fragments(table, each.name))) == len(
            {n for of in covered_fragments(table, each.name) for n in of}
        )
        if merge != "none":
            assert len(each.segments) == 1
    assert (done.files, done.bytes) == (
        sum(len(index.files) for index in table.indices if index.dataset_version == done.version - 1),
        sum(file.size for index in table.indices if index.dataset_version == done.version - 1 for file in index.files),
    )
    assert all(is_used(table, FILTER_BY_COLUMN[COLUMNS[kind]]) for kind in KINDS)
    check_answers(table, FILTERS)
    again = table.optimize_indices(merge=merge)
    assert (again.version, again.attempts) == (done.version, 0)
    assert table.fsck().is_sound
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1_000)
    check_answers(table.refresh(), FILTERS)


def test_only_some_of_them(tmp_path: Path) -> None:
    table = made(tmp_path).append(rows(120, 5)).table
    table = table.optimize_indices(["BITMAP"]).table
    behind = {each.name for each in table.index_statistics() if each.uncovered_fragments}
    assert behind == set(KINDS) - {"BITMAP"}
    with pytest.raises(InvalidInput, match="there is no index 'BITMOP'; did you mean 'BITMAP'"):
        table.optimize_indices(["BITMOP"])
    with pytest.raises(InvalidInput, match=r"merge must be one of .*'some'"):
        table.optimize_indices(merge="some")  # type: ignore[arg-type]


def test_segments_grow_like_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large segment is not written again for a few rows, until they are many."""
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
def test_segments_of_no_use_go(tmp_path: Path, stable: bool) -> None:
    table = made(tmp_path, stable=stable).append(rows(120, 20)).table.optimize_indices(merge="none").table
    assert len(covered_fragments(table, "BTREE")) == 2
    table = table.delete("id >= 120").table
    assert len(covered_fragments(table, "BTREE")) == 1, "deleting does it"
    table = table.delete("id >= 0").table
    table = table.append(rows(0, 10)).table.optimize_indices().table
    assert [len(covered_fragments(table, kind)) for kind in KINDS] == [1] * len(KINDS)
    check_answers(table)
    emptied = table.delete("id >= 0").table
    assert emptied.optimize_indices().version == emptied.version, "one stays, so that the index does not vanish"


def test_rows_that_moved_are_written_where_they_are_and_the_notes_dropped(tmp_path: Path) -> None:
    table = grown(made(tmp_path)).compact(remap="reuse").table
    table = table.delete("id % 5 = 1").table.append(rows(300, 40)).table.compact(target_rows=1_000, remap="reuse").table
    assert notes(table) == 2
    check_answers(table, FILTERS)
    table = table.optimize_indices(KINDS[:2]).table
    assert notes(table) == 2, "the others need them"
    check_answers(table, FILTERS)
    done = table.optimize_indices()
    table = done.table
    assert notes(table) == 0
    assert done.attempts == 2
    assert reuse_entry(table.indices) is not None
    assert all(each.uncovered_fragments == each.notes_behind == 0 for each in table.index_statistics())
    check_answers(table, FILTERS)
    assert table.optimize_indices().version == table.version
    assert table.fsck().is_sound
    # And on it goes, by both.
    lance.dataset(table.uri).delete("id = 7")
    table = table.refresh().append(rows(400, 40)).table.compact(target_rows=2_000, remap="reuse").table
    assert notes(table) == 1
    check_answers(table, FILTERS)
    lance.dataset(table.uri).optimize.optimize_indices()
    check_answers(table.refresh(), FILTERS)
    table = table.refresh().optimize_indices().table
    assert notes(table) == 0
    check_answers(table, FILTERS)


def test_a_compaction_over_notes_writes_anew_what_they_lead_to(tmp_path: Path) -> None:
    table = grown(made(tmp_path)).compact(remap="reuse").table
    before = notes(table)
    table = table.delete("id % 5 = 1").table.append(rows(300, 40)).table.optimize_indices(["BTREE"]).table
    done = table.compact(target_rows=1_000)
    assert (before, notes(done.table)) == (1, 1)
    check_answers(done.table, FILTERS)
    zones = {kind for kind in KINDS if kind in ("ZONEMAP", "BLOOMFILTER")}
    assert set(done.uncovered) <= zones
    table = done.table.optimize_indices().table
    assert notes(table) == 0
    check_answers(table, FILTERS)


def test_what_others_made_is_left_alone_with_the_notes_that_it_needs(tmp_path: Path) -> None:
    table = made(tmp_path)
    lance.dataset(table.uri).create_scalar_index("word", "INVERTED", name="text")
    table = table.refresh().compact(remap="reuse").table.append(rows(120, 10)).table
    text = [index for index in table.indices if index.name == "text"]
    with pytest.raises(Unsupported, match=r"index 'text' cannot be optimized: it has an unknown index type"):
        table.optimize_indices(["text"])
    table = table.optimize_indices().table
    assert [index for index in table.indices if index.name == "text"] == text
    assert notes(table) == 1
    check_answers(table, FILTERS)
    found = lance.dataset(table.uri).to_table(full_text_query="w3", columns=["id"])
    assert set(found["id"].to_pylist()) == {n for n in range(130) if n % 7 == 3 and n % 11}
    lance.dataset(table.uri).drop_index("text")
    assert notes(table.refresh().optimize_indices().table) == 0


def test_notes_are_not_dropped_for_what_only_says_that_it_is_up_to_date(tmp_path: Path) -> None:
    """Pylance notes today's fragments for a segment whose files it leaves as they were."""
    table = made(tmp_path)
    version = table.version
    table = table.compact(remap="reuse").table
    dataset = lance.dataset(table.uri)
    dataset.create_scalar_index("at.y", "BTREE")
    table = table.refresh()
    assert version < table.version
    assert index_maintenance.trim_reuse_index(table._snapshot, (), runtime=SYSTEM_RUNTIME) is None
    table = table.optimize_indices().table
    assert notes(table) == 0
    check_answers(table, [*FILTERS, "at.y = 7"])


def test_a_note_stays_for_what_was_written_just_before_it(tmp_path: Path) -> None:
    """Between the new segments and the end of the notes that they were written for, somebody compacts once more."""
    lance.write_dataset(pa.table({"id": range(80)}), tmp_path / "t", max_rows_per_file=10)
    table = Table.open(str(tmp_path / "t")).create_index("id", "BTREE").table
    fresh = table.indices
    table = table.compact(remap="reuse", target_rows=20).table
    assert index_maintenance.trim_reuse_index(table._snapshot, fresh, runtime=SYSTEM_RUNTIME) is None


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
def test_values_that_a_fragment_had_once_are_found_by_nobody(tmp_path: Path, kind: str, compacted: bool) -> None:
    """The only file of the last fragment was replaced, and nothing of the fragment tells it from a new one. Pylance
    believes what any segment says of a fragment that one of them covers."""
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": range(30)}), uri, max_rows_per_file=5 if compacted else 10)
    table = Table.open(uri).create_index("a", kind).table
    if compacted:
        table.compact(remap="now", target_rows=10)
    dataset = lance.dataset(uri)
    last = dataset.get_fragments()[2]
    (old,) = last.metadata.files
    place = tmp_path / "t" / "data" / "replaced.lance"
    with LanceFileWriter(str(place), version=dataset.data_storage_version) as writer:
        writer.write_batch(pa.record_batch({"a": range(100, 110)}))
    new = lance.fragment.DataFile(
        place.name, old.fields, old.column_indices, old.file_major_version, old.file_minor_version, place.stat().st_size
    )
    group = lance.LanceOperation.DataReplacementGroup(last.fragment_id, new)
    lance.LanceDataset.commit(uri, lance.LanceOperation.DataReplacement([group]), read_version=dataset.version)
    table.refresh().optimize_indices(merge="none")
    dataset = lance.dataset(uri)
    assert dataset.count_rows("a = 25") == 0
    assert dataset.count_rows("a = 105") == 1
    assert dataset.count_rows("a > 15") == 14


def test_an_index_and_the_end_of_notes_do_not_meet(tmp_path: Path) -> None:
    """Whichever is second is planned again: what it was built on may be what the notes led from."""
    from lance_core.format.ids import Version
    from lance_core.format.operations import CreateIndex
    from lance_core.format.transaction import Transaction
    from lance_core.transactions.committed_transaction import CommittedTransaction

    table = made(tmp_path).compact(remap="reuse").table
    entry = reuse_entry(table.indices)
    assert entry is not None
    trim, build = CreateIndex((entry,), (entry,)), CreateIndex((table.indices[0],))
    for ours, theirs in ((trim, build), (build, trim)):
        landed = CommittedTransaction(Version(9), Transaction(Version(8), "them", theirs, {}))
        assert judge(Transaction(Version(8), "us", ours, {}), [landed]).verdict is Verdict.RETRY


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["compact", "optimize"])
def test_what_cannot_be_read_is_built_from_the_rows(tmp_path: Path, kind: str, verb: str) -> None:
    table = Table.create(tmp_path / "t", rows(0, 120), max_rows_per_file=30, durable=False)
    table = table.create_index(COLUMNS[kind], kind).table.append(rows(120, 20)).table
    for file in (Path(table.uri) / table.indices[0].qualified_path).iterdir():
        file.write_bytes(file.read_bytes()[:-7])
    after = (table.compact() if verb == "compact" else table.optimize_indices()).table
    assert after.fsck("head").is_sound
    assert len(covered_fragments(after, after.indices[0].name)) == 1
    assert kind == "NGRAM" or is_used(after, FILTER_BY_COLUMN[COLUMNS[kind]])
    check_answers(after)
