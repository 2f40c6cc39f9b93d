"""Process that answers requests: a module that runs in an interpreter of its own, one line of JSON for each request and
answer. It can be replaced after it ended or did not answer in time."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
_Self = TypeVar("_Self", bound="JsonProcess")


class JsonProcess:
    """Client of `python -m module arguments`. The process starts with the first request."""

    seconds_max = 600.0
    """Seconds without an answer after which the process hangs. On a busy machine, its start takes minutes."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Return the answer. Raise `ProcessEnded` if the process ends before, or gives none in time."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            has_answer = select.select([process.stdout], [], [], self.seconds_max)[0]
            line = process.stdout.readline() if has_answer else b""
        except BrokenPipeError:
            line = b""
        if not line:
            code = process.poll()
            self.stop()
            raise ProcessEnded(f"gave no answer for {self.seconds_max:.0f} s" if code is None else f"ended with {code}")
        return json.loads(line)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "LANCE_LOG": "error", "RUST_BACKTRACE": "0", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self._process


class ProcessEnded(Exception):
    """A process has ended or has not answered in time."""


def answer_requests(answer: Callable[[Mapping[str, Any]], Any]) -> None:
    """Answer each request on the standard input until its end."""
    for line in sys.stdin:
        data = json.dumps(answer(json.loads(line))).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]
