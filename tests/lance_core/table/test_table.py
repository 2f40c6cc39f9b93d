"""Table: its operations as users call them, and the errors for requests that cannot be met."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import (
    AlreadyExists,
    Committed,
    IncompatibleConflict,
    InvalidInput,
    LanceError,
    NotFound,
    SchemaMismatch,
    Table,
    Unsupported,
)
from lance_core.operations import Append, Overwrite, TableSchema
from tests.lance_core.storage.syscall_recorder import SyscallRecorder

ROOT = Path(__file__).parents[3]


def rows(*values: int) -> pa.Table:
    cities = [f"c{value}" for value in values]
    return pa.table({"id": pa.array(values, pa.int64()), "city": pa.array(cities, pa.string())})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "orders")


def ids(table: Table) -> list[int]:
    actual = table.to_table(["id"])["id"].to_pylist()
    assert isinstance(actual, list)
    return actual


def test_the_life_of_a_table(uri: str) -> None:
    table = Table.create(uri, rows(1, 2), config={"team": "blue"})
    appended = table.append(rows(3), properties={"run": "7"})
    replaced = appended.table.overwrite(rows(9).select(["id"]))
    assert isinstance(appended, Committed)
    assert (appended.version, appended.operation, appended.rows_added, appended.rows_removed) == (2, "Append", 1, 0)
    assert (replaced.version, replaced.operation, replaced.rows_added, replaced.rows_removed) == (3, "Overwrite", 1, 3)
    assert (appended.files, appended.attempts, appended.rebased_over, appended.already_committed) == (1, 1, (), False)
    assert appended.bytes == sum(fragment.file_bytes for fragment in appended.table.fragments[1:])
    assert (ids(table), ids(appended.table), ids(replaced.table)) == ([1, 2], [1, 2, 3], [9])
    assert (table.version, table.refresh().version, table.at(2).count_rows()) == (1, 3, 3)
    assert replaced.table.schema.names == ["id"]
    assert replaced.table.config["team"] == "blue"
    assert replaced.table.id == table.id == Table.open(uri, version=2).id
    assert repr(table) == f"Table({uri!r}, version=1, rows={table.count_rows()})"
    assert table.uri == uri
    assert abs(table.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_history_lists_operations(uri: str) -> None:
    Table.create(uri, rows(1, 2)).append(rows(3), properties={"run": "7"}).table.overwrite(rows(4))
    actual = [
        (v.version, v.operation, v.read_version, v.rows, v.rows_added, v.rows_removed)
        for v in Table.open(uri).versions()
    ]
    assert actual == [(1, "Overwrite", 0, 2, 2, 0), (2, "Append", 1, 3, 1, 0), (3, "Overwrite", 2, 1, 1, 3)]
    assert Table.open(uri).versions()[1].properties == {"run": "7"}
    transaction = Table.open(uri).transaction(2)
    assert transaction is not None
    assert (transaction.operation.name, transaction.properties) == ("Append", {"run": "7"})
    assert transaction.uuid == Table.open(uri).versions()[1].uuid


def test_a_history_with_a_gap_has_unknown_values(uri: str) -> None:
    Table.create(uri, rows(1)).append(rows(2)).table.overwrite(rows(3))
    (Path(uri) / Table.open(uri, version=2).manifest.path).unlink()
    first, last = Table.open(uri).versions()
    assert (first.version, first.rows_added) == (1, 1)
    assert (last.version, last.rows, last.rows_added, last.rows_removed) == (3, 1, None, None)
    with pytest.raises(NotFound, match="has no version 2; it has 1, 3"):
        Table.open(uri, version=2)


def test_rows_are_accepted_in_many_forms(uri: str) -> None:
    table = Table.create(uri, rows(1).schema)
    one = rows(1).to_batches()[0]
    forms = [
        rows(1),
        one,
        pa.RecordBatchReader.from_batches(one.schema, [one]),
        [one],
        iter([one]),
        (batch for batch in [one, one]),
    ]
    for form in forms:
        table = table.append(form).table
    assert table.count_rows() == 7


@pytest.mark.parametrize("form", [None, "rows", b"rows", [1, 2], 7])
def test_other_forms_are_rejected(form: object, uri: str) -> None:
    table = Table.create(uri, rows(1))
    with pytest.raises(InvalidInput, match=r"rows must be .*a list of dicts.*, not "):
        table.append(form)


def test_no_rows_create_no_version(uri: str) -> None:
    table = Table.create(uri, rows(1))
    committed = table.append(rows())
    assert (committed.version, committed.attempts, committed.rows_added) == (1, 0, 0)
    assert len(table.versions()) == 1


def test_an_empty_table_is_a_table(uri: str) -> None:
    table = Table.create(uri, rows().schema)
    assert (table.version, table.count_rows(), len(table.fragments)) == (1, 0, 0)
    assert table.to_table().schema.equals(rows().schema)
    assert ids(table.append(rows(1)).table) == [1]


def test_files_have_the_requested_size(uri: str) -> None:
    table = Table.create(uri, rows(*range(10)), max_rows_per_file=4)
    assert [fragment.physical_rows for fragment in table.fragments] == [4, 4, 2]
    committed = table.append(rows(*range(10)), max_rows_per_file=5)
    assert committed.files == 2
    with pytest.raises(InvalidInput, match="must both be positive"):
        table.append(rows(1), max_rows_per_file=0)


def test_two_handles_append_concurrently(uri: str) -> None:
    first = Table.create(uri, rows(1))
    second = Table.open(uri)
    first.append(rows(2))
    committed = second.append(rows(3))
    assert (committed.version, committed.rebased_over, committed.attempts) == (3, (2,), 1)
    assert ids(committed.table) == [1, 2, 3]


def test_an_append_conflicts_with_a_concurrent_overwrite(uri: str) -> None:
    table = Table.create(uri, rows(1))
    Table.open(uri).overwrite(rows(2))
    with pytest.raises(
        IncompatibleConflict,
        match=r"orders: this Append, planned on version 1, conflicts with the Overwrite of version 2",
    ):
        table.append(rows(3))


def test_committing_a_file_of_another_writer(uri: str) -> None:
    table = Table.create(uri, rows(1))
    other = Table.create(uri + "-other", rows(5, 6))
    (part,) = other.fragments
    name = part.files[0].path
    (Path(uri + "-other") / "data" / name).rename(Path(uri) / "data" / name)
    committed = table.commit(Append((part,)), properties={"by": "hand"})
    assert (committed.version, ids(committed.table)) == (2, [1, 5, 6])
    empty = table.commit(Overwrite((), TableSchema.from_arrow(rows().schema)), read_version=1)
    assert (empty.version, empty.table.count_rows(), empty.rows_removed) == (3, 0, 3)
    with pytest.raises(InvalidInput, match="at least one attempt"):
        table.commit(Append((part,)), retries=0)


class TestErrors:
    """Errors for invalid input: what happened, where, and what to do."""

    def test_a_missing_table(self, uri: str) -> None:
        assert not Table.exists(uri)
        with pytest.raises(NotFound, match=f"there is no Lance table at {uri}; create one, or check the path"):
            Table.open(uri)
        with pytest.raises(NotFound, match="there is no Lance table"):
            Table.open(uri, version=3)
        Path(uri, "data").mkdir(parents=True)
        assert not Table.exists(uri)

    def test_a_file_instead_of_a_table(self, uri: str) -> None:
        Path(uri).write_text("id,city")
        for load in (Table.open, Table.exists, lambda uri: Table.create(uri, rows(1))):
            with pytest.raises(InvalidInput, match=r"orders is a file; a table is a directory"):
                load(uri)

    def test_an_existing_table(self, uri: str) -> None:
        Table.create(uri, rows(1))
        with pytest.raises(AlreadyExists, match="open it or overwrite it"):
            Table.create(uri, rows(1))

    def test_an_unknown_scheme(self) -> None:
        with pytest.raises(InvalidInput, match="unknown scheme 'gopher' in gopher://host/t: a table lives at a local"):
            Table.open("gopher://host/t")

    def test_a_missing_version(self, uri: str) -> None:
        table = Table.create(uri, rows(1)).append(rows(2)).table
        with pytest.raises(NotFound, match="has no version 7; it has 1-2"):
            table.at(7)
        for number in (0, -1):
            with pytest.raises(InvalidInput, match=f"there is no version {number}"):
                table.at(number)

    def test_another_schema(self, uri: str) -> None:
        table = Table.create(uri, rows(1))
        with pytest.raises(SchemaMismatch) as caught:
            table.append(pa.table({"id": ["x"], "city": ["y"]}))
        error = caught.value
        assert str(error) == f"{uri}: column 'id' is stored as int64, but the data has string; cast it before writing"
        assert (error.column, error.expected, error.got) == ("id", "int64", "string")
        assert isinstance(error, ValueError | LanceError)

    def test_a_type_that_cannot_be_stored(self, uri: str) -> None:
        with pytest.raises(InvalidInput, match=r"field 'when' has the Arrow type month_day_nano_interval"):
            Table.create(uri, pa.schema([("id", pa.int64()), ("when", pa.month_day_nano_interval())]))
        assert not Table.exists(uri)

    @pytest.mark.parametrize("version", ["", "2", "newest", "9.9", "legacy", "2.4"])
    def test_a_storage_version_that_is_not_written(self, version: str, uri: str) -> None:
        with pytest.raises((InvalidInput, Unsupported), match="storage version"):
            Table.create(uri, rows(1), storage_version=version)
        assert not Table.exists(uri)


def test_stable_names_the_current_storage_version(uri: str) -> None:
    assert str(Table.create(uri, rows(1), storage_version="stable").manifest.storage_version) == "2.2"


def test_a_schema_of_another_table_is_kept_on_overwrite(uri: str) -> None:
    table = Table.create(uri, rows(1), storage_version="2.0")
    after = table.overwrite(pa.table({"z": [1.5]}, metadata={"made": "by us"})).table
    assert str(after.manifest.storage_version) == "2.0"
    assert after.schema.metadata == {b"made": b"by us"}


def test_the_public_names_are_sorted_and_exist() -> None:
    names = lance_core.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(lance_core, name) for name in names)


def test_examples_in_the_code_run() -> None:
    """The examples run in a separate process, since one may leave a table behind."""
    program = (
        "import doctest, importlib, pkgutil, lance_core\n"
        "tried, need_torch = 0, {'lance_core.datafiles.tensors', 'lance_core.table.torch_datasets'}\n"
        "for found in pkgutil.walk_packages(lance_core.__path__, 'lance_core.'):\n"
        "    if '_pb' not in found.name and found.name not in need_torch:\n"
        "        module = importlib.import_module(found.name)\n"
        "        if found.name.startswith('lance_core.table.'):  # test_method_examples.py runs those of the methods\n"
        "            examples = [each for each in doctest.DocTestFinder().find(module) if each.name.count('.') < 4]\n"
        "            results = [doctest.DocTestRunner().run(each) for each in examples]\n"
        "            result = doctest.TestResults(*map(sum, zip(*results)))\n"
        "        else:\n"
        "            result = doctest.testmod(module)\n"
        "        assert not result.failed, found.name\n"
        "        tried += result.attempted\n"
        "print(tried)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 8


def test_an_acknowledged_append_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data, the transaction and the manifest under a temporary name are synced together, then the directories of
    the first two. The manifest gets its name after that.
    """
    table = Table.create(str(tmp_path / "t"), rows(1))
    recorder = SyscallRecorder(tmp_path / "t", monkeypatch)
    committed = table.append(rows(2))
    manifest = committed.table.manifest
    (data,) = committed.table.fragments[1].files
    assert recorder.calls == [
        ("replace", f"t/_transactions/* -> t/_transactions/{manifest.transaction_file}"),
        ("fsync", f"t/data/{data.path}"),
        ("fsync", f"t/_transactions/{manifest.transaction_file}"),
        ("fsync", "t/_versions/*"),
        ("fsync", "t/data"),
        ("fsync", "t/_transactions"),
        ("link", f"t/_versions/* -> t/{manifest.path}"),
        ("fsync", "t/_versions"),
        ("replace", "t/_versions/* -> t/_versions/latest_version_hint.json"),  # it may be lost
    ]


