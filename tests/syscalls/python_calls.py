"""Supervisor of Python's calls: a replacement for `supervisor.supervise` on systems without user notifications.

It patches functions of `os` in a forked process, so that it sees neither the calls of other libraries nor reads.
"""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.syscalls.supervisor import Fault, SupervisedRun, SystemCall

_PATH_FUNCTIONS = ("open", "mkdir", "unlink", "link", "rename", "replace")
_DESCRIPTOR_FUNCTIONS = ("write", "fsync")
_TWO_PATHS = ("link", "rename", "replace")


def supervise_python(run: Callable[[], bytes], directory: Path, fault: Fault | None = None) -> SupervisedRun:
    """Run the function in a forked process and inject the fault into its calls of `os` on files below the directory."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            recorder = _Recorder(str(directory), fault)
            answer = run()
            recorder.restore()
            data = json.dumps({**asdict(recorder.run), "answer": answer.decode()}).encode()
            while data:
                data = data[os.write(writer, data) :]
        finally:
            os._exit(0)
    os.close(writer)
    data = b""
    while chunk := os.read(reader, 1 << 16):
        data += chunk
    os.close(reader)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    if not data:
        return SupervisedRun()
    fields = json.loads(data)
    file = fields["failed_file"]
    return SupervisedRun(
        [SystemCall(**call) for call in fields["calls"]],
        fields["answer"].encode(),
        fields["failed_path"],
        (file[0], file[1]) if file else None,
    )


class _Recorder:
    """Records the patched calls of this process, and lets one of them fail."""

    def __init__(self, directory: str, fault: Fault | None) -> None:
        self.run = SupervisedRun()
        self._directory, self._fault = directory, fault
        self._paths: dict[int, str] = {}
        self._real = {name: getattr(os, name) for name in (*_PATH_FUNCTIONS, *_DESCRIPTOR_FUNCTIONS)}
        for name in self._real:
            setattr(os, name, self._patched(name))

    def restore(self) -> None:
        for name, function in self._real.items():
            setattr(os, name, function)

    def _patched(self, name: str) -> Callable[..., Any]:
        def call(first: Any, *others: Any, **named: Any) -> Any:
            paths = [first, others[0]] if name in _TWO_PATHS else [first]
            texts = [self._paths.get(path, "") if isinstance(path, int) else os.fspath(path) for path in paths]
            self._decide(name, texts, bool(name == "open" and others and others[0] & os.O_CREAT))
            result = self._real[name](first, *others, **named)
            if name == "open":
                self._paths[result] = texts[0]
            return result

        return call

    def _decide(self, name: str, paths: list[str], creates: bool) -> None:
        if not all(path == self._directory or path.startswith(f"{self._directory}/") for path in paths):
            return
        relative = [path[len(self._directory) + 1 :] for path in paths]
        names = {"open": "openat", "replace": "rename"}
        self.run.calls.append(SystemCall(names.get(name, name), relative[0], "".join(relative[1:]), creates))
        if self._fault and len(self.run.calls) - 1 == self._fault.number and not self._fault.is_applied:
            self.run.failed_path = relative[0]
            if os.path.exists(paths[0]):
                status = os.stat(paths[0])
                self.run.failed_file = status.st_dev, status.st_ino
            raise OSError(self._fault.error, os.strerror(self._fault.error), paths[0])
