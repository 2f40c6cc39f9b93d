"""Replaced columns: random histories compared with a plain model and with pylance, and the errors."""

import random
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap

from lance_core import IncompatibleConflict, InvalidInput, SchemaMismatch, Table
from lance_core.format import index_metadata
from lance_core.format.operations import Update
from lance_core.table.base import Committed

Row = dict[str, object]
VECTOR = pa.list_(pa.float32(), 20)  # wider than what is compared if every row gets a value
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("x", pa.int64()),
        pa.field("word", pa.string()),
        pa.field("vector", VECTOR),
        pa.field("point", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("level", pa.int32(), nullable=False),
    ]
)


def make_row(number: int, chance: random.Random) -> Row:
    maybe = lambda value: None if chance.random() < 0.2 else value  # noqa: E731
    return {
        "id": number,
        "x": maybe(chance.randrange(4)),
        "word": maybe(chance.choice(["a", "bb", ""])),
        "vector": maybe([float(chance.randrange(3))] * 20),
        "point": {"a": maybe(chance.randrange(3)), "b": maybe("p")},
        "tags": maybe(["t"] * chance.randrange(3)),
        "level": chance.randrange(3),
    }


class History:
    """A table that is changed at random, with the rows that it should have."""

    def __init__(self, uri: str, seed: int, *, stable: bool, version: str) -> None:
        self.chance = random.Random(seed)
        self.rows: dict[int, Row] = {}
        self.next_id = 0
        schema, data = SCHEMA, self.new_rows(self.chance.randrange(8, 24))
        self.table = Table.create(
            uri,
            pa.Table.from_pylist(data, schema),
            max_rows_per_file=self.chance.choice([4, 7, 50]),
            stable_row_ids=stable,
            storage_version=version,
            durable=False,
        )
        self.table = Table.open(uri, durable=False)

    def new_rows(self, count: int) -> list[Row]:
        rows = [make_row(self.next_id + number, self.chance) for number in range(count)]
        self.next_id += count
        self.rows |= {int(str(row["id"])): row for row in rows}
        return rows

    def replace_by_sql(self) -> Committed:
        where, matches = self.condition()
        for number in matches:
            row = self.rows[number]
            x, level = row["x"], row["level"]
            row["x"], row["level"] = None if x is None else int(str(level)) % 2, 7
        return self.table.add_columns({"x": "x * 0 + level % 2", "level": "7"}, replace=True, where=where)

    def replace_by_function(self) -> Committed:
        where, matches = self.condition()
        salt = self.chance.randrange(3)
        names = self.chance.sample(["word", "vector", "point", "tags"], self.chance.randrange(1, 5))
        values = {number: make_row(number, random.Random(number * salt)) for number in self.rows}

        def compute(batch: pa.RecordBatch) -> pa.Table:
            found = [values[number] for number in batch["id"].to_pylist()]
            return pa.table({name: pa.array([row[name] for row in found], SCHEMA.field(name).type) for name in names})

        for number in matches:
            self.rows[number] |= {name: values[number][name] for name in names}
        return self.table.add_columns(compute, read_columns=["id"], replace=True, where=where)

    def replace_by_key(self) -> Committed:
        on = self.chance.choice(["id", "_rowid", "_rowaddr"])
        stored = self.table.to_table(["id", "_rowid", "_rowaddr"])
        keys = dict(zip(stored["id"].to_pylist(), stored[on].to_pylist(), strict=True))
        chosen = self.chance.sample(sorted(self.rows), self.chance.randrange(1, len(self.rows) + 1))
        given = [make_row(number, self.chance) for number in chosen]
        names = self.chance.sample(["x", "word", "vector", "level"], self.chance.randrange(1, 4))
        for number, row in zip(chosen, given, strict=True):
            self.rows[number] |= {name: row[name] for name in names}
        types = SCHEMA.field("id").type if on == "id" else pa.uint64()
        data = {on: pa.array([keys[number] for number in chosen], types)}
        data |= {name: pa.array([row[name] for row in given], SCHEMA.field(name).type) for name in names}
        return self.table.merge_columns(pa.table(data), on, replace=True)

    def condition(self) -> tuple[str | None, list[int]]:
        """Return a condition, and the ids that match it."""
        if self.chance.random() < 0.3:
            return None, list(self.rows)
        if self.chance.random() < 0.3:
            return "x is null", [number for number, row in self.rows.items() if row["x"] is None]
        low = self.chance.randrange(self.next_id)
        high = low + self.chance.choice([0, 3, 30])
        return f"id between {low} and {high}", [number for number in self.rows if low <= number <= high]

    def change_otherwise(self) -> None:
        match self.chance.randrange(6):
            case 0:
                self.table.append(pa.Table.from_pylist(self.new_rows(3), SCHEMA))
            case 1 if len(self.rows) > 4:
                gone = self.chance.sample(sorted(self.rows), 2)
                self.table.delete(f"id in ({gone[0]}, {gone[1]})")
                self.rows = {number: row for number, row in self.rows.items() if number not in gone}
            case 2:
                row = make_row(self.chance.choice(sorted(self.rows)), self.chance)
                self.rows[int(str(row["id"]))] = row
                self.table.upsert(pa.Table.from_pylist([row], SCHEMA), on="id")
            case 3:
                self.table.create_index(self.chance.choice(["x", "word", "id"]), "BTREE", replace=True)
            case 4:
                self.table.compact()
            case 5:
                lance.dataset(self.table.uri).optimize.compact_files()
        self.table = self.table.refresh()

    def check(self, committed: Committed, before: dict[int, Row], base: Table) -> None:
        table = self.table = committed.table
        dataset = lance.dataset(table.uri)
        dataset.validate()
        expected = [repr(self.rows[number]) for number in sorted(self.rows)]
        for rows in (table.to_table(), dataset.to_table()):
            assert [repr(row) for row in sorted(rows.to_pylist(), key=lambda row: row["id"])] == expected
        changed = {number for number, row in self.rows.items() if repr(row) != repr(before[number])}
        assert (committed.version == base.version) == (not changed) or self.assigns_all_vectors(base, table)
        if table.manifest.has_stable_row_ids and not self.assigns_all_vectors(base, table):
            updates = table.changes(base.version)
            assert set(updates["id"].to_pylist()) == changed
            assert set(updates["_change"].to_pylist()) <= {"update"}
        self.check_coverage(base, table)
        self.check_queries(table, dataset)

    def assigns_all_vectors(self, base: Table, table: Table) -> bool:
        """Return whether every row of a wide column got a value, which counts as a change of every row."""
        transaction = table.transaction()
        if table.version == base.version or transaction is None:
            return False
        modified = getattr(transaction.operation, "fields_modified", ())
        return table.manifest.schema.field("vector").id in modified

    def check_coverage(self, base: Table, table: Table) -> None:
        """Check that each index lost exactly the fragments in which its column has a new file."""

        def files(of: Table, field: int) -> dict[int, set[str]]:
            return {
                fragment.id: {file.path for file in fragment.files if field in file.field_ids}
                for fragment in of.fragments
            }

        after = {index.uuid: index for index in table.indices}
        for index in index_metadata.decode_section(base.manifest.index_section, path="m"):
            (field,) = index.field_ids
            old, new = files(base, field), files(table, field)
            rewritten = {number for number in old if old[number] != new[number]}
            assert (
                set(after[index.uuid].covers or ()) & old.keys() == (set(index.covers or ()) & old.keys()) - rewritten
            )

    def check_queries(self, table: Table, dataset: lance.LanceDataset) -> None:
        for filter, test in (
            ("x = 1", lambda row: row["x"] == 1),
            ("word = 'bb'", lambda row: row["word"] == "bb"),
            ("x is null", lambda row: row["x"] is None),
        ):
            expected = sorted(number for number, row in self.rows.items() if test(row))
            assert sorted(table.to_table(["id"], filter=filter)["id"].to_pylist()) == expected
            assert sorted(dataset.to_table(columns=["id"], filter=filter)["id"].to_pylist()) == expected


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("seed", range(4))
def test_random_histories(tmp_path: Path, seed: int, stable: bool, version: str) -> None:
    history = History(str(tmp_path / "t"), seed * 10 + stable, stable=stable, version=version)
    for _ in range(8):
        history.change_otherwise()
        before = {number: dict(row) for number, row in history.rows.items()}
        base = history.table
        change = history.chance.choice([history.replace_by_sql, history.replace_by_function, history.replace_by_key])
        history.check(change(), before, base)
    assert history.table.fsck().is_sound
    dataset = lance.dataset(history.table.uri)
    dataset.add_columns({"more": "id * 2"})
    dataset.optimize.compact_files()
    rows = history.table.refresh().to_table()
    assert rows["more"] == pc.multiply(rows["id"], 2)
    assert lance.dataset(history.table.uri).to_table() == rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = pa.table({"id": pa.array(range(20)), "x": pa.array([n % 5 for n in range(20)]), "word": ["w"] * 20})
    Table.create(str(tmp_path / "t"), rows, max_rows_per_file=5, stable_row_ids=True, durable=False)
    return Table.open(str(tmp_path / "t"), durable=False)


