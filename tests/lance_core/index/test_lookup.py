"""Index lookup compared with a scan without indices: the same rows in the same order."""

import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_core import IndexIgnored, NotFound, Table
from lance_core.index import lookup
from tests.lance_core.index.indexed_tables import TABLES, predicates


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return TABLES[request.param](tmp_path_factory.mktemp("table"))


def check(table: Table, predicate: str, columns: Sequence[str] | None, limit: int | None, offset: int | None) -> None:
    options = {"limit": limit, "offset": offset, "with_row_id": True, "with_row_address": True}
    scanned = table.to_table(columns, predicate, use_indices=False, **options)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error", IndexIgnored)
        found = table.to_table(columns, predicate, **options)  # type: ignore[arg-type]
        count = table.count_rows(predicate)
    assert found.schema == scanned.schema
    assert found["_rowaddr"].equals(scanned["_rowaddr"]), table.explain(predicate)
    assert found.to_pylist() == scanned.to_pylist() or str(found.to_pylist()) == str(scanned.to_pylist())
    assert limit is not None or offset is not None or count == scanned.num_rows


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    predicate=predicates(),
    columns=st.sampled_from([None, [], ["plain"], ["id", "s.x"], ["word", "_rowid"]]),
    limit=st.sampled_from([None, None, None, 0, 1, 7]),
    offset=st.sampled_from([None, None, 3]),
    candidates_max=st.sampled_from([-1, lookup.CANDIDATES_READ_MAX]),
)
def test_a_filter_finds_the_rows_of_a_scan(
    table: Table,
    predicate: str,
    columns: Sequence[str] | None,
    limit: int | None,
    offset: int | None,
    candidates_max: int,
) -> None:
    """The result does not depend on the threshold below which candidate rows are read instead of more indices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "CANDIDATES_READ_MAX", candidates_max)
        check(table, predicate, columns, limit, offset)


@pytest.fixture
def plain(tmp_path: Path) -> Table:
    """A table of four fragments with a hundred rows each, and an index on each column."""
    numbers = pa.table({"id": range(400), "word": [f"w{n % 7}" for n in range(400)], "n": [n // 3 for n in range(400)]})
    table = Table.create(str(tmp_path / "t"), numbers.slice(0, 100))
    for start in (100, 200, 300):
        table = table.append(numbers.slice(start, 100)).table
    for column, kind in {"id": "BTREE", "word": "BITMAP", "n": "ZONEMAP"}.items():
        table = table.create_index(column, kind).table
    return table


def check_same_as_scan(table: Table, predicate: str) -> pa.Table:
    """Return the rows that match, after a comparison with a scan."""
    found = table.to_table(filter=predicate)
    assert found.equals(table.to_table(filter=predicate, use_indices=False))
    assert table.count_rows(predicate) == found.num_rows
    return found


def damage_index(table: Table, name: str, damage: Callable[[Path], None]) -> None:
    for index in table.indices:
        if index.name == name:
            damage(Path(table.uri.removeprefix("file://")) / "_indices" / str(index.uuid))


def _truncate_files(directory: Path) -> None:
    for file in directory.iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _overwrite_files(directory: Path) -> None:
    for file in directory.iterdir():
        file.write_bytes(bytes(range(256)) * (file.stat().st_size // 256 + 1))


@pytest.mark.parametrize(
    "damage", [shutil.rmtree, _truncate_files, _overwrite_files], ids=["missing", "cut short", "garbled"]
)
@pytest.mark.parametrize(
    ("name", "predicate"), [("id_idx", "id IN (5, 250)"), ("word_idx", "word != 'w3'"), ("n_idx", "n BETWEEN 3 AND 5")]
)
def test_an_unreadable_index_warns_once_and_falls_back_to_a_scan(
    plain: Table, name: str, predicate: str, damage: Callable[[Path], None]
) -> None:
    damage_index(plain, name, damage)
    with pytest.warns(IndexIgnored) as warnings_raised:
        found = check_same_as_scan(plain, predicate)
    assert found.num_rows
    (warning,) = [each for each in warnings_raised if issubclass(each.category, IndexIgnored)]
    text = str(warning.message)
    assert plain.uri in text
    for part in (repr(name), "create_index", "replace=True", "drop_index", "fsck()"):
        assert part in text
    assert {str(index.uuid) for index in plain.indices if index.name == name} == set(re.findall(r"[0-9a-f-]{36}", text))
    with warnings.catch_warnings():
        warnings.simplefilter("error", IndexIgnored)
        check_same_as_scan(plain, predicate)
        assert check_same_as_scan(plain.refresh(), f"{predicate} AND id < 300").num_rows


def test_deleted_rows_of_an_index_are_excluded(plain: Table) -> None:
    table = plain.delete("id IN (5, 6, 250)").table
    assert check_same_as_scan(table, "id IN (4, 5, 6, 250, 251)")["id"].to_pylist() == [4, 251]
    assert check_same_as_scan(table, "id != 7").num_rows == 396


def test_a_covered_fragment_that_was_removed_is_ignored(plain: Table) -> None:
    table = plain.delete("id >= 100 AND id < 200").table
    assert [fragment.id for fragment in table.fragments] == [0, 2, 3]
    assert check_same_as_scan(table, "id IN (99, 100, 150, 200)")["id"].to_pylist() == [99, 200]
    assert check_same_as_scan(table, "word = 'w1'").num_rows == sum(
        n % 7 == 1 for n in range(400) if not 100 <= n < 200
    )


def test_a_column_rewritten_in_place_loses_coverage(plain: Table) -> None:
    changed = pa.table({"id": range(100, 200), "word": ["new"] * 100})
    table = plain.upsert(changed, on=["id"]).table
    assert [fragment.id for fragment in table.fragments] == [0, 1, 2, 3]
    assert check_same_as_scan(table, "word = 'new'").num_rows == 100
    assert check_same_as_scan(table, "word = 'w1'").num_rows == sum(
        n % 7 == 1 for n in range(400) if not 100 <= n < 200
    )
    assert "word_idx (BITMAP) answers word = 'w1': exact, in 3 of 4 fragments" in table.explain("word = 'w1'")
    assert "id_idx (BTREE) answers id = 5: exact, in 4 of 4 fragments" in table.explain("id = 5")


def test_an_exact_result_is_counted_without_reading_rows(plain: Table) -> None:
    table = plain.delete("id = 5").table
    Path(table.uri.removeprefix("file://"), "data").rename(Path(table.uri.removeprefix("file://"), "away"))
    assert table.count_rows("id < 10 OR id = 300") == 10
    assert table.count_rows("word = 'w1' AND id IN (0, 1, 8, 9)") == 2
    assert table.to_table(filter="id = 1000").num_rows == 0
    with pytest.raises(NotFound):
        table.count_rows("id < 10 AND n + 1 = 2")


def test_a_branch_and_a_clone_use_the_indices_of_the_table(plain: Table, tmp_path: Path) -> None:
    plain.branches.create("b")
    at_branch = Table.open(plain.uri, branch="b").append(pa.table({"id": [5], "word": ["w5"], "n": [9]})).table
    assert check_same_as_scan(at_branch, "id = 5").num_rows == 2
    assert "id_idx (BTREE) answers id = 5: exact, in 4 of 5 fragments" in at_branch.explain("id = 5")
    plain.clone(str(tmp_path / "clone"), shallow=True)
    opened = Table.open(str(tmp_path / "clone"), bases=[plain.uri])
    assert check_same_as_scan(opened.delete("id = 6").table, "id IN (5, 6)")["id"].to_pylist() == [5]
    assert "exact, in 4 of 4 fragments" in opened.explain("id = 5")


def test_explain_lists_index_probes_without_a_search(plain: Table) -> None:
    table = plain.append(pa.table({"id": [400], "word": ["x"], "n": [1]})).table
    for directory in Path(table.uri.removeprefix("file://"), "_indices").iterdir():
        shutil.rmtree(directory)
    lines = table.explain("id = 5 AND n < 4 AND word LIKE '%1'").splitlines()
    assert [line.strip() for line in lines[-5:]] == [
        "indices   id_idx (BTREE) answers id = 5: exact, in 4 of 5 fragments",
        "n_idx (ZONEMAP) answers n < 4: at most, in 4 of 5 fragments",
        "word_idx (BITMAP) answers word LIKE '%1': exact, in 4 of 5 fragments",
        "re-check  n < 4, of the rows found",
        "scanned   1 of 5 fragments (4)",
    ]
    unused = table.explain("n + 1 = 3").splitlines()
    assert [line.strip() for line in unused[-4:]] == [
        "indices   none used: every fragment is scanned",
        "not used  id_idx (BTREE): does not answer this filter",
        "n_idx (ZONEMAP): does not answer this filter",
        "word_idx (BITMAP): does not answer this filter",
    ]
    assert "use_indices=False" in table.explain("id = 5", use_indices=False)
    compacted = plain.compact(remap="none").table
    assert "id_idx (BTREE): covers no fragment of this version" in compacted.explain("id = 5")


def test_dml_reads_only_fragments_that_an_index_selects(plain: Table, tmp_path: Path) -> None:
    """DML reads only the fragments in which an index finds rows: the data files of the others are absent."""
    data = Path(plain.uri.removeprefix("file://"), "data")
    paths = [fragment.files[0].path for fragment in plain.fragments]
    for path in paths[1:]:
        (data / Path(path).name).rename(tmp_path / Path(path).name)
    table = plain.delete("id = 7 OR id IN (8, 9)").table
    table = table.update({"n": "-1"}, where="id BETWEEN 20 AND 29 AND word != 'w3'").table
    assert table.query("select count(*) c from dataset where id < 30 and n = -1")["c"].to_pylist() == [9]
    table = table.upsert(pa.table({"id": [40], "word": ["up"], "n": [0]}), on=["id"]).table
    for path in paths[1:]:
        (tmp_path / Path(path).name).rename(data / Path(path).name)
    assert table.count_rows() == 397
    assert check_same_as_scan(table, "word = 'up' OR n = -1").num_rows == 10


@pytest.mark.parametrize(
    "predicate",
    [
        "(id < 50 AND n < 3) OR id = 77",
        "(id < 50 OR n < 3) AND id != 4",
        "NOT (id >= 50 OR n >= 3) OR word = 'w6'",
        "(id < 50 AND n + 1 < 3) OR id = 77",
        "(id < 50 OR n + 1 < 3) AND word = 'w1'",
        "id = 5 AND id = 6 OR NOT (word IN ('w1', 'w2') AND id > 7)",
        "id > 10 AND id <= 10",
        "id >= 5 AND id > 7 AND id < 300 AND id <= 20",
    ],
)
def test_combined_conditions_find_the_rows_of_a_scan(
    plain: Table, predicate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "CANDIDATES_READ_MAX", -1)
    check_same_as_scan(plain.append(pa.table({"id": [4, 77], "word": ["w1", "w6"], "n": [0, 1]})).table, predicate)
