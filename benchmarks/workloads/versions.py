"""Workload `versions`: time of opening a table by its number of versions, which should be constant.

One table grows through commits without rows. Opening it is compared with pylance opening it, and with ours opening a
table that has a single version.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.appending import make_row
from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts, GrowthPoint
from lance_core import Table

_VERSIONS: Mapping[Scale, tuple[int, ...]] = {
    Scale.SMOKE: (1, 20),
    Scale.DEFAULT: (1, 100, 1_000, 10_000),
    Scale.FULL: (1, 100, 1_000, 5_000, 10_000),
}
_OPENS_PER_REPETITION = 20
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}


class Versions:
    name = "versions"
    summary = "open, by number of versions"
    notes = (
        "all versions but the first set a value of the table's config; there is one fragment",
        "both libraries open the same table",
        "x 'ours, 1 version': flatness of the curve; 1 is perfectly flat",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"versions_max": max(_VERSIONS[scale])}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        young, old = (str(stage.workspace / name) for name in ("young", "old"))
        Table.create(young, _DATA, durable=False)
        table = Table.create(old, _DATA, durable=False)
        for versions in _VERSIONS[stage.scale]:
            stage.log(f"committing {versions} versions")
            while table.version < versions:
                table = table.set_config({"turn": str(table.version)}).table
            yield _open_case(young, old, versions)


WORKLOAD = Versions()
_DATA: pa.Table = make_row(1)


@dataclass(frozen=True, slots=True)
class _OpenRunner:
    work: Callable[[], object]
    rows: Callable[[], int]

    def before(self) -> None:
        """Nothing to prepare: opening leaves nothing behind."""

    def call(self) -> None:
        self.work()

    def facts(self) -> Facts:
        return {"rows": self.rows()}


def _open_case(young: str, old: str, versions: int) -> Case:
    def ours(path: str) -> Callable[[], Runner]:
        return lambda: _OpenRunner(lambda: Table.open(path), lambda: Table.open(path).count_rows())

    def pylance() -> Runner:
        import lance

        return _OpenRunner(lambda: lance.dataset(old), lambda: lance.dataset(old).count_rows())

    return Case(
        f"open, {versions} versions",
        (
            Entrant("ours", Side.OURS, ours(old)),
            Entrant("pylance", Side.PEER, pylance, needs=("pylance",)),
            Entrant("ours, 1 version", Side.PEER, ours(young)),
        ),
        calls=_OPENS_PER_REPETITION,
        point=GrowthPoint("versions: open", versions),
    )
