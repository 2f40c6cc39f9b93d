"""State machine test: compares a table and its branches with the reference model. Rules run all operations in any
sequence, from new and from old handles, and from two writers concurrently; `reference_model.py` defines their meaning.

After every step the newest version of the branch equals the model, and every older version is unchanged. A row id
identifies one row in all versions, and no counter decreases.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lance_core import ConflictError, InvalidInput, Table
from tests.histories.reference_model import (
    ModelOperation,
    ModelTable,
    OperationRejected,
    operations_on,
    row_lists,
    to_arrow,
)
from tests.histories.storage_backends import MemoryBackend, simulated_process
from tests.lance_core.in_memory_table import clean_up

COLUMNS = ("id", "v", "w")
INTENTS = ("monday", "tuesday", "friday")
REFERENCE_NAMES = ("one", "two")


@dataclass
class BranchModel:
    """Expected versions and counters of the main branch or of a named branch."""

    name: str | None
    versions: dict[int, ModelTable]
    counters: tuple[int, int] = (0, 0)
    row_of_row_id: dict[int, object] = field(default_factory=dict)
    intents: dict[str, int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.versions)

    @property
    def current(self) -> ModelTable:
        return self.versions[self.newest]


class TableStateMachine(RuleBasedStateMachine):
    steps: ClassVar[int] = 0
    """Number of steps of all machines that have run."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = MemoryBackend()
        self.branches: dict[str | None, BranchModel] = {}
        self.tags: dict[str, tuple[str | None, int]] = {}
        self.branch_name: str | None = None
        self.stable_row_ids = False
        self.stack = ExitStack()
        self.stack.enter_context(simulated_process(self.backend))

    def teardown(self) -> None:
        self.stack.close()

    @property
    def branch_model(self) -> BranchModel:
        return self.branches[self.branch_name]

    def open_table(self, version: int | None = None) -> Table:
        table = Table.open(self.backend.uri, branch=self.branch_name)
        return table if version is None else table.at(version)

    def draw_operation(self, data: st.DataObject, *, concurrent: bool = False) -> ModelOperation:
        """Draw an operation. A concurrent upsert that leaves rows unchanged need not equal any serial order, so
        `concurrent` excludes it."""
        matched_modes = ("update", "delete") if concurrent else ("update", "delete", "ignore")
        return data.draw(operations_on(self.branch_model.current.columns, matched_modes=matched_modes))

    def record_commit(self, table: Table, rows: ModelTable) -> None:
        assert table.version >= self.branch_model.newest
        if table.version == self.branch_model.newest:
            assert rows == self.branch_model.current or rows.matches(table), (
                "nothing was committed, although the operation changes the table"
            )
            return
        for reserved in range(self.branch_model.newest + 1, table.version):
            self.branch_model.versions[reserved] = (
                self.branch_model.current
            )  # versions in which a compaction reserves ids
        self.branch_model.versions[table.version] = rows

    @initialize(rows=row_lists(COLUMNS, size_max=12), stable_row_ids=st.booleans(), max_rows_per_file=st.integers(2, 6))
    def create(self, rows: list[dict[str, int | str | None]], stable_row_ids: bool, max_rows_per_file: int) -> None:
        data = to_arrow(COLUMNS, rows)
        table = Table.create(self.backend.uri, data, stable_row_ids=stable_row_ids, max_rows_per_file=max_rows_per_file)
        self.stable_row_ids = stable_row_ids
        self.branches[None] = BranchModel(None, {table.version: ModelTable(COLUMNS, tuple(rows))})

    @rule(data=st.data())
    def run_operation(self, data: st.DataObject) -> None:
        operation = self.draw_operation(data)
        expected = operation.apply_to_model(self.branch_model.current)
        self.record_commit(operation.apply_to_table(self.open_table()).table, expected)

    @rule(data=st.data())
    def run_concurrent_operations(self, data: st.DataObject) -> None:
        """Plan two operations on one version: the table equals one of the two serial orders."""
        first, second = self.draw_operation(data, concurrent=True), self.draw_operation(data, concurrent=True)
        table, before = self.open_table(), self.branch_model.current
        self.record_commit(first.apply_to_table(table).table, first.apply_to_model(before))
        try:
            second.apply_to_table(table)
        except ConflictError:
            return
        except InvalidInput:
            assert _apply_in_order(before, first, second) is None, f"{second} was rejected, but is valid after {first}"
            return
        after = self.open_table()
        orders = (_apply_in_order(before, first, second), _apply_in_order(before, second, first))
        serial_results = [result for result in orders if result]
        matching = [result for result in serial_results if result.matches(after)]
        assert matching, f"{second} concurrent with {first} equals none of {serial_results}"
        self.record_commit(after, matching[0])

    @rule(data=st.data())
    def append_from_old_version(self, data: st.DataObject) -> None:
        """Append from an old version: the append is rebased, replanned or rejected, and the table is unchanged or
        valid."""
        version = data.draw(st.sampled_from(sorted(self.branch_model.versions)))
        rows = data.draw(row_lists(COLUMNS[:1]))
        old = self.open_table(version)
        new_rows = to_arrow(COLUMNS[:1], rows)
        try:
            after = old.append(new_rows).table
        except ConflictError:
            assert version < self.branch_model.newest
            return
        columns = self.branch_model.current.columns
        new = tuple({name: row.get(name) for name in columns} for row in rows)
        self.record_commit(
            after, ModelTable(columns, (*self.branch_model.current.rows, *new), self.branch_model.current.config)
        )

    @rule(intent=st.sampled_from(INTENTS), rows=row_lists(COLUMNS[:1]))
    def append_with_intent(self, intent: str, rows: list[dict[str, int | str | None]]) -> None:
        """Repeat an intent: it commits once, however often it is repeated."""
        committed_version = self.branch_model.intents.get(intent)
        committed = self.open_table().append(to_arrow(COLUMNS[:1], rows), intent=intent)
        assert committed.already_committed == (committed_version is not None)
        if committed_version is not None:
            assert committed.version == committed_version
            return
        new = tuple({name: row.get(name) for name in self.branch_model.current.columns} for row in rows)
        current = self.branch_model.current
        self.record_commit(committed.table, ModelTable(current.columns, (*current.rows, *new), current.config))
        self.branch_model.intents[intent] = committed.version

    @rule(data=st.data())
    def restore_version(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.branch_model.versions)))
        self.record_commit(self.open_table().restore(version).table, self.branch_model.versions[version])

    @rule(data=st.data(), name=st.sampled_from(REFERENCE_NAMES))
    def set_tag(self, data: st.DataObject, name: str) -> None:
        version = data.draw(st.sampled_from(sorted(self.branch_model.versions)))
        tags = self.open_table().tags
        (tags.update if name in self.tags else tags.create)(name, version)
        self.tags[name] = (self.branch_name, version)

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def delete_tag(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)))
        branch, version = self.tags.pop(name)
        assert self.branches[branch].versions[version].matches(self.open_table().at(tag=name))
        self.open_table().tags.delete(name)
        assert set(self.open_table().tags.list()) == set(self.tags)

    @precondition(lambda self: self.branches and len(self.branches) <= len(REFERENCE_NAMES))
    @rule(data=st.data())
    def create_branch(self, data: st.DataObject) -> None:
        name = next(name for name in REFERENCE_NAMES if name not in self.branches)
        version = data.draw(st.sampled_from(sorted(self.branch_model.versions)))
        branch = self.open_table().branches.create(name, version)
        assert (branch.version, branch.branch) == (version, name)
        self.branches[name] = BranchModel(name, {version: self.branch_model.versions[version]})

    @rule(data=st.data())
    def switch_branch(self, data: st.DataObject) -> None:
        self.branch_name = data.draw(st.sampled_from(list(self.branches)))

    @precondition(lambda self: self.branch_name is not None)
    @rule()
    def delete_branch(self) -> None:
        name, table = self.branch_name, self.open_table()
        assert name is not None
        try:
            table.branches.delete(name)
        except InvalidInput:
            is_tagged = any(branch == name for branch, _version in self.tags.values())
            children = [each for each in table.branches.list().values() if each.parent_branch == name]
            assert is_tagged or children
            return
        del self.branches[name]
        self.branch_name = None

    @rule(keep=st.integers(1, 4))
    def clean_up(self, keep: int) -> None:
        report = clean_up(self.open_table(), keep)
        tagged = {version for branch, version in self.tags.values() if branch == self.branch_name}
        newest = sorted(self.branch_model.versions)[-keep:]
        assert not set(report.versions) & {*tagged, *newest}
        for version in report.versions:
            del self.branch_model.versions[version]

    @rule()
    def check_all_versions(self) -> None:
        table = self.open_table()
        assert set(table.version_numbers()) == set(self.branch_model.versions)
        for version, rows in self.branch_model.versions.items():
            assert rows.matches(table.at(version)), f"version {version} has changed"
        assert table.fsck().is_sound, str(table.fsck())

    @invariant()
    def check_newest_version(self) -> None:
        type(self).steps += 1
        if not self.branches:
            return
        table, model = self.open_table(), self.branch_model
        assert table.version == model.newest
        assert model.current.matches(table), f"{table.to_table().to_pylist()} is not {model.current}"
        assert table.count_rows() == len(model.current.rows)
        counters = (table.manifest.max_fragment_id, table.manifest.next_row_id)
        assert counters[0] >= model.counters[0], "a fragment id may be assigned again"
        assert counters[1] >= model.counters[1], "a row id may be assigned again"
        model.counters = counters
        numbers = [fragment.id for fragment in table.fragments]
        assert len(set(numbers)) == len(numbers)
        if self.stable_row_ids:
            self._check_row_ids(table)

    def _check_row_ids(self, table: Table) -> None:
        rows = table.to_table(["id"], with_row_id=True)
        ids = rows["_rowid"].to_pylist()
        assert len(set(ids)) == len(ids), f"row ids exist twice: {sorted(ids)}"
        for number, row in zip(ids, rows["id"].to_pylist(), strict=True):
            assert self.branch_model.row_of_row_id.setdefault(number, row) == row, (
                f"row id {number} identified another row"
            )


def _apply_in_order(before: ModelTable, first: ModelOperation, second: ModelOperation) -> ModelTable | None:
    try:
        return second.apply_to_model(first.apply_to_model(before))
    except OperationRejected:
        return None