def paths(table: Table) -> list[list[str]]:
    return [[file.path for file in fragment.files] for fragment in table.fragments]


def test_only_fragments_with_a_changed_row_get_a_file(table: Table) -> None:
    committed = table.add_columns({"x": "case when id = 7 then 100 else x end"}, replace=True)
    assert committed.files == 1
    before, after = paths(table), paths(committed.table)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True, True]
    assert committed.table.changes(table.version)["id"].to_pylist() == [7]


def test_equal_values_commit_no_version(table: Table) -> None:
    committed = table.add_columns({"x": "x"}, replace=True)
    assert (committed.version, committed.files, paths(committed.table)) == (table.version, 0, paths(table))
    assert table.merge_columns(pa.table({"id": [3], "x": [3]}), "id", replace=True).version == table.version


def test_a_column_that_was_replaced_alone_is_replaced_again_without_dead_files(table: Table) -> None:
    for number in range(3):
        table = table.add_columns({"x": f"id + {number}"}, replace=True).table
    assert [len(fragment.files) for fragment in table.fragments] == [2] * 4


def test_new_and_existing_columns_in_one_version(table: Table) -> None:
    committed = table.add_columns({"twice": "id * 2", "x": "id"}, replace=True, where="id >= 15")
    rows = committed.table.to_table()
    assert rows["twice"].to_pylist() == [None] * 15 + list(range(30, 40, 2))
    assert rows["x"].to_pylist() == [n % 5 for n in range(15)] + list(range(15, 20))
    assert lance.dataset(table.uri).to_table() == rows
    assert committed.files == 1


