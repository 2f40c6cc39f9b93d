"""One table against a plain dict of lists: any sequence of changes, by us and by pylance, and every version stays what
it was. And a table with branches against lists of rows, by all verbs, some of `make torture`'s histories
(`state_machine.py`).

The model holds the rows of each version, and what each intent became.
"""

import shutil
import tempfile
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lance_core import Committed, Table
from tests.histories.state_machine import TableAgainstRows
from tests.torture import states

ROWS = st.lists(st.integers(0, 99), max_size=8)
SOME_ROWS = st.lists(st.integers(0, 99), min_size=1, max_size=8)
INTENTS = st.sampled_from(["monday", "tuesday"])


def table_of(rows: list[int]) -> pa.Table:
    return pa.table({"id": pa.array(rows, pa.int64())})


def ids(table: Table) -> list[int]:
    return table.to_table()["id"].to_pylist()


class TableAgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.uri = str(self.place / "table")
        self.rows: dict[int, list[int]] = {}
        self.landed: dict[str, int] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    @property
    def newest(self) -> int:
        return max(self.rows)

    def open(self) -> Table:
        return Table.open(self.uri, durable=False)

    def committed(self, committed: Committed, rows: list[int]) -> None:
        assert committed.version == self.newest + 1
        self.rows[committed.version] = rows

    @initialize(rows=ROWS, stable=st.booleans(), rows_per_file=st.integers(1, 5))
    def create(self, rows: list[int], stable: bool, rows_per_file: int) -> None:
        made = Table.create(
            self.uri, table_of(rows), stable_row_ids=stable, max_rows_per_file=rows_per_file, durable=False
        )
        assert made.version == 1
        self.rows[1] = rows

    @rule(rows=SOME_ROWS)
    def append(self, rows: list[int]) -> None:
        committed = self.open().append(table_of(rows))
        assert (committed.rows_added, committed.rows_removed) == (len(rows), 0)
        self.committed(committed, self.rows[self.newest] + rows)

    @rule()
    def append_nothing(self) -> None:
        assert self.open().append([]).version == self.newest

    @rule(rows=ROWS)
    def overwrite(self, rows: list[int]) -> None:
        committed = self.open().overwrite(table_of(rows))
        assert (committed.rows_added, committed.rows_removed) == (len(rows), len(self.rows[self.newest]))
        self.committed(committed, rows)

    @rule(rows=SOME_ROWS, intent=INTENTS)
    def append_with_an_intent(self, rows: list[int], intent: str) -> None:
        """Another time, with whatever rows: the version that holds it, and nothing new."""
        committed = self.open().append(table_of(rows), intent=intent)
        assert committed.already_committed == (intent in self.landed)
        if intent in self.landed:
            assert committed.version == self.landed[intent]
        else:
            self.committed(committed, self.rows[self.newest] + rows)
            self.landed[intent] = committed.version

    @rule(divisor=st.integers(2, 5))
    def pylance_deletes(self, divisor: int) -> None:
        dataset = lance.dataset(self.uri)
        dataset.delete(f"id % {divisor} = 0")
        version = lance.dataset(self.uri).version
        assert version in (self.newest, self.newest + 1)
        self.rows[version] = [value for value in self.rows[self.newest] if value % divisor]

    @rule(rows=SOME_ROWS)
    def pylance_appends(self, rows: list[int]) -> None:
        lance.write_dataset(table_of(rows), self.uri, mode="append")
        self.rows[self.newest + 1] = self.rows[self.newest] + rows

    @precondition(lambda self: len(self.rows) > 1)
    @rule(data=st.data())
    def an_old_version_stays(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.rows)))
        assert ids(self.open().at(version)) == self.rows[version]
        assert lance.dataset(self.uri, version=version).to_table()["id"].to_pylist() == self.rows[version]

    @rule(data=st.data())
    def an_old_handle_appends(self, data: st.DataObject) -> None:
        """It joins the newest version; unless somebody replaced what it was planned on."""
        version = data.draw(st.sampled_from(sorted(self.rows)))
        table = self.open()
        since = [made.operation for made in table.versions(since=version)]
        if set(since) <= {"Append"}:
            committed = table.at(version).append(table_of([7]))
            assert list(committed.rebased_over) == list(range(version + 1, self.newest + 1))
            self.committed(committed, [*self.rows[self.newest], 7])

    @invariant()
    def the_newest_version_is_the_model(self) -> None:
        if self.rows:
            table = self.open()
            assert table.version == self.newest
            assert ids(table) == self.rows[self.newest]
            assert table.count_rows() == len(self.rows[self.newest])


TestTableAgainstLists = TableAgainstLists.TestCase
TestTableAgainstLists.settings = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_all_verbs() -> None:
    report = states.run(states.PR)
    assert not report.failures, report.failures[0]
    assert report.case_count > 150


def test_a_verb_that_does_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = Table.delete
    monkeypatch.setattr(Table, "delete", lambda table, where: delete(table, where.replace("%", "+")))
    report = states.run(states.Size(histories=20, steps=20))
    assert "TableAgainstRows()" in report.failures[0]
    assert TableAgainstRows.steps >= report.case_count > 0
