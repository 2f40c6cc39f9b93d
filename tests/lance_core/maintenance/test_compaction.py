"""Compaction: rows, row ids, lineage and index coverage compared with a compaction by pylance, and what pylance does
with our result.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core import InvalidInput, Table, Unsupported
from lance_core.format.fragment import Fragment
from lance_core.format.ids import Version
from lance_core.format.index_metadata import FRAGMENT_REUSE, IndexMetadata, decode_section
from lance_core.index.text.inverted import Inverted
from lance_core.maintenance.compaction_plan import plan_groups
from tests.fleets import rows as fleet_rows

ROW_COLUMNS = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"id": numbers, "word": [None if n % 11 == 0 else f"w{n}" for n in numbers]})


@pytest.fixture(params=[False, True], ids=["addresses", "stable row ids"])
def create(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Create tables with the same history: small fragments, deletes, an update, a fully deleted fragment."""

    def make(name: str) -> str:
        uri = str(tmp_path / name)
        dataset = lance.write_dataset(
            rows(0, 1000), uri, max_rows_per_file=100, enable_stable_row_ids=request.param, data_storage_version="2.1"
        )
        dataset.delete("id % 7 = 0")
        dataset.update({"word": "'new'"}, where="id >= 420 and id < 430")
        dataset.delete("id >= 700 and id < 800")
        dataset.insert(rows(1000, 400))
        return uri

    return make


def indices(table: Table) -> dict[str, IndexMetadata]:
    decoded = decode_section(table.manifest.index_section, path=table.manifest.path)
    return {index.name: index for index in decoded}


def lineage(uri: str, stable: bool) -> pa.Table:
    columns = ["id", "word", *(ROW_COLUMNS if stable else ROW_COLUMNS[:1])]
    return lance.dataset(uri).to_table(columns=columns)


def row_counts_of(table: Table) -> list[tuple[int, int, int]]:
    return [(each.id, each.physical_rows, each.live_rows) for each in table.manifest.fragments]


@pytest.mark.parametrize(("deleted", "rewritten"), [(10, False), (11, True)])
def test_a_fragment_is_rewritten_above_a_tenth_of_deleted_rows(deleted: int, rewritten: bool) -> None:
    full = Fragment.of(files=[], physical_rows=100).with_id(0)
    fragment = full.with_deletion_file(is_bitmap=True, read_version=Version(1), number=1, rows=deleted)
    groups = plan_groups([fragment], [], target_rows=50, materialize_deletions=True)
    assert bool(groups) is rewritten


@pytest.mark.parametrize("target_rows", [50, 250, 500, 1_048_576])
def test_the_result_equals_that_of_pylance(create: Callable[[str], str], target_rows: int) -> None:
    ours, theirs = create("ours"), create("theirs")
    before = Table.open(ours).to_table()
    lance.dataset(theirs).optimize.compact_files(target_rows_per_fragment=target_rows)
    committed = Table.open(ours).compact(target_rows=target_rows)
    stable = committed.table.manifest.has_stable_row_ids
    assert committed.table.to_table().sort_by("id").equals(before.sort_by("id"))
    assert sorted(each[1:] for each in row_counts_of(committed.table)) == sorted(
        each[1:] for each in row_counts_of(Table.open(theirs))
    )
    assert (
        lineage(ours, stable).sort_by("id").select([0, 1]).equals(lineage(theirs, stable).sort_by("id").select([0, 1]))
    )
    if stable:
        assert lineage(ours, stable).sort_by("id").equals(lineage(theirs, stable).sort_by("id"))
        assert committed.table.to_table(["id", *ROW_COLUMNS]).equals(lineage(ours, stable).drop(["word"]))
    lance.dataset(ours).validate()


def test_a_compaction_commits_twice_and_plans_the_rewrite_first(create: Callable[[str], str]) -> None:
    table = Table.open(create("t"))
    version, last = table.version, table.manifest.max_fragment_id
    committed = table.compact()
    history = [(info.version, info.operation, info.read_version) for info in committed.table.versions()[-2:]]
    assert history == [(version + 1, "ReserveFragments", version), (version + 2, "Rewrite", version)]
    assert committed.operation == "Rewrite"
    assert (committed.rows_added, committed.rows_removed, committed.files) == (0, 0, 1)
    assert [fragment.id for fragment in committed.table.fragments] == [last + 1]
    assert committed.table.manifest.max_fragment_id == last + 1


