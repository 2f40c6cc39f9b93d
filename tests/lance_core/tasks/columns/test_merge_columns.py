"""Merge columns: workers merge by address or by key as one process and pylance do, or raise a clear error."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_core import IncompatibleConflict, InvalidInput, SchemaMismatch, StorageError, Table
from lance_core.tasks.columns import merge_columns as merge_columns_module
from lance_core.tasks.columns.fill_by_address import FillTask, KeysTask
from lance_core.tasks.columns.merge_columns import MergeRequest, merge_columns
from lance_core.tasks.driver import TableRef, WriteOptions
from lance_core.tasks.partitioning import RESULT, Task
from lance_core.tasks.rows.write import RESULT as WRITTEN
from lance_core.tasks.rows.write import WriteTask

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "x": [None if n % 7 == 0 else n / 3 for n in range(100)]})
ConcurrentChange = Callable[[], object]


@dataclass
class InMemorySource:
    """Source that sorts, joins and distributes its rows as Spark does: two fragments to a task, in small batches."""

    rows: pa.Table
    concurrent_change: ConcurrentChange = field(default=lambda: None)
    shuffled: bool = False
    task_count: int = 0
    slots: int = 2
    size_estimate: int | None = 0
    """Estimated size of the source in bytes."""
    stage_count: int = 0

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def transport(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def run(self, task: Task, parts: int) -> pa.Table:
        first, self.concurrent_change = self.concurrent_change, lambda: None
        pickled = pickle.dumps(task)
        answers = [
            answer
            for number in range(parts)
            for answer in pickle.loads(pickled)([pa.record_batch({"id": pa.array([number], pa.int64())})])
        ]
        self.task_count += parts
        first()
        return pa.Table.from_batches(answers, RESULT)

    def estimated_bytes(self) -> int | None:
        return self.size_estimate

    def stage(self, keys: Sequence[str], values: Sequence[str], task: WriteTask) -> pa.Table:
        self.stage_count += 1
        rows = self.rows.select([*keys, *values]).rename_columns(task.plan.schema.arrow.names)
        worker = pickle.loads(pickle.dumps(task))
        halves = rows.num_rows // 2
        answers = [each for part in (rows.slice(0, halves), rows.slice(halves)) for each in worker(part.to_batches())]
        return pa.Table.from_batches(answers, WRITTEN)

    def fill_by_address(self, values: Sequence[str], task: FillTask) -> pa.Table:
        return self._run(self.rows.select(["_rowaddr", *values]), task)

    def fill_by_key(self, keys: Sequence[str], values: Sequence[str], keys_task: KeysTask, task: FillTask) -> pa.Table:
        pickled = pickle.dumps(keys_task)
        batches = [
            batch
            for number in range(len(keys_task.partitions))
            for batch in pickle.loads(pickled)([pa.record_batch({"id": pa.array([number], pa.int64())})])
        ]
        found = pa.Table.from_batches(batches, keys_task.schema)
        joined = self.rows.join(found, list(keys), join_type="inner")
        return self._run(joined.select(["_rowaddr", *values]), task)

    def _run(self, rows: pa.Table, task: FillTask) -> pa.Table:
        first, self.concurrent_change = self.concurrent_change, lambda: None
        rows = rows.set_column(0, "_rowaddr", rows["_rowaddr"].cast(pa.int64()))
        rows = rows if self.shuffled else rows.sort_by("_rowaddr")
        numbers = pc.shift_right(rows["_rowaddr"].fill_null(0), 33).to_numpy()
        answers: list[pa.RecordBatch] = []
        for number in np.unique(numbers):
            self.task_count += 1
            worker: FillTask = pickle.loads(pickle.dumps(task))
            answers += worker(_small_batches(rows.filter(pa.array(numbers == number))))
        first()
        return pa.Table.from_batches(answers, RESULT)


@pytest.fixture(params=["held", "shuffled"], autouse=True)
def join_strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with a broadcast join and with a shuffle, which give the same result."""
    if request.param == "shuffled":
        monkeypatch.setattr(merge_columns_module, "BROADCAST_BYTES_MAX", -1)
    return str(request.param)


def _small_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.combine_chunks().to_batches(max_chunksize=7)


