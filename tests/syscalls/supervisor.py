"""System call supervisor: runs a function in a child process and decides about each of its system calls on files below
one directory. A call proceeds, fails with an error, or is carried out and then reported as failed.

It uses the user notifications of seccomp, which need Linux 5.5 or newer on x86-64 or ARM, and no privileges. The calls
of all threads of the child are counted in one order, so that exactly one call fails. Start with `supervise`.
"""

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "pread64": (17, 67), "pwrite64": (18, 68),
    "writev": (20, 66), "sendfile": (40, 71), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None),
    "creat": (85, None), "link": (86, None), "unlink": (87, None), "getdents64": (217, 61), "openat": (257, 56),
    "mkdirat": (258, 34), "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "fallocate": (285, 47),
    "pwritev": (296, 70), "renameat2": (316, 276), "copy_file_range": (326, 285),
}  # fmt: skip
"""Numbers of the calls on x86-64 and on 64-bit ARM."""
_ARCHITECTURES = {"x86_64": 0, "aarch64": 1}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_PATHS: Mapping[str, tuple[tuple[int | None, int], ...]] = {
    **dict.fromkeys(("open", "creat", "mkdir", "rmdir", "unlink", "truncate"), ((None, 0),)),
    **dict.fromkeys(("openat", "mkdirat", "unlinkat"), ((0, 1),)),
    **dict.fromkeys(("rename", "link"), ((None, 0), (None, 1))),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ((0, 1), (2, 3))),
}
"""Arguments that are paths, each after the argument with its directory. The other calls have a descriptor first."""
_PR_SET_NO_NEW_PRIVS, _SECCOMP_SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 8
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_CONTINUE = 1
_AT_FDCWD = -100
_PATH_BYTES_MAX = 4096
_POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class SystemCall:
    """Call on a file below the directory. Paths are relative to it; `target` is the new name of a link or a rename."""

    name: str
    path: str
    target: str = ""
    creates: bool = False
    """`True` for the opening of a file that does not have to exist."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Error that the call with this number returns; with `is_applied`, after the call was carried out."""

    number: int
    error: int
    is_applied: bool = False

    def __str__(self) -> str:
        return f"{errno.errorcode[self.error]}{' after its effect' if self.is_applied else ''}"


@dataclass
class SupervisedRun:
    calls: list[SystemCall] = field(default_factory=list)
    answer: bytes = b""
    """The bytes that the function returned; empty if the process ended before, or did not end in time."""
    failed_path: str = ""
    """Path of the file on which the call failed, at that time."""
    failed_file: tuple[int, int] | None = None
    """Device and inode number of that file or directory."""


def can_supervise() -> bool:
    """Return whether this system lets a process supervise the calls of its children."""
    if platform.system() != "Linux" or platform.machine() not in _ARCHITECTURES:
        return False
    try:
        return supervise(lambda: b"x", Path("/nonexistent")).answer == b"x"
    except OSError:
        return False


