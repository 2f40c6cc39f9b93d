"""Workload `fleet_plan`: time of a maintenance round over a fleet that executes nothing: it finds, opens and plans
every table below a prefix.

The tables are copies of one table with some versions and fragments. No peer plans a fleet; the comparison is opening
the same tables and counting their fragments with our library and with pylance, which every plan starts with.
"""

import shutil
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.appending import make_row
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts, GrowthPoint
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
_TABLES_PER_DIRECTORY = 100
_THREADS = 8
_POLICY = Maintenance(keep_for=timedelta(days=1), keep_versions=5)
"""Policy by which all versions but the newest five are due tomorrow, and the small files now."""


class FleetPlan:
    name = "fleet_plan"
    summary = "finding, surveying and planning the maintenance of the tables below a prefix"
    notes = (
        f"each table has {_VERSIONS} versions and fragments of one row; all are due for maintenance, none is executed",
        "ours: find_tables, a survey of each table in eight threads (with versions, tags and branches), plan",
        "peers: open the same tables, whose URIs are known, and count their fragments",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"tables_max": max(_TABLES[scale]), "versions": _VERSIONS}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        first = stage.workspace / "first"
        table = Table.create(first, make_row(1), durable=False)
        while table.version < _VERSIONS:
            table = table.append(make_row(int(table.version) + 1)).table
        lake = stage.workspace / "lake"
        copied = 0
        for count in _TABLES[stage.scale]:
            stage.log(f"copying {count - copied} tables")
            for number in range(copied, count):
                shutil.copytree(first, lake / f"d{number // _TABLES_PER_DIRECTORY:03d}" / f"t{number:05d}")
            copied = count
            yield _plan_case(lake, count)


WORKLOAD = FleetPlan()


@dataclass(slots=True)
class _PlanRunner:
    work: Callable[[], int]
    fragments: int = 0

    def before(self) -> None:
        """Nothing to prepare: a plan leaves nothing behind."""

    def call(self) -> None:
        self.fragments = self.work()

    def facts(self) -> Facts:
        return {"fragments": self.fragments}


def _plan_case(lake: Path, count: int) -> Case:
    uris = find_tables(str(lake)).tables
    assert len(uris) == count
    now = datetime.now(UTC) + timedelta(days=2)

    def survey(uri: str) -> int:
        statistics = survey_table(Table.open(uri), _POLICY, now)
        due = plan_maintenance(statistics, _POLICY)
        assert due.compact, "every fragment has one row, so compaction must be due"
        return statistics.fragments

    def plan_all() -> int:
        with ThreadPoolExecutor(_THREADS) as threads:
            return sum(threads.map(survey, find_tables(str(lake)).tables))

    def open_all() -> int:
        with ThreadPoolExecutor(_THREADS) as threads:
            return sum(threads.map(lambda uri: len(Table.open(uri).fragments), uris))

    def pylance() -> Runner:
        import lance

        def open_all_by_pylance() -> int:
            with ThreadPoolExecutor(_THREADS) as threads:
                return sum(threads.map(lambda uri: len(lance.dataset(uri).get_fragments()), uris))

        return _PlanRunner(open_all_by_pylance)

    return Case(
        f"plan, {count} tables",
        (
            Entrant("ours", Side.OURS, lambda: _PlanRunner(plan_all)),
            Entrant("ours, opening alone", Side.PEER, lambda: _PlanRunner(open_all)),
            Entrant("pylance, opening alone", Side.PEER, pylance, needs=("pylance",)),
        ),
        warm_ups=0,
        point=GrowthPoint("tables: plan", count),
    )
