"""System call fault harness: lets single system calls of real processes fail with each plausible error; see
`tests/syscalls/syscall_faults.py`.

The writers of pylance and deltalake meet the same faults; their violations are figures of the report, not failures. The
harness needs Linux with user notifications of seccomp; elsewhere only the calls of Python's `os` fail.

    make torture ARGS="syscall-faults --size full"
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.syscalls.fault_server import FaultServer
from tests.syscalls.planted_defects import DEFECTS
from tests.syscalls.power_loss import workspace
from tests.syscalls.reader_process import ReaderProcess
from tests.syscalls.supervisor import Fault
from tests.syscalls.syscall_faults import (
    FaultResult,
    PreparedStep,
    find_missing_syncs,
    plan_faults,
    prepare_steps,
    try_fault,
)
from tests.torture.report import Report

_FAILURES_MAX = 10


@dataclass(frozen=True, slots=True)
class Size:
    faults_per_step: int
    """Maximum number of faults of each step; a seed chooses them if there are more."""
    peer_faults_per_step: int = 0
    """The same for the writers of pylance and deltalake."""
    engines: tuple[str, ...] = ("ours", "pylance", "deltalake")
    steps: tuple[str, ...] = ()
    """Steps with faults; all of them if empty."""
    defects: tuple[str, ...] = ()
    """Planted defects that faults must detect."""
    seed: int = 0


PR = Size(faults_per_step=10, engines=("ours",), steps=("append",))
NIGHTLY = Size(faults_per_step=180, peer_faults_per_step=40, defects=tuple(DEFECTS))


def split(size: Size, count: int) -> Sequence[Size]:
    """Split the size. Each part draws other faults of all steps."""
    return [
        replace(
            size,
            faults_per_step=-(-size.faults_per_step // count),
            peer_faults_per_step=-(-size.peer_faults_per_step // count),
            seed=size.seed + index,
            defects=size.defects[index::count],
        )
        for index in range(count)
    ]


def run(size: Size) -> Report:
    started = time.perf_counter()
    failures: list[str] = []
    figures: dict[str, str] = {}
    tried = 0
    for engine in size.engines:
        count, counts, problems = inject_faults(engine, size)
        if engine == "ours":
            tried = count
            failures += problems[:_FAILURES_MAX]
        figures[f"{engine}: faults"] = f"{count:,}"
        figures[f"{engine}: faults with a violation"] = f"{counts.pop('violations', 0):,}"
        figures |= {f"{engine}: {what}": f"{number:,}" for what, number in sorted(counts.items())}
    failures += [f"no fault shows that a writer {defect}" for defect in size.defects if not is_detected(defect, size)]
    figures["planted defects"] = str(len(size.defects))
    return Report("syscall-faults", tried, time.perf_counter() - started, tuple(failures), figures)


def inject_faults(engine: str, size: Size, defect: str = "") -> tuple[int, Counter[str], list[str]]:
    """Inject faults into the steps. Return their number, counts of outcomes and problems, and the problems."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    tried = 0
    with workspace() as place, FaultServer(engine) as server, ReaderProcess() as reader:
        for prepared in prepare_steps(engine, place, server, size.steps, defect=defect):
            missing = find_missing_syncs(prepared.calls) if engine == "ours" else []
            failures += [f"{prepared.step}: {problem.kind}: {problem.text}" for problem in missing]
            for fault in choose_faults(prepared, size):
                tried += 1
                result = try_fault(prepared, fault, server, reader)
                counts["steps that ended in an error" if result.run.error else "steps that succeeded"] += 1
                if result.problems:
                    counts["violations"] += 1
                    counts.update({problem.kind for problem in result.problems})
                    failures += _describe(prepared, fault, result)
    return tried, counts, failures


def choose_faults(prepared: PreparedStep, size: Size) -> Sequence[Fault]:
    faults = list(plan_faults(prepared.calls))
    count = size.faults_per_step if prepared.engine == "ours" else size.peer_faults_per_step
    if len(faults) <= count:
        return faults
    return random.Random(f"{size.seed} {prepared.step}").sample(faults, count)


def is_detected(defect: str, size: Size) -> bool:
    """Return whether a fault, or the calls of an undisturbed run, show a planted defect."""
    with workspace() as place, FaultServer("ours") as server, ReaderProcess() as reader:
        prepared = next(
            each for each in prepare_steps("ours", place, server, ("append",), defect=defect) if each.step == "append"
        )
        prepared.restore()
        calls = server.run_step(prepared.uri, prepared.step, directory=place / "table", defect=defect).calls
        if find_missing_syncs(calls):
            return True
        faults = plan_faults(calls)
        return any(try_fault(replace(prepared, calls=calls), fault, server, reader).problems for fault in faults)


def _describe(prepared: PreparedStep, fault: Fault, result: FaultResult) -> list[str]:
    call = result.call
    where = f"{call.name} {call.path}{f' -> {call.target}' if call.target else ''}"
    return [
        f"{prepared.step}, call {fault.number} {where}, {fault}: {problem.kind}: {problem.text}"
        for problem in result.problems
    ]
