"""Serializability of operation pairs: two operations are planned on one version and committed one after the other, for
every ordered pair. The table then equals the result of one of the two serial orders, or the second operation fails with
a conflict and leaves the result of the first one alone.

    assert not OperationPairs(stable=False).find_problem("append", "delete row 0")

Operations replan where that helps, and the result of the replanned operation counts.
`transactions/test_conflict_matrix.py` compares the same pairs, planned once, with pylance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lance_core import ConflictError, LanceError, Table
from lance_core.format.config_keys import TABLE_ID
from tests.histories.storage_backends import MemoryBackend, simulated_process
from tests.histories.table_operations import (
    FRAGMENT_COUNT,
    ROWS_PER_FRAGMENT,
    TABLE_OPERATIONS,
    TableOperation,
    create_initial_table,
)

NOT_SERIALIZABLE = {
    # An upsert that leaves a row unchanged does not lock it, and a delete affects the rows that its plan read: the row
    # is deleted, and the inserted rows stay. To lock it, every delete would have to wait for every upsert.
    frozenset({"upsert new keys only", "delete all"}),
}
"""Pairs whose result is that of each operation running first. No row or change is lost in them."""


@dataclass(frozen=True)
class TableContents:
    """Contents of a table as a reader sees them, without the order of its rows."""

    rows: tuple[str, ...]
    schema: str
    settings: Mapping[str, Mapping[str, str]]
    bases: tuple[str, ...]
    row_ids: Mapping[int, int]
    """Row ids of the initial rows, if ids are stable."""


@dataclass(frozen=True)
class Outcome:
    contents: TableContents
    error: LanceError | None = None
    """Error of the second operation."""

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}" if self.error else str(self.contents)


@dataclass
class OperationPairs:
    stable_row_ids: bool
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    operations: Mapping[str, TableOperation] = field(default_factory=lambda: TABLE_OPERATIONS)
    create_table: Callable[..., Table] = create_initial_table
    check_table: Callable[[Table], object] = lambda table: None
    """Additional check of the result."""
    rejected: list[tuple[str, str]] = field(default_factory=list)
    """Pairs that failed with a conflict although the serial order succeeds."""
    _serial: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    @cached_property
    def _restore_backend(self) -> Callable[[], None]:
        with simulated_process(self.backend):
            self.create_table(self.backend.uri, stable_row_ids=self.stable_row_ids)
        return self.backend.take_snapshot()

    def find_problem(self, first: str, second: str) -> str:
        """Describe what is wrong with the second operation, planned before the first one committed; empty if it is
        correct."""
        try:
            return self._compare_with_serial_orders(first, second)
        except AssertionError as error:
            return f"{second!r} concurrent with {first!r}: {error}"

    def _compare_with_serial_orders(self, first: str, second: str) -> str:
        actual = self._run_pair(first, second, concurrently=True)
        first_then_second, second_then_first = self.run_serially(first, second), self.run_serially(second, first)
        prefix = f"{second!r} concurrent with {first!r}{', stable ids' if self.stable_row_ids else ''}: "
        if isinstance(actual.error, ConflictError):
            if actual.contents != self._run_alone(first):
                return f"{prefix}rejected, but the table changed: {actual.contents}"
            if first_then_second.error is None:
                self.rejected.append((first, second))
            return ""
        if actual.error is not None:
            is_same_error = (
                type(actual.error) is type(first_then_second.error) and actual.contents == first_then_second.contents
            )
            return "" if is_same_error else f"{prefix}{actual}, but serially: {first_then_second}"
        serial_results = [order.contents for order in (first_then_second, second_then_first) if order.error is None]
        if (actual.contents in serial_results) != (frozenset({first, second}) in NOT_SERIALIZABLE):
            return ""
        return f"{prefix}{actual}\n  in serial order: {first_then_second}\n  in reverse order: {second_then_first}"

    def run_serially(self, first: str, second: str) -> Outcome:
        pair = first, second
        if pair not in self._serial:
            self._serial[pair] = self._run_pair(first, second, concurrently=False)
        return self._serial[pair]

    def _run_alone(self, name: str) -> TableContents:
        self._restore_backend()
        with simulated_process(self.backend):
            return self._read_contents(self.operations[name](self._open_table(), None).table)

    def _run_pair(self, first: str, second: str, *, concurrently: bool) -> Outcome:
        self._restore_backend()
        with simulated_process(self.backend):
            table = self._open_table()
            first_result = self.operations[first](table, None).table
            error = None
            try:
                self.operations[second](table if concurrently else first_result, None)
            except LanceError as raised:
                error = raised
            return Outcome(self._read_contents(self._open_table()), error)

    def _open_table(self) -> Table:
        return Table.open(self.backend.uri)

    def _read_contents(self, table: Table) -> TableContents:
        assert table.fsck().is_sound, str(table.fsck())
        self.check_table(table)
        rows = table.to_table(with_row_id=self.stable_row_ids)
        ids: dict[int, int] = {}
        if self.stable_row_ids:
            row_ids = rows["_rowid"].to_pylist()
            assert len(set(row_ids)) == len(row_ids), f"row ids exist twice: {sorted(row_ids)}"
            initial_row_count = ROWS_PER_FRAGMENT * FRAGMENT_COUNT
            ids = {
                row: number
                for row, number in zip(rows["id"].to_pylist(), row_ids, strict=True)
                if number < initial_row_count
            }
            rows = rows.drop_columns("_rowid")
        return TableContents(
            rows=tuple(sorted(map(repr, rows.to_pylist()))),
            schema=table.schema.to_string(show_schema_metadata=True, show_field_metadata=True),
            settings={
                "config": {name: text for name, text in table.config.items() if name != TABLE_ID},
                "metadata": dict(table.metadata),
            },
            bases=tuple(sorted(base.path for base in table.manifest.base_paths)),
            row_ids=ids,
        )
