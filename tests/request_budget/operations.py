"""Operations whose requests are counted: each as users write it with this library and with pylance.

An operation is a function that prepares a call on one table, which is not counted, and returns the call, which is.
Most operations open the table first, because a job does. Both libraries meet copies of the same table; each uses the
index that it built itself. Start at `OPERATIONS`.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.query import PhraseQuery

from lance_core import Table, find_tables
from lance_core.operations import Append, DataFile, Fragment
from lance_core.storage.object_store import forget_verified_buckets
from lance_core.tasks.rows.write import FileLimits, PlannedWrite, WriteTask, begin_append
from lance_core.text import Phrase
from tests.request_budget import tables
from tests.request_budget.tables import TableKind

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Table in an object store, and the storage options that reach it."""

    uri: str
    options: Mapping[str, str]

    def ours(self) -> Table:
        return Table.open(self.uri, storage_options=self.options)

    def pylance(self) -> lance.LanceDataset:
        return lance.dataset(self.uri, storage_options=dict(self.options))


Prepare = Callable[[TableAddress], Call | AbstractContextManager[Call]]


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    table: TableKind
    ours: Prepare
    pylance: Prepare | None = None
    """`None` if pylance has no such operation."""
    has_intent: bool = False
    """True if the operation writes records of intents, which pylance does not have, and may need more requests."""
    variation: int = 0
    """Requests more or fewer from run to run, where concurrent checks end with the first that decides."""
    is_long: bool = False
    """True if the operation takes more than a second, so that `make test` leaves it out."""


def _ours(action: Callable[[Table], object]) -> Prepare:
    """Open the table and act on it."""
    return lambda at: lambda: action(at.ours())


def _pylance(action: Callable[[Any], object]) -> Prepare:
    return lambda at: lambda: action(at.pylance())


def _ours_opened(action: Callable[[Table], object]) -> Prepare:
    """Act on a table that is open."""
    return lambda at: partial(action, at.ours())


def _pylance_opened(action: Callable[[Any], object]) -> Prepare:
    return lambda at: partial(action, at.pylance())


def _ours_again(action: Callable[[Table], object]) -> Prepare:
    """Act a second time on a table that is open."""

    def prepare(at: TableAddress) -> Call:
        table = at.ours()
        action(table)
        return partial(action, table)

    return prepare


def _pylance_again(action: Callable[[Any], object]) -> Prepare:
    def prepare(at: TableAddress) -> Call:
        dataset = at.pylance()
        action(dataset)
        return partial(action, dataset)

    return prepare


def _first_append(at: TableAddress) -> Call:
    forget_verified_buckets()
    return lambda: at.ours().append(tables.rows(10))


def _append_again(at: TableAddress) -> Call:
    at.ours().append(tables.rows(10), intent="nightly")
    return lambda: at.ours().append(tables.rows(10), intent="nightly")


def _upsert_by_pylance(dataset: Any) -> object:
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    return merge.execute(tables.UPSERTED)


def _delete_by_pylance(condition: str) -> Prepare:
    return _pylance(lambda dataset: dataset.delete(condition))


def _commit_new_files(kind: TableKind) -> Prepare:
    """Commit files that another process has written, at once."""

    def prepare(at: TableAddress) -> Call:
        table = at.ours()
        (file,) = table.fragments[0].files
        fragments = [
            Fragment.of(
                files=[
                    DataFile.of(
                        path=tables.name_of_new_file(number),
                        field_ids=file.field_ids,
                        column_indices=file.column_indices,
                        version=file.version,
                        size=file.size or 0,
                    )
                ],
                physical_rows=table.fragments[0].physical_rows,
            )
            for number in range(tables.NEW_FILES[kind])
        ]
        return lambda: table.commit(Append(tuple(fragments)))

    return prepare


def _commit_new_files_by_pylance(kind: TableKind) -> Prepare:
    def prepare(at: TableAddress) -> Call:
        dataset = at.pylance()
        described = dataset.get_fragments()[0].metadata.to_json()
        fragments = []
        for number in range(tables.NEW_FILES[kind]):
            described["files"][0]["path"] = tables.name_of_new_file(number)
            fragments.append(lance.FragmentMetadata.from_json(json.dumps(described)))
        operation = lance.LanceOperation.Append(fragments)
        return lambda: lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    return prepare