def create_table(
    directory: Path, *, stable: bool = False, deleted: str | None = "id % 5 = 2 or id between 20 and 29"
) -> str:
    uri = str(directory)
    table = Table.create(uri, ROWS, max_rows_per_file=10, stable_row_ids=stable, durable=False)
    if deleted:
        table.delete(deleted)
    return uri


def values_by_address(uri: str) -> pa.Table:
    """Return a value for each row of the table by its address, in random order."""
    rows = Table.open(uri).to_table(columns=["id"], with_row_address=True)
    rows = rows.append_column("score", pc.multiply(rows["id"], 10)).drop_columns(["id"])
    return rows.take(np.random.default_rng(1).permutation(rows.num_rows))


def merge(
    uri: str,
    rows: pa.Table | InMemorySource,
    on: object = "_rowaddr",
    *,
    schema: pa.Schema | None = None,
    missing: str | None = None,
    version: int | None = None,
    how: WriteOptions | None = None,
    replace: bool = False,
) -> Table:
    source = rows if isinstance(rows, InMemorySource) else InMemorySource(rows)
    wanted = MergeRequest.of(on, schema, missing, version, replace=replace)
    return merge_columns(TableRef(uri, durable=False), source, wanted, options=how or WriteOptions()).table


@pytest.mark.parametrize("stable", [False, True])
def test_rows_by_address_get_their_values(tmp_path: Path, stable: bool) -> None:
    uri = create_table(tmp_path / "t", stable=stable)
    files = [[file.path for file in part.files] for part in Table.open(uri).fragments]
    table = merge(uri, values_by_address(uri))
    found = table.to_table()
    assert found["score"] == pc.multiply(found["id"], 10)
    assert lance.dataset(uri).to_table()["score"] == found["score"]
    assert [[file.path for file in part.files][:1] for part in table.fragments] == files
    assert Table.open(uri).fsck().is_sound


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("keep", [range(100), range(0, 100, 3), range(40, 60), range(0)])
def test_a_merge_by_key_equals_that_of_one_process(tmp_path: Path, keep: range, stable: bool) -> None:
    distributed, alone, theirs = (
        create_table(tmp_path / name, stable=stable) for name in ("spread", "alone", "theirs")
    )
    source = pa.table({"id": pa.array([*keep, 1000], pa.int64()), "score": pa.array([n * 10 for n in [*keep, 1]])})
    ours = merge(distributed, source, ["id"])
    assert ours.to_table() == Table.open(alone, durable=False).merge_columns(source, "id").table.to_table()
    dataset = lance.dataset(theirs)
    dataset.merge(source, left_on="id")
    assert lance.dataset(distributed).to_table() == dataset.to_table() == ours.to_table()
    assert Table.open(distributed).fsck().is_sound


def test_several_keys_and_nulls_in_them(tmp_path: Path) -> None:
    distributed, alone = str(tmp_path / "spread"), str(tmp_path / "alone")
    rows = pa.table({"a": [1, 1, None, 2, 2], "b": ["x", "y", "x", None, "z"]})
    for uri in (distributed, alone):
        Table.create(uri, rows, max_rows_per_file=2, durable=False)
    source = pa.table({"b": ["y", "x", None, "z"], "v": [1, 2, 3, 4], "a": [1, None, 2, 2]})
    ours = merge(distributed, source, ["a", "b"])
    assert ours.to_table() == Table.open(alone, durable=False).merge_columns(source, ["a", "b"]).table.to_table()
    assert ours.to_table()["v"].to_pylist() == [None, 1, None, None, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_vectors_come_as_lists_or_as_bytes(tmp_path: Path, packed: bool) -> None:
    uri = create_table(tmp_path / "t")
    rows = values_by_address(uri).drop_columns(["score"])
    numbers = np.random.default_rng(2).standard_normal((rows.num_rows, 4), dtype=np.float32)
    values: list[object] = [None if directory % 9 == 4 else each for directory, each in enumerate(numbers)]
    column = (
        pa.array([None if each is None else each.tobytes() for each in values], pa.binary())  # type: ignore[attr-defined]
        if packed
        else pa.array([None if each is None else each.tolist() for each in values], pa.list_(pa.float32()))  # type: ignore[attr-defined]
    )
    rows = rows.append_column("vector", column)
    schema = pa.schema([pa.field("vector", pa.list_(pa.float32(), 4))])
    table = merge(uri, rows, schema=schema)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 4)
    order = pc.sort_indices(rows["_rowaddr"])
    expected = [None if values[directory] is None else numbers[directory].tolist() for directory in order.to_pylist()]
    assert table.to_table()["vector"].to_pylist() == expected
    assert lance.dataset(uri).to_table()["vector"].to_pylist() == expected


