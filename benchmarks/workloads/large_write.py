"""Workload `large_write`: the driver's part of a write of very many tasks, which collects their results and commits.

Each task has written one file of ten rows and 16 columns. The results of one real task stand for those of all: their
files are copies under other names, so that the commit checks as many files as it would. The table is on the local
disk, or in an emulator of S3 that answers each request after 30 ms.
"""

import os
import shutil
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import CallFigures, Case, Entrant, Runner, Scale, Side, Stage
from benchmarks.memory import PeakMemory
from benchmarks.report import Facts
from lance_core import Table
from lance_core.format.fragment import Fragment
from lance_core.tasks.rows.write import RESULT, FileLimits, PlannedWrite, WriteTask, begin_append
from tests.lance_core.storage.s3_process import S3Process, s3_process

_TASKS: Mapping[Scale, int] = {Scale.SMOKE: 100, Scale.DEFAULT: 10_000, Scale.FULL: 100_000}
_LATENCY = timedelta(milliseconds=30)
_LINKS_MAX = 50_000
"""Number of names that one file may have, on ext4 up to 65,000."""
_ROWS = pa.table({f"column_{number}": np.arange(10) + number for number in range(16)})


class LargeWrite:
    name = "large_write"
    summary = "the driver's part of a write of very many tasks: it collects their results and commits"
    notes = (
        "result bytes: what all tasks return to the driver",
        "manifest bytes: of the version that the write commits to an empty table",
        "peak MB: memory of the driver's process beyond that before the call, which holds the results",
    )

    def repetitions(self, scale: Scale) -> int:
        return 1 if scale is Scale.SMOKE else 3

    def parameters(self, scale: Scale) -> Mapping[str, int]:
        return {"tasks": _TASKS[scale]}

    def cases(self, stage: Stage) -> Generator[Case, None, None]:
        tasks = _TASKS[stage.scale]
        local = _LocalStorage(stage.workspace)
        yield _case("local disk", partial(_LargeWriteRunner, local, tasks))
        with s3_process() as server:
            remote = _S3Storage(server, stage.workspace / "source")
            yield _case("object store at 30 ms", partial(_LargeWriteRunner, remote, tasks))


WORKLOAD = LargeWrite()


def _case(name: str, enter: Callable[[], Runner]) -> Case:
    return Case(name, (Entrant("ours", Side.OURS, enter),), warm_ups=0)


@dataclass(slots=True)
class _LocalStorage:
    workspace: Path
    options: Mapping[str, str] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    def create(self) -> str:
        uri = str(self.workspace / f"local-{next(self._numbers)}.lance")
        Table.create(uri, _ROWS.schema)
        return uri

    def copy_file(self, uri: str, name: str, names: list[str]) -> None:
        source = data = Path(uri, "data")
        for number, each in enumerate(names):
            if number % _LINKS_MAX == 0:
                source = data / each
                shutil.copy(data / name, source)
            else:
                os.link(source, data / each)

    def set_waiting(self, is_waiting: bool) -> None:
        """Do nothing: a disk has no artificial latency."""

    def remove(self, uri: str) -> None:
        shutil.rmtree(uri)


@dataclass(slots=True)
class _S3Storage:
    server: S3Process
    directory: Path
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def options(self) -> Mapping[str, str]:
        return self.server.bucket.options

    def create(self) -> str:
        uri = f"{self.server.bucket.uri}/large-{next(self._numbers)}.lance"
        Table.create(uri, _ROWS.schema, storage_options=self.options)
        return uri

    def copy_file(self, uri: str, name: str, names: list[str]) -> None:
        """Load copies of a file as objects, which takes no requests."""
        data = self.directory / "data"
        data.mkdir(parents=True)
        location = uri.removeprefix(f"{self.server.bucket.uri}/")
        content = Table.open(uri, storage_options=self.options)._snapshot.location.own_store.read(f"data/{name}")
        for number, each in enumerate(names):
            if number % _LINKS_MAX == 0:
                source = data / each
                source.write_bytes(content)
            else:
                os.link(source, data / each)
        self.server.load(self.directory, location)
        shutil.rmtree(self.directory)

    def set_waiting(self, is_waiting: bool) -> None:
        self.server.set_latency(_LATENCY if is_waiting else timedelta(0))

    def remove(self, uri: str) -> None:
        self.server.remove(uri.removeprefix(f"{self.server.bucket.uri}/"))


@dataclass(slots=True)
class _LargeWriteRunner:
    storage: _LocalStorage | _S3Storage
    tasks: int
    _uri: str = ""
    _planned: PlannedWrite | None = None
    _results: pa.Table | None = None
    _memory: PeakMemory = field(default_factory=PeakMemory)

    def before(self) -> None:
        if self._uri:
            self.storage.remove(self._uri)
        self._uri = self.storage.create()
        planned = begin_append(
            self._uri,
            _ROWS.schema,
            create=False,
            intent="one large write",
            limits=FileLimits(1_000, 2**20),
            storage_options=self.storage.options,
        )
        assert isinstance(planned, PlannedWrite)
        (batch,) = WriteTask(planned.plan)(iter(_ROWS.to_batches()))
        first = Fragment.decode(batch["fragment"][0].as_py())
        name = first.message.files[0].path
        names = [f"{number:06}-{name[7:]}" for number in range(self.tasks - 1)]
        self.storage.copy_file(self._uri, name, names)
        self._planned, self._results = planned, _results_of(first, [name, *names])
        self.storage.set_waiting(True)
        self._memory.begin_call()

    def call(self) -> None:
        assert self._planned is not None
        assert self._results is not None
        self._planned.finish(self._results)

    def call_figures(self) -> CallFigures:
        memory = self._memory.end_call()
        self.storage.set_waiting(False)
        assert self._results is not None
        table = Table.open(self._uri, storage_options=self.storage.options)
        head = table._snapshot.location.own_store.head(table.manifest.path)
        assert head is not None
        return CallFigures(peaks={"result bytes": self._results.nbytes, "manifest bytes": head.size, **memory})

    def facts(self) -> Facts:
        return {"rows": Table.open(self._uri, storage_options=self.storage.options).count_rows()}


def _results_of(fragment: Fragment, names: list[str]) -> pa.Table:
    """Return the results of tasks that have written these files, each like the fragment."""
    encoded = []
    for name in names:
        message = type(fragment.message)()
        message.CopyFrom(fragment.message)
        message.files[0].path = name
        encoded.append(message.SerializeToString())
    refusals = pa.nulls(len(encoded), pa.string())
    return pa.Table.from_arrays([pa.array(encoded, pa.binary()), refusals], schema=RESULT)
