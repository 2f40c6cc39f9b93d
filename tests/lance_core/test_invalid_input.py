"""Invalid input: wrong arguments raise an error that names them and says what is valid, before anything is written;
invalid stored names raise one before anything is opened.

The first tables contain arguments of callers by operation; ARGUMENTS contains those that are invalid for any table. The
last table contains names in a manifest, a transaction or a reference that would lead out of the table.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_core import Corrupt, InvalidInput, LanceError, NotFound, SchemaMismatch, Table, Unsupported
from lance_core.datafiles.conform import Conversion
from lance_core.datafiles.fragment_writer import FileLimits, write_fragments
from lance_core.format import manifest_file, naming
from lance_core.format._pb import table_pb2
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.field_ids import FIELD_ID_MAX_KEY
from lance_core.format.schema import TableSchema
from lance_core.operations import Append, MapUpdate, Merge, Overwrite, UpdateConfig
from lance_core.operations import Update as UpdateOperation
from tests.lance_core.in_memory_table import (
    NEW_TABLE,
    STORAGE_VERSION,
    FaultyStore,
    InMemoryTable,
    deterministic_runtime,
)

POINT = pa.struct([("x", pa.int8()), ("inner", pa.struct([("y", pa.string())]))])
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "city": ["Oslo", "Lima", None],
        "point": pa.array([{"x": 1, "inner": {"y": "a"}}] * 3, POINT),
    }
)
NO_UTF8 = "\ud800"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with two versions, a tag and a branch."""
    table = Table.create(tmp_path / "t", ROWS, durable=False).append(ROWS).table
    table.tags.create("release-1", 1)
    table.branches.create("dev/ann")
    return table


Call = Callable[[Table], object]

READING: list[tuple[Call, str]] = [
    (lambda t: t.to_table(["idd"]), "there is no column 'idd'; did you mean 'id'"),
    (lambda t: t.to_table(["ID"]), "there is no column 'ID'; did you mean 'id'"),
    (lambda t: t.to_table(["point.z"]), r"there is no column 'point\.z'; did you mean 'point\.x'"),
    (lambda t: t.to_table(["point.inner.yy"]), r"did you mean 'point\.inner\.y'"),
    (lambda t: t.to_table(["nothing-like-it"]), "available: id, city, point"),
    (lambda t: t.to_table(["id", "id"]), "names a column twice"),
    (lambda t: t.to_table("id"), "must be a list of names"),
    (lambda t: t.to_table([3]), "must be a list of names"),
    (lambda t: t.to_table(limit=-1), "must not be negative"),
    (lambda t: t.to_table(offset=-1), "must not be negative"),
    (lambda t: t.to_table(limit="1"), "must be integers"),  # type: ignore[arg-type]
    (lambda t: t.to_table(limit=1.5), "must be integers"),  # type: ignore[arg-type]
    (lambda t: t.to_table(offset=True), "must be integers"),
    (lambda t: list(t.to_batches(limit=-7)), "must not be negative"),
    (lambda t: t.take([-1]), "no live row with offset -1; it has 6 live rows"),
    (lambda t: t.take([6]), "no live row with offset 6"),
    (lambda t: t.take([2**40], by="row_id"), "no live row with row id"),
    (lambda t: t.take([1.5]), "must be a list of integers"),
    (lambda t: t.take(["a"]), "must be a list of integers"),
    (lambda t: t.take([0], by="key"), "one of 'offset', 'row_id', 'row_address'"),  # type: ignore[arg-type]
    (lambda t: t.take([0], ["idd"]), "did you mean 'id'"),
    (lambda t: t.blobs("id", [0]), "'id' is not a blob column"),
    (lambda t: t.explain("idd = 1"), "did you mean 'id'"),
    (lambda t: t.changes(1), "no stable row ids"),
]