def _finish_write(at: TableAddress) -> Call:
    """Write files as tasks do, and let the driver commit the results."""
    limits = FileLimits(1_000, 2**20)
    schema = tables.rows(1).schema
    planned = begin_append(at.uri, schema, create=False, intent=None, limits=limits, storage_options=at.options)
    assert isinstance(planned, PlannedWrite)
    results = pa.Table.from_batches(
        [
            batch
            for task in range(tables.TASKS)
            for batch in WriteTask(planned.plan)(iter(tables.rows(10, task * 10).to_batches()))
        ]
    )
    return lambda: planned.finish(results)


def _idle_tick(kind: TableKind) -> Prepare:
    """Evaluate a sensor of all tables of the kind, which has recorded their versions before."""

    def prepare(at: TableAddress) -> AbstractContextManager[Call]:
        from tests.request_budget.sensor_ticks import idle_tick

        names = tables.LAKES.get(kind, ())
        return idle_tick([f"{at.uri}/{name}" for name in names] or [at.uri], at.options)

    return prepare


def _find_tables(at: TableAddress) -> Call:
    return lambda: find_tables(at.uri, storage_options=at.options)


_LOOKUP, _OTHER_LOOKUP = "key = 4001", "key = 4003"
_QUERY = np.full(tables.DIMENSIONS, 0.5, np.float32)


def _search_by_pylance(dataset: Any) -> object:
    return dataset.to_table(nearest={"column": "vector", "q": _QUERY, "k": 10, "nprobes": 4, "refine_factor": 5})