def test_nothing_is_synced_without_durability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SyscallRecorder(tmp_path / "t", monkeypatch)
    table = Table.create(str(tmp_path / "t"), rows(1), durable=False, intent="birth")
    table.append(rows(2)).table.append(rows(3), intent="load").table.overwrite(rows(4))
    Table.open(str(tmp_path / "t"), durable=False).append(rows(5))
    assert "fsync" not in {call for call, _ in recorder.calls}


def test_indices_are_listed(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": [1, 2, 3]}), durable=False)
    assert table.indices == ()
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    assert [(each.name, each.field_ids) for each in table.refresh().indices] == [("id_idx", (0,))]


@pytest.mark.parametrize("operation", [lambda t: t.add_columns({"b": 5}), lambda t: t.update({"id": 5})])
def test_values_are_given_as_sql(operation: Callable[[Table], object], tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": [1]}), durable=False)
    with pytest.raises(InvalidInput, match="is 5; write it as a SQL string: a number as '5'"):
        operation(table)


def test_intent_is_found_without_a_write(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = Table.create(uri, pa.table({"id": [1]}))
    assert table.find_intent("load") is None
    committed = table.append(pa.table({"id": [2, 3]}), intent="load")
    Table.open(uri).append(pa.table({"id": [4]}))
    found = table.find_intent("load")  # the table of any version
    assert found is not None
    assert (found.version, found.rows_added, found.already_committed) == (2, 2, True)
    assert found.table.version == committed.version
    with pytest.raises(InvalidInput, match="intent"):
        table.find_intent(7)  # type: ignore[arg-type]


def test_intent_whose_commit_was_not_recorded_is_found_in_the_history(tmp_path: Path) -> None:
    """The process was killed between the commit and the record of its intent."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, pa.table({"id": [1]}))
    table.append(pa.table({"id": [2, 3]}), intent="load")
    (path,) = (tmp_path / "t/_lance_assets/intents").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "landing": None}))
    found = table.find_intent("load")
    assert found is not None
    assert (found.version, found.rows_added) == (2, 2)
    assert json.loads(path.read_text())["landing"]["version"] == 2
    path.write_text(json.dumps({**json.loads(path.read_text()), "landing": None, "transaction_uuid": "other"}))
    assert table.find_intent("load") is None