SQL: list[tuple[Any, str]] = [
    ("idd = 1", "there is no column 'idd' at character 1; did you mean 'id'"),
    ("id = 1 AND citi = 'x'", "'citi' at character 12; did you mean 'city'"),
    ("id = = 1", "does not parse: .* Line: 1, Column: 6.* Supported are"),
    ("id >", "does not parse: .*EOF.* Supported are"),
    ("", "predicate is empty"),
    ("id + 1", "is of type int64, but a predicate must be true or false"),
    ("sum(id) > 1", "an aggregate cannot be evaluated row by row"),
    ("id IN (SELECT 1)", "a subquery cannot be evaluated row by row"),
    ("row_number() OVER () = 1", "cannot be evaluated row by row"),
    ("nosuch(id) = 1", "there is no function 'nosuch'"),
    ("id = 1; DROP TABLE x", "does not parse: .* Column: 7"),
    ("id = 'x'", "'x' is not a number, but the column holds int64"),
    ("city = 3", "3 is not a string, but the column holds string"),
    ("point = 1", "."),
    (5, 'write it as a SQL string, such as "price > 5", or as an expression of pyarrow'),
    (f"city = '{NO_UTF8}'", "."),
    ("(" * 3000 + "id = 1" + ")" * 3000, "nested too deeply"),
    (" OR ".join(["id = 1"] * 5000), "at most 2,000 are supported"),
]

VERSIONS: list[tuple[Call, type[LanceError], str]] = [
    (lambda t: Table.open(t.uri, version=9), NotFound, "has no version 9; it has 1-2"),
    (lambda t: t.at(2**63 + 5), NotFound, "it has 1-2"),
    (lambda t: t.at(0), InvalidInput, "versions count from 1"),
    (lambda t: t.at(-1), InvalidInput, "versions count from 1"),
    (lambda t: t.at("1"), InvalidInput, "a version must be an integer"),  # type: ignore[arg-type]
    (lambda t: t.at(1, tag="release-1"), InvalidInput, "pass only one of them"),
    (lambda t: t.at(tag="release-2"), NotFound, "has no tag 'release-2'; it has release-1"),
    (lambda t: Table.open(t.uri, branch="dev/bob"), NotFound, "has no branch 'dev/bob'; it has dev/ann"),
    (lambda t: t.at(timestamp=datetime(2020, 1, 1, tzinfo=UTC)), NotFound, "its oldest version, 1, was"),
    (lambda t: t.at(timestamp=datetime(2020, 1, 1)), InvalidInput, "zone"),  # noqa: DTZ001
    (lambda t: t.restore(9), NotFound, "has no version 9; it has 1-2"),
    (lambda t: t.restore(-3), InvalidInput, "versions count from 1"),
    (lambda t: t.transaction(9), NotFound, "it has 1-2"),
    (lambda t: t.tags.create("n", 99), NotFound, "has no version 99; it has 1-2"),
    (lambda t: t.tags.update("nope", 1), NotFound, "has no tag 'nope'; it has release-1"),
    (lambda t: t.tags.delete("nope"), NotFound, "has no tag 'nope'"),
    (lambda t: t.branches.delete("nope"), NotFound, "has no branch 'nope'; it has dev/ann"),
    (lambda t: t.commit(Append(()), read_version=9), NotFound, "it has 1-2"),
]

