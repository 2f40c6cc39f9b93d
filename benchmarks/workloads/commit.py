"""Workload `commit`: time of a one-row append and of opening a table, by number of fragments.

Our tables and pylance's are copies of one table that is built here through `Table.commit`; deltalake's has the same
number of adds in its log, combined into a checkpoint. No fragment is read, because this workload measures metadata
only.
"""

import os
import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts, GrowthPoint
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
        "each fragment has one tiny file, all hard links to one; no system reads them",
        "the Delta log is checkpointed before timing, and opening it does not load the entry of every file",
        "ours fsyncs three files and their directories; compare 'ours, no fsync' with the peers",
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
            directory = stage.workspace / str(fragments)
            stage.log(f"building a table of {fragments} fragments")
            _build_lance(directory / "built", fragments)
            yield _open_case(directory, fragments)
            yield _append_case(directory, fragments)
            shutil.rmtree(directory)


WORKLOAD = Commit()


def _open_case(directory: Path, fragments: int) -> Case:
    built = str(directory / "built")

    def ours() -> Runner:
        return _RepeatedCall(lambda: Table.open(built), lambda: Table.open(built).count_rows())

    def pylance() -> Runner:
        import lance

        return _RepeatedCall(lambda: lance.dataset(built), lambda: lance.dataset(built).count_rows())

    def delta() -> Runner:
        from deltalake import DeltaTable

        path = _build_delta(directory / "delta-open", fragments)
        return _RepeatedCall(lambda: DeltaTable(path), lambda: _count_delta_rows(path))

    return Case(
        f"open, {fragments} fragments",
        (
            Entrant("ours", Side.OURS, ours),
            Entrant("pylance", Side.PEER, pylance, needs=("pylance",)),
            Entrant("deltalake", Side.PEER, delta, needs=("deltalake",)),
        ),
        calls=_OPENS_PER_REPETITION,
        point=GrowthPoint("fragments: open", fragments),
    )


def _append_case(directory: Path, fragments: int) -> Case:
    def ours(durable: bool) -> Callable[[], Runner]:
        def enter() -> Runner:
            path = _copy_table(directory, f"ours-{durable}")
            return _RepeatedCall(
                lambda: Table.open(path, durable=durable).append(_ROW),
                lambda: Table.open(path).count_rows(),
            )

        return enter

    def pylance() -> Runner:
        import lance

        path = _copy_table(directory, "pylance")
        return _RepeatedCall(
            lambda: lance.write_dataset(_ROW, path, mode="append"), lambda: lance.dataset(path).count_rows()
        )

    def delta() -> Runner:
        from deltalake import write_deltalake

        path = _build_delta(directory / "delta", fragments)
        return _RepeatedCall(lambda: write_deltalake(path, _ROW, mode="append"), lambda: _count_delta_rows(path))

    return Case(
        f"append, {fragments} fragments",
        (
            Entrant("ours", Side.OURS, ours(durable=True)),
            Entrant("ours, no fsync", Side.OURS, ours(durable=False)),
            Entrant("pylance", Side.PEER, pylance, needs=("pylance",)),
            Entrant("deltalake", Side.PEER, delta, needs=("deltalake",)),
        ),
        calls=_APPENDS_PER_REPETITION,
        point=GrowthPoint("fragments: append", fragments),
    )


@dataclass(frozen=True, slots=True)
class _RepeatedCall:
    """Runner that needs no preparation between calls: opening leaves no trace, and each append extends the last
    version."""

    work: Callable[[], object]
    rows: Callable[[], int]

    def before(self) -> None:
        pass

    def call(self) -> None:
        self.work()

    def facts(self) -> Facts:
        return {"rows": self.rows()}


def _build_lance(path: Path, fragments: int) -> None:
    """Commit all but two fragments at once. The manifest of that version carries a copy of the long transaction, so a
    last small append creates a head without it. All data files are hard links to one file."""
    table = Table.create(str(path), _ROW, durable=False)
    linked_fragments = tuple(
        _link_fragment(path / "data", table.fragments[0], number) for number in range(fragments - 2)
    )
    if linked_fragments:
        table = table.commit(Append(linked_fragments)).table
    if fragments > 1:
        table = table.append(_ROW).table
    assert len(table.fragments) == fragments


def _copy_table(directory: Path, name: str) -> str:
    """Copy the table without the hard links, which no system reads; a file system limits the number of links to one
    file."""
    is_link = shutil.ignore_patterns("????????.lance")
    return str(shutil.copytree(directory / "built", directory / name, ignore=is_link))


def _link_fragment(data: Path, fragment: Fragment, number: int) -> Fragment:
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


def _build_delta(directory: Path, fragments: int) -> str:
    """Create a Delta table with the same number of adds. An append never opens the files that the log names."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.transaction import AddAction, RemoveAction

    path = str(directory)
    write_deltalake(path, _ROW)
    if fragments > 1:
        (data_file,) = directory.glob("*.parquet")
        stats = '{"numRecords":1,"minValues":{"id":1},"maxValues":{"id":1},"nullCount":{"id":0}}'
        adds: list[AddAction | RemoveAction] = [
            AddAction(f"part-{number:05d}-{data_file.name[11:]}", data_file.stat().st_size, {}, 0, True, stats)
            for number in range(1, fragments)
        ]
        DeltaTable(path).create_write_transaction(adds, "append", DeltaTable(path).schema())
    DeltaTable(path).create_checkpoint()
    return path


def _count_delta_rows(path: str) -> int:
    from deltalake import DeltaTable

    return sum(pa.table(DeltaTable(path).get_add_actions(flatten=True))["num_records"].to_pylist())