def test_rows_that_do_not_match_have_null_in_a_new_column(table: Table) -> None:
    committed = table.add_columns({"one": "1"}, where="id = 4")
    assert committed.table.to_table(filter="one is not null")["id"].to_pylist() == [4]
    assert committed.table.add_columns({"none": "1"}, where="id = 99").table.to_table()["none"].null_count == 20


def test_a_function_without_matching_rows_adds_its_columns(table: Table) -> None:
    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pc.add(batch["id"], 1)], names=["next"])

    committed = table.add_columns(compute, read_columns=["id"], where="id > 100")
    assert committed.table.schema.field("next").type == pa.int64()


def test_overlapping_reads_see_the_old_values(table: Table) -> None:
    table = table.add_columns({"y": "id"}).table
    rows = table.add_columns({"x": "y", "y": "x"}, replace=True).table.to_table()
    assert (rows["x"].to_pylist(), rows["y"].to_pylist()) == (list(range(20)), [n % 5 for n in range(20)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.add_columns({"x": "word"}, replace=True), r"keeps its type.*'x' is stored as int64, but the data"),
        (lambda t: t.add_columns({"x": "id"}), r"has a column 'x' already.*replace=True"),
        (lambda t: t.add_columns({"x": "id"}, where="id > 3"), r"has a column 'x' already"),
        (lambda t: t.add_columns({"x": "id"}, replace=True, where="idd > 3"), r"no column 'idd'"),
        (lambda t: t.add_columns({}, replace=True), r"no expression is given"),
        (lambda t: t.add_columns({"x.a": "1"}, replace=True), r"'x.a' is a field inside column 'x'"),
        (lambda t: t.add_columns(pa.field("x", pa.int64()), replace=True), r"replace=True and where= need values"),
        (lambda t: t.add_columns({"x": "id"}, replace="yes"), r"replace"),
        (lambda t: t.add_columns(lambda b: b.slice(1), replace=True), r"was given 5 rows and returned 4"),
        (lambda t: t.merge_columns(pa.table({"id": [1], "x": ["a"]}), "id", replace=True), r"'x' is stored as int64"),
        (lambda t: t.merge_columns(pa.table({"id": [1, 1], "x": [1, 2]}), "id", replace=True), r"more than once"),
        (lambda t: t.merge_columns(pa.table({"k": [1], "x": [1]}), "k", replace=True), r"cannot join on 'k'"),
        (lambda t: t.merge_columns(pa.table({"id": [1]}), "id", replace=True), r"at least one other column"),
        (lambda t: t.merge_columns(pa.table({"_rowaddr": [5], "x": [1]}), "_rowaddr", replace=True), r"no live row"),
        (
            lambda t: t.merge_columns(pa.table({"_rowid": [5], "id": [5], "x": [1]}), ["id", "_rowid"], replace=True),
            r"not by both",
        ),
    ],
)
def test_invalid_arguments_are_rejected(table: Table, change: Callable[[Table], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        change(table)
    assert table.refresh().version == table.version


def test_a_null_in_a_mandatory_column_is_rejected(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("level", pa.int32(), nullable=False)])
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1, 2], "level": [1, 2]}, schema), durable=False)
    with pytest.raises(SchemaMismatch, match="'level' is not nullable"):
        table.merge_columns(pa.table({"id": [1], "level": pa.array([None], pa.int32())}), "id", replace=True)
    table = table.merge_columns(pa.table({"id": [1], "level": [9]}), "id", replace=True).table
    assert table.to_table()["level"].to_pylist() == [9, 2]
    assert not lance.dataset(table.uri).schema.field("level").nullable