WRITING: list[tuple[Call, type[LanceError], str]] = [
    (lambda t: t.append(ROWS.set_column(0, "id", pa.array(["x"] * 3))), SchemaMismatch, "'id' is stored as int64"),
    (lambda t: t.append(pa.table({"zity": ["a"]})), SchemaMismatch, "has no column 'zity'"),
    (lambda t: t.append(5), InvalidInput, "rows must be a pyarrow Table"),
    (lambda t: t.append(ROWS, max_rows_per_file=0), InvalidInput, "must both be positive"),
    (lambda t: t.append(ROWS, intent=""), InvalidInput, "an intent is a text of 1 to"),
    (lambda t: t.append(ROWS, retries=0), InvalidInput, "at least one attempt"),
    (lambda t: t.append(ROWS, properties={"a": 1}), InvalidInput, "must map strings to strings"),  # type: ignore[dict-item]
    (lambda t: t.append(ROWS, properties={"a": NO_UTF8}), InvalidInput, "must map strings to strings"),
    (lambda t: t.update({"citi": "'x'"}), InvalidInput, "did you mean 'city'"),
    (lambda t: t.update({}), InvalidInput, "values= is empty"),
    (lambda t: t.update({"id": "'x'"}), InvalidInput, "Cannot cast"),
    (lambda t: t.update({"id": 5}), InvalidInput, "write it as a SQL string"),  # type: ignore[dict-item]
    (lambda t: t.update({"point.x": "1"}), InvalidInput, "point"),
    (lambda t: t.delete(None), InvalidInput, "write it as a SQL string"),
    (lambda t: t.upsert(ROWS, "idd"), InvalidInput, "did you mean 'id'"),
    (lambda t: t.upsert(ROWS, "id", matched="x"), InvalidInput, "must be one of update, delete, fail, ignore"),
    (lambda t: t.upsert(pa.concat_tables([ROWS, ROWS]), "id"), InvalidInput, "."),
    (lambda t: t.add_columns({"id": "1"}), InvalidInput, "has a column 'id' already"),
    (lambda t: t.add_columns({"n": "nosuch"}), InvalidInput, "there is no column 'nosuch'"),
    (lambda t: t.drop_columns(["idd"]), InvalidInput, "did you mean 'id'"),
    (lambda t: t.drop_columns(["id", "city", "point"]), InvalidInput, "a table needs at least one"),
    (lambda t: t.alter_column("idd", rename="x"), InvalidInput, "did you mean 'id'"),
    (lambda t: t.alter_column("city", type=pa.int64()), SchemaMismatch, "cannot become int64"),
    (lambda t: t.reorder_columns(["id"]), InvalidInput, "city"),
    (lambda t: t.set_config({"a": 5}), InvalidInput, "keys and values must be strings"),  # type: ignore[dict-item]
    (lambda t: t.set_field_metadata({"citi": {"a": "b"}}), InvalidInput, "did you mean 'city'"),
    (lambda t: t.compact(remap="x"), InvalidInput, "remap"),  # type: ignore[arg-type]
    (lambda t: t.overwrite(ROWS, stable_row_ids=True), InvalidInput, "cannot be turned on later. Create a new table"),
    (lambda t: Table.create(t.uri, ROWS, stable_row_ids=True), LanceError, "a table already exists at"),
    (lambda t: Table.create(t.uri + "2", ROWS, storage_version="0.1"), Unsupported, "choose one of 2.0, 2.1, 2.2"),
    (lambda t: Table.create(t.uri + "2", ROWS, storage_version="3"), InvalidInput, "such as '2.2'"),
    (lambda t: Table.create(t.uri + "2", ROWS, storage_version=None), InvalidInput, "a string"),  # type: ignore[arg-type]
]

