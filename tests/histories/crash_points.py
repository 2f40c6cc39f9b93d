"""Crash points: an operation is stopped at one of its calls to the store or the manifest store. Then a new process
reads the table, the operation is repeated, and another writer appends. Every call of every operation is a crash point,
on every storage backend.

    scenario = CrashScenario(backend, operation)
    for point in scenario.crash_points(): assert not scenario.find_problem(point)

An operation with an intent finally takes effect exactly once. One without an intent (references, clones, cleanup) is
done or not done, and can be repeated until it is. Every version is readable at any moment. Start with `CrashScenario`;
`stoppable_operations.py` lists the operations, and `storage_backends.py` defines a process.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import lance
import pyarrow as pa

from lance_core import Committed, CommitUndecided, LanceError, StorageError, Table
from lance_core.format.config_keys import TABLE_ID
from lance_core.format.transaction import Transaction
from lance_core.operations import ReserveFragments
from lance_core.transactions.fold import parts_of
from tests.histories.cooperative_scheduler import ProcessKilled
from tests.histories.stoppable_operations import ProcessContext, StoppableOperation
from tests.histories.storage_backends import LocalDiskBackend, StorageBackend, simulated_process
from tests.histories.table_operations import OPERATION_PROPERTIES, create_initial_table
from tests.lance_core.storage.manifest_stores.fault_injection import FaultPlan

STOPS = ("before", "after")
STOPS_OF_CREATES = (*STOPS, "late", "later", "adrift")
"""With `late` the answer is lost, and the request arrives when a new process has read the table; with `later`, when all
was repeated; `adrift` is like `later`, and the process is killed."""


@dataclass(frozen=True)
class CrashPoint:
    call_number: int
    stop: str
    call: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.stop} call {self.call_number}, {self.call}"


@dataclass(frozen=True)
class TableContents:
    """Contents of a table and of its clone as readers see them."""

    rows: tuple[str, ...]
    schema: str
    settings: Mapping[str, Mapping[str, str]]
    tags: Mapping[str, int]
    branches: Mapping[str, tuple[str, ...]]
    clone_rows: tuple[str, ...] | None
    """Rows of the clone; `None` if there is no clone."""
    commit_count: int
    """Number of commits of the stopped operation."""


class CrashScenario:
    """A storage backend on which one operation runs repeatedly from the same initial contents."""

    def __init__(self, backend: StorageBackend, operation: StoppableOperation) -> None:
        self.backend, self.operation = backend, operation
        with simulated_process(backend) as manifest_store:
            if not operation.creates_table:
                create_initial_table(backend.uri, manifest_store)
                operation.prepare(ProcessContext(backend, manifest_store))
        self.restore_backend = backend.take_snapshot()
        self.restore_backend()
        self.contents_before = None if operation.creates_table else self.read_contents()
        steps = FaultPlan()
        self.run_operation(steps)
        self.store_calls = steps.calls
        self.contents_after = self.read_contents()

    def crash_points(self) -> Iterator[CrashPoint]:
        for call_number, call in enumerate(self.store_calls):
            for stop in STOPS_OF_CREATES if call.startswith(("create", "reserve")) else STOPS:
                yield CrashPoint(call_number, stop, call)

    def find_problem(self, point: CrashPoint) -> str:
        """Describe the first problem after a crash; empty if there is none."""
        self.restore_backend()
        try:
            self._check_crash(point)
        except (AssertionError, LanceError, OSError) as error:
            return f"{point}: {type(error).__name__}: {error}"
        return ""

    def _check_crash(self, point: CrashPoint) -> None:
        steps = FaultPlan(point.call_number, point.stop)
        is_acknowledged = self._run_until_crash(point, steps)
        if point.stop == "late":
            steps.run_late_calls()
        if not self.operation.has_visible_steps:
            contents = self.read_contents()
            assert contents in (self.contents_before, self.contents_after), f"partly done: {contents}"
            assert contents == self.contents_after or not is_acknowledged, f"acknowledged and missing: {contents}"
        for is_second in (False, True):
            result = self.repeat_operation()
            if is_second and self.operation.is_idempotent and isinstance(result, Committed):
                assert result.already_committed, "committed twice"
            contents = self.read_contents()
            assert contents == self.contents_after, f"wrong contents after a repetition: {contents}"
        steps.run_late_calls()
        contents = self.read_contents()
        assert contents == self.contents_after, f"changed by a delayed request: {contents}"
        self._check_append()
        with simulated_process(self.backend) as manifest_store:
            self.operation.follow_up(ProcessContext(self.backend, manifest_store))

    def _run_until_crash(self, point: CrashPoint, steps: FaultPlan) -> bool:
        """Return whether the operation was acknowledged."""
        try:
            self.run_operation(steps)
        except StorageError:
            stopped_call = steps.calls[point.call_number].partition(" ")[0]
            if self.operation.is_idempotent and stopped_call == point.call.partition(" ")[0]:
                raise  # otherwise the stop met a different call, whose answer cannot be lost
        except (ProcessKilled, CommitUndecided):
            return False
        else:
            return True
        return False

    def close(self) -> None:
        """Delete the contents of the backend."""
        self.backend.close()

    def run_operation(self, steps: FaultPlan | None = None) -> object:
        with simulated_process(self.backend, steps) as manifest_store:
            return self.operation.run(ProcessContext(self.backend, manifest_store))

    def repeat_operation(self) -> object:
        with suppress(*self.operation.repetition_errors):
            return self.run_operation()
        return None

    def read_contents(self) -> TableContents | None:
        """Read and check everything in a new process; `None` if there is no table."""
        with simulated_process(self.backend) as manifest_store:
            context = ProcessContext(self.backend, manifest_store)
            if not context.table_exists(context.uri):
                return None
            table = context.open_table()
            report = table.fsck()
            assert report.is_sound, str(report)
            transactions = _read_transactions(table)
            uuids = {transaction.uuid for transaction in transactions}
            assert len(uuids) == len(transactions), "one transaction is in two versions"
            commit_count = sum(map(_count_commits, transactions))
            branches = {}
            for name in table.branches.list():
                branch = context.open_table(branch=name)
                branches[name] = row_texts(branch)
                commit_count += sum(_has_operation_properties(info.properties) for info in branch.versions())
            config = {name: text for name, text in table.config.items() if name != TABLE_ID}
            return TableContents(
                rows=row_texts(table),
                schema=table.schema.to_string(show_schema_metadata=True, show_field_metadata=True),
                settings={"config": config, "metadata": dict(table.metadata)},
                tags={name: tag.version for name, tag in table.tags.list().items()},
                branches=branches,
                clone_rows=row_texts(_open_clone(context)) if context.table_exists(context.clone_uri) else None,
                commit_count=commit_count,
            )

    def _check_append(self) -> None:
        """Check that another writer can append; pylance does so where it can open the table."""
        before = self.read_contents()
        assert before is not None
        with simulated_process(self.backend) as manifest_store:
            table = ProcessContext(self.backend, manifest_store).open_table()
            first = table.to_table(limit=1)
            row = first if first.num_rows else pa.table([pa.nulls(1, each.type) for each in table.schema], table.schema)
            if not (isinstance(self.backend, LocalDiskBackend) and manifest_store is None):
                table.append(row)
        if isinstance(self.backend, LocalDiskBackend) and self.backend.manifest_store is None:
            dataset = lance.write_dataset(row, self.backend.uri, mode="append")
            assert dataset.count_rows() == len(before.rows) + 1
        after = self.read_contents()
        assert after is not None
        assert sorted(after.rows) == sorted((*before.rows, repr(row.to_pylist()[0])))


def row_texts(table: Table) -> tuple[str, ...]:
    return tuple(map(repr, table.to_table().to_pylist()))


def _read_transactions(table: Table) -> list[Transaction]:
    """Read every version completely, and return the recorded transactions."""
    transactions = []
    for number in table.version_numbers():
        version = table.at(number)
        assert version.to_table().num_rows == version.count_rows()
        if (transaction := version.transaction()) is not None:
            transactions.append(transaction)
    return transactions


def _count_commits(transaction: Transaction) -> int:
    """Return how many commits of the stopped operation a transaction holds."""
    # A compaction first commits a reservation of fragment ids with its properties, which is not its result.
    if isinstance(transaction.operation, ReserveFragments) or not _has_operation_properties(transaction.properties):
        return 0
    return len(parts_of(transaction) or [transaction])


def _has_operation_properties(properties: Mapping[str, str]) -> bool:
    return OPERATION_PROPERTIES.items() <= properties.items()


def _open_clone(context: ProcessContext) -> Table:
    return Table.open(context.clone_uri, bases=[context.uri], manifest_store=context.manifest_store)