def test_pylance_continues_on_a_compacted_table(create: Callable[[str], str]) -> None:
    uri = create("t")
    table = Table.open(uri).compact(target_rows=300).table
    dataset = lance.dataset(uri)
    dataset.delete("id = 1")
    dataset.update({"word": "'again'"}, where="id = 2")
    dataset.insert(rows(5000, 10))
    dataset.optimize.compact_files()
    after = table.refresh()
    assert after.to_table().equals(lance.dataset(uri).to_table())
    assert after.count_rows() == table.count_rows() + 9
    dataset.validate()


def test_a_compact_table_gets_no_version(create: Callable[[str], str]) -> None:
    table = Table.open(create("t")).compact().table
    again = table.compact(intent="tidy")
    assert (again.version, again.operation, again.files) == (table.version, "Rewrite", 0)
    assert Table.open(table.uri).version == table.version
    assert lance.dataset(table.uri).optimize.compact_files().fragments_removed == 0


def test_deletions_may_be_kept(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0, 100)).delete("id < 50").table
    assert table.compact(target_rows=100, materialize_deletions=False).version == table.version
    compacted = table.compact(target_rows=100).table
    assert row_counts_of(compacted) == [(1, 50, 50)]
    assert not compacted.manifest.message.reader_feature_flags & 1


def test_an_intent_compacts_once(create: Callable[[str], str]) -> None:
    table = Table.open(create("t"))
    first = table.compact(intent="tidy")
    again = table.compact(intent="tidy")
    assert (again.version, again.already_committed) == (first.version, True)
    assert Table.open(table.uri).version == first.version


def test_a_compaction_is_rebased_over_an_append(create: Callable[[str], str]) -> None:
    """Trap 17: ids are reserved in a separate commit, and the rewrite keeps the earlier version it was planned on."""
    table = Table.open(create("t"))
    table.append(rows(9000, 5))
    committed = table.compact()
    assert committed.rebased_over == (table.version + 1, table.version + 2)
    assert committed.table.count_rows() == table.count_rows() + 5
    assert committed.table.to_table().equals(lance.dataset(table.uri).to_table())


def test_blobs_are_rewritten_as_blobs(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob])
    values = [bytes([number]) * (10 if number % 2 else 100_000) for number in range(10)]
    data = pa.table({"id": range(10), "blob": values}, schema=schema)
    dataset = lance.write_dataset(data, uri, max_rows_per_file=5, data_storage_version="2.1")
    dataset.delete("id = 1")
    assert len(Table.open(uri).compact().table.fragments) == 1
    blobs = lance.dataset(uri).take_blobs("blob", indices=list(range(9)))
    expected = [value for number, value in enumerate(values) if number != 1]
    assert [each and each.read() for each in blobs] == expected


# Indices


@pytest.fixture
def indexed(tmp_path: Path) -> Callable[[bool], str]:
    def make(stable: bool) -> str:
        uri = str(tmp_path / "indexed")
        dataset = lance.write_dataset(rows(0, 600), uri, max_rows_per_file=100, enable_stable_row_ids=stable)
        dataset.create_scalar_index("id", "BITMAP")
        dataset.create_scalar_index("word", "BTREE")
        dataset.insert(rows(600, 100))
        dataset.insert(rows(700, 100))
        dataset.delete("id % 5 = 0")
        return uri

    return make


def check_queries(uri: str) -> None:
    """Check that pylance finds the same rows with and without indices, for existing and missing values."""
    dataset = lance.dataset(uri)
    for column, values in (("id", range(0, 805, 3)), ("word", [f"w{n}" for n in range(0, 805, 7)])):
        for value in values:
            filter = f"{column} = {value!r}"
            by_index = dataset.to_table(filter=filter)
            assert by_index.sort_by("id").equals(dataset.to_table(filter=filter, use_scalar_index=False).sort_by("id"))
    for filter in ("word is null", "word != 'w3'", "id >= 95 and id < 705"):
        by_index = dataset.to_table(filter=filter)
        assert by_index.sort_by("id").equals(dataset.to_table(filter=filter, use_scalar_index=False).sort_by("id"))