# These values are invalid for any table. The signatures forbid their types, hence Any.
InvalidCall = Callable[[Any], object]
TABLE: Any = Table
NO_FLAGS: list[Any] = [0, 5, 1.0, []]
NUMBERS: list[tuple[InvalidCall, str]] = [
    (lambda t: t.tags.create("t", "1"), "a version must be an integer, not '1'"),
    (lambda t: t.tags.create("t", 1.0), "a version must be an integer, not 1.0"),
    (lambda t: t.tags.create("t", True), "a version must be an integer, not True"),
    (lambda t: t.tags.create("t", "1", branch="main"), "a version must be an integer"),
    (lambda t: t.tags.create("t", 0), "versions count from 1"),
    (lambda t: t.tags.update("release-1", "1"), "a version must be an integer"),
    (lambda t: t.branches.create("b", "1"), "a version must be an integer"),
    (lambda t: t.versions("1"), "since must be an integer, not '1'"),
    (lambda t: t.versions(None), "since must be an integer, not None"),
    (lambda t: t.versions(-1), "since=-1"),
    (lambda t: t.restore(None), "a version must be an integer"),
    (lambda t: t.publish("x"), "a version must be an integer"),
    (lambda t: t.changes("1"), "a version must be an integer"),
    (lambda t: t.append(ROWS, max_rows_per_file="x"), "max_rows_per_file must be an integer, not 'x'"),
    (lambda t: t.append(ROWS, max_bytes_per_file=1.5), "max_bytes_per_file must be an integer, not 1.5"),
    (lambda t: t.append(ROWS, retries="x"), "retries must be an integer, not 'x'"),
    (lambda t: t.compact(target_rows="x"), "target_rows must be an integer, not 'x'"),
    (lambda t: t.compact(target_rows=0), "target_rows=0: a fragment has at least one row"),
    (lambda t: t.cleanup(older_than=5), "older_than must be a datetime.timedelta"),
    (lambda t: t.cleanup(orphan_grace=5), "orphan_grace must be a datetime.timedelta"),
    *((lambda t, bad=bad: t.cleanup(keep=bad), "keep must be an integer, not .*") for bad in (None, "x", 1.5, True)),
    (lambda t: t.cleanup(keep=0), "keep=0: the newest version always stays"),
    (lambda t: t.cleanup(older_than=timedelta(-1)), "must not be negative"),
    (lambda t: t.take(pa.array([0, None])), "one of them is null"),
    (lambda t: t.take(pa.chunked_array([[0, None]])), "one of them is null"),
    (lambda t: t.take(pa.array(["a"])), "these are string"),
    (lambda t: t.take([0, None]), "must be a list of integers"),
    (lambda t: t.take([[0], [1, 2]]), "must be a list of integers"),
    (lambda t: t.take(None), "must be a list of integers"),
    (lambda t: t.at(timestamp="2020-01-01"), "timestamp must be a datetime.datetime"),
    (lambda t: TABLE.open(t.uri, timestamp="2020-01-01"), "timestamp must be a datetime.datetime"),
]
WORDS: list[tuple[InvalidCall, str]] = [
    *(
        (lambda t, bad=bad: t.tags.create(bad), "cannot name a tag: it has to be a string")
        for bad in (5, b"x", None, ["a"])
    ),
    (lambda t: t.tags.update(5), "cannot name a tag: it has to be a string"),
    (lambda t: t.tags.delete(5), "cannot name a tag: it has to be a string"),
    (lambda t: t.tags.create("t", metadata=5), "metadata must map strings to strings"),
    (lambda t: t.tags.create("t", metadata={"a": 5}), "metadata must map strings to strings"),
    (lambda t: t.tags.create("t", branch=5), "cannot name a branch: it has to be a string"),
    (lambda t: t.branches.create(5), "cannot name a branch: it has to be a string"),
    (lambda t: t.branches.create("b", tag=5), "cannot name a tag: it has to be a string"),
    (lambda t: t.branches.delete(5), "cannot name a branch: it has to be a string"),
    (lambda t: TABLE.open(t.uri, tag=5), "cannot name a tag: it has to be a string"),
    (lambda t: TABLE.open(t.uri, branch=b"x"), "cannot name a branch: it has to be a string"),
    (lambda t: t.alter_column("id", rename=5), "rename must be a string that UTF-8 can encode, not 5"),
    (lambda t: t.alter_column("id", rename=NO_UTF8), "rename must be a string that UTF-8 can encode, not .*"),
    (lambda t: t.alter_column(None, rename="x"), "name must be a string that UTF-8 can encode, not None"),
    (lambda t: t.alter_column("id", type="int"), "type must be a pyarrow type"),
    (lambda t: t.alter_column("id", nullable="no"), "nullable must be True or False, not 'no'"),
    (lambda t: t.fsck([]), r"versions must be one of all, head"),
    (lambda t: t.compact(remap=[]), r"remap must be one of now, reuse, none"),
    (lambda t: t.compact(materialize_deletions="no"), "materialize_deletions must be True or False, not 'no'"),
    (lambda t: t.cleanup(dry_run="no"), "dry_run must be True or False, not 'no'"),
    (lambda t: t.cleanup(force=None), "force must be True or False, not None"),
    (lambda t: t.take([0], by=[]), r"by=\[\]"),
    (lambda t: t.upsert(ROWS, "id", matched=[]), r"matched must be one of update"),
    (lambda t: t.upsert(ROWS, "id", matched=None), "matched must be one of update"),
    *(
        (lambda t, bad=bad: t.upsert(ROWS, "id", insert=bad), "insert must be True or False, not .*")
        for bad in ("no", None, 0)
    ),
    *((lambda t, bad=bad: t.upsert(ROWS, "id", delete_unmatched=bad), "delete_unmatched must be") for bad in NO_FLAGS),
    (lambda t: t.commit(None), "operation must be an operation of lance_core.operations, not a NoneType"),
    (lambda t: t.commit("append"), "not a str"),
    (lambda t: t.commit(Append(()), detached="no"), "detached must be True or False, not 'no'"),
    (lambda t: t.clone(5), "a string or a path, not int"),
    (lambda t: t.clone(t.uri + "2", shallow="no"), "shallow must be True or False, not 'no'"),
    (lambda t: t.overwrite(ROWS, stable_row_ids="no"), "stable_row_ids must be True or False, not 'no'"),
    (lambda t: TABLE.create(t.uri + "2", ROWS, stable_row_ids="no"), "stable_row_ids must be True or False"),
    (lambda t: TABLE.create(t.uri + "2", ROWS, durable="no"), "durable must be True or False"),
]
SEVERAL: list[tuple[InvalidCall, str]] = [
    *((lambda t, bad=bad: t.set_config(bad), "must map strings to strings") for bad in (None, "x", [("a", "b")])),
    *((lambda t, bad=bad: t.set_metadata(bad), "must map strings to strings") for bad in (None, "x", [("a", "b")])),
    *(
        (lambda t, bad=bad: t.set_schema_metadata(bad), "must map strings to strings")
        for bad in (None, "x", [("a", "b")])
    ),
    (lambda t: t.set_config({5: "a"}), "keys and values must be strings"),
    (lambda t: t.set_config({None: "a"}), "keys and values must be strings"),
    (lambda t: t.set_config({"a": NO_UTF8}), "keys and values must be strings"),
    (lambda t: t.set_config({"a": "b"}, replace="no"), "replace must be True or False, not 'no'"),
    (lambda t: t.set_field_metadata({"id": None}), "must map strings to strings"),
    (lambda t: t.set_field_metadata([("id", {})]), "columns must be a mapping, not list"),
    (
        lambda t: t.set_field_metadata({5: {"a": "b"}}),
        "a name in columns must be a string that UTF-8 can encode, not 5",
    ),
    *((lambda t, bad=bad: t.upsert(ROWS, bad), "on must be a list of names, not .*") for bad in (None, 5, {"id": 1})),
    (lambda t: t.upsert(ROWS, ["id", 5]), "a name in on must be a string that UTF-8 can encode, not 5"),
    *((lambda t, bad=bad: t.merge_columns(ROWS, bad), "on must be a list of names, not .*") for bad in (None, 5)),
    (lambda t: t.update([("city", "'x'")]), "values must be a mapping, not list"),
    (lambda t: t.update(None), "values must be a mapping, not NoneType"),
    (lambda t: t.update({5: "1"}), "a name in values must be a string that UTF-8 can encode, not 5"),
    (lambda t: t.add_columns(None), "columns must be a mapping of names to SQL, pyarrow fields"),
    (lambda t: t.add_columns(["n"]), "must be a mapping of names to SQL, pyarrow fields"),
    (lambda t: t.add_columns("n"), "must be a mapping of names to SQL, pyarrow fields"),
    (lambda t: t.add_columns(lambda rows: rows, read_columns="id"), "read_columns must be a list of names, not 'id'"),
    (lambda t: t.add_columns(lambda rows: rows, schema={"n": "int"}), "must be a pyarrow schema"),
    *((lambda t, bad=bad: t.drop_columns(bad), "columns must be a") for bad in ([1], None, 5, "id", {"id": 1})),
    *((lambda t, bad=bad: t.reorder_columns(bad), "columns must be a") for bad in (None, 5, "id", [1])),
    (lambda t: t.add_bases(5), "BasePath values, not int"),
    (lambda t: t.add_bases(["/x"]), "BasePath values, not str"),
    *(
        (lambda t, bad=bad: TABLE.open(t.uri, bases=bad), "bases must be a list of locations")
        for bad in ("/x", "/", b"/", 5)
    ),
    *((lambda t, bad=bad: TABLE.open(t.uri, bases=bad), "one of them is") for bad in ([5], [""], [None])),
    (lambda t: TABLE.check(t.uri, bases="/"), "bases must be a list of locations"),
    (lambda t: TABLE.open(t.uri, bases=None), "bases must be a list of locations"),
    (lambda t: TABLE.open(t.uri, storage_options=5), "storage_options must be a mapping, not int"),
    *(
        (lambda t, key=key: t.set_config({key: "x"}), f"the config key {key} .* callers cannot set it")
        for key in (TABLE_ID, FIELD_ID_MAX_KEY)
    ),
    *(
        (lambda t, key=key: t.set_config({key: None}), f"the config key {key} .* callers cannot set it")
        for key in (TABLE_ID, FIELD_ID_MAX_KEY)
    ),
    (lambda t: t.set_config({TABLE_ID: "x"}, replace=True), "identifies the table"),
    (lambda t: t.commit(UpdateConfig(config=MapUpdate({TABLE_ID: "x"}, False))), "identifies the table"),
    (lambda t: t.overwrite(ROWS, config={FIELD_ID_MAX_KEY: "9"}), "records the highest field id"),
]
ARGUMENTS = [*NUMBERS, *WORDS, *SEVERAL]

