"""Power loss by replay of system calls: records a workload, constructs the states that a power loss at each moment can
leave on the disk, and opens each of them.

    with workspace() as place, ReaderProcess() as reader:
        recording = record_workload("ours", place)
        for state in recording.sample_states(samples=8, seed=0):
            problems = check_state(recording, state, place, reader)

`disk_model.py` defines the states. An acknowledged version opens with exactly its rows, a version without
acknowledgement does so or is absent, and the next commit succeeds. A version that a cleanup has begun to remove may be
gone. Start with `Recording`.
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.syscalls.disk_model import MODELS, DiskModel, DiskState
from tests.syscalls.engines import Rows
from tests.syscalls.events import FileEvent
from tests.syscalls.json_process import ROOT
from tests.syscalls.reader_process import ReaderProcess
from tests.syscalls.strace import record_events
from tests.syscalls.table_checks import Expectation, Problem
from tests.syscalls.workload import Acknowledgement, read_acknowledgements

TABLE = "table"
_MEMORY = Path("/dev/shm")
_SECOND_NS = 1_000_000_000
READERS: Mapping[str, tuple[str, ...]] = {
    "ours": ("ours", "pylance"),
    "pylance": ("pylance",),
    "deltalake": ("deltalake",),
}
"""Engines that read the tables of each writer."""


@dataclass(frozen=True)
class Recording:
    """Events of one run of the workload on an engine."""

    engine: str
    events: Sequence[FileEvent]

    @cached_property
    def acknowledgements(self) -> Sequence[tuple[int, Acknowledgement]]:
        """Reports with the numbers of their events."""
        return [
            (number, read_acknowledgements(event.data))
            for number, event in enumerate(self.events)
            if event.kind == "report"
        ]

    def sample_states(self, samples: int, seed: int, models: Sequence[str] = MODELS) -> list[DiskState]:
        """Return at most `samples` states for each event and each model, without equal ones between two reports."""
        states: list[DiskState] = []
        for model in models:
            generator = random.Random(f"{seed} {model}")
            disk = DiskModel(model)
            seen: set[int] = set()
            for number in range(len(self.events) + 1):
                for state in disk.sample_states(number, generator, samples):
                    if state.identity not in seen:
                        seen.add(state.identity)
                        states.append(state)
                if number < len(self.events):
                    disk.apply(number, self.events[number])
                    if self.events[number].kind == "report":
                        seen.clear()
        return states

    def expectation(self, state: DiskState) -> Expectation:
        acknowledged: dict[str, Rows] = {}
        removed: set[str] = set()
        for number, report in self.acknowledgements:
            if number >= state.event_number:
                break
            if report.begins_removal:
                removed = acknowledged.keys() - self._retained
            elif report.key:
                acknowledged[report.key] = report.rows
        known = {report.key: report.rows for _, report in self.acknowledgements if report.key}
        expected = {key: rows for key, rows in acknowledged.items() if key not in removed}
        return Expectation(self.engine, READERS[self.engine], expected, known)

    @cached_property
    def _retained(self) -> set[str]:
        return {key for _, report in self.acknowledgements for key in report.retained}


@contextmanager
def workspace() -> Iterator[Path]:
    """Create a directory in which a workload is recorded and its states are laid out, at one path, since a branch
    refers to files of the main branch by their absolute paths. It is in memory if the machine has `/dev/shm`.
    """
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lance-power-", dir=parent) as place:
        yield Path(place)


def record_workload(
    engine: str, place: Path, *, steps: Sequence[str] = (), defect: str = "", injected: str = ""
) -> Recording:
    """Run the workload of an engine under `strace`. `defect` is one of `planted_defects.DEFECTS`."""
    _clear(place)
    command = [sys.executable, "-m", "tests.syscalls.workload", engine, str(place / TABLE)]
    command += [*(["--steps", ",".join(steps)] if steps else []), *(["--defect", defect] if defect else [])]
    return Recording(engine, record_events(command, place, cwd=ROOT, injected=injected))


def check_state(recording: Recording, state: DiskState, place: Path, reader: ReaderProcess) -> list[Problem]:
    lay_out(state, place)
    return reader.find_problems(str(place / TABLE), recording.expectation(state))


def lay_out(state: DiskState, place: Path) -> None:
    """Write the state to a directory, whose contents are removed first.

    The names are written in the order of their last changes, and each directory is newer than its files unless the last
    name is a hint, as on the disk: a reader trusts a hint that is the last change of its directory.
    """
    _clear(place)
    for directory in sorted(state.directories - {""}):
        (place / directory).mkdir()
    last: dict[Path, Path] = {}
    for path, data in state.files.items():
        (place / path).write_bytes(data)
        last[(place / path).parent] = place / path
    for parent, file in last.items():
        if "hint" not in file.name:
            newer = file.stat().st_ctime_ns + _SECOND_NS
            os.utime(parent, ns=(newer, newer))


def _clear(place: Path) -> None:
    for child in place.iterdir():
        shutil.rmtree(child)
