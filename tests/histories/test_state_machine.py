"""State machine tests: any sequence of operations, by this package and by pylance, on a table that a dictionary of
lists models; and all operations on a table with branches, a part of the histories of `make torture`
(`state_machine.py`).

After every step each version equals its model: `rows_by_version` holds the rows, `version_of_intent` the intents.
"""

import shutil
import tempfile
from pathlib import Path

import lance
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lance_core import Committed, Table
from tests.histories.planted_defects import planted_defect
from tests.histories.state_machine import TableStateMachine
from tests.torture import states

ROWS = st.lists(st.integers(0, 99), max_size=8)
NONEMPTY_ROWS = st.lists(st.integers(0, 99), min_size=1, max_size=8)
INTENTS = st.sampled_from(["monday", "tuesday"])


def make_table(rows: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64())})


def read_ids(table: Table) -> list[int]:
    return table.to_table()["id"].to_pylist()


class ListModelStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.uri = str(self.directory / "table")
        self.rows_by_version: dict[int, list[int]] = {}
        self.version_of_intent: dict[str, int] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @property
    def newest(self) -> int:
        return max(self.rows_by_version)

    def open_table(self) -> Table:
        return Table.open(self.uri, durable=False)

    def record_commit(self, committed: Committed, rows: list[int]) -> None:
        assert committed.version == self.newest + 1
        self.rows_by_version[committed.version] = rows

    @initialize(rows=ROWS, stable_row_ids=st.booleans(), rows_per_file=st.integers(1, 5))
    def create(self, rows: list[int], stable_row_ids: bool, rows_per_file: int) -> None:
        table = Table.create(
            self.uri, make_table(rows), stable_row_ids=stable_row_ids, max_rows_per_file=rows_per_file, durable=False
        )
        assert table.version == 1
        self.rows_by_version[1] = rows

    @rule(rows=NONEMPTY_ROWS)
    def append(self, rows: list[int]) -> None:
        committed = self.open_table().append(make_table(rows))
        assert (committed.rows_added, committed.rows_removed) == (len(rows), 0)
        self.record_commit(committed, self.rows_by_version[self.newest] + rows)

    @rule()
    def append_nothing(self) -> None:
        assert self.open_table().append([]).version == self.newest

    @rule(rows=ROWS)
    def overwrite(self, rows: list[int]) -> None:
        committed = self.open_table().overwrite(make_table(rows))
        assert (committed.rows_added, committed.rows_removed) == (len(rows), len(self.rows_by_version[self.newest]))
        self.record_commit(committed, rows)

    @rule(rows=NONEMPTY_ROWS, intent=INTENTS)
    def append_with_an_intent(self, rows: list[int], intent: str) -> None:
        """Repeat an intent with any rows: it returns the version that committed it, and commits nothing."""
        committed = self.open_table().append(make_table(rows), intent=intent)
        assert committed.already_committed == (intent in self.version_of_intent)
        if intent in self.version_of_intent:
            assert committed.version == self.version_of_intent[intent]
        else:
            self.record_commit(committed, self.rows_by_version[self.newest] + rows)
            self.version_of_intent[intent] = committed.version

    @rule(divisor=st.integers(2, 5))
    def delete_by_pylance(self, divisor: int) -> None:
        dataset = lance.dataset(self.uri)
        dataset.delete(f"id % {divisor} = 0")
        version = lance.dataset(self.uri).version
        assert version in (self.newest, self.newest + 1)
        self.rows_by_version[version] = [value for value in self.rows_by_version[self.newest] if value % divisor]

    @rule(rows=NONEMPTY_ROWS)
    def append_by_pylance(self, rows: list[int]) -> None:
        lance.write_dataset(make_table(rows), self.uri, mode="append")
        self.rows_by_version[self.newest + 1] = self.rows_by_version[self.newest] + rows

    @precondition(lambda self: len(self.rows_by_version) > 1)
    @rule(data=st.data())
    def check_old_version(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.rows_by_version)))
        assert read_ids(self.open_table().at(version)) == self.rows_by_version[version]
        assert lance.dataset(self.uri, version=version).to_table()["id"].to_pylist() == self.rows_by_version[version]

    @rule(data=st.data())
    def append_from_old_version(self, data: st.DataObject) -> None:
        """Append from an old version: the append is rebased, if only appends were committed since."""
        version = data.draw(st.sampled_from(sorted(self.rows_by_version)))
        table = self.open_table()
        since = [info.operation for info in table.versions(since=version)]
        if set(since) <= {"Append"}:
            committed = table.at(version).append(make_table([7]))
            assert list(committed.rebased_over) == list(range(version + 1, self.newest + 1))
            self.record_commit(committed, [*self.rows_by_version[self.newest], 7])

    @invariant()
    def check_newest_version(self) -> None:
        if self.rows_by_version:
            table = self.open_table()
            assert table.version == self.newest
            assert read_ids(table) == self.rows_by_version[self.newest]
            assert table.count_rows() == len(self.rows_by_version[self.newest])


TestListModelStateMachine = ListModelStateMachine.TestCase
TestListModelStateMachine.settings = settings(
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_all_operations() -> None:
    report = states.run(states.Size(histories=15, steps=30))
    assert not report.failures, report.failures[0]
    assert report.case_count > 75


def test_defect_is_detected() -> None:
    with planted_defect("rows deleted by a wrong condition"):
        report = states.run(states.Size(histories=20, steps=20))
    assert "TableStateMachine()" in report.failures[0]
    assert TableStateMachine.steps >= report.case_count > 0