NO_TAGS = ("", ".a", "a.", "a..b", "..", "a/b", "a\\b", "x.lock", "a b", "a%2fb", "a\0b", NO_UTF8, "a" * 201)
NO_BRANCHES = (
    "",
    "main",
    "a//b",
    "/a",
    "a/",
    "a..b",
    "..",
    ".",
    "a/./b",
    "a\\b",
    "x.lock",
    "a b",
    "a%2Fb",
    "a\0b",
    "~a",
)
NO_BRANCHES_TO_CREATE = (*NO_BRANCHES, NO_UTF8, "a" * 201, "data/x", "_versions", "tree/y")


def sizes(table: Table) -> dict[Path, int]:
    """Return the sizes of all files but temporary ones: some values are rejected while they are written."""
    files = [path for path in Path(table.uri).parent.rglob("*") if path.is_file()]
    return {path: path.stat().st_size for path in files if not path.name.startswith(".tmp")}


def check_rejected(table: Table, call: Callable[[], object], error: type[LanceError], message: str) -> None:
    """Check that the call is rejected and that no file changes."""
    before = sizes(table)
    with pytest.raises(error, match=message) as refused:
        call()
    assert sizes(table) == before
    assert len(str(refused.value)) < 1200


@pytest.mark.parametrize(("call", "message"), READING)
def test_reading(call: Call, message: str, table: Table) -> None:
    check_rejected(table, lambda: call(table), InvalidInput, message)


