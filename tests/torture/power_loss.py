"""Power loss harness: records a workload of real processes at the level of system calls, constructs the states that a
power loss can leave on the disk, and opens each with the readers of its writer; see `tests/syscalls/power_loss.py`.

The same workload runs on pylance's writer and on deltalake's, whose violations are figures of the report, not failures.
Recording needs `strace`, which Debian and Ubuntu have as a package of that name.

    make torture ARGS="power-loss --size full"
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.syscalls.disk_model import MODELS, DiskState
from tests.syscalls.power_loss import Recording, check_state, record_workload, workspace
from tests.syscalls.reader_process import ReaderProcess
from tests.syscalls.recordings import DEFECTIVE_RUNS, record_defect
from tests.torture.report import Report

_FAILURES_MAX = 5


@dataclass(frozen=True, slots=True)
class Size:
    samples: int
    """Number of states that are drawn for each moment and model."""
    engines: tuple[str, ...] = ("ours", "pylance", "deltalake")
    steps: tuple[str, ...] = ()
    """Steps of the workload; all of them if empty."""
    states_max: int = 1 << 30
    """Maximum number of states of each engine that are opened."""
    defects: tuple[str, ...] = ()
    """Planted defects whose workloads are recorded and must be detected."""
    seed: int = 0
    split_index: int = 0
    split_count: int = 1


PR = Size(samples=6, engines=("ours",), steps=("create", "append"), states_max=20)
NIGHTLY = Size(samples=10, defects=tuple(DEFECTIVE_RUNS))


def split(size: Size, count: int) -> Sequence[Size]:
    """Split the size. Each part records runs of its own, and the parts open different states."""
    return [
        replace(size, split_index=index, split_count=count, defects=size.defects[index::count])
        for index in range(count)
    ]


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures: list[str] = []
    figures: dict[str, str] = {}
    tried = 0
    with workspace() as place, ReaderProcess() as reader:
        for engine in size.engines:
            recording = record_workload(engine, place, steps=size.steps)
            states = choose_states(recording, size)
            kinds, problems = open_states(recording, states, place, reader)
            if engine == "ours":
                tried = len(states)
                failures += problems[:_FAILURES_MAX]
            figures |= _figures(engine, recording, states, kinds)
        for defect in size.defects:
            if not is_detected(record_defect(defect, place), size, place, reader):
                failures.append(f"the states of a writer that {defect} have no problem")
        figures["planted defects"] = str(len(size.defects))
    return Report("power-loss", tried, time.perf_counter() - started, tuple(failures), figures)


def choose_states(recording: Recording, size: Size) -> Sequence[DiskState]:
    """Return the states that a run of this size opens, evenly over the recording."""
    states = recording.sample_states(size.samples, size.seed)[size.split_index :: size.split_count]
    return states[:: -(-len(states) // size.states_max)]


def open_states(
    recording: Recording, states: Sequence[DiskState], place: Path, reader: ReaderProcess
) -> tuple[Counter[str], list[str]]:
    """Open each state. Return the number of states by model and kind of problem, and the problems."""
    counts: Counter[str] = Counter()
    failures = []
    for state in states:
        problems = check_state(recording, state, place, reader)
        if problems:
            counts[f"states with a violation, {state.model}"] += 1
            counts.update({problem.kind for problem in problems})
            event = recording.events[state.event_number] if state.event_number < len(recording.events) else "the end"
            failures.append(
                f"{state.model} model, before event {state.event_number} ({event}), {state.description}: "
                f"{problems[0].kind}: {problems[0].text}"
            )
    return counts, failures


def is_detected(recording: Recording, size: Size, place: Path, reader: ReaderProcess) -> bool:
    """Return whether a state of the recording has a problem."""
    states = recording.sample_states(size.samples, size.seed)
    return any(check_state(recording, state, place, reader) for state in reversed(states))


def _figures(engine: str, recording: Recording, states: Sequence[DiskState], counts: Counter[str]) -> dict[str, str]:
    figures = {f"{engine}: events": f"{len(recording.events):,}"}
    for model in MODELS:
        figures[f"{engine}: states, {model}"] = f"{sum(state.model == model for state in states):,}"
    figures |= {f"{engine}: states with a violation, {model}": "0" for model in MODELS}
    return figures | {f"{engine}: {what}": f"{count:,}" for what, count in sorted(counts.items())}
