"""Workload `checksums`: price of hashing files in a bulk write, and of `verify="read"` for scans and rows by number."""

import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.report import Facts
from lance_core import Table
from lance_core.datafiles.checksums import compute_checksum, forget_verified_files
from lance_core.storage.local import LocalStore

_FILES: Mapping[Scale, int] = {Scale.SMOKE: 2, Scale.DEFAULT: 8, Scale.FULL: 16}
_ROWS_PER_FILE: Mapping[Scale, int] = {Scale.SMOKE: 1_000, Scale.DEFAULT: 1_015_808, Scale.FULL: 1_015_808}
_REPETITIONS: Mapping[Scale, int] = {Scale.SMOKE: 1, Scale.DEFAULT: 5, Scale.FULL: 7}
_COLUMNS = 8
_ROWS_TAKEN = 1_000


class Checksums:
    name = "checksums"
    summary = "hashes of a bulk write; scans and rows by number with verify='read', the first time in a process"
    notes = (
        "hashes: a write computes them as soon as a file is closed; the ratio is their share of the write",
        "verify='read': the process has verified no file before the call, and reads them from a warm page cache",
    )

    def repetitions(self, scale: Scale) -> int:
        return _REPETITIONS[scale]

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"files": _FILES[scale], "rows_per_file": _ROWS_PER_FILE[scale], "columns": _COLUMNS}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        files, rows_per_file = _FILES[stage.scale], _ROWS_PER_FILE[stage.scale]
        random = np.random.default_rng(7)
        columns = {f"c{number}": random.integers(0, 2**62, rows_per_file) for number in range(_COLUMNS)}
        part = pa.table(columns)
        data, place = pa.concat_tables([part] * files), stage.workspace / "t"
        stage.log(f"writing {data.nbytes:,} bytes")
        Table.create(str(place), data, max_rows_per_file=rows_per_file)
        write = Entrant("write", Side.PEER, lambda: _Write(stage.workspace / "written", data, rows_per_file))
        yield Case(
            f"hashes of {files} files / their durable write",
            (Entrant("hashes", Side.OURS, lambda: _Hashes(place)), write),
        )
        numbers = random.choice(data.num_rows, min(_ROWS_TAKEN, data.num_rows), replace=False).tolist()
        yield _case(f"scan of {_COLUMNS} columns", place, lambda table: table.to_table())
        yield _case(f"scan of 1 of {_COLUMNS} columns", place, lambda table: table.to_table(["c0"]))
        yield _case(f"take {len(numbers)} random rows", place, lambda table: table.take(numbers))
        yield _case("take 1 row", place, lambda table: table.take(numbers[:1]))
        shutil.rmtree(place)


WORKLOAD = Checksums()


@dataclass(slots=True)
class _Write:
    """Runner that writes a table of several files durably."""

    place: Path
    data: pa.Table
    rows_per_file: int

    def before(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def call(self) -> None:
        Table.create(str(self.place), self.data, max_rows_per_file=self.rows_per_file)

    def facts(self) -> Facts:
        return {"files": len(list(self.place.glob("data/*.lance")))}


@dataclass(slots=True)
class _Hashes:
    """Runner that hashes the data files of a table, as their writer does."""

    place: Path
    count: int = 0

    def before(self) -> None:
        self.count = 0

    def call(self) -> None:
        store = LocalStore(self.place)
        for file in sorted(self.place.glob("data/*.lance")):
            compute_checksum(store, f"data/{file.name}")
            self.count += 1

    def facts(self) -> Facts:
        return {"files": self.count}


@dataclass(slots=True)
class _Read:
    """Runner that opens a table, reads, and retains the result for the comparison."""

    uri: str
    verify: str
    read: Callable[[Table], pa.Table]
    result: pa.Table = field(default_factory=lambda: pa.table({}))

    def before(self) -> None:
        self.result = pa.table({})
        forget_verified_files()

    def call(self) -> None:
        self.result = self.read(Table.open(self.uri, verify=self.verify))

    def facts(self) -> Facts:
        return {"rows": self.result.num_rows, "largest": int(pc.max(self.result["c0"]).as_py())}


def _case(name: str, place: Path, read: Callable[[Table], pa.Table]) -> Case:
    def runner(verify: str) -> Callable[[], Runner]:
        return lambda: _Read(str(place), verify, read)

    return Case(
        name,
        (Entrant("verified", Side.OURS, runner("read")), Entrant("not verified", Side.PEER, runner("off"))),
    )
