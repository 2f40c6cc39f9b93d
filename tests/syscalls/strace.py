"""Recorder of system calls: runs a program under `strace` and returns the file events of one directory."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.syscalls.events import FileEvent
from tests.syscalls.trace_parser import TRACED_CALLS, UnmodelledCall, parse_trace

_BYTES_MAX = 1 << 28
"""Maximum number of bytes of one call that the trace holds."""
INSTALLATION = (
    "strace records the system calls, and it is missing or may not trace processes here. Install it with `apt-get "
    "install strace` on Debian or Ubuntu, or with the package `strace` of another distribution; a container needs the "
    "capability SYS_PTRACE or an engine that allows ptrace"
)


class StraceMissing(Exception):
    """`strace` is not installed, or this machine does not allow it to trace."""


def can_trace() -> bool:
    """Return whether `strace` is installed and may trace a process."""
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return done.returncode == 0


def record_events(
    command: Sequence[str], directory: Path, *, cwd: Path, injected: str = "", timeout: float = 600
) -> Sequence[FileEvent]:
    """Run a command under `strace` and return the events of the directory. The lines of its standard output become
    reports.

    `injected` is an expression such as `fsync:error=EIO:when=3`. Raise `UnmodelledCall` if the events do not lead to
    the files that the directory has afterwards.
    """
    if not can_trace():
        raise StraceMissing(INSTALLATION)
    with tempfile.TemporaryDirectory(prefix="lance-trace-") as place:
        trace, reports, errors = Path(place, "trace"), Path(place, "reports"), Path(place, "errors")
        tracing = ["strace", "-f", "-qq", "--seccomp-bpf", "-y", "-xx", "-s", str(_BYTES_MAX), "-o", str(trace)]
        tracing += ["-e", f"trace={','.join(f'?{call}' for call in TRACED_CALLS)}"]
        tracing += ["-e", "signal=none", *(["-e", f"inject={injected}"] if injected else [])]
        with reports.open("ab") as output, errors.open("wb") as error_output:
            done = subprocess.run(
                [*tracing, *command], cwd=cwd, stdout=output, stderr=error_output, timeout=timeout, check=False
            )
        if done.returncode:
            raise RuntimeError(f"the workload failed with {done.returncode}: {errors.read_text()[-2000:]}")
        with trace.open(encoding="ascii") as lines:
            events, files = parse_trace(lines, str(directory), str(reports))
    found = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    if found != files:
        differing = sorted(path for path in {*found, *files} if found.get(path) != files.get(path))
        raise UnmodelledCall(f"the recorded calls do not lead to the files of {directory}: {differing[:5]}")
    return events
