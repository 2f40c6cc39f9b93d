"""Tests of injected faults of system calls. A system without user notifications of seccomp injects them into the calls
of Python's `os`. `make torture` runs more faults on all steps, and on other writers."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.syscalls.fault_server import FaultServer
from tests.syscalls.planted_defects import DEFECTS
from tests.syscalls.power_loss import workspace
from tests.syscalls.python_calls import supervise_python
from tests.syscalls.reader_process import ReaderProcess
from tests.syscalls.supervisor import Fault, SupervisedRun, SystemCall, can_supervise, supervise
from tests.syscalls.syscall_faults import MISSING_SYNC, PreparedStep, find_missing_syncs, prepare_steps, try_fault
from tests.torture.syscall_faults import PR, choose_faults

Supervise: TypeAlias = Callable[..., SupervisedRun]
SUPERVISORS: list[Supervise] = [supervise_python, *([supervise] if can_supervise() else [])]


def test_a_step_with_a_fault_commits_once_or_not_at_all() -> None:
    """The faults of an append leave a sound table, and those of planted defects are detected."""
    with workspace() as place, FaultServer("ours") as server, ReaderProcess() as reader:
        for prepared in prepare_steps("ours", place, server, PR.steps):
            assert find_missing_syncs(prepared.calls) == []
            faults = [*choose_faults(prepared, PR), *full_disk_faults(prepared)]
            results = [try_fault(prepared, fault, server, reader) for fault in faults]
            assert [problem for result in results for problem in result.problems] == []
            assert {bool(result.run.error) for result in results} == {True, False}
        for defect in DEFECTS:
            assert detects(prepared, defect, server, reader), defect


def full_disk_faults(prepared: PreparedStep) -> list[Fault]:
    """Return the faults of the last write of a data file, of which the codec of pylance 14 reports none."""
    writes = [at for at, call in enumerate(prepared.calls) if call.name == "write" and call.path.startswith("data/")]
    return [Fault(number, errno.ENOSPC) for number in writes[-1:]]


def detects(prepared: PreparedStep, defect: str, server: FaultServer, reader: ReaderProcess) -> bool:
    """Return whether the defect shows in an undisturbed run, or in a fault of a sync of `_versions` or of its write."""
    prepared.restore()
    calls = server.run_step(prepared.uri, prepared.step, directory=Path(prepared.uri), defect=defect).calls
    defective = PreparedStep(**{**vars(prepared), "calls": calls, "defect": defect})
    chosen = [number for number, call in enumerate(calls) if call.path == "_versions" and call.name == "fsync"]
    moves = [number for number, call in enumerate(calls) if call.path.endswith(".late")]
    faults = [Fault(number, errno.EIO) for number in (*chosen[-1:], *moves)]
    return bool(find_missing_syncs(calls)) or any(
        try_fault(defective, fault, server, reader).problems for fault in faults
    )


def write_twice(path: Path) -> bytes:
    """Write a file twice and return the errors."""
    errors = []
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, b"x")
            os.fsync(descriptor)
            os.close(descriptor)
            os.rename(path, f"{path}.new")
        except OSError as error:
            errors.append(errno.errorcode[error.errno or 0])
    return ",".join(errors).encode()


@pytest.mark.parametrize("run", SUPERVISORS)
def test_one_call_fails(run: Supervise, tmp_path: Path) -> None:
    path = tmp_path / "file"
    undisturbed = run(lambda: write_twice(path), tmp_path)
    calls = [
        SystemCall("openat", "file", creates=True),
        SystemCall("write", "file"),
        SystemCall("fsync", "file"),
        SystemCall("rename", "file", "file.new"),
    ]
    assert (undisturbed.calls, undisturbed.answer) == (calls * 2, b"")
    failed = run(lambda: write_twice(path), tmp_path, Fault(2, errno.EDQUOT))
    assert (failed.answer, failed.failed_path) == (b"EDQUOT", "file")
    assert failed.calls[:4] == [*calls[:3], calls[0]]
    assert failed.failed_file == (os.stat(f"{path}.new").st_dev, os.stat(f"{path}.new").st_ino)
    if run is supervise:
        late = tmp_path / "late"
        assert run(lambda: write_twice(late), tmp_path, Fault(7, errno.EIO, is_applied=True)).answer == b"EIO"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file.new", "late.new"]


def test_missing_syncs() -> None:
    written = [SystemCall("openat", "d/.tmp", creates=True), SystemCall("fsync", "d/.tmp")]
    renamed = SystemCall("rename", "d/.tmp", "d/name")
    assert [problem.kind for problem in find_missing_syncs([*written, renamed])] == [MISSING_SYNC]
    assert [problem.kind for problem in find_missing_syncs([renamed, SystemCall("fsync", "d")])] == [MISSING_SYNC]
    assert find_missing_syncs([*written, renamed, SystemCall("fsync", "d")]) == []
    assert find_missing_syncs([renamed, SystemCall("fsync", "d/name"), SystemCall("fsync", "d")]) == []