@pytest.mark.parametrize(("sql", "message"), SQL, ids=[str(sql)[:30] for sql, _ in SQL])
def test_sql(sql: Any, message: str, table: Table) -> None:
    """Every operation with a condition rejects it."""
    for operation in (
        lambda: table.to_table(filter=sql),
        lambda: table.count_rows(sql),
        lambda: table.delete(sql),
        lambda: table.update({"city": "'x'"}, where=sql),
    ):
        check_rejected(table, operation, InvalidInput, message)


@pytest.mark.parametrize(("call", "error", "message"), VERSIONS)
def test_versions(call: Call, error: type[LanceError], message: str, table: Table) -> None:
    check_rejected(table, lambda: call(table), error, message)


@pytest.mark.parametrize(("call", "error", "message"), WRITING)
def test_writing(call: Call, error: type[LanceError], message: str, table: Table) -> None:
    check_rejected(table, lambda: call(table), error, message)


@pytest.mark.parametrize(("call", "message"), ARGUMENTS)
def test_arguments(call: InvalidCall, message: str, table: Table) -> None:
    check_rejected(table, lambda: call(table), InvalidInput, message)


@pytest.mark.parametrize("name", NO_TAGS)
def test_names_of_tags(name: str, table: Table) -> None:
    for call in (lambda: table.tags.create(name), lambda: table.at(tag=name), lambda: table.tags.delete(name)):
        check_rejected(table, call, InvalidInput, "cannot name a tag")