def test_an_index_that_cannot_be_rewritten_is_reported(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(0, 600), uri, max_rows_per_file=100)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("word", lance.indices.IndexConfig("fm", {}))
    with pytest.raises(Unsupported, match=r"index 'word_idx'.*unknown index type.*remap='none'"):
        Table.open(uri).compact(remap="now")
    assert Table.open(uri).version == 3
    committed = Table.open(uri).compact()
    assert committed.uncovered == ("word_idx",)
    assert [sorted(index.covers or ()) for index in committed.table.indices if index.name == "id_idx"] == [[6]]


@pytest.mark.parametrize("remap", ["now", None])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_an_index_of_addresses_is_rewritten(
    indexed: Callable[[bool], str], stable: bool, remap: Literal["now"] | None
) -> None:
    """With stable row ids the bitmap index stores them and stays; the b-tree still stores addresses. The creation time,
    the version and the name of an index are kept.
    """
    uri = indexed(stable)
    before = Table.open(uri)
    committed = before.compact(remap=remap)
    assert committed.uncovered == ()
    old, new = indices(before), indices(committed.table)
    assert FRAGMENT_REUSE not in new
    assert {name: set(index.covers or ()) for name, index in new.items()} == {"id_idx": {8}, "word_idx": {8}}
    unchanged = {name for name in new if new[name].uuid == old[name].uuid}
    assert unchanged == ({"id_idx"} if stable else set())
    assert [(index.dataset_version, index.created_at) for index in new.values()] == [
        (index.dataset_version, index.created_at) for index in old.values()
    ]
    explained = [lance.dataset(uri).scanner(filter=filter).explain_plan() for filter in ("id = 7", "word = 'w7'")]
    assert ["ScalarIndexQuery" in plan for plan in explained] == [True, True]
    check_queries(uri)
    assert committed.table.compact().version == committed.version
    lance.dataset(uri).delete("id % 3 = 0")
    lance.dataset(uri).optimize.compact_files()
    check_queries(uri)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_queries_are_correct_without_remapping(indexed: Callable[[bool], str], stable: bool) -> None:
    uri = indexed(stable)
    before = Table.open(uri)
    committed = before.compact(remap="none")
    table = committed.table
    assert committed.uncovered == (("word_idx",) if stable else ("id_idx", "word_idx"))
    assert table.to_table().sort_by("id").equals(before.to_table().sort_by("id"))
    assert [fragment.physical_rows for fragment in table.fragments] == [480, 160]
    alive = {fragment.id for fragment in table.fragments}
    covered = {name: set(index.covers or ()) & alive for name, index in indices(table).items()}
    assert covered == {"word_idx": set(), "id_idx": {8} if stable else set()}
    check_queries(uri)
    lance.dataset(uri).optimize.optimize_indices()
    check_queries(uri)


def test_indices_are_rewritten_over_the_reuse_entry_of_pylance(
    indexed: Callable[[bool], str],
) -> None:
    uri = indexed(False)
    lance.dataset(uri).optimize.compact_files(defer_index_remap=True)
    lance.dataset(uri).delete("id % 3 = 0")
    committed = Table.open(uri).compact()
    assert committed.uncovered == ()
    check_queries(uri)
    lance.dataset(uri).delete("id % 4 = 2")
    lance.dataset(uri).optimize.compact_files()
    check_queries(uri)


INDEX_TYPES = [
    ("word", "BTREE"),
    ("word", "BITMAP"),
    ("word", "ZONEMAP"),
    ("word", "BLOOMFILTER"),
    ("word", "NGRAM"),
    ("word", "FM"),
    ("tags", "LABEL_LIST"),
    ("vector", "IVF_FLAT"),
    ("word", "INVERTED"),
]
COMPACTED_INDICES = [
    (column, index_type, stable, remap)
    for number, (column, index_type) in enumerate(INDEX_TYPES)
    for stable, remap in ([(False, None), (True, "reuse")] if number % 2 else [(True, None), (False, "reuse")])
]
"""Each index type with both kinds of row identity, each of which is paired with one way of remapping."""
FOLLOW_ROW_IDS = {"BITMAP", "NGRAM", "LABEL_LIST", "IVF_FLAT", "INVERTED"}
LOSES_ADDRESSES = {"FM"}
"""Index types that this library does not write and that lose their coverage without a remapping."""