VALUES_OF_TYPES: dict[pa.DataType, list[object]] = {
    pa.bool_(): [True, None, False],
    pa.float16(): [np.float16(1), None, np.float16(2)],
    pa.decimal128(6, 2): [1, None, 2],
    pa.timestamp("us", "UTC"): [1, None, 2],
    pa.date32(): [1, None, 2],
    pa.large_string(): ["a", None, "b"],
    pa.binary(2): [b"ab", None, b"cd"],
    pa.dictionary(pa.int8(), pa.string()): ["a", None, "b"],
    pa.json_(pa.utf8()): ['{"a":1}', None, '{"a":2}'],
    pa.map_(pa.string(), pa.int64()): [[("k", 1)], None, [("k", 2), ("l", 3)]],
    pa.list_(pa.struct([("a", pa.list_(pa.int8()))])): [[{"a": [1]}], None, [{"a": None}]],
    pa.list_(pa.int8(), 2): [[1, 2], None, [3, 4]],
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]): [{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}],
}


@pytest.mark.parametrize("arrow", VALUES_OF_TYPES, ids=str)
def test_every_type_is_replaced_in_part(tmp_path: Path, arrow: pa.DataType) -> None:
    first, _, last = VALUES_OF_TYPES[arrow]
    old = pa.table({"id": pa.array(range(6), pa.int64()), "v": pa.array([first, None, last] * 2, arrow)})
    table = Table.create(str(tmp_path / "t"), old, max_rows_per_file=4, stable_row_ids=True, durable=False)
    new = pa.table({"id": [0, 1, 2, 5], "v": pa.array([last, first, last, None], arrow)})
    changed = table.merge_columns(new, "id", replace=True)
    rows = changed.table.to_table()
    expected = pa.array([last, first, last, first, None, None], arrow)
    assert rows["v"].to_pylist() == expected.to_pylist()
    assert lance.dataset(table.uri).to_table()["v"].to_pylist() == expected.to_pylist()
    updated = changed.table.changes(1)["id"].to_pylist()
    assert updated == ([0, 1, 5] if not pa.types.is_map(arrow) else [0, 1, 2, 3, 5])  # maps are compared as a whole
    assert table.refresh().compact().table.to_table()["v"].to_pylist() == expected.to_pylist()


def test_blobs_are_replaced_and_kept(tmp_path: Path) -> None:
    for version in ("2.1", "2.2"):
        blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        rows = pa.table(
            {"id": [0, 1, 2], "blob": [b"zero", None, b"two" * 50_000]}, pa.schema([("id", pa.int64()), blob])
        )
        table = Table.create(str(tmp_path / version), rows, storage_version=version, durable=False)
        new = pa.table({"id": [1], "blob": pa.array([b"one"], pa.large_binary())})
        table = table.merge_columns(new, "id", replace=True).table
        read = [file and file.read() for file in table.blobs("blob", [0, 1, 2])]
        assert read == [b"zero", b"one", b"two" * 50_000]
        theirs = lance.dataset(table.uri).take_blobs("blob", indices=[0, 1, 2])
        assert [file and file.readall() for file in theirs] == read


# Conflicts: another writer commits between the plan and the commit.


