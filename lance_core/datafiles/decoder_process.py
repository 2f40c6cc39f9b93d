"""Decoder processes: the child processes that decode files for `isolated_reader.py`, and the pool that shares them.

A process serves many files and is replaced when it ends. It receives its requests, storage options included, over a
socket, so that no option is in its command line. When the parent ends or is killed, the kernel ends the child. A
process forked from the parent forgets the parent's children and starts its own.

The end of a process is attributed to a file only if the process decodes nothing else: a request during which a shared
process ends is repeated in a new process of its own.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import replace

import pyarrow as pa

from lance_core.datafiles.decoder_protocol import (
    BYTES,
    ConnectionLost,
    DeadlineExceeded,
    Request,
    receive_header,
    receive_into,
    send_frame,
)
from lance_core.errors import StorageError
from lance_core.limits import DECODER_BYTES, DECODER_SECONDS

_PROCESSES_MAX = max(1, min(4, os.cpu_count() or 1))
_START_SECONDS = 120.0
"""Additional time for the first answer, in which the process loads its libraries."""
_KEPT_OUTPUT_BYTES = 4096
_OUTPUT_BYTES_MAX = 1 << 20
_all_processes: "weakref.WeakSet[DecoderProcess]" = weakref.WeakSet()
_BOOTSTRAP = (
    "import json, os, sys\n"
    "read = os.fdopen(int(sys.argv[1]), 'rb', closefd=False, buffering=0).read\n"
    "length = int.from_bytes(read(8), 'little')\n"
    "data = b''\n"
    "while len(data) < length:\n"
    "    data += read(length - len(data))\n"
    "sys.path[:] = json.loads(data)\n"
    "from lance_core.datafiles.decoder_worker import main\n"
    "main(*map(int, sys.argv[1:4]))\n"
)


class DecoderEnded(Exception):
    """The process ended while it served a request, or exceeded the deadline. `cause` describes how."""

    def __init__(self, cause: str, *, is_limit: bool = False, is_deadline: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_limit = is_limit or is_deadline
        self.is_deadline = is_deadline


class DecoderUnavailable(Exception):
    """The process had ended before it received the request."""


class DecoderProcess:
    """One child process. Requests of several threads are served one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lifeline: int | None = None
        try:
            self._start()
        except OSError as error:
            raise StorageError(
                f"could not start a process that decodes data files: {error.strerror or error}. Check the memory of "
                "this machine and its limits of processes and open files, then try again"
            ) from error
        self._waiting = 0
        self._abandoned: deque[int] = deque()
        self._has_answered = False
        self.is_alive = True
        _all_processes.add(self)
        paths = json.dumps(sys.path).encode()
        with suppress(OSError):
            self._connection.sendall(len(paths).to_bytes(8, "little") + paths)

    def _start(self) -> None:
        """Start the child process. After an error, no descriptor stays open."""
        with ExitStack() as passed, ExitStack() as kept:
            ours, theirs = socket.socketpair()
            kept.enter_context(ours)
            passed.enter_context(theirs)
            lifeline, our_lifeline = os.pipe()
            passed.callback(os.close, lifeline)
            kept.callback(os.close, our_lifeline)
            self._output = kept.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), str(lifeline), str(DECODER_BYTES.maximum)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                pass_fds=(theirs.fileno(), lifeline),
                env={**os.environ, "RUST_BACKTRACE": "0"},
            )
            self._connection, self._lifeline = ours, our_lifeline
            kept.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def waiting(self) -> int:
        """Number of requests that are being served or wait."""
        return self._waiting

    def request(self, request: Request) -> tuple[bytes, pa.Buffer]:
        """Send a request and return the kind of the answer and its content."""
        self._waiting += 1
        try:
            with self._lock:
                if not self.is_alive:
                    raise DecoderUnavailable
                closed = tuple(self._abandoned.popleft() for _ in range(len(self._abandoned)))
                try:
                    return self._exchange(replace(request, closed=closed) if closed else request)
                except BaseException:
                    # After a partly received answer, for example on an interrupt, the next answer would be misread.
                    self.end()
                    raise
        finally:
            self._waiting -= 1

    def abandon(self, cursor: int) -> None:
        """Let the process end a read with the next request. This may run at any moment, as part of a finalizer."""
        self._abandoned.append(cursor)

    def _exchange(self, request: Request) -> tuple[bytes, pa.Buffer]:
        self._connection.settimeout(DECODER_SECONDS.maximum)
        try:
            send_frame(self._connection, BYTES, request.encode())
        except ConnectionLost as error:
            raise DecoderUnavailable from error
        deadline = time.monotonic() + DECODER_SECONDS.maximum + (0 if self._has_answered else _START_SECONDS)
        try:
            kind, length = receive_header(self._connection, deadline)
            if length > DECODER_BYTES.maximum:
                raise DecoderEnded(f"its answer has {length} bytes", is_limit=True)
            content = pa.allocate_buffer(length)
            receive_into(self._connection, memoryview(content).cast("B"), deadline)
        except DeadlineExceeded:
            raise DecoderEnded(f"it took more than {DECODER_SECONDS.maximum} seconds", is_deadline=True) from None
        except ConnectionLost:
            raise self._ending_error() from None
        self._has_answered = True
        self._trim_output()
        return kind, content

    def _ending_error(self) -> DecoderEnded:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        code, output = self._process.returncode, self._last_output()
        if "memory allocation of" in output or "MemoryError" in output:
            asked = output.partition("memory allocation of ")[2].partition(" ")[0]
            return DecoderEnded(f"it asked for too much memory{f' ({asked} bytes)' if asked else ''}", is_limit=True)
        if code is None:
            return DecoderEnded("the process that decoded it closed its connection")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lines = output.splitlines()
        panics = [number for number, line in enumerate(lines) if "panicked at" in line]  # the message is the next line
        panic = next((line for line in lines[panics[0] + 1 :] if line), "") if panics else ""
        return DecoderEnded(f"the process that decoded it ended with {how}{f': {panic[:300]}' if panic else ''}")

    def _trim_output(self) -> None:
        """Empty the file of error messages if it is large. The position in it is that of the child, which writes it."""
        number = self._output.fileno()
        if os.lseek(number, 0, os.SEEK_CUR) > _OUTPUT_BYTES_MAX:
            os.lseek(number, 0, os.SEEK_SET)
            os.ftruncate(number, 0)

    def _last_output(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _KEPT_OUTPUT_BYTES))
        return self._output.read().decode(errors="replace")

    def end(self) -> None:
        """End the process at once. It has nothing to save."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.forget()
        with suppress(OSError):
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._output.close()

    def forget(self, *, is_forked: bool = False) -> None:
        """Close the connection without touching the process, which may belong to the parent of this process."""
        self.is_alive = False
        self._lock = threading.Lock() if is_forked else self._lock
        with suppress(OSError):
            self._connection.close()
        # After it is closed, the number may be that of another file.
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            with suppress(OSError):
                os.close(lifeline)


class DecoderPool:
    """Processes shared by all readers of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[DecoderProcess] = []

    def get(self) -> DecoderProcess:
        """Return an idle process, a new one, or the one with the fewest requests."""
        with self._lock:
            self._processes = [process for process in self._processes if process.is_alive]
            idle = next((process for process in self._processes if not process.waiting), None)
            if idle is not None:
                return idle
            if len(self._processes) < _PROCESSES_MAX:
                self._processes.append(DecoderProcess())
                return self._processes[-1]
            return min(self._processes, key=lambda process: process.waiting)

    def forget(self) -> None:
        """Forget the processes, in a process that was forked from the one that started them."""
        self._processes = []
        self._lock = threading.Lock()


pool = DecoderPool()


def _end_all() -> None:
    for process in list(_all_processes):
        process.end()


def _forget_all() -> None:
    pool.forget()
    for process in list(_all_processes):
        process.forget(is_forked=True)
    _all_processes.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)