def rows_of_all_kinds(first: int, count: int) -> pa.Table:
    data = rows(first, count)
    numbers = data["id"].to_pylist()
    tags = pa.array([None if n % 9 == 0 else [n % 5, None] if n % 7 == 1 else [n % 5] for n in numbers])
    vectors = pa.array([[float(n), float(n % 3)] for n in numbers], pa.list_(pa.float32(), 2))
    return data.append_column("tags", tags).append_column("vector", vectors)


def check_answers(uri: str, column: str, index_type: str) -> None:
    dataset = lance.dataset(uri)

    def ids(*, indexed: bool, **query: Any) -> list[int]:
        return sorted(dataset.to_table(columns=["id"], use_scalar_index=indexed, **query)["id"].to_pylist())

    if index_type == "INVERTED":
        for number in range(1, 805, 80):
            expected = ids(indexed=False, filter=f"word = 'w{number}'")
            assert ids(indexed=True, full_text_query=f"w{number}") == expected
        return
    if index_type == "IVF_FLAT":
        for number in range(0, 805, 40):
            nearest = {"column": column, "q": [float(number), 0.0], "k": 1, "nprobes": 2}
            assert ids(indexed=True, nearest=nearest) == ids(indexed=True, nearest={**nearest, "use_index": False})
        return
    filters = [f"{column} is null", f"{column} is not null"]
    if index_type == "LABEL_LIST":
        filters_of_labels = [f"array_has_any(tags, [{number}])" for number in range(5)]
        filters += [*filters_of_labels, *(f"not {each}" for each in filters_of_labels)]
    else:
        filters += ["word != 'w8'", "word > 'w5'", "contains(word, 'w10')", "contains(word, 'new')"]
        filters += [f"word = 'w{number}'" for number in range(1, 805, 80)]
    for filter in filters:
        assert ids(indexed=True, filter=filter) == ids(indexed=False, filter=filter), filter


@pytest.mark.parametrize(("column", "index_type", "stable", "remap"), COMPACTED_INDICES)
def test_every_index_type_answers_correctly_after_a_compaction(
    tmp_path: Path, column: str, index_type: str, stable: bool, remap: Literal["reuse"] | None
) -> None:
    """The answers stay correct after further compactions by pylance, which loses some types that depend on reuse."""
    uri = str(tmp_path / "t")
    data = rows_of_all_kinds(0, 600)
    dataset = lance.write_dataset(data, uri, max_rows_per_file=100, enable_stable_row_ids=stable)
    dataset.create_scalar_index("id", "BITMAP", name="other")
    if index_type == "IVF_FLAT":
        dataset.create_index(column, index_type, name="asked", num_partitions=2)
    else:
        config: Any = lance.indices.IndexConfig("fm", {}) if index_type == "FM" else index_type
        dataset.create_scalar_index(column, config, name="asked")
    dataset.insert(rows_of_all_kinds(600, 200))
    dataset.delete("id % 5 = 0 or (id > 130 and id < 215)")
    if remap and stable and index_type not in FOLLOW_ROW_IDS | {"ZONEMAP", "BLOOMFILTER"}:
        with pytest.raises(Unsupported, match="index 'asked'"):
            Table.open(uri).compact(remap=remap)
        return
    committed = Table.open(uri).compact(remap=remap)
    table = committed.table
    if not remap:
        lost = index_type == "FM" if stable else index_type in LOSES_ADDRESSES
        assert committed.uncovered == (("asked",) if lost else ())
        assert not lost or not set(indices(table)["asked"].covers or ()) & {each.id for each in table.fragments}
    check_answers(uri, column, index_type)
    lance.dataset(uri).delete("id % 6 = 4")
    check_answers(uri, column, index_type)
    if remap:
        lance.dataset(uri).optimize.optimize_indices()
        check_answers(uri, column, index_type)
    lance.dataset(uri).optimize.compact_files()
    check_answers(uri, column, index_type)
    lance.dataset(uri).update({"word": "'new'"}, where="id % 3 = 1")
    Table.open(uri).compact(remap=None if stable else remap)
    check_answers(uri, column, index_type)
    lance.dataset(uri).optimize.optimize_indices()
    check_answers(uri, column, index_type)


