"""Disk model: the states in which a power loss can leave a directory, given the file events up to that moment.

Two models of a file system are known.

`ordered`   like ext4 with `data=ordered`: changes of names reach the disk in their order, and each sync of a file or a
            directory makes all earlier ones durable. The unsynced writes of a file survive up to any page or any call,
            and a longer file never shows bytes that were not written.
`weak`      only the promises of POSIX: a sync of a file covers its content alone, a sync of a directory the names in it
            alone. All other changes are lost or kept independently of each other. A file that was not synced has lost
            any of its sectors or pages, is cut at any sector, or has its size and zeros.

In both, a rename is atomic for its target; in the weak one its old name may survive. A sync that failed covers nothing,
and no later sync covers what it lost. `DiskModel.sample_states` draws states from all that are possible.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tests.syscalls.events import FileEvent

MODELS = ("ordered", "weak")
SECTOR, PAGE = 512, 4096


@dataclass(frozen=True, slots=True)
class DiskState:
    """Files and directories after a power loss before the event `event_number`."""

    model: str
    event_number: int
    files: Mapping[str, bytes]
    """Contents by path, in the order in which the names were last changed."""
    directories: frozenset[str]
    description: str

    @property
    def identity(self) -> int:
        """Hash of the names and contents."""
        return hash((frozenset(self.files.items()), self.directories))


@dataclass(slots=True)
class _Write:
    """Unsynced write, or change of the size if it has no data."""

    number: int
    offset: int
    data: bytes | None
    is_lost: bool = False
    """`True` if a sync of it has failed, so that no later sync covers it."""

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
        else:
            content.extend(bytes(max(0, self.offset - len(content))))
            content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    unsynced: list[_Write] = field(default_factory=list)

    def sync(self, since: int) -> None:
        content = bytearray(self.durable)
        for write in self.unsynced:
            if write.number < since and not write.is_lost:
                write.apply(content)
        self.durable = bytes(content)
        self.unsynced = [write for write in self.unsynced if write.number >= since or write.is_lost]

    def lose(self, since: int) -> None:
        """Record a sync that failed."""
        for write in self.unsynced:
            write.is_lost |= write.number < since

    def after(self, count: int) -> bytes:
        """Return the content with the first of the unsynced writes."""
        content = bytearray(self.durable)
        for write in self.unsynced[:count]:
            write.apply(content)
        return bytes(content)


@dataclass(frozen=True, slots=True)
class _NameChange:
    """Change of one name in a directory. The removal of the old name of a rename requires the new one to be durable."""

    number: int
    kind: str
    """`make` a directory, `put` a file or `remove` a name."""
    path: str
    file: int = 0
    requires_put: bool = False

    @property
    def directory(self) -> str:
        return _parent_of(self.path)


class DiskModel:
    """Disk that follows the events of a recording."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._files: dict[int, _File] = {}
        self._current_names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        self._durable_directories = {""}
        self._pending: list[_NameChange] = []

    def apply(self, number: int, event: FileEvent) -> None:
        """Apply the event with this number."""
        match event.kind:
            case "create":
                self._files[event.file] = _File()
                self._put(number, event.path, event.file)
            case "write":
                self._files[event.file].unsynced.append(_Write(number, event.offset, event.data))
            case "truncate":
                self._files[event.file].unsynced.append(_Write(number, event.offset, None))
            case "link":
                self._put(number, event.target, self._current_names[event.path])
            case "rename":
                self._put(number, event.target, self._current_names.pop(event.path))
                self._pending.append(_NameChange(number, "remove", event.path, requires_put=True))
            case "make":
                self._pending.append(_NameChange(number, "make", event.path))
            case "remove":
                self._current_names.pop(event.path, None)
                self._pending.append(_NameChange(number, "remove", event.path))
            case "sync" | "sync directory" | "sync all":
                self._sync(event)

    def sample_states(self, number: int, generator: random.Random, samples: int) -> Iterator[DiskState]:
        """Return states of a power loss before the event with this number: the extreme ones, then random ones."""
        kept_changes = self._sample_names(generator, samples)
        for changes, fate in zip(kept_changes, _fates(), strict=False):
            names, directories = dict(self._durable_names), set(self._durable_directories)
            for change in changes:
                _apply_change(change, names, directories)
            reachable = {path: file for path, file in names.items() if _is_reachable(path, directories)}
            contents = {file: self._content(file, fate, generator) for file in dict.fromkeys(reachable.values())}
            yield DiskState(
                self.model,
                number,
                {path: contents[file] for path, file in reachable.items()},
                frozenset(path for path in directories if _is_reachable(path, directories)),
                f"{len(changes)} of {len(self._pending)} changes of names, unsynced contents {fate}",
            )

    def _put(self, number: int, path: str, file: int) -> None:
        self._current_names[path] = file
        self._pending.append(_NameChange(number, "put", path, file))

    def _sync(self, event: FileEvent) -> None:
        if event.kind == "sync":
            file = self._files[event.file]
            file.lose(event.since) if event.has_failed else file.sync(event.since)
        if event.has_failed:
            return
        if event.kind == "sync all":
            for each in self._files.values():
                each.sync(event.since)
        covers_all = self.model == "ordered" or event.kind == "sync all"
        if event.kind == "sync" and not covers_all:
            return
        remaining = []
        for change in self._pending:
            if change.number < event.since and (covers_all or change.directory == event.path):
                _apply_change(change, self._durable_names, self._durable_directories)
            else:
                remaining.append(change)
        self._pending = remaining

    def _sample_names(self, generator: random.Random, samples: int) -> Iterator[Sequence[_NameChange]]:
        """Return `samples` choices of the changes of names that reached the disk."""
        yield from ((), (), self._pending, self._pending, self._pending, self._pending)[:samples]
        for _ in range(samples - 6):
            if self.model == "ordered":
                numbers = sorted({change.number for change in self._pending})
                end = generator.choice([0, *(number + 1 for number in numbers)])
                yield [change for change in self._pending if change.number < end]
            else:
                kept = [change for change in self._pending if generator.random() < 0.5]
                puts = {change.number for change in kept if change.kind == "put"}
                pending_puts = {change.number for change in self._pending if change.kind == "put"}
                yield [
                    change
                    for change in kept
                    if not change.requires_put or change.number in puts or change.number not in pending_puts
                ]

    def _content(self, number: int, fate: str, generator: random.Random) -> bytes:
        """Return a content that the file may have. The fate is one for all unsynced files, or drawn for each."""
        file = self._files[number]
        if not file.unsynced:
            return file.durable
        if fate == "mixed":
            fate = generator.choice(("lost", "kept", "zeros", "cut", "torn"))
        old, new = file.durable, file.after(len(file.unsynced))
        if fate == "kept":
            return new
        if fate == "lost":
            return old
        if self.model == "ordered":
            return _cut(file.after(generator.randrange(len(file.unsynced) + 1)), old, PAGE, generator)
        if fate == "zeros":
            return _padded(old, len(new))[: len(new)]
        if fate == "cut":
            return _cut(new, old, SECTOR, generator)
        return _torn(_padded(old, len(new)), new, generator.choice((SECTOR, PAGE)), generator)


