"""System call recorder: records the calls to the operating system that decide what survives a power failure."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    """`make` a directory, `write` a new file, `sync` a file or a directory, `link`, `replace`, `remove`."""
    path: str
    target: str = ""
    """The new name, for a link or a replacement."""
    data: bytes = b""
    """The content of the file at that time."""


class SyscallRecorder:
    """Records the calls to the operating system for files below the root. `calls` has the calls that order what
    survives, with `*` for temporary names; `events` has every change.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.events: list[Event] = []
        self._above = root.parent
        self._open: dict[int, str] = {}
        self._real_open, self._real_fsync = os.open, os.fsync
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "fsync", self.fsync)
        for name in ("link", "replace"):
            monkeypatch.setattr(os, name, self._record_move(name, getattr(os, name)))
        for name, kind in (("mkdir", "make"), ("unlink", "remove"), ("rmdir", "remove")):
            monkeypatch.setattr(os, name, self._record_change(kind, getattr(os, name)))

    def open(self, path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = self._real_open(path, flags, mode, dir_fd=dir_fd)
        self._open.pop(descriptor, None)
        if self._is_ours(path):
            self._open[descriptor] = self._relative_path(path)
            if flags & os.O_CREAT:
                self.events.append(Event("write", self._relative_path(path)))
        return descriptor

    def fsync(self, descriptor: int) -> None:
        path = self._open[descriptor]
        self.calls.append(("fsync", _mask_temporary_name(path)))
        self.events.append(Event("sync", path, data=self._data(path)))
        self._real_fsync(descriptor)

    def _record_move(self, name: str, real: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def move(source: Path, target: Path) -> None:
            source_path, target_path = self._relative_path(source), self._relative_path(target)
            self.calls.append((name, f"{_mask_temporary_name(source_path)} -> {_mask_temporary_name(target_path)}"))
            data = self._data(source_path)
            real(source, target)
            self.events.append(Event(name, source_path, target_path, data))

        return move

    def _record_change(self, kind: str, real: Callable[..., None]) -> Callable[..., None]:
        def change(path: Path, *arguments: int, dir_fd: int | None = None) -> None:
            real(path, *arguments, dir_fd=dir_fd)
            if self._is_ours(path):
                self.events.append(Event(kind, self._relative_path(path)))

        return change

    def _is_ours(self, path: Path) -> bool:
        return Path(path).is_relative_to(self._above)

    def _relative_path(self, path: Path) -> str:
        return str(Path(path).relative_to(self._above))

    def _data(self, relative_path: str) -> bytes:
        path = self._above / relative_path
        return path.read_bytes() if path.is_file() else b""


def _mask_temporary_name(relative_path: str) -> str:
    """Replace a temporary name, which differs in each run, by `*`."""
    path = Path(relative_path)
    return str(path.parent / "*") if path.name.startswith(".tmp") else relative_path