@pytest.mark.parametrize("name", NO_BRANCHES_TO_CREATE)
def test_names_of_branches(name: str, table: Table) -> None:
    check_rejected(table, lambda: table.branches.create(name), InvalidInput, "cannot name a branch")
    if name in NO_BRANCHES and name != "main":  # the other names are valid, or exist
        check_rejected(table, lambda: Table.open(table.uri, branch=name), InvalidInput, "cannot name a branch")


UPON_DETACHED: list[Call] = [
    lambda t: t.append(ROWS),
    lambda t: t.overwrite(ROWS),
    lambda t: t.delete("id = 1"),
    lambda t: t.update({"city": "'x'"}),
    lambda t: t.upsert(ROWS, "id"),
    lambda t: t.compact(),
    lambda t: t.restore(1),
    lambda t: t.set_config({"a": "b"}),
    lambda t: t.add_columns(pa.field("n", pa.int8())),
    lambda t: t.drop_columns(["id"]),
    lambda t: t.commit(Append(())),
    lambda t: t.branches.create("b"),
    lambda t: t.cleanup(),
]


@pytest.mark.parametrize("call", UPON_DETACHED)
def test_writes_on_a_detached_version(call: Call, table: Table) -> None:
    detached = table.commit(Append(()), detached=True).table
    check_rejected(table, lambda: call(detached), InvalidInput, "is detached and cannot be the base of a write")


# Stable row ids are assigned from the first version on


def test_fragments_with_row_ids_do_not_enable_row_ids(table: Table, tmp_path: Path) -> None:
    """The next writer would take the ids of one fragment for a guarantee about all of them."""
    source = Table.create(tmp_path / "ids", ROWS, stable_row_ids=True, durable=False)
    (fragment,) = source.fragments
    (file,) = fragment.files
    Path(table.uri, "data", file.path).write_bytes(Path(source.uri, "data", file.path).read_bytes())
    own = table.fragments[0]
    with_ids = own.with_lineage(row_ids=fragment.row_ids)
    rest = tuple(table.fragments)[1:]
    for operation in (
        Append((fragment.with_id(0),)),
        Overwrite((fragment.with_id(0),), table.manifest.schema),
        Merge((with_ids, *rest), table.manifest.schema, preserves_nullability=True),
        UpdateOperation(updated=(with_ids,)),
    ):
        with pytest.raises(InvalidInput, match=r"has stable row ids, but the table has none: .* Create"):
            table.commit(operation)
    assert table.refresh().version == table.version


def test_the_suggested_way_to_row_ids_works(table: Table, tmp_path: Path) -> None:
    again = Table.create(tmp_path / "again", table.to_batches(), stable_row_ids=True, durable=False)
    assert again.to_table() == table.to_table()
    assert again.manifest.has_stable_row_ids
    assert again.overwrite(ROWS, stable_row_ids=True).table.manifest.has_stable_row_ids
    with pytest.raises(InvalidInput, match="cannot be turned off"):
        again.overwrite(ROWS, stable_row_ids=False)


# Stored names that lead out of the table

TRICKS = (
    "../secret.lance",
    "..",
    "a/../../secret.lance",
    "/secret.lance",
    "%2e%2e/secret.lance",
    "..%2fsecret.lance",
    "..\\secret.lance",
    "C:\\secret.lance",
    "file:///secret.lance",
    "s3://bucket/secret.lance",
    "a\0b.lance",
    "@0/data/x.lance",
    "./x.lance",
    "a//x.lance",
    "a/",
    ".hidden",
    "~/secret.lance",
    "",
    " ",
    "x.lance\n",
)
Forged = Callable[[table_pb2.Manifest, str], None]
Use = Callable[[Table], object]