def _fates() -> Iterator[str]:
    """Return the fates of unsynced contents: those of the extreme states first."""
    return itertools.chain(("lost", "kept", "lost", "zeros", "kept", "cut"), itertools.repeat("mixed"))


def _padded(content: bytes, size: int) -> bytes:
    return content + bytes(max(0, size - len(content)))


def _cut(content: bytes, old: bytes, step: int, generator: random.Random) -> bytes:
    """Return the content up to a random multiple of the step, but no less than the synced part."""
    ends = [*range(0, len(content), step), len(content)]
    return content[: max(min(len(old), len(content)), generator.choice(ends))]


def _torn(old: bytes, new: bytes, step: int, generator: random.Random) -> bytes:
    """Return the new content with random sectors or pages of the old one."""
    blocks = [(new if generator.random() < 0.5 else old)[at : at + step] for at in range(0, len(new), step)]
    return b"".join(blocks)


def _apply_change(change: _NameChange, names: dict[str, int], directories: set[str]) -> None:
    match change.kind:
        case "make":
            directories.add(change.path)
        case "put":
            names.pop(change.path, None)
            names[change.path] = change.file
        case "remove":
            names.pop(change.path, None)
            directories.discard(change.path)


def _is_reachable(path: str, directories: set[str]) -> bool:
    return path == "" or directories.issuperset(_parents_of(path))


def _parents_of(path: str) -> list[str]:
    return ["" if str(parent) == "." else str(parent) for parent in PurePosixPath(path).parents]


def _parent_of(path: str) -> str:
    return _parents_of(path)[0] if path else ""