def supervise(
    run: Callable[[], bytes], directory: Path, fault: Fault | None = None, *, seconds_max: float = 600
) -> SupervisedRun:
    """Run the function in a forked process and inject the fault into its calls on files below the directory."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        _run_child(run, theirs, writer)
    os.close(writer)
    theirs.close()
    result = SupervisedRun()
    try:
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise OSError(errno.ENOSYS, "this system has no user notifications of seccomp")
        supervisor = _Supervisor(descriptors[0], str(directory), fault, result)
        supervisor.follow(time.monotonic() + seconds_max)
        while chunk := os.read(reader, 1 << 16):
            result.answer += chunk
    finally:
        ours.close()
        os.close(reader)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return result


def _run_child(run: Callable[[], bytes], channel: socket.socket, writer: int) -> None:
    """Install the filter, pass its listener on, run the function and write its answer. Never return."""
    try:
        listener = _install_filter()
        socket.send_fds(channel, [b"x"], [listener])
        os.close(listener)
        answer = run()
        while answer:
            answer = answer[os.write(writer, answer) :]
    finally:
        os._exit(0)


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def _call_numbers() -> Mapping[int, str]:
    column = _ARCHITECTURES[platform.machine()]
    numbers = ((each[column], name) for name, each in _NUMBERS.items())
    return {number: name for number, name in numbers if number is not None}


def _install_filter() -> int:
    """Install a filter that notifies the listener of each of the calls, and return the listener."""
    numbers = list(_call_numbers())
    load, equal, answer = 0x20, 0x15, 0x06
    instructions = [_Instruction(load, 0, 0, 0)]
    instructions += [_Instruction(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    instructions += [_Instruction(answer, 0, 0, _ALLOW), _Instruction(answer, 0, 0, _NOTIFY)]
    array = (_Instruction * len(instructions))(*instructions)
    program = _Program(len(instructions), array)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    seccomp = _SECCOMP[platform.machine()]
    listener = int(libc.syscall(seccomp, _SECCOMP_SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program)))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "the filter of system calls was refused")
    return listener


class _Supervisor:
    """Answers the notifications of one child."""

    def __init__(self, listener: int, directory: str, fault: Fault | None, run: SupervisedRun) -> None:
        self._listener, self._directory, self._fault, self._run = listener, directory, fault, run
        self._names = _call_numbers()

    def follow(self, deadline: float) -> None:
        """Answer notifications until the child ends or the deadline passes."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        try:
            while time.monotonic() < deadline:
                for _, events in poll.poll(_POLL_MS):
                    if events & select.POLLIN:
                        self._answer_one()
                    elif events & select.POLLHUP:
                        return
        finally:
            os.close(self._listener)

    def _answer_one(self) -> None:
        notification = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notification)
        except OSError:  # the thread was killed before it was heard
            return
        identity, thread, _, number = struct.unpack_from("=QIIi", notification)
        arguments = struct.unpack_from("=6Q", notification, 32)
        error = self._decide(thread, self._names[number], arguments)
        flags = 0 if error else _CONTINUE
        response = bytearray(struct.pack("=QqiI", identity, 0, -error, flags))
        try:
            fcntl.ioctl(self._listener, _SEND, response)
        except OSError as failed:
            if failed.errno != errno.ENOENT:  # the thread was killed before the answer
                raise

    def _decide(self, thread: int, name: str, arguments: tuple[int, ...]) -> int:
        """Record the call, and return the error with which it fails; 0 if it proceeds."""
        try:
            paths = _paths_of(thread, name, arguments)
        except OSError:
            return 0
        inside = [path for path in paths if path == self._directory or path.startswith(f"{self._directory}/")]
        relative = [path[len(self._directory) + 1 :] for path in inside]
        if not relative or len(relative) != len(paths):
            return 0
        flags = arguments[2 if name == "openat" else 1] if name in ("open", "openat") else 0
        self._run.calls.append(SystemCall(name, relative[0], "".join(relative[1:]), bool(flags & os.O_CREAT)))
        fault = self._fault
        if fault is None or len(self._run.calls) - 1 != fault.number:
            return 0
        self._run.failed_path = relative[0]
        try:
            status = os.stat(paths[0])
            self._run.failed_file = status.st_dev, status.st_ino
        except OSError:
            self._run.failed_file = None
        if fault.is_applied:
            try:
                _carry_out(name, paths)
            except OSError as failed:
                return failed.errno or fault.error
        return fault.error


def _carry_out(name: str, paths: list[str]) -> None:
    match name:
        case "link" | "linkat":
            os.link(paths[0], paths[1])
        case "rename" | "renameat" | "renameat2":
            os.rename(paths[0], paths[1])
        case "mkdir" | "mkdirat":
            os.mkdir(paths[0])
        case "unlink" | "unlinkat":
            os.unlink(paths[0])


def _paths_of(thread: int, name: str, arguments: tuple[int, ...]) -> list[str]:
    if name not in _PATHS:
        descriptor = arguments[2] if name == "copy_file_range" else arguments[0]
        return [os.readlink(f"/proc/{thread}/fd/{descriptor}")]
    paths = []
    for directory, place in _PATHS[name]:
        path = _read_text(thread, arguments[place])
        if not path.startswith("/"):
            number = _AT_FDCWD if directory is None else ctypes.c_int(arguments[directory] & 0xFFFFFFFF).value
            parent = os.readlink(f"/proc/{thread}/{'cwd' if number == _AT_FDCWD else f'fd/{number}'}")
            path = f"{parent}/{path}"
        paths.append(path)
    return paths


def _read_text(thread: int, address: int) -> str:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        data = b""
        while b"\0" not in data and len(data) < _PATH_BYTES_MAX:
            page_rest = 4096 - (address + len(data)) % 4096
            data += os.pread(memory.fileno(), page_rest, address + len(data))
    return data.partition(b"\0")[0].decode(errors="replace")