def _set_data_file(message: table_pb2.Manifest, name: str) -> None:
    message.fragments[0].files[0].path = name


def _set_transaction_file(message: table_pb2.Manifest, name: str) -> None:
    message.transaction_file = name
    message.ClearField("transaction_section")


def _set_row_id_file(message: table_pb2.Manifest, name: str) -> None:
    message.fragments[0].external_row_ids.path = name
    message.fragments[0].external_row_ids.size = 4


def _set_row_version_file(message: table_pb2.Manifest, name: str) -> None:
    message.fragments[0].external_created_at_versions.path = name
    message.fragments[0].external_created_at_versions.size = 4


STORED: dict[str, tuple[Forged, Use]] = {
    "data file, read": (_set_data_file, lambda t: t.to_table()),
    "data file, filtered": (_set_data_file, lambda t: t.count_rows("id = 1")),
    "data file, taken": (_set_data_file, lambda t: t.take([0])),
    "data file, updated": (_set_data_file, lambda t: t.update({"id": "id + 1"})),
    "data file, compacted": (_set_data_file, lambda t: t.compact()),
    "transaction file": (_set_transaction_file, lambda t: t.transaction()),
    "row ids": (_set_row_id_file, lambda t: t.to_table(with_row_id=True)),
    "row versions": (_set_row_version_file, lambda t: t.to_table(["_row_created_at_version"])),
}


def table_in_memory() -> tuple[FaultyStore, Table]:
    """Return a table in memory whose store records every read."""
    store = FaultyStore()
    world = InMemoryTable(store)
    schema = TableSchema.from_arrow(ROWS.schema)
    parts = write_fragments(
        world.location().codec,
        ROWS.to_batches(),
        schema=schema,
        version=STORAGE_VERSION,
        limits=FileLimits(2, 10**9),
        conversion=Conversion.EXACT,
        new_uuid=deterministic_runtime(7).new_uuid,
        what="t",
    )
    born = type(NEW_TABLE)(STORAGE_VERSION, stable_row_ids=True)
    created = world.write(Overwrite(parts, schema), base=born).snapshot
    return store, Table(created)


@pytest.mark.parametrize("name", TRICKS, ids=repr)
@pytest.mark.parametrize("where", STORED)
def test_a_stored_name_outside_its_directory_opens_nothing(where: str, name: str) -> None:
    forge, use = STORED[where]
    store, table = table_in_memory()
    path = table.manifest.path
    message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(store.read(path), path=path))
    forge(message, name)
    message.ClearField("transaction_section")
    store.inner.put(path, manifest_file.frame_manifest(None, None, message.SerializeToString()))
    if where == "transaction file" and not name:
        return  # an empty name means that there is none
    known = {info.path for directory in (naming.VERSIONS, *naming.DIRECTORIES) for info in store.inner.walk(directory)}
    store.calls.clear()
    with pytest.raises(Corrupt, match=r"(leaves|points outside) its directory|(lies|is) outside the table"):
        use(Table(InMemoryTable(store).at()))
    assert {requested for call, requested in store.calls if call in ("read", "head", "list")} <= known | {
        naming.VERSIONS
    }
    assert not [call for call in store.calls if call[0] in ("put", "create", "delete")]


@pytest.mark.parametrize("name", [*(trick for trick in TRICKS if trick != ".hidden"), NO_UTF8])
def test_a_reference_to_a_branch_with_such_a_name_opens_nothing(name: str, table: Table, tmp_path: Path) -> None:
    Table.create(tmp_path / "secret.lance", ROWS, durable=False)
    tag = Path(table.uri, "_refs/tags/release-1.json")
    branch = Path(table.uri, "_refs/branches/dev%2Fann.json")
    reported, parent = json.loads(tag.read_text()), json.loads(branch.read_text())
    tag.write_text(json.dumps({**reported, "branch": name}))
    with pytest.raises(Corrupt, match="branch"):
        table.at(tag="release-1")
    branch.write_text(json.dumps({**parent, "parentBranch": name}))
    with pytest.raises(Corrupt, match="parent"):
        table.branches.list()
