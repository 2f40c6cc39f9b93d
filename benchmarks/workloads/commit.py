"""What a tiny append and an open cost, on tables of few and of many fragments.

Our tables and pylance's are copies of one that is built here through `Table.commit`; deltalake's has as many
adds in its log, folded into a checkpoint. Nothing of the fragments is read: this is about metadata.
"""

import os
import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_core import Table
from lance_core.operations import Append, DataFile, Fragment

_ROW = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array(["one"])})
_APPENDS_PER_REPETITION = 5
_OPENS_PER_REPETITION = 10
_FRAGMENTS: Mapping[Scale, tuple[int, ...]] = {
    Scale.SMOKE: (1, 20),
    Scale.DEFAULT: (1, 1_000, 50_000),
    Scale.FULL: (1, 100, 1_000, 10_000, 50_000, 100_000),
}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}


class Commit:
    name = "commit"
    summary = "append of one row, and open, by number of fragments"
    notes = (
        "each append opens the newest version by path, writes a data file and commits",
        "the fragments hold one tiny file each, links to one; nobody reads them",
        "delta's log is checkpointed before timing, and its open need not load the entry of every file",
        "ours fsyncs three files and their directories; 'ours, no fsync' is the like for like with the peers",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {
            "fragments_min": min(_FRAGMENTS[scale]),
            "fragments_max": max(_FRAGMENTS[scale]),
            "rows_per_append": _ROW.num_rows,
        }

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        for fragments in _FRAGMENTS[stage.scale]:
            place = stage.workspace / str(fragments)
            stage.log(f"building a table of {fragments} fragments")
            _build_lance(place / "built", fragments)
            yield _opens(place, fragments)
            yield _appends(place, fragments)
            shutil.rmtree(place)


WORKLOAD = Commit()


def _opens(place: Path, fragments: int) -> Case:
    built = str(place / "built")

    def ours() -> Runner:
        return _Repeated(lambda: Table.open(built), lambda: Table.open(built).count_rows())

    def pylance() -> Runner:
        import lance

        return _Repeated(lambda: lance.dataset(built), lambda: lance.dataset(built).count_rows())

    def delta() -> Runner:
        from deltalake import DeltaTable

        path = _build_delta(place / "delta-open", fragments)
        return _Repeated(lambda: DeltaTable(path), lambda: _rows_of_delta(path))

    return Case(
        f"open, {fragments} fragments",
        (
            Entrant("ours", Side.OURS, ours),
            Entrant("pylance", Side.PEER, pylance, needs=("pylance",)),
            Entrant("deltalake", Side.PEER, delta, needs=("deltalake",)),
        ),
        calls=_OPENS_PER_REPETITION,
    )


def _appends(place: Path, fragments: int) -> Case:
    def ours(durable: bool) -> Callable[[], Runner]:
        def enter() -> Runner:
            path = _copied(place, f"ours-{durable}")
            return _Repeated(
                lambda: Table.open(path, durable=durable).append(_ROW),
                lambda: Table.open(path).count_rows(),
            )

        return enter

    def pylance() -> Runner:
        import lance

        path = _copied(place, "pylance")
        return _Repeated(
            lambda: lance.write_dataset(_ROW, path, mode="append"), lambda: lance.dataset(path).count_rows()
        )

    def delta() -> Runner:
        from deltalake import write_deltalake

        path = _build_delta(place / "delta", fragments)
        return _Repeated(lambda: write_deltalake(path, _ROW, mode="append"), lambda: _rows_of_delta(path))

    return Case(
        f"append, {fragments} fragments",
        (
            Entrant("ours", Side.OURS, ours(durable=True)),
            Entrant("ours, no fsync", Side.OURS, ours(durable=False)),
            Entrant("pylance", Side.PEER, pylance, needs=("pylance",)),
            Entrant("deltalake", Side.PEER, delta, needs=("deltalake",)),
        ),
        calls=_APPENDS_PER_REPETITION,
    )


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Calls that need nothing put back: an open leaves no trace, the next append goes on top of the last."""

    work: Callable[[], object]
    rows: Callable[[], int]

    def before(self) -> None:
        pass

    def call(self) -> None:
        self.work()

    def facts(self) -> Facts:
        return {"rows": self.rows()}


def _build_lance(path: Path, fragments: int) -> None:
    """All but two fragments come in one commit, whose manifest carries a copy of that long transaction; a
    last small append makes a head without it. Their files are one file under many names."""
    table = Table.create(str(path), _ROW, durable=False)
    same = tuple(_linked(path / "data", table.fragments[0], number) for number in range(fragments - 2))
    if same:
        table = table.commit(Append(same)).table
    if fragments > 1:
        table = table.append(_ROW).table
    assert len(table.fragments) == fragments


def _copied(place: Path, name: str) -> str:
    """Without the numbered files: nobody reads them, and a file system has no room for so many links to one."""
    numbered = shutil.ignore_patterns("????????.lance")
    return str(shutil.copytree(place / "built", place / name, ignore=numbered))


def _linked(data: Path, fragment: Fragment, number: int) -> Fragment:
    (file,) = fragment.files
    name = f"{number:08}.lance"
    os.link(data / file.path, data / name)
    linked = DataFile.of(
        path=name,
        field_ids=file.field_ids,
        column_indices=file.column_indices,
        version=file.version,
        size=file.size or 0,
    )
    return Fragment.of(files=[linked], physical_rows=fragment.physical_rows)


def _build_delta(place: Path, fragments: int) -> str:
    """The same number of adds; the files that the log names are never opened by an append."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.transaction import AddAction, RemoveAction

    path = str(place)
    write_deltalake(path, _ROW)
    if fragments > 1:
        (real,) = place.glob("*.parquet")
        stats = '{"numRecords":1,"minValues":{"id":1},"maxValues":{"id":1},"nullCount":{"id":0}}'
        adds: list[AddAction | RemoveAction] = [
            AddAction(f"part-{number:05d}-{real.name[11:]}", real.stat().st_size, {}, 0, True, stats)
            for number in range(1, fragments)
        ]
        DeltaTable(path).create_write_transaction(adds, "append", DeltaTable(path).schema())
    DeltaTable(path).create_checkpoint()
    return path


def _rows_of_delta(path: str) -> int:
    from deltalake import DeltaTable

    return sum(pa.table(DeltaTable(path).get_add_actions(flatten=True))["num_records"].to_pylist())
