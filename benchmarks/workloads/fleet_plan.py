"""What a round over a fleet costs where nothing is due: every table below a place found, opened and judged.

Tables are made once and copied, each with some versions and fragments. There is no peer for a plan; beside it stands
opening the same tables and counting their fragments, by us and by pylance, which is what any plan begins with.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.appending import row
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_assets.maintenance.maintenance_actions import survey_table
from lance_assets.maintenance.plan import plan_maintenance
from lance_assets.maintenance.policy import Maintenance
from lance_core import Table, find_tables

_TABLES: Mapping[Scale, tuple[int, ...]] = {
    Scale.SMOKE: (5,),
    Scale.DEFAULT: (100, 1_000),
    Scale.FULL: (100, 1_000, 10_000),
}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 3, Scale.FULL: 5}
_VERSIONS = 20
_IN_A_DIRECTORY = 100
_AT_ONCE = 8
_POLICY = Maintenance(keep_for=timedelta(days=1), keep_versions=5)
"""By which all versions but the newest five are due tomorrow, and the small files now."""


class FleetPlan:
    name = "fleet_plan"
    summary = "tables below a place found, surveyed and planned for maintenance"
    notes = (
        f"each table has {_VERSIONS} versions and fragments of one row; all are due, and nothing is done about it",
        "ours: find_tables, Table.survey of each in eight threads, plan; names of versions, tags and branches too",
        "peers: the same tables opened, and their fragments counted, their places known",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"tables_max": max(_TABLES[scale]), "versions": _VERSIONS}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        first = stage.workspace / "first"
        table = Table.create(first, row(1), durable=False)
        while table.version < _VERSIONS:
            table = table.append(row(int(table.version) + 1)).table
        lake = stage.workspace / "lake"
        made = 0
        for count in _TABLES[stage.scale]:
            stage.log(f"copying {count - made} tables")
            for number in range(made, count):
                shutil.copytree(first, lake / f"d{number // _IN_A_DIRECTORY:03d}" / f"t{number:05d}")
            made = count
            yield _planned(lake, count)


WORKLOAD = FleetPlan()


@dataclass(slots=True)
class _Round:
    work: Callable[[], int]
    fragments: int = 0

    def before(self) -> None:
        """A plan leaves nothing behind."""

    def call(self) -> None:
        self.fragments = self.work()

    def facts(self) -> Facts:
        return {"fragments": self.fragments}


def _planned(lake: Path, count: int) -> Case:
    places = find_tables(str(lake)).tables
    assert len(places) == count
    now = datetime.now(UTC) + timedelta(days=2)

    def survey(uri: str) -> int:
        found = survey_table(Table.open(uri), _POLICY, now)
        due = plan_maintenance(found, _POLICY)
        assert due.compact, "one row in a fragment"
        return found.fragments

    def planned() -> int:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return sum(threads.map(survey, find_tables(str(lake)).tables))

    def opened() -> int:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return sum(threads.map(lambda uri: len(Table.open(uri).fragments), places))

    def pylance() -> Runner:
        import lance

        def theirs() -> int:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                return sum(threads.map(lambda uri: len(lance.dataset(uri).get_fragments()), places))

        return _Round(theirs)

    return Case(
        f"plan, {count} tables",
        (
            Entrant("ours", Side.OURS, lambda: _Round(planned)),
            Entrant("ours, opening alone", Side.PEER, lambda: _Round(opened)),
            Entrant("pylance, opening alone", Side.PEER, pylance, needs=("pylance",)),
        ),
        warm_ups=0,
    )