@pytest.mark.parametrize(("size", "kind"), [(3, pa.binary()), (3, pa.list_(pa.float32()))])
def test_vectors_of_another_length_are_rejected(tmp_path: Path, size: int, kind: pa.DataType) -> None:
    uri = create_table(tmp_path / "t")
    rows = values_by_address(uri).drop_columns(["score"])
    value: object = b"\0" * 4 * size if kind == pa.binary() else [0.0] * size
    rows = rows.append_column("vector", pa.array([value] * rows.num_rows, kind))
    with pytest.raises(SchemaMismatch, match="vector"):
        merge(uri, rows, schema=pa.schema([pa.field("vector", pa.list_(pa.float32(), 4))]))
    assert Table.open(uri).version == 2


def rows_at_address(rows: pa.Table, address: int) -> pa.Table:
    return rows.filter(pc.equal(rows["_rowaddr"], pa.scalar(address, pa.uint64())))


def with_extra_address(rows: pa.Table, address: int) -> pa.Table:
    extra = pa.table({"_rowaddr": pa.array([address], pa.uint64()), "score": pa.array([1], pa.int64())})
    return pa.concat_tables([rows, extra])


BAD_ADDRESSES: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (lambda rows: with_extra_address(rows, 4 << 32 | 3), "row 3 of fragment 4 .* more than once"),
    (lambda rows: with_extra_address(rows, 0 << 32 | 2), "row 2 of fragment 0 .*, but the row is deleted"),
    (lambda rows: with_extra_address(rows, 5 << 32 | 10), "row 10 of fragment 5 .*, but the fragment has 10 rows"),
    (lambda rows: with_extra_address(rows, 77 << 32), "fragment 77, which does not exist"),
    (lambda rows: with_extra_address(rows, 2 << 32), "fragment 2, which does not exist"),
    (lambda rows: rows.filter(pc.not_equal(rows["score"], 310)), "no value for row 1 of fragment 3 "),
    (lambda rows: rows.filter(pc.not_equal(rows["score"], 990)), "no value for row 9 of fragment 9 "),
    (lambda rows: rows.filter(pc.greater(rows["score"], 90)), "no value for row 0 of fragment 0 "),
    (lambda rows: rows.slice(0, 0), "no value for row 0 of fragment 0 "),
    (lambda rows: rows.rename_columns(["_rowaddr", "x"]), "has a column 'x' already"),
    (lambda rows: rows.select(["_rowaddr"]), "only the key columns _rowaddr"),
    (lambda rows: rows.select(["score"]), "cannot join on '_rowaddr'"),
    (lambda rows: rows.append_column("score", rows["score"]), "two columns named 'score'"),
    (
        lambda rows: rows.set_column(0, "_rowaddr", pa.array([None] * rows.num_rows, pa.int64())),
        "_rowaddr is null",
    ),
    (
        lambda rows: rows.set_column(0, "_rowaddr", pa.array([-1] * rows.num_rows, pa.int64())),
        "not a valid row address",
    ),
]


@pytest.mark.parametrize(("spoiled", "message"), BAD_ADDRESSES)
def test_invalid_addresses_are_reported(tmp_path: Path, spoiled: Callable[[pa.Table], pa.Table], message: str) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(InvalidInput, match=message):
        merge(uri, spoiled(values_by_address(uri)))
    assert Table.open(uri).version == 2


def test_rows_out_of_order_are_never_written(tmp_path: Path, join_strategy: str) -> None:
    uri = create_table(tmp_path / "t")
    if join_strategy == "held":
        merge(uri, InMemorySource(values_by_address(uri), shuffled=True))  # the workers sort the rows
        return
    with pytest.raises(StorageError, match="not sorted by their address"):
        merge(uri, InMemorySource(values_by_address(uri), shuffled=True))