OPERATIONS: tuple[Operation, ...] = (
    Operation("open, 100 versions", TableKind.VERSIONS, _ours(lambda t: t), _pylance(lambda d: d)),
    Operation(
        "refresh a table that has not changed",
        TableKind.VERSIONS,
        _ours_opened(lambda t: t.refresh()),
        _pylance_opened(lambda d: d.checkout_latest()),
    ),
    Operation(
        "open version 50", TableKind.VERSIONS, _ours(lambda t: t.at(50)), _pylance(lambda d: d.checkout_version(50))
    ),
    Operation(
        "open by the timestamp of version 50 of 100",
        TableKind.VERSIONS,
        _ours(lambda t: t.at(timestamp=tables.time_of(50))),
        lambda at: (
            lambda: lance.dataset(
                at.uri, asof=tables.time_of(50).astimezone().replace(tzinfo=None), storage_options=dict(at.options)
            )
        ),
    ),
    Operation(
        "history of 10 versions",
        TableKind.FEW_VERSIONS,
        _ours(lambda t: t.versions()),
        _pylance(lambda d: d.versions()),
    ),
    Operation(
        "history of 100 versions",
        TableKind.VERSIONS,
        _ours(lambda t: t.versions()),
        _pylance(lambda d: d.versions()),
        is_long=True,
    ),
    Operation(
        "create a table",
        TableKind.NONE,
        lambda at: lambda: Table.create(at.uri, tables.rows(100), storage_options=at.options),
        lambda at: lambda: lance.write_dataset(tables.rows(100), at.uri, storage_options=dict(at.options)),
    ),
    Operation(
        "append",
        TableKind.VERSIONS,
        _ours(lambda t: t.append(tables.rows(10))),
        lambda at: (
            lambda: lance.write_dataset(tables.rows(10), at.uri, mode="append", storage_options=dict(at.options))
        ),
    ),
    Operation("first append of a process", TableKind.VERSIONS, _first_append),
    Operation(
        "append with an intent",
        TableKind.VERSIONS,
        _ours(lambda t: t.append(tables.rows(10), intent="nightly")),
        lambda at: (
            lambda: lance.write_dataset(tables.rows(10), at.uri, mode="append", storage_options=dict(at.options))
        ),
        has_intent=True,
    ),
    Operation("append with an intent that was committed", TableKind.VERSIONS, _append_again, has_intent=True),
    Operation(
        "commit 100 new files, table open",
        TableKind.NEW_FILES,
        _commit_new_files(TableKind.NEW_FILES),
        _commit_new_files_by_pylance(TableKind.NEW_FILES),
    ),
    Operation(f"commit the results of {tables.TASKS} tasks", TableKind.FEW_VERSIONS, _finish_write),
    Operation(
        "overwrite",
        TableKind.VERSIONS,
        _ours(lambda t: t.overwrite(tables.rows(10))),
        lambda at: (
            lambda: lance.write_dataset(tables.rows(10), at.uri, mode="overwrite", storage_options=dict(at.options))
        ),
    ),
    Operation(
        "scan 100 fragments",
        TableKind.VERSIONS,
        _ours(lambda t: t.to_table()),
        _pylance(lambda d: d.to_table()),
        is_long=True,
    ),
    Operation(
        "scan 10 fragments", TableKind.FRAGMENTS, _ours(lambda t: t.to_table()), _pylance(lambda d: d.to_table())
    ),
    Operation(
        "scan 10 fragments again",
        TableKind.FRAGMENTS,
        _ours_again(lambda t: t.to_table()),
        _pylance_again(lambda d: d.to_table()),
    ),
    Operation(
        "2 of 5 columns, 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.to_table(columns=["id", "name"])),
        _pylance(lambda d: d.to_table(columns=["id", "name"])),
    ),
    Operation(
        "count with a filter, 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.count_rows("value > 0.5")),
        _pylance(lambda d: d.count_rows("value > 0.5")),
    ),
    Operation(
        "filter of 1 %, all columns, 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.to_table(filter="id % 100 = 7")),
        _pylance(lambda d: d.to_table(filter="id % 100 = 7")),
    ),
    Operation(
        "take 10 rows of 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.take(tables.TAKEN)),
        _pylance(lambda d: d.take(tables.TAKEN)),
    ),
    Operation(
        "delete 1 % of the rows of 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.delete("id % 100 = 7")),
        _delete_by_pylance("id % 100 = 7"),
    ),
    Operation(
        "delete 1 row of 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.delete("id = 42")),
        _delete_by_pylance("id = 42"),
    ),
    Operation(
        "update 1 % of the rows of 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.update({"name": "'new'"}, where="id % 100 = 7")),
        _pylance(lambda d: d.update({"name": "'new'"}, where="id % 100 = 7")),
    ),
    Operation(
        "upsert 100 rows, half of them new",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.upsert(tables.UPSERTED, on="id")),
        _pylance(_upsert_by_pylance),
    ),
    Operation(
        "merge a column by key",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.merge_columns(tables.MERGED, on="id")),
        _pylance(lambda d: d.merge(tables.MERGED, "id")),
    ),
    Operation(
        "add a computed column",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.add_columns({"double": "id * 2"})),
        _pylance(lambda d: d.add_columns({"double": "id * 2"})),
    ),
    Operation(
        "drop a column",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.drop_columns(["value"])),
        _pylance(lambda d: d.drop_columns(["value"])),
    ),
    Operation(
        "set a value of the config",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.set_config({"owner": "sales"})),
        _pylance(lambda d: d.update_config({"owner": "sales"})),
    ),
    Operation(
        "create a tag",
        TableKind.VERSIONS,
        _ours(lambda t: t.tags.create("stable", 50)),
        _pylance(lambda d: d.tags.create("stable", 50)),
    ),
    Operation(
        "create a branch",
        TableKind.VERSIONS,
        _ours(lambda t: t.branches.create("trial")),
        _pylance(lambda d: d.create_branch("trial")),
    ),
    Operation(
        "restore version 50",
        TableKind.VERSIONS,
        _ours(lambda t: t.restore(50)),
        _pylance(lambda d: d.checkout_version(50).restore()),
    ),
    Operation(
        "lookup by a b-tree, cold",
        TableKind.KEYED,
        _ours(lambda t: t.to_table(filter=_LOOKUP)),
        _pylance(lambda d: d.to_table(filter=_LOOKUP)),
    ),
    Operation(
        "lookup by a b-tree, warm",
        TableKind.KEYED,
        lambda at: _after(at.ours(), lambda t: t.to_table(filter=_OTHER_LOOKUP), lambda t: t.to_table(filter=_LOOKUP)),
        lambda at: _after(
            at.pylance(), lambda d: d.to_table(filter=_OTHER_LOOKUP), lambda d: d.to_table(filter=_LOOKUP)
        ),
    ),
    Operation(
        "create a b-tree",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.create_index("key", "BTREE")),
        _pylance(lambda d: d.create_scalar_index("key", "BTREE")),
    ),
    Operation(
        "vector search, cold",
        TableKind.VECTORS,
        _ours(lambda t: t.search("vector", _QUERY, 10, nprobes=4, refine=5)),
        _pylance(_search_by_pylance),
    ),
    Operation(
        "text search, cold",
        TableKind.TEXTS,
        _ours(lambda t: t.text_search("word7", 10, columns=["body"])),
        _pylance(lambda d: d.to_table(full_text_query="word7", limit=10)),
    ),
    Operation(
        "text search of three words, cold",
        TableKind.TEXTS,
        _ours(lambda t: t.text_search("word7 word8 word9", 10, columns=["body"])),
        _pylance(lambda d: d.to_table(full_text_query="word7 word8 word9", limit=10)),
    ),
    Operation(
        "text search of a phrase, cold",
        TableKind.TEXTS,
        _ours(lambda t: t.text_search(Phrase("word7 word8", "body"), 10)),
        _pylance(lambda d: d.to_table(full_text_query=PhraseQuery("word7 word8", "body"), limit=10)),
    ),
    Operation(
        "text search with a filter, warm",
        TableKind.TEXTS,
        _ours_again(lambda t: t.text_search("word7", 10, columns=["body"], filter="id > 500")),
        _pylance_again(lambda d: d.to_table(full_text_query="word7", limit=10, filter="id > 500")),
    ),
    Operation(
        "compact 10 fragments",
        TableKind.FRAGMENTS,
        _ours(lambda t: t.compact()),
        _pylance(lambda d: d.optimize.compact_files()),
    ),
    Operation(
        "compact 100 fragments",
        TableKind.VERSIONS,
        _ours(lambda t: t.compact()),
        _pylance(lambda d: d.optimize.compact_files()),
        is_long=True,
    ),
    Operation(
        "cleanup of 9 versions",
        TableKind.FEW_VERSIONS,
        _ours(lambda t: t.cleanup(older_than=timedelta(hours=1), keep=1)),
        _pylance(lambda d: d.cleanup_old_versions(timedelta(hours=1))),
        variation=5,
    ),
    Operation(
        "cleanup of 99 versions",
        TableKind.VERSIONS,
        _ours(lambda t: t.cleanup(older_than=timedelta(hours=1), keep=1)),
        _pylance(lambda d: d.cleanup_old_versions(timedelta(hours=1))),
        is_long=True,
        variation=5,
    ),
    Operation(
        "cleanup with nothing to remove, 10 versions",
        TableKind.FEW_VERSIONS,
        _ours(lambda t: t.cleanup(older_than=timedelta(days=365), keep=1)),
        _pylance(lambda d: d.cleanup_old_versions(timedelta(days=365))),
    ),
    Operation(
        "cleanup with nothing to remove, 100 versions",
        TableKind.VERSIONS,
        _ours(lambda t: t.cleanup(older_than=timedelta(days=365), keep=1)),
        _pylance(lambda d: d.cleanup_old_versions(timedelta(days=365))),
        is_long=True,
    ),
    Operation(
        "cleanup of 9 versions with 10 intents",
        TableKind.INTENTS,
        _ours(lambda t: t.cleanup(older_than=timedelta(hours=1), keep=1)),
        _pylance(lambda d: d.cleanup_old_versions(timedelta(hours=1))),
        has_intent=True,
        variation=5,
    ),
    Operation("fsck, 10 versions", TableKind.FEW_VERSIONS, _ours(lambda t: t.fsck())),
    Operation("fsck, 100 versions", TableKind.VERSIONS, _ours(lambda t: t.fsck()), is_long=True),
    Operation("survey for maintenance, 100 versions", TableKind.VERSIONS, _ours(lambda t: t.survey())),
    Operation("sensor tick of an idle table", TableKind.FEW_VERSIONS, _idle_tick(TableKind.FEW_VERSIONS)),
    Operation("sensor tick of 20 idle tables", TableKind.LAKE, _idle_tick(TableKind.LAKE)),
    Operation("find 20 tables", TableKind.LAKE, _find_tables),
)

LARGE_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "history of 1,000 versions",
        TableKind.MANY_VERSIONS,
        _ours(lambda t: t.versions()),
        _pylance(lambda d: d.versions()),
        is_long=True,
    ),
    Operation(
        "open by the timestamp of version 50 of 1,000",
        TableKind.MANY_VERSIONS,
        _ours(lambda t: t.at(timestamp=tables.time_of(50))),
        lambda at: (
            lambda: lance.dataset(
                at.uri, asof=tables.time_of(50).astimezone().replace(tzinfo=None), storage_options=dict(at.options)
            )
        ),
        is_long=True,
    ),
    Operation(
        "commit 10,000 new files, table open",
        TableKind.MANY_NEW_FILES,
        _commit_new_files(TableKind.MANY_NEW_FILES),
        _commit_new_files_by_pylance(TableKind.MANY_NEW_FILES),
        is_long=True,
    ),
    Operation("sensor tick of 1,000 idle tables", TableKind.LARGE_LAKE, _idle_tick(TableKind.LARGE_LAKE), is_long=True),
)
"""Operations that benchmarks measure, and that have no budget."""


def _after(table: Any, first: Callable[[Any], object], then: Callable[[Any], object]) -> Call:
    first(table)
    return partial(then, table)
