"""A verb stopped at one of its calls to the store or the database; then somebody new looks, the same is asked for again
and again, and somebody else appends. Every call of every verb, in every kind of place.

    stage = Stage(place, deed)
    for point in stage.points(): assert not stage.broken(point)

Under an intent the table has, in the end, what the verb means, once. Without one (references, clones, cleanup) it is
done or not done, and can be repeated until it is. At no moment is there a version that cannot be read. Start with
`Stage`; what is done is in `stoppable_operations.py`, what a process is in `storage_backends.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import lance
import pyarrow as pa

from lance_core import Committed, CommitUndecided, LanceError, StorageError, Table
from lance_core.format.config_keys import TABLE_ID
from lance_core.operations import ReserveFragments
from lance_core.transactions.fold import parts_of
from lance_core.format.config_keys import TABLE_ID
from tests.histories.cooperative_scheduler import Killed
from tests.histories.stoppable_operations import Deed, Scene
from tests.histories.storage_backends import OnDisk, Place, process
from tests.histories.table_operations import WORK, begun
from tests.lance_core.storage.manifest_stores.stepping import Steps

STOPS = ("before", "after")
STOPS_OF_CREATES = (*STOPS, "late", "later", "adrift")
"""`late`, its answer is lost and it arrives when somebody has looked; `later`, when it was all repeated; `adrift`, the
same, and the process is gone."""


@dataclass(frozen=True)
class Point:
    at: int
    how: str
    call: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.how} call {self.at}, {self.call}"


@dataclass(frozen=True)
class Seen:
    """What a table is to those who look at it; None of one that is not there."""

    rows: tuple[str, ...]
    schema: str
    settings: Mapping[str, Mapping[str, str]]
    tags: Mapping[str, int]
    branches: Mapping[str, tuple[str, ...]]
    beside: tuple[str, ...] | None
    landed: int


class Stage:
    """A place where one deed is about to be done, again and again."""

    def __init__(self, place: Place, deed: Deed) -> None:
        self.place, self.deed = place, deed
        with process(place) as manifests:
            if not deed.is_new:
                begun(place.uri, manifests)
                deed.prepare(Scene(place, manifests))
        self.back = place.kept()
        self.back()
        self.before = None if deed.is_new else self.look()
        steps = Steps()
        self.act(steps)
        self.calls = steps.calls
        self.after = self.look()

    def points(self) -> Iterator[Point]:
        for at, call in enumerate(self.calls):
            for how in STOPS_OF_CREATES if call.startswith(("create", "reserve")) else STOPS:
                yield Point(at, how, call)

    def broken(self, point: Point) -> str:
        """What is wrong after it; nothing, if nothing is."""
        self.back()
        try:
            self._through(point)
        except (AssertionError, LanceError, OSError) as error:
            return f"{point}: {type(error).__name__}: {error}"
        return ""

    def _through(self, point: Point) -> None:
        steps = Steps(point.at, point.how)
        acknowledged = False
        try:
            self.act(steps)
            acknowledged = True
        except StorageError:
            met = steps.calls[point.at].partition(" ")[0]
            if self.deed.once and met == point.call.partition(" ")[0]:
                raise  # elsewhere the stop met another call than the one it is for, and no answer can be lost there
        except (Killed, CommitUndecided):
            acknowledged = False
        if point.how == "late":
            steps.land()
        if not self.deed.in_steps:
            now = self.look()
            assert now in (self.before, self.after), f"half of it is there: {now}"
            assert now == self.after or not acknowledged, f"acknowledged, and not there: {now}"
        for again in range(2):
            done = self.again()
            assert not (again and self.deed.once and isinstance(done, Committed)) or done.already_committed, (
                "done twice"
            )
            now = self.look()
            assert now == self.after, f"repeated, and not what it should be: {now}"
        steps.land()
        now = self.look()
        assert now == self.after, f"what arrived later changed it: {now}"
        self._append()
        with process(self.place) as manifests:
            self.deed.then(Scene(self.place, manifests))

    def close(self) -> None:
        """Nothing of it is left."""
        self.place.close()

    def act(self, steps: Steps | None = None) -> object:
        with process(self.place, steps) as manifests:
            return self.deed.do(Scene(self.place, manifests))

    def again(self) -> object:
        with suppress(*self.deed.done):
            return self.act()
        return None

    def look(self) -> Seen | None:
        """By somebody new, at everything."""
        with process(self.place) as manifests:
            scene = Scene(self.place, manifests)
            if not scene.exists(scene.uri):
                return None
            table = scene.table()
            report = table.fsck()
            assert report.is_sound, str(report)
            uuids, landed = [], 0
            for number in table.version_numbers():
                version = table.at(number)
                assert version.to_table().num_rows == version.count_rows()
                if (made_by := version.transaction()) is not None:
                    uuids.append(made_by.uuid)
                    # Ids that a compaction reserves are told as its own, and are none of its work.
                    reserves = isinstance(made_by.operation, ReserveFragments)
                    is_it = WORK.items() <= made_by.properties.items() and not reserves
                    landed += len(parts_of(made_by) or [made_by]) if is_it else 0
            assert len(set(uuids)) == len(uuids), "one transaction is in two versions"
            branches = {}
            for name in table.branches.list():
                branch = scene.table(branch=name)
                branches[name] = rows_of(branch)
                landed += sum(WORK.items() <= made.properties.items() for made in branch.versions())
            config = {name: text for name, text in table.config.items() if name != TABLE_ID}
            return Seen(
                rows=rows_of(table),
                schema=table.schema.to_string(show_schema_metadata=True, show_field_metadata=True),
                settings={"config": config, "metadata": dict(table.metadata)},
                tags={name: tag.version for name, tag in table.tags.list().items()},
                branches=branches,
                beside=rows_of(self._beside(scene)) if scene.exists(scene.beside) else None,
                landed=landed,
            )

    def _beside(self, scene: Scene) -> Table:
        return Table.open(scene.beside, bases=[scene.uri], manifest_store=scene.manifests)

    def _append(self) -> None:
        """By somebody else, by pylance where it gets to the table."""
        before = self.look()
        assert before is not None
        with process(self.place) as manifests:
            table = Scene(self.place, manifests).table()
            found = table.to_table(limit=1)
            row = found if found.num_rows else pa.table([pa.nulls(1, each.type) for each in table.schema], table.schema)
            if not (isinstance(self.place, OnDisk) and manifests is None):
                table.append(row)
        if isinstance(self.place, OnDisk) and self.place.manifests is None:
            made = lance.write_dataset(row, self.place.uri, mode="append")
            assert made.count_rows() == len(before.rows) + 1
        after = self.look()
        assert after is not None
        assert sorted(after.rows) == sorted((*before.rows, repr(row.to_pylist()[0])))


def rows_of(table: Table) -> tuple[str, ...]:
    return tuple(map(repr, table.to_table().to_pylist()))