@pytest.mark.parametrize("kind", [pa.int64(), pa.struct([("a", pa.int64())]), pa.list_(pa.float32(), 2)])
def test_rows_without_a_value_are_null_on_request(tmp_path: Path, kind: pa.DataType) -> None:
    uri = create_table(tmp_path / "t")
    rows = values_by_address(uri)
    value: object = 7 if kind == pa.int64() else {"a": 7} if pa.types.is_struct(kind) else [7.0, 7.0]
    rows = rows.select(["_rowaddr"]).append_column("v", pa.array([value] * rows.num_rows, kind))
    addresses_given = {address % 2**32 for address in rows["_rowaddr"].to_pylist()}
    keep = [address % 3 != 1 and address >> 32 not in (0, 5) for address in rows["_rowaddr"].to_pylist()]
    assert addresses_given
    table = merge(uri, rows.filter(pa.array(keep)), missing="null")
    found = table.to_table(columns=["v"], with_row_address=True)
    expected = [
        value if address % 3 != 1 and address >> 32 not in (0, 5) else None for address in found["_rowaddr"].to_pylist()
    ]
    assert found["v"].to_pylist() == expected
    assert lance.dataset(uri).to_table()["v"].to_pylist() == expected


def test_a_mandatory_column_gets_no_nulls(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    schema = pa.schema([pa.field("score", pa.int64(), nullable=False)])
    rows = values_by_address(uri)
    for incomplete in (rows.filter(pc.less(rows["score"], 100)), rows.filter(pc.not_equal(rows["score"], 310))):
        with pytest.raises(InvalidInput, match="not nullable"):
            merge(uri, incomplete, schema=schema, missing="null")
    assert merge(uri, rows, schema=schema).to_table()["score"].null_count == 0


def test_a_duplicate_key_is_reported(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    source = pa.table({"id": [1, 35, 35], "score": [1, 2, 3]})
    with pytest.raises(InvalidInput, match=r"(key id = 35 more than once|more than once \(1 of them\): id = 35)"):
        merge(uri, source, "id")


@pytest.mark.parametrize(
    ("on", "options", "message"),
    [
        (["nope"], {}, "cannot join on 'nope'"),
        (["id", "_rowaddr"], {}, "not by both"),
        (["id"], {"missing": "error"}, "need on=._rowaddr"),
        (["id"], {"version": 1}, "need on=._rowaddr"),
        ("_rowaddr", {"missing": "maybe"}, "missing='maybe'"),
        (["id"], {"schema": pa.schema([("other", pa.int64())])}, "schema= has the columns other"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path: Path, on: object, options: dict[str, object], message: str) -> None:
    uri = create_table(tmp_path / "t")
    source = pa.table({"id": [1], "_rowaddr": [1], "score": [1]})
    with pytest.raises(InvalidInput, match=message):
        merge(uri, source, on, **options)  # type: ignore[arg-type]


def test_keys_of_another_type_are_reported(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    with pytest.raises(SchemaMismatch, match="the key 'id' has type int64 in the table and string in the data"):
        merge(uri, pa.table({"id": ["1"], "score": [1]}), ["id"])


def test_addresses_of_an_older_version_are_valid_unless_rows_moved(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    rows = values_by_address(uri)
    table = Table.open(uri, durable=False)
    table.delete("id = 31")
    with pytest.raises(InvalidInput, match="the row is deleted"):
        merge(uri, rows)
    merge(uri, rows, version=2)
    found = Table.open(uri).to_table()
    assert found["score"] == pc.multiply(found["id"], 10)


def test_addresses_from_before_a_compaction_are_refused(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    rows = values_by_address(uri)
    Table.open(uri, durable=False).compact()
    with pytest.raises(InvalidInput, match="which does not exist"):
        merge(uri, rows)
    with pytest.raises(IncompatibleConflict, match="Rewrite"):
        merge(uri, rows, version=2)


def change_of(uri: str, change: Callable[[Table], object]) -> ConcurrentChange:
    return lambda: change(Table.open(uri, durable=False))


CONCURRENT_CHANGES: list[tuple[Callable[[Table], object], str | None]] = [
    (lambda table: table.delete("id % 10 = 3"), None),
    (lambda table: table.delete("id < 10"), None),
    (lambda table: table.add_columns({"other": "id"}), None),
    (lambda table: table.update({"x": "1.5"}), None),
    (lambda table: table.update({"x": "1.5"}, where="id < 5"), "moved to other addresses"),
    (lambda table: table.compact(), "moved to other addresses"),
    (lambda table: table.append(ROWS.slice(0, 3)), "rows were added"),
    (lambda table: table.restore(1), "Restore"),
]


@pytest.mark.parametrize(("change", "refusal"), CONCURRENT_CHANGES)
def test_concurrent_changes_of_a_merge_by_address(
    tmp_path: Path, change: Callable[[Table], object], refusal: str | None
) -> None:
    uri = create_table(tmp_path / "t")
    source = InMemorySource(values_by_address(uri), concurrent_change=change_of(uri, change))
    if refusal is not None:
        with pytest.raises(IncompatibleConflict, match=refusal):
            merge(uri, source)
        return
    table = merge(uri, source)
    assert source.task_count == 5
    found = table.to_table()
    assert found["score"] == pc.multiply(found["id"], 10)
    assert Table.open(uri).fsck().is_sound


def test_concurrently_added_rows_are_null_on_request(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    source = InMemorySource(
        values_by_address(uri), concurrent_change=change_of(uri, lambda table: table.append(ROWS.slice(0, 3)))
    )
    found = merge(uri, source, missing="null").to_table()
    assert found["score"].to_pylist()[-3:] == [None] * 3
    assert found["score"].null_count == 3


@pytest.mark.parametrize(
    ("change", "tasks"),
    [
        (lambda table: table.delete("id % 10 = 3"), 0),
        (lambda table: table.append(ROWS.slice(0, 3)), 1),
        (lambda table: table.update({"x": "1.5"}, where="id < 5"), 1),
        (lambda table: table.update({"id": "id + 1000"}, where="id < 5"), 1),
        (lambda table: table.compact(), 1),
        (lambda table: table.add_columns({"other": "id"}), 0),
    ],
)
def test_concurrent_changes_of_a_merge_by_key(
    tmp_path: Path, join_strategy: str, change: Callable[[Table], object], tasks: int
) -> None:
    uri = create_table(tmp_path / "t")
    rows = pa.table({"id": pa.array(range(2000), pa.int64()), "score": pa.array(range(0, 20_000, 10), pa.int64())})
    source = InMemorySource(rows, concurrent_change=change_of(uri, change))
    table = merge(uri, source, ["id"])
    assert source.task_count == 5 + tasks
    assert source.stage_count == (join_strategy == "held"), "the source is computed once"
    found = table.to_table()
    assert found["score"] == pc.multiply(found["id"], 10)
    assert lance.dataset(uri).count_rows() == table.count_rows()
    assert Table.open(uri).fsck().is_sound


def test_an_intent_runs_once(tmp_path: Path) -> None:
    uri = create_table(tmp_path / "t")
    first = merge(uri, values_by_address(uri), how=WriteOptions(intent="x"))
    source = InMemorySource(values_by_address(uri))
    assert merge(uri, source, how=WriteOptions(intent="x")).version == first.version
    assert source.task_count == 0


def test_a_table_without_rows_gets_the_columns(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    Table.create(uri, ROWS.schema, durable=False)
    empty = pa.table({"_rowaddr": pa.array([], pa.int64()), "score": pa.array([], pa.int64())})
    assert merge(uri, empty).schema.names == ["id", "x", "score"]


# Columns that exist


def create_scored_table(directory: Path) -> str:
    uri = create_table(directory, stable=True)
    Table.open(uri, durable=False).add_columns({"score": "id"})
    return uri


def replace_values(uri: str, source: InMemorySource, on: object) -> Table:
    return merge(uri, source, on, replace=True)


def scores_of(uri: str, on: str, ids: range) -> pa.Table:
    rows = Table.open(uri).to_table(columns=["id", "_rowaddr"])
    rows = rows.filter(pc.is_in(rows["id"], pa.array(ids, pa.int64())))
    rows = rows.append_column("score", pc.multiply(rows["id"], -1)).append_column("fresh", rows["id"])
    return rows.select([on, "score", "fresh"]).take(np.random.default_rng(1).permutation(rows.num_rows))


@pytest.mark.parametrize("on", ["_rowaddr", "id"])
@pytest.mark.parametrize("columns", [["score"], ["score", "fresh"]], ids=["replaced", "replaced and added"])
def test_rows_with_a_match_get_new_values(tmp_path: Path, on: str, columns: list[str]) -> None:
    uri = create_scored_table(tmp_path / "t")
    before = Table.open(uri)
    ids = range(30, 56, 3)
    table = replace_values(uri, InMemorySource(scores_of(uri, on, ids).select([on, *columns])), on)
    rows = table.to_table()
    numbers = rows["id"].to_pylist()
    assert rows["score"].to_pylist() == [-n if n in ids else n for n in numbers]
    assert lance.dataset(uri).to_table() == rows
    assert Table.open(uri).fsck().is_sound
    if columns == ["score"]:
        assert sorted(table.changes(before.version)["id"].to_pylist()) == [n for n in numbers if n in ids]
        pairs = zip(before.fragments, table.fragments, strict=True)
        assert [one.id for one, other in pairs if one.files != other.files] == [3, 4, 5]
    else:
        assert rows["fresh"].to_pylist() == [n if n in ids else None for n in numbers]


def test_values_of_other_types_are_converted_or_refused(tmp_path: Path) -> None:
    uri = create_scored_table(tmp_path / "t")
    small = pa.table({"id": [31], "score": pa.array([7], pa.int16())})
    assert replace_values(uri, InMemorySource(small), "id").to_table(filter="id = 31")["score"].to_pylist() == [7]
    with pytest.raises(SchemaMismatch, match="'score' is stored as int64, but the data has string"):
        replace_values(uri, InMemorySource(pa.table({"id": [31], "score": ["7"]})), "id")
    with pytest.raises(SchemaMismatch, match="keeps its type, which alter_column"):
        merge(uri, pa.table({"id": [31], "score": [7]}), "id", schema=pa.schema([("score", pa.string())]), replace=True)
    with pytest.raises(InvalidInput, match="missing='null' and replace=True contradict"):
        merge(uri, pa.table({"id": [31], "score": [7]}), "id", missing="null", replace=True)


REPLACING_CHANGES: list[tuple[Callable[[Table], object], bool, dict[int, int]]] = [
    (lambda table: table.delete("id = 31"), True, {}),
    (lambda table: table.append(ROWS.slice(0, 3)), True, {}),
    (lambda table: table.update({"x": "1.5"}, where="id < 5"), True, {}),  # rows of another fragment move
    (lambda table: table.create_index("score", "BTREE"), True, {}),
    (lambda table: table.add_columns({"score": "5"}, replace=True, where="id = 38"), True, {38: 5}),
    (lambda table: table.update({"x": "1.5"}, where="id = 34"), False, {}),
    (lambda table: table.compact(), False, {}),
]


@pytest.mark.parametrize("on", ["_rowaddr", "id"])
@pytest.mark.parametrize(("change", "keeps_addresses", "values_of_others"), REPLACING_CHANGES)
def test_concurrent_changes_of_a_replacement(
    tmp_path: Path, on: str, change: Callable[[Table], object], keeps_addresses: bool, values_of_others: dict[int, int]
) -> None:
    uri = create_scored_table(tmp_path / "t")
    data = scores_of(uri, on, range(30, 36)).select([on, "score"])
    source = InMemorySource(data, concurrent_change=change_of(uri, change))
    if on == "_rowaddr" and not keeps_addresses:
        with pytest.raises(IncompatibleConflict, match="moved to other addresses"):
            replace_values(uri, source, on)
        return
    table = replace_values(uri, source, on)
    rows = table.to_table(["id", "score"]).to_pylist()
    expected = {n: -n if 30 <= n < 36 else n for n in range(100)} | values_of_others
    appended = len(rows) - table.count_rows("score is not null")  # rows of the append have no score
    assert [row["score"] for row in rows] == [expected[row["id"]] for row in rows[: len(rows) - appended]] + [
        None
    ] * appended
    assert lance.dataset(uri).to_table(["id", "score"]).to_pylist() == rows
    found = lance.dataset(uri).to_table(columns=["id"], filter="score = -33")["id"].to_pylist()
    assert (
        found
        == table.to_table(["id"], filter="score = -33")["id"].to_pylist()
        == [33] * (33 in {r["id"] for r in rows})
    )
    assert table.fsck().is_sound