def run_with_concurrent_change(table: Table, change: Callable[[Table], object]) -> tuple[Committed, list[int]]:
    """Replace `x` by a function during whose first call another writer commits. Return the ids it was called with."""
    calls: list[int] = []

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not calls:
            change(Table.open(table.uri, durable=False))
        calls.extend(batch["id"].to_pylist())
        return pa.record_batch([pc.add(batch["id"], 1000)], names=["x"])

    return table.add_columns(compute, read_columns=["id"], replace=True), calls


CONCURRENT: list[tuple[Callable[[Table], object], list[int]]] = [
    (lambda table: table.append(pa.table({"id": [20, 21], "x": [0, 1], "word": ["v", "v"]})), []),
    (lambda table: table.delete("id in (3, 8)"), []),
    (lambda table: table.delete("id < 5"), []),
    (lambda table: table.create_index("x", "BTREE"), []),
    (lambda table: table.update({"word": "'changed'"}, where="id = 7"), [7]),  # the row moves to a new fragment
    (lambda table: table.add_columns({"word": "'in place'"}, replace=True, where="id < 10"), []),
    (lambda table: table.add_columns({"x": "-1"}, replace=True, where="id < 5"), [0, 1, 2, 3, 4]),
    (lambda table: table.add_columns({"other": "id"}), []),
    (lambda table: table.drop_columns(["word"]), []),
    (lambda table: table.compact(), list(range(20))),
    (lambda table: table.upsert(pa.table({"id": [2, 50], "x": [0, 0], "word": ["u", "u"]}), on="id"), [2, 50]),
]


@pytest.mark.parametrize(("change", "again"), CONCURRENT)
def test_finished_files_survive_concurrent_changes(
    table: Table, change: Callable[[Table], object], again: list[int]
) -> None:
    committed, calls = run_with_concurrent_change(table, change)
    assert sorted(calls[20:]) == again
    rows = committed.table.to_table()
    dataset = lance.dataset(table.uri)
    appended = (
        {20, 21} if rows.num_rows == 22 else set()
    )  # an append has not seen the replacement, and keeps its values
    expected = [n % 2 if n in appended else n + 1000 for n in rows["id"].to_pylist()]
    assert rows["x"].to_pylist() == dataset.to_table()["x"].to_pylist() == expected
    assert committed.table.fsck().is_sound
    for value in (1003, 1007, 3):
        found = committed.table.to_table(["id"], filter=f"x = {value}")["id"].to_pylist()
        assert found == dataset.to_table(columns=["id"], filter=f"x = {value}")["id"].to_pylist()
        assert found == [n for n, x in zip(rows["id"].to_pylist(), expected, strict=True) if x == value]


def test_rows_that_were_deleted_meanwhile_are_not_affected(table: Table) -> None:
    """A delete that commits next would conflict with an operation that names them."""
    committed, _calls = run_with_concurrent_change(table, lambda other: other.delete("id in (3, 8)"))
    transaction = committed.table.transaction()
    assert transaction is not None
    operation = transaction.operation
    assert isinstance(operation, Update)
    affected = {number: list(BitMap.deserialize(rows)) for number, rows in operation.updated_offsets.items()}
    assert affected == {0: [0, 1, 2, 4], 1: [0, 1, 2, 4], 2: list(range(5)), 3: list(range(5))}


def test_a_column_that_was_dropped_meanwhile_is_new(table: Table) -> None:
    """Files with its old values are not used, and fragments that would not have changed get values, too."""
    Table.open(table.uri, durable=False).drop_columns(["x"])
    committed = table.add_columns({"x": "cast(case when id < 5 then 100 else id % 5 end as bigint)"}, replace=True)
    assert committed.table.to_table()["x"].to_pylist() == [100] * 5 + [n % 5 for n in range(5, 20)]


def test_addresses_of_moved_rows_are_refused(table: Table) -> None:
    rows = table.to_table(["id", "_rowaddr"])
    for target, is_refused in ((3, True), (17, False)):
        current = Table.open(table.uri, durable=False).restore(table.version).table
        data = pa.table({"_rowaddr": rows["_rowaddr"].slice(0, 5), "x": [90] * 5})
        Table.open(table.uri, durable=False).update({"word": "'moved'"}, where=f"id = {target}")
        if is_refused:
            with pytest.raises(IncompatibleConflict, match="rows were moved to other addresses"):
                current.merge_columns(data, "_rowaddr", replace=True)
        else:
            after = current.merge_columns(data, "_rowaddr", replace=True).table.to_table(filter="x = 90")
            assert sorted(after["id"].to_pylist()) == [0, 1, 2, 3, 4]


