"""What is asked of the operating system while something is written: the calls that decide what survives when the
power goes.
"""

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
    to: str = ""
    """Of a link or a replacement, the new name."""
    data: bytes = b""
    """What is in the file by then."""


class Recorder:
    """What is asked of the operating system, by name of the file within the root: `calls` has those that order what
    survives, temporary files as `*`; `events` has all that changes anything."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.events: list[Event] = []
        self._above = root.parent
        self._open: dict[int, str] = {}
        self._real_open, self._real_fsync = os.open, os.fsync
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "fsync", self.fsync)
        for name in ("link", "replace"):
            monkeypatch.setattr(os, name, self.moving(name, getattr(os, name)))
        for name, kind in (("mkdir", "make"), ("unlink", "remove"), ("rmdir", "remove")):
            monkeypatch.setattr(os, name, self.changing(kind, getattr(os, name)))

    def open(self, path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = self._real_open(path, flags, mode, dir_fd=dir_fd)
        self._open.pop(descriptor, None)
        if self._is_ours(path):
            self._open[descriptor] = self._place(path)
            if flags & os.O_CREAT:
                self.events.append(Event("write", self._place(path)))
        return descriptor

    def fsync(self, descriptor: int) -> None:
        place = self._open[descriptor]
        self.calls.append(("fsync", _shown(place)))
        self.events.append(Event("sync", place, data=self._data(place)))
        self._real_fsync(descriptor)

    def moving(self, name: str, real: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def move(source: Path, target: Path) -> None:
            here, there = self._place(source), self._place(target)
            self.calls.append((name, f"{_shown(here)} -> {_shown(there)}"))
            data = self._data(here)
            real(source, target)
            self.events.append(Event(name, here, there, data))

        return move

    def changing(self, kind: str, real: Callable[..., None]) -> Callable[..., None]:
        def change(path: Path, *arguments: int, dir_fd: int | None = None) -> None:
            real(path, *arguments, dir_fd=dir_fd)
            if self._is_ours(path):
                self.events.append(Event(kind, self._place(path)))

        return change

    def _is_ours(self, path: Path) -> bool:
        return Path(path).is_relative_to(self._above)

    def _place(self, path: Path) -> str:
        return str(Path(path).relative_to(self._above))

    def _data(self, place: str) -> bytes:
        path = self._above / place
        return path.read_bytes() if path.is_file() else b""


def _shown(place: str) -> str:
    """What has a new name each time is not told apart."""
    path = Path(place)
    return str(path.parent / "*") if path.name.startswith(".tmp") else place