def test_coverage_by_row_ids_is_kept(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(0, 600), uri, max_rows_per_file=100, enable_stable_row_ids=True)
    dataset.create_scalar_index("id", "BITMAP")
    dataset.create_scalar_index("word", "ZONEMAP")
    dataset.insert(rows(600, 200))
    dataset.delete("id % 5 = 0")
    table = Table.open(uri).compact().table
    covered = {name: index.covers for name, index in indices(table).items()}
    assert {name: list(each or ()) for name, each in covered.items()} == {"id_idx": [7], "word_idx": [7]}
    assert "ScalarIndexQuery" in lance.dataset(uri).scanner(filter="id = 7").explain_plan()
    check_queries(uri)


def test_the_reuse_entry_equals_that_of_pylance(indexed: Callable[[bool], str], tmp_path: Path) -> None:
    """Trap 15: other indices keep referencing the old fragments, and only this entry records where the rows moved."""
    uri = indexed(False)
    theirs = str(tmp_path / "theirs")
    lance.dataset(uri).deep_clone(theirs, lance.dataset(uri).version)
    lance.dataset(theirs).optimize.compact_files(defer_index_remap=True)
    table = Table.open(uri).compact(remap="reuse").table
    our_indices, expected = indices(table), indices(Table.open(theirs))
    ours, other = our_indices[FRAGMENT_REUSE], expected[FRAGMENT_REUSE]
    assert ours.message.index_details == other.message.index_details
    assert (ours.covers, ours.dataset_version) == (other.covers, other.dataset_version)
    assert our_indices["id_idx"].covers == expected["id_idx"].covers
    assert "ScalarIndexQuery" in lance.dataset(uri).scanner(filter="id = 7").explain_plan()
    check_queries(uri)


def test_repeated_compactions_with_reuse(indexed: Callable[[bool], str]) -> None:
    """Each adds a version to one entry; fragments are grouped by the index coverage of their predecessors."""
    uri = indexed(False)
    table = Table.open(uri).compact(remap="reuse").table
    assert len(table.fragments) == 2
    assert table.compact(remap="reuse").version == table.version
    lance.dataset(uri).delete("id % 3 = 0")
    committed = table.refresh().compact(remap="reuse")
    table = committed.table
    assert committed.uncovered == ()
    check_queries(uri)
    names = [index.name for index in decode_section(table.manifest.index_section, path="")]
    assert names.count(FRAGMENT_REUSE) == 1
    assert len(table.fragments) == 2
    lance.dataset(uri).delete("id % 2 = 0")
    lance.dataset(uri).optimize.compact_files(defer_index_remap=True)
    check_queries(uri)
    lance.dataset(uri).optimize.optimize_indices()
    table = table.refresh().compact(remap="none").table
    check_queries(uri)


def test_a_large_reuse_entry_is_stored_in_a_file(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    data = pa.table({"id": range(1_800_000)})
    dataset = lance.write_dataset(data, uri, max_rows_per_file=600_000)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id % 3 = 0 or id % 7 = 2 or id % 11 = 5 or id % 64 = 1")
    table = Table.open(uri).compact(remap="reuse").table
    entry = indices(table)[FRAGMENT_REUSE]
    assert [file.path for file in entry.message.files] == ["details.binpb"]
    for value in (1, 4, 3, 1_799_996, 1_799_999):
        filter = f"id = {value}"
        dataset = lance.dataset(uri)
        assert dataset.to_table(filter=filter).equals(dataset.to_table(filter=filter, use_scalar_index=False))
    lance.dataset(uri).delete("id % 5 = 0")
    assert len(table.refresh().compact(remap="reuse").table.fragments) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"target_rows": 0}, "target_rows=0"), ({"remap": "later"}, "remap must be one of .*'later'")],
)
def test_invalid_arguments_are_rejected(tmp_path: Path, arguments: dict, message: str) -> None:
    table = Table.create(str(tmp_path / "t"), rows(0, 10))
    with pytest.raises(InvalidInput, match=message):
        table.compact(**arguments)