def test_a_large_column_spans_batches(tmp_path: Path) -> None:
    count = 70_000
    rows = pa.table({"id": pa.array(range(count)), "x": pa.array(np.zeros(count, dtype=np.int64))})
    table = Table.create(str(tmp_path / "t"), rows, stable_row_ids=True, durable=False).delete("id = 10").table
    table = table.add_columns({"x": "id"}, replace=True, where="id >= 66000").table
    changed = table.changes(2)
    assert changed["id"].to_pylist() == list(range(66_000, count))
    found = table.to_table()
    assert found["x"].to_pylist() == [n if n >= 66_000 else 0 for n in range(count) if n != 10]
    assert lance.dataset(table.uri).to_table() == found


@pytest.mark.parametrize(
    ("stable", "by_sql"),
    [(False, False), (True, False), (True, True)],
    ids=["addresses", "stable row ids", "stable row ids, SQL"],
)
@pytest.mark.parametrize("first_changed", [8_191, 8_192, 19_998, None])
def test_values_around_the_first_difference(
    tmp_path: Path, stable: bool, by_sql: bool, first_changed: int | None
) -> None:
    """The result is the same wherever the first row that differs is, although later old values may not be read."""
    count, items = 20_000, pa.array(np.arange(20_000 * 20) % 7, pa.float32())
    vectors = pa.FixedSizeListArray.from_arrays(items, type=VECTOR)
    data = pa.table({"id": range(count), "x": range(count), "vector": vectors})
    table = Table.create(str(tmp_path / "t"), data, stable_row_ids=stable, durable=False)
    table = table.delete("id in (0, 19999)").table
    table = table.create_index("x", "btree").table

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        is_changed = batch["id"].to_numpy() >= (count if first_changed is None else first_changed)
        new = np.where(is_changed[:, None], np.float32(9), batch["vector"].flatten().to_numpy().reshape(-1, 20))
        vector = pa.FixedSizeListArray.from_arrays(pa.array(new.ravel()), type=VECTOR)
        return pa.record_batch({"vector": vector, "x": pc.if_else(pa.array(is_changed), -9, batch["x"])})

    reads, changed = ["id", "x", "vector"], 0 if first_changed is None else count - 1 - first_changed
    if by_sql:
        first = count if first_changed is None else first_changed
        replaced = table.add_columns({"x": f"CASE WHEN id >= {first} THEN -9 ELSE x END"}, replace=True)
    else:
        replaced = table.add_columns(
            lambda rows: compute(rows).select(["x"]),
            read_columns=reads,
            schema=pa.schema([("x", pa.int64())]),
            replace=True,
        )
    both = replaced.table.add_columns(lambda rows: compute(rows).select(["vector"]), read_columns=reads, replace=True)
    assert replaced.files == both.files == (0 if first_changed is None else 1)
    if stable:
        assert len(replaced.table.changes(table.version)) == changed
    rows = both.table.to_table()
    (before,) = data.slice(1, count - 2).combine_chunks().to_batches()
    expected = compute(before)
    assert rows["vector"].combine_chunks().flatten().equals(expected["vector"].flatten())
    assert rows["x"].combine_chunks().equals(expected["x"])
    assert len(both.table.to_table(["id"], filter="x = -9")) == changed
    assert lance.dataset(table.uri).to_table() == rows


@pytest.mark.parametrize(
    ("unchanged", "counted"),
    [("false", 70_000), ("id BETWEEN 30000 AND 45000", 54_999), ("id = 69999", 69_999), ("id = 5000", 70_000)],
)
def test_rows_of_a_fragment_whose_sample_changes_count_as_changed(tmp_path: Path, unchanged: str, counted: int) -> None:
    """Rows are compared if one of the sample stays; a single row outside of the sample that stays is counted."""
    data = {"id": range(70_000), "x": np.zeros(70_000, dtype=np.int64)}
    table = Table.create(str(tmp_path / "t"), data, stable_row_ids=True, durable=False)
    table = table.add_columns({"x": f"CASE WHEN {unchanged} THEN 0 ELSE 1 END"}, replace=True).table
    assert len(table.changes(1)) == counted
    assert table.count_rows(f"x = CASE WHEN {unchanged} THEN 0 ELSE 1 END") == 70_000
