"""Two changes planned on one version, one committed after the other, for every ordered pair: what the table is then is
what one of the two orders, one change after the other, makes of it; or the second is refused with a conflict, and the
table is what the first made of it.

    assert not Pairs(stable=False).broken("append", "delete row 0")

Verbs plan again where that helps, and what comes of it counts. What pylance says of the same pairs, planned once, is
`transactions/test_square_beside_pylance.py`'s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lance_core import ConflictError, LanceError, Table
from lance_core.format.config_keys import TABLE_ID
from tests.histories.storage_backends import InMemory, process
from tests.histories.table_operations import CHANGES, FRAGMENTS, ROWS, Do, begun

NOT_IN_ORDER = {
    # An upsert that leaves a row as it is does not hold it, and a delete means the rows that its planner saw: the row
    # goes, and what the upsert brought stays. To hold it, every delete would have to wait for every upsert.
    frozenset({"upsert new keys only", "delete all"}),
}
"""Pairs that are as if each had been first. Nothing that was brought or changed is lost in them."""


@dataclass(frozen=True)
class Seen:
    """What a table is to those who look at it, in whatever order its rows are."""

    rows: tuple[str, ...]
    schema: str
    settings: Mapping[str, Mapping[str, str]]
    bases: tuple[str, ...]
    ids: Mapping[int, int]
    """Of rows that were there from the beginning, where ids are stable."""


@dataclass(frozen=True)
class Outcome:
    seen: Seen
    error: LanceError | None = None
    """Of the second one."""

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}" if self.error else str(self.seen)


@dataclass
class Pairs:
    stable: bool
    place: InMemory = field(default_factory=InMemory)
    changes: Mapping[str, Do] = field(default_factory=lambda: CHANGES)
    begin: Callable[..., Table] = begun
    look: Callable[[Table], object] = lambda table: None
    """At what came out."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Pairs that met a conflict, though one of them after the other would do."""
    _serial: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    @cached_property
    def _back(self) -> Callable[[], None]:
        with process(self.place):
            self.begin(self.place.uri, stable=self.stable)
        return self.place.kept()

    def broken(self, first: str, second: str) -> str:
        """What is wrong with the second, planned before the first was there; nothing, if nothing is."""
        try:
            return self._compared(first, second)
        except AssertionError as error:
            return f"{second!r} beside {first!r}: {error}"

    def _compared(self, first: str, second: str) -> str:
        got = self._run(first, second, at_once=True)
        after, before = self.serial(first, second), self.serial(second, first)
        told = f"{second!r} beside {first!r}{', stable ids' if self.stable else ''}: "
        if isinstance(got.error, ConflictError):
            if got.seen != self._alone(first):
                return f"{told}refused, and the table changed: {got.seen}"
            if after.error is None:
                self.refused.append((first, second))
            return ""
        if got.error is not None:
            same = type(got.error) is type(after.error) and got.seen == after.seen
            return "" if same else f"{told}{got}, and one after the other: {after}"
        orders = [order.seen for order in (after, before) if order.error is None]
        if (got.seen in orders) != (frozenset({first, second}) in NOT_IN_ORDER):
            return ""
        return f"{told}{got}\n  in order: {after}\n  in the other: {before}"

    def serial(self, first: str, second: str) -> Outcome:
        pair = first, second
        if pair not in self._serial:
            self._serial[pair] = self._run(first, second, at_once=False)
        return self._serial[pair]

    def _alone(self, name: str) -> Seen:
        self._back()
        with process(self.place):
            return self._seen(self.changes[name](self._open(), None).table)

    def _run(self, first: str, second: str, *, at_once: bool) -> Outcome:
        self._back()
        with process(self.place):
            table = self._open()
            made = self.changes[first](table, None).table
            error = None
            try:
                self.changes[second](table if at_once else made, None)
            except LanceError as raised:
                error = raised
            return Outcome(self._seen(self._open()), error)

    def _open(self) -> Table:
        return Table.open(self.place.uri)

    def _seen(self, table: Table) -> Seen:
        assert table.fsck().is_sound, str(table.fsck())
        self.look(table)
        found = table.to_table(with_row_id=self.stable)
        ids: dict[int, int] = {}
        if self.stable:
            numbers = found["_rowid"].to_pylist()
            assert len(set(numbers)) == len(numbers), f"row ids are there twice: {sorted(numbers)}"
            last = ROWS * FRAGMENTS
            ids = {row: number for row, number in zip(found["id"].to_pylist(), numbers, strict=True) if number < last}
            found = found.drop_columns("_rowid")
        return Seen(
            rows=tuple(sorted(map(repr, found.to_pylist()))),
            schema=table.schema.to_string(show_schema_metadata=True, show_field_metadata=True),
            settings={
                "config": {name: text for name, text in table.config.items() if name != TABLE_ID},
                "metadata": dict(table.metadata),
            },
            bases=tuple(sorted(base.path for base in table.manifest.base_paths)),
            ids=ids,
        )
