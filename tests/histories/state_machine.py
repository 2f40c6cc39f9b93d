"""One table and its branches against lists of rows, by all verbs, in any sequence, from new handles and from old ones,
and by two writers at once: `reference_model.py` says what each of them means.

After every step the newest version of the line is what the model says, and at any time every version still is what it
was. Row ids stand for one row each, in all versions, and nothing that is counted goes back.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lance_core import ConflictError, InvalidInput, Table
from tests.histories.reference_model import Deed, Refused, Rows, arrow, deeds, some_rows
from tests.histories.storage_backends import InMemory, process
from tests.lance_core.world import cleaned

COLUMNS = ("id", "v", "w")
INTENTS = ("monday", "tuesday", "friday")
NAMES = ("one", "two")


@dataclass
class Line:
    """The main line, or a branch."""

    name: str | None
    versions: dict[int, Rows]
    counters: tuple[int, int] = (0, 0)
    rows_of_ids: dict[int, object] = field(default_factory=dict)
    intents: dict[str, int] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.versions)

    @property
    def now(self) -> Rows:
        return self.versions[self.newest]


class TableAgainstRows(RuleBasedStateMachine):
    steps: ClassVar[int] = 0
    """Of all machines that have run."""

    def __init__(self) -> None:
        super().__init__()
        self.place = InMemory()
        self.lines: dict[str | None, Line] = {}
        self.tags: dict[str, tuple[str | None, int]] = {}
        self.here: str | None = None
        self.stable = False
        self.stack = ExitStack()
        self.stack.enter_context(process(self.place))

    def teardown(self) -> None:
        self.stack.close()

    @property
    def line(self) -> Line:
        return self.lines[self.here]

    def open(self, version: int | None = None) -> Table:
        table = Table.open(self.place.uri, branch=self.here)
        return table if version is None else table.at(version)

    def draw_deed(self, data: st.DataObject, *, together: bool = False) -> Deed:
        """Of two at once an upsert that leaves rows as they are need not fit into any order."""
        matched = ("update", "delete") if together else ("update", "delete", "ignore")
        return data.draw(deeds(self.line.now.columns, matched=matched))

    def landed(self, table: Table, rows: Rows) -> None:
        assert table.version >= self.line.newest
        if table.version == self.line.newest:
            assert rows == self.line.now or rows.same_as(table), "nothing was committed, and something was to change"
            return
        for between in range(self.line.newest + 1, table.version):
            self.line.versions[between] = self.line.now  # ids reserved by a compaction
        self.line.versions[table.version] = rows

    @initialize(rows=some_rows(COLUMNS, most=12), stable=st.booleans(), per_file=st.integers(2, 6))
    def create(self, rows: list[dict[str, int | str | None]], stable: bool, per_file: int) -> None:
        data = arrow(COLUMNS, rows)
        made = Table.create(self.place.uri, data, stable_row_ids=stable, max_rows_per_file=per_file)
        self.stable = stable
        self.lines[None] = Line(None, {made.version: Rows(COLUMNS, tuple(rows))})

    @rule(data=st.data())
    def a_change(self, data: st.DataObject) -> None:
        deed = self.draw_deed(data)
        expected = deed.means(self.line.now)
        self.landed(deed.do(self.open()).table, expected)

    @rule(data=st.data())
    def two_changes_at_once(self, data: st.DataObject) -> None:
        """Both planned on one version: the table is what one of the orders makes of it."""
        first, second = self.draw_deed(data, together=True), self.draw_deed(data, together=True)
        table, before = self.open(), self.line.now
        self.landed(first.do(table).table, first.means(before))
        try:
            second.do(table)
        except ConflictError:
            return
        except InvalidInput:
            assert _in_order(before, first, second) is None, f"{second} was refused, and makes sense after {first}"
            return
        after = self.open()
        orders = [order for order in (_in_order(before, first, second), _in_order(before, second, first)) if order]
        fitting = [order for order in orders if order.same_as(after)]
        assert fitting, f"{second} beside {first} is as none of {orders}"
        self.landed(after, fitting[0])

    @rule(data=st.data())
    def an_old_handle_changes(self, data: st.DataObject) -> None:
        """It may join what came since, be planned anew, or be refused: the table is as before, or sound."""
        version = data.draw(st.sampled_from(sorted(self.line.versions)))
        rows = data.draw(some_rows(COLUMNS[:1]))
        old = self.open(version)
        brought = arrow(COLUMNS[:1], rows)
        try:
            after = old.append(brought).table
        except ConflictError:
            assert version < self.line.newest
            return
        columns = self.line.now.columns
        new = tuple({name: row.get(name) for name in columns} for row in rows)
        self.landed(after, Rows(columns, (*self.line.now.rows, *new), self.line.now.config))

    @rule(intent=st.sampled_from(INTENTS), rows=some_rows(COLUMNS[:1]))
    def an_intent(self, intent: str, rows: list[dict[str, int | str | None]]) -> None:
        """Once, however often."""
        known = self.line.intents.get(intent)
        committed = self.open().append(arrow(COLUMNS[:1], rows), intent=intent)
        assert committed.already_committed == (known is not None)
        if known is not None:
            assert committed.version == known
            return
        new = tuple({name: row.get(name) for name in self.line.now.columns} for row in rows)
        now = self.line.now
        self.landed(committed.table, Rows(now.columns, (*now.rows, *new), now.config))
        self.line.intents[intent] = committed.version

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.line.versions)))
        self.landed(self.open().restore(version).table, self.line.versions[version])

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def tag(self, data: st.DataObject, name: str) -> None:
        version = data.draw(st.sampled_from(sorted(self.line.versions)))
        tags = self.open().tags
        (tags.update if name in self.tags else tags.create)(name, version)
        self.tags[name] = (self.here, version)

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def a_tag_goes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)))
        line, version = self.tags.pop(name)
        assert self.lines[line].versions[version].same_as(self.open().at(tag=name))
        self.open().tags.delete(name)
        assert set(self.open().tags.list()) == set(self.tags)

    @precondition(lambda self: self.lines and len(self.lines) <= len(NAMES))
    @rule(data=st.data())
    def branch(self, data: st.DataObject) -> None:
        name = next(name for name in NAMES if name not in self.lines)
        version = data.draw(st.sampled_from(sorted(self.line.versions)))
        made = self.open().branches.create(name, version)
        assert (made.version, made.branch) == (version, name)
        self.lines[name] = Line(name, {version: self.line.versions[version]})

    @rule(data=st.data())
    def go_to_another_line(self, data: st.DataObject) -> None:
        self.here = data.draw(st.sampled_from(list(self.lines)))

    @precondition(lambda self: self.here is not None)
    @rule()
    def this_branch_goes(self) -> None:
        name, table = self.here, self.open()
        assert name is not None
        try:
            table.branches.delete(name)
        except InvalidInput:
            tagged = any(line == name for line, _version in self.tags.values())
            below = [each for each in table.branches.list().values() if each.parent_branch == name]
            assert tagged or below
            return
        del self.lines[name]
        self.here = None

    @rule(keep=st.integers(1, 4))
    def cleanup(self, keep: int) -> None:
        report = cleaned(self.open(), keep)
        tagged = {version for line, version in self.tags.values() if line == self.here}
        newest = sorted(self.line.versions)[-keep:]
        assert not set(report.versions) & {*tagged, *newest}
        for version in report.versions:
            del self.line.versions[version]

    @rule()
    def every_version_is_what_it_was(self) -> None:
        table = self.open()
        assert set(table.version_numbers()) == set(self.line.versions)
        for version, rows in self.line.versions.items():
            assert rows.same_as(table.at(version)), f"version {version} is another now"
        assert table.fsck().is_sound, str(table.fsck())

    @invariant()
    def the_newest_version_is_the_model(self) -> None:
        type(self).steps += 1
        if not self.lines:
            return
        table, line = self.open(), self.line
        assert table.version == line.newest
        assert line.now.same_as(table), f"{table.to_table().to_pylist()} is not {line.now}"
        assert table.count_rows() == len(line.now.rows)
        counters = (table.manifest.max_fragment_id, table.manifest.next_row_id)
        assert counters[0] >= line.counters[0], "numbers of fragments are given out again"
        assert counters[1] >= line.counters[1], "ids of rows are given out again"
        line.counters = counters
        numbers = [fragment.id for fragment in table.fragments]
        assert len(set(numbers)) == len(numbers)
        if self.stable:
            self._check_ids(table)

    def _check_ids(self, table: Table) -> None:
        found = table.to_table(["id"], with_row_id=True)
        ids = found["_rowid"].to_pylist()
        assert len(set(ids)) == len(ids), f"row ids are there twice: {sorted(ids)}"
        for number, row in zip(ids, found["id"].to_pylist(), strict=True):
            assert self.line.rows_of_ids.setdefault(number, row) == row, f"row id {number} was another row"


def _in_order(before: Rows, first: Deed, second: Deed) -> Rows | None:
    try:
        return second.means(first.means(before))
    except Refused:
        return None
