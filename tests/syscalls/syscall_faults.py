"""Injected faults of system calls: lets one call of a step fail, checks the table, and repeats the step.

    with workspace() as place, FaultServer("ours") as server, ReaderProcess() as reader:
        for prepared in prepare_steps("ours", place, server):
            for fault in plan_faults(prepared.calls):
                result = try_fault(prepared, fault, server, reader)

A step with a fault ends in an error that its engine defines, or succeeds. After an error, the table has its rows
from before or after the step; after a success, those from after it. Earlier versions are intact. After a repetition
under the same intent, the table has the rows from after the step, once. A step does not succeed if the sync of a file
has failed that is still part of the table.
"""

import errno
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from lance_core import Table
from lance_core.versions.file_inventory import references_of
from tests.syscalls.engines import ENGINES, NEWEST, Rows, age_files
from tests.syscalls.fault_server import FaultServer, StepRun
from tests.syscalls.power_loss import READERS, TABLE
from tests.syscalls.reader_process import ReaderProcess
from tests.syscalls.steps import BRANCH, STEPS, expected_rows
from tests.syscalls.supervisor import Fault, SystemCall
from tests.syscalls.table_checks import READER_ENDED, PossibleRows, Problem

STEP_ENDED = "the process of the step ended or hung"
UNTYPED = "the error is none that the engine defines"
FALSE_SUCCESS = "a step succeeded after a sync had failed"
NOT_REPEATABLE = "a repetition fails, or doubles or loses rows"
MISSING_SYNC = "a name or a file is not synced before the step returns"
_READ_ERRORS = (errno.EIO, errno.ESTALE, errno.EINTR)
_SPACE_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_ERRORS: Mapping[str, tuple[int, ...]] = {
    "open": (errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE),
    "create": (errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "write": (*_SPACE_ERRORS, errno.EINTR, errno.EFBIG),
    "sync": (*_SPACE_ERRORS, errno.EINTR, errno.ESTALE),
    "name": (*_SPACE_ERRORS, errno.EACCES, errno.ESTALE, errno.EROFS),
    "copy": (*_SPACE_ERRORS, errno.EXDEV, errno.EOPNOTSUPP),
    "lock": (errno.EINTR, errno.ENOLCK),
    "read": _READ_ERRORS,
}
_KIND_OF_CALL = {
    **dict.fromkeys(("open", "openat"), "open"),
    **dict.fromkeys(("write", "writev", "pwrite64", "pwritev", "ftruncate", "truncate", "fallocate"), "write"),
    **dict.fromkeys(("fsync", "fdatasync"), "sync"),
    **dict.fromkeys(("copy_file_range", "sendfile"), "copy"),
    **dict.fromkeys(("read", "pread64", "getdents64"), "read"),
    "flock": "lock",
}
_APPLIED = ("link", "linkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "unlink", "unlinkat")
"""Calls that may have had their effect before they return an error, as on a network file system."""
_REFERENCED_DIRECTORIES = ("data/", "_indices/", "_deletions/")
_NOT_IDEMPOTENT = {"ours": ("tag", "branch"), "pylance": ("create", "tag", "branch"), "deltalake": ("create",)}
"""Steps whose repetition may fail because the result exists."""


@dataclass(frozen=True)
class PreparedStep:
    """Step with the table before it and the calls of an undisturbed run."""

    engine: str
    step: str
    place: Path
    base: Path
    """Copy of the table before the step."""
    calls: Sequence[SystemCall]
    before: Rows | None
    after: Rows
    acknowledged: Mapping[str, Rows]
    """Versions, tags and branches before the step that remain."""
    result: Mapping[str, Rows]
    """The tag or the branch that the step creates."""
    defect: str = ""

    @property
    def uri(self) -> str:
        return str(self.place / TABLE)

    def restore(self) -> None:
        _restore(self.base, self.place / TABLE)


@dataclass
class FaultResult:
    """Outcome of a step with a fault: its answer and the problems."""

    run: StepRun
    call: SystemCall
    problems: list[Problem] = field(default_factory=list)

    def unsynced_paths(self, uri: str) -> list[str]:
        """Return the paths of the table that the fault left unsynced. Files that no version references do not count."""
        if self.call.name not in ("fsync", "fdatasync") or not self.run.failed_names:
            return []
        referenced = references_of(Table.open(uri).manifest).own
        return [
            path
            for path in self.run.failed_names
            if not path.startswith(_REFERENCED_DIRECTORIES)
            or any(path == each or path.startswith(f"{each}/") for each in referenced)
        ]


def prepare_steps(
    engine: str, place: Path, server: FaultServer, steps: Sequence[str] = (), *, defect: str = ""
) -> Iterator[PreparedStep]:
    """Run the steps of an engine one after the other, and return each with the table before it."""
    names = tuple(step for step in ENGINES[engine]().steps if step != "append concurrently")
    if steps:
        names = names[: max(names.index(step) for step in steps if step in names) + 1]
    rows_after = expected_rows(names)
    acknowledged: dict[str, Rows] = {}
    rows_of: dict[str, Rows | None] = {"": None, BRANCH: None}
    shutil.rmtree(place / "bases", ignore_errors=True)
    for step in names:
        base = place / "bases" / step
        if (place / TABLE).exists():
            shutil.copytree(place / TABLE, base)
        if step == "clean up":
            age_files(base)
        _restore(base, place / TABLE)  # for the order in which listings return the names, which is that of each fault
        run = server.run_step(str(place / TABLE), step, directory=place / TABLE)
        assert not run.error, f"{engine} cannot run {step}: {run.error}: {run.message}"
        branch = BRANCH if STEPS[step].is_on_branch else ""
        after = sorted(rows_after[step].items())
        kind = run.key.rpartition(":")[0]
        creates_reference = bool(kind) and not branch
        remaining = {key: rows for key, rows in acknowledged.items() if ":" in key or step != "clean up"}
        prepared = PreparedStep(
            engine, step, place, base, run.calls, rows_of[branch], after, remaining,
            {run.key: after} if creates_reference else {}, defect,
        )  # fmt: skip
        if not steps or step in steps:
            yield prepared
            prepared.restore()
            server.run_step(str(place / TABLE), step, directory=place / TABLE)
        rows_of[branch] = after
        if step == "branch":
            rows_of[BRANCH] = after
        if step == "clean up":
            acknowledged = remaining
        elif creates_reference or branch:
            acknowledged[run.key] = after
        else:
            acknowledged = {key: rows for key, rows in acknowledged.items() if ":" in key}
            acknowledged |= {run.key: after} if run.key != NEWEST else {}


def plan_faults(calls: Sequence[SystemCall]) -> Iterator[Fault]:
    """Return each plausible error of each call."""
    for number, call in enumerate(calls):
        kind = "create" if call.creates else _KIND_OF_CALL.get(call.name, "name")
        for error in _ERRORS[kind]:
            yield Fault(number, error)
        if call.name in _APPLIED:
            yield Fault(number, errno.EIO, is_applied=True)


def find_missing_syncs(calls: Sequence[SystemCall]) -> list[Problem]:
    """Return the files and names that a step has made without syncing them, or that it had not synced when a manifest
    got its name. Hints need no sync."""
    problems = []
    manifests = [number for number, call in enumerate(calls) if (call.target or "").endswith(".manifest")]
    synced = [(number, call.path) for number, call in enumerate(calls) if call.name in ("fsync", "fdatasync")]
    removed = {call.path for call in calls if call.name in ("unlink", "unlinkat")}
    for number, call in enumerate(calls):
        path = call.target
        if not path or "hint" in path or path in removed:
            continue
        directory = "" if "/" not in path else str(PurePosixPath(path).parent)
        later = [manifest for manifest in manifests if manifest > number]
        last, moment = (later[0], "before the next manifest") if later else (len(calls), "")
        before = [(at, each) for at, each in synced if at < last]
        if not any(each == path if at > number else each == call.path for at, each in before):
            problems.append(Problem(MISSING_SYNC, f"the content of {path} is not synced {moment}"))
        if not any(at > number and each == directory for at, each in before):
            problems.append(Problem(MISSING_SYNC, f"the name {path} is not synced {moment}"))
    return problems


def try_fault(prepared: PreparedStep, fault: Fault, server: FaultServer, reader: ReaderProcess) -> FaultResult:
    """Run the step with the fault, check the table, repeat the step without a fault, and check again."""
    prepared.restore()
    place = prepared.place / TABLE
    run = server.run_step(prepared.uri, prepared.step, directory=place, fault=fault, defect=prepared.defect)
    call = (run.calls if len(run.calls) > fault.number else prepared.calls)[fault.number]
    result = FaultResult(run, call)
    if not run.has_ended:
        result.problems.append(Problem(STEP_ENDED, run.message or "the forked process ended without an answer"))
    elif run.error and not run.is_typed:
        result.problems.append(Problem(UNTYPED, f"{run.error}: {run.message}"))
    if not run.error and prepared.engine == "ours" and fault.error != errno.EINTR:  # Python repeats a sync then
        unsynced = result.unsynced_paths(prepared.uri)
        result.problems += [Problem(FALSE_SUCCESS, f"{path or 'the table'} was not synced") for path in unsynced]
    expected = PossibleRows(
        READERS[prepared.engine],
        (prepared.before, prepared.after) if run.error else (prepared.after,),
        prepared.acknowledged,
        BRANCH if STEPS[prepared.step].is_on_branch else "",
    )
    result.problems += reader.find_problems(prepared.uri, expected)
    if run.error and not any(problem.kind == READER_ENDED for problem in result.problems):
        result.problems += _repeat(prepared, expected, server, reader)
    return result


def _restore(base: Path, table: Path) -> None:
    shutil.rmtree(table, ignore_errors=True)
    if base.exists():
        shutil.copytree(base, table)


def _repeat(
    prepared: PreparedStep, expected: PossibleRows, server: FaultServer, reader: ReaderProcess
) -> list[Problem]:
    again = server.run_step(prepared.uri, prepared.step, directory=prepared.place / TABLE, defect=prepared.defect)
    if again.error and prepared.step not in _NOT_IDEMPOTENT[prepared.engine]:
        return [Problem(NOT_REPEATABLE, f"{again.error}: {again.message}")]
    everything = {**prepared.acknowledged, **prepared.result}
    repeated = replace(expected, possible=(prepared.after,), acknowledged=everything)
    return [
        Problem(NOT_REPEATABLE, f"{problem.kind}: {problem.text}")
        for problem in reader.find_problems(prepared.uri, repeated)
    ]
