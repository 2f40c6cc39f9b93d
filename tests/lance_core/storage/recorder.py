"""What is asked of the operating system while something is written: the calls that decide what survives when the
power goes.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


class Recorder:
    """What is asked of the operating system, by name of the file within the root, temporary ones as `*`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self._root = root
        self._open: dict[int, str] = {}
        self._real_open, self._real_fsync = os.open, os.fsync
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "fsync", self.fsync)
        for name in ("link", "replace"):
            monkeypatch.setattr(os, name, self.moving(name, getattr(os, name)))

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = self._real_open(path, flags, mode)
        self._open[descriptor] = self.name(path)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        self.calls.append(("fsync", self._open[descriptor]))
        self._real_fsync(descriptor)

    def moving(self, name: str, real: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def move(source: Path, target: Path) -> None:
            self.calls.append((name, f"{self.name(source)} -> {self.name(target)}"))
            real(source, target)

        return move

    def name(self, path: Path) -> str:
        relative = Path(path).relative_to(self._root.parent)
        return str(relative.parent / "*") if relative.name.startswith(".tmp") else str(relative)