def test_groups_are_planned_by_rows_and_coverage() -> None:
    def fragments(*counts: int) -> list[Fragment]:
        return [Fragment.of(files=[], physical_rows=rows).with_id(number) for number, rows in enumerate(counts)]

    def planned(counts: list[int], *covered: list[int]) -> list[list[int]]:
        groups = plan_groups(
            fragments(*counts), [BitMap(each) for each in covered], target_rows=10, materialize_deletions=True
        )
        return [[fragment.id for fragment in group] for group in groups]

    assert planned([]) == []
    assert planned([3]) == []
    assert planned([3, 3]) == [[0, 1]]
    assert planned([3, 10, 3]) == []
    assert planned([3, 3, 10, 4, 4]) == [[0, 1], [3, 4]]
    assert planned([5, 5, 5, 5]) == [[0, 1], [2, 3]]
    assert planned([5, 5, 5]) == [[0, 1, 2]]
    assert planned([3, 3, 3, 3], [0, 1]) == [[0, 1], [2, 3]]
    assert planned([3, 3, 3, 3], [0, 1], [1, 2]) == []


def test_every_new_fragment_keeps_the_versions_of_its_own_rows(tmp_path: Path) -> None:
    """A fragment becomes several, each with rows of other versions."""
    table = Table.create(tmp_path / "t", pa.table({"id": range(3)}), stable_row_ids=True, durable=False)
    for start in (3, 6, 9):
        table = table.append(pa.table({"id": range(start, start + 3)})).table
    table = table.update({"id": "id"}, where="id = 10").table.compact().table.delete("id in (1, 5)").table
    columns = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    before = table.to_table(columns, with_row_id=True).sort_by("id")
    after = table.compact(target_rows=5).table
    assert (len(table.fragments), [each.physical_rows for each in after.fragments]) == (1, [5, 5])
    assert after.to_table(columns, with_row_id=True).sort_by("id") == before
    theirs = lance.dataset(after.uri).to_table(columns=columns, with_row_id=True).sort_by("id")
    assert theirs.to_pydict() == before.to_pydict()


def test_zones_claim_no_fragment_that_a_recorded_compaction_replaced(tmp_path: Path) -> None:
    """pylance 8 to 11 take the successors of such fragments for covered, and find none of their rows."""
    table = Table.create(tmp_path / "t", fleet_rows.rows(range(600)), max_rows_per_file=150, durable=False)
    lance.dataset(table.uri).create_index("vector", "IVF_HNSW_FLAT", num_partitions=2)
    table = table.refresh().create_index("zone", "ZONEMAP").table.create_index("code", "BLOOMFILTER").table
    committed = table.compact(remap="reuse")
    assert {"zone_idx", "code_idx"} <= set(committed.uncovered)
    for name in ("zone_idx", "code_idx"):
        assert indices(committed.table)[name].covers == BitMap()
    assert committed.table.count_rows("zone = 40") == lance.dataset(table.uri).count_rows("code = 40") == 1


def test_moves_are_not_recorded_beside_an_index_that_still_lists_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pylance would follow the reuse index from a text index that lost its coverage, and find its rows twice as soon as
    another segment covers them."""
    monkeypatch.setattr(Inverted, "max_readable_version", 2)
    uri = str(tmp_path / "t")
    table = Table.create(uri, fleet_rows.rows(range(60)), max_rows_per_file=15, durable=False)
    lance.dataset(uri).create_index("vector", "IVF_HNSW_FLAT", num_partitions=2)
    lance.dataset(uri).create_scalar_index("words", "INVERTED", block_size=256)
    committed = table.refresh().compact()
    assert committed.uncovered == ("words_idx",)
    assert FRAGMENT_REUSE not in indices(committed.table)
    lance.write_dataset(fleet_rows.rows(range(60, 80)), uri, mode="append")
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    found = lance.dataset(uri).to_table(columns=["id"], full_text_query="w3")["id"].to_pylist()
    assert sorted(found) == list(range(3, 80, 11))
