"""The power goes while a verb writes to this disk, after any of the calls that change something there. Of what was not
synced by then, any part may be gone: entries of directories in any combination, and of a file's content all, some or
none. What is left is laid out again as a real table, and looked at.

    table = Written(deed)
    for state in table.states(): assert not table.broken(state)

What was acknowledged is there; what was not is there whole or not at all, and can be asked for again. The calls are
those that `recorder.py` records. Files that the codec writes are synced afterwards, and count as written just before.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lance_core import CorruptHead, LanceError
from lance_core.format import naming
from lance_core.format.manifest import Manifest
from lance_core.storage.local import forget_synced_entries
from lance_core.versions.file_inventory import references_of
from lance_core.versions.version_hint import HINT
from tests.histories.crash_points import Stage
from tests.histories.stoppable_operations import DEEDS, Deed, Scene
from tests.histories.storage_backends import OnDisk, process
from tests.lance_core.storage.recorder import Event, Recorder

TABLE = "table"
TOP = "."
KINDS = (
    "create", "append", "append several files", "overwrite", "delete row 0", "update row 0", "update v of fragment 0",
    "upsert keys 0 and 100", "add z from v", "merge z", "drop v", "recast v", "config a=1", "restore 1", "compact",
    "tag", "move a tag", "branch", "append to a branch", "shallow clone", "deep clone", "publish",
)  # fmt: skip
DROPPED_AT_ONCE_MAX = 8
"""Of more changes than these only so many combinations are tried as these have."""


@dataclass(eq=False)
class File:
    data: bytes
    is_synced: bool = False

    def contents(self) -> Sequence[bytes]:
        """What may be in it when the power comes back."""
        if self.is_synced or not self.data:
            return (self.data,)
        half = len(self.data) // 2
        return (
            self.data,
            b"",
            bytes(len(self.data)),
            self.data[:half],
            self.data[:half] + bytes(len(self.data) - half),
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a directory: the new name first, then the one that went with it. A directory has no file."""

    kind: str
    path: str
    file: File | None = None
    gone: str = ""

    @property
    def directory(self) -> str:
        return _above(self.path)


@dataclass(frozen=True)
class State:
    """What is on the disk when the power comes back."""

    files: frozenset[tuple[str, bytes]]
    directories: frozenset[str]
    acknowledged: bool
    told: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.told}{', acknowledged' if self.acknowledged else ''}"


class Disk:
    """What the calls so far made sure of, and what they left to chance."""

    def __init__(self, files: Mapping[str, bytes], directories: frozenset[str], events: Sequence[Event]) -> None:
        self.files = {path: File(data, is_synced=True) for path, data in files.items()}
        self.directories = {TOP, *directories}
        self.pending: list[Entry] = []
        self._names: dict[str, File] = dict(self.files)
        self._made = set(self.directories)
        self._events = events

    def take(self, at: int) -> None:
        event = self._events[at]
        match event.kind:
            case "make":
                self._made.add(event.path)
                self.pending.append(Entry("make", event.path))
            case "write":
                self._put(event.path, File(self._content(at)))
            case "sync" if event.path in self._made:
                self._sync_directory(event.path)
            case "sync":
                if event.path not in self._names:
                    self._put(event.path, File(event.data))
                self._names[event.path].is_synced = True
            case "link":
                self._put(event.to, self._names[event.path])
            case "replace":
                file = self._names[event.to] = self._names.pop(event.path)
                self.pending.append(Entry("put", event.to, file, gone=event.path))
            case "remove":
                self._names.pop(event.path, None)
                self.pending.append(Entry("remove", event.path))

    def is_durable(self, path: str) -> bool:
        above = itertools.takewhile(lambda place: place != TOP, map(str, Path(path).parents))
        return path in self.files and self.files[path].is_synced and self.directories.issuperset(above)

    def states(self, *, acknowledged: bool, told: str, chance: random.Random) -> Iterator[State]:
        for kept in _subsets(self.pending, chance):
            files, directories = dict(self.files), set(self.directories)
            for entry in kept:
                _apply(entry, files, directories)
            there = {path: file for path, file in files.items() if _is_reached(path, directories)}
            unsynced = list(dict.fromkeys(file for file in there.values() if not file.is_synced))
            choices = itertools.product(*(file.contents() for file in unsynced))
            for contents in itertools.islice(choices, 25):
                found = dict(zip(unsynced, contents, strict=True))
                yield State(
                    frozenset((path, found.get(file, file.data)) for path, file in there.items()),
                    frozenset(place for place in directories if _is_reached(place, directories)),
                    acknowledged,
                    f"{told}, {len(kept)} of {len(self.pending)} changes kept",
                )

    def _put(self, path: str, file: File) -> None:
        self._names[path] = file
        self.pending.append(Entry("put", path, file))

    def _sync_directory(self, directory: str) -> None:
        for entry in self.pending:
            if entry.directory == directory:
                _apply(entry, self.files, self.directories)
        self.pending = [entry for entry in self.pending if entry.directory != directory]

    def _content(self, at: int) -> bytes:
        path = self._events[at].path
        later = (event for event in self._events[at:] if event.path == path and event.kind != "write")
        return next((event.data for event in later), b"")


class Written:
    """One deed, done once durably, with all that was asked of the operating system meanwhile."""

    def __init__(self, deed: Deed, *, durable: bool = True) -> None:
        self.place = OnDisk()
        self.stage = Stage(self.place, deed)
        self.root = self.place.root / "tables"
        self.stage.back()
        self.base = self._there()
        self.directories = frozenset(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_dir())
        with pytest.MonkeyPatch.context() as patch:
            forget_synced_entries()
            recorder = Recorder(self.root / TABLE, patch)
            with process(replace(self.place, durable=durable)) as manifests:
                deed.do(Scene(self.place, manifests))
        self.events = recorder.events

    def states(self) -> list[State]:
        """All that can be left, each once."""
        chance = random.Random(0)
        disk = Disk(self.base, self.directories, self.events)
        found: dict[State, State] = {}
        for at in range(len(self.events) + 1):
            end = at == len(self.events)
            told = "at the end" if end else f"before call {at}, {self.events[at].kind} {self.events[at].path}"
            for state in disk.states(acknowledged=end, told=told, chance=chance):
                found.setdefault(state, state)
            if not end:
                disk.take(at)
        return list(found.values())

    def in_disorder(self) -> list[str]:
        """Files that a version names, and that could be lost when it got its name; and versions that could be lost when
        they were acknowledged."""
        disk = Disk(self.base, self.directories, self.events)
        found = []
        named: set[str] = set()
        for at, event in enumerate(self.events):
            path, _, name = event.to.partition(f"{naming.VERSIONS}/")
            if event.kind == "link" and (parsed := naming.parse_manifest_name(name)):
                own = references_of(Manifest.decode(event.data, path=event.to, version=parsed[0])).own
                named |= {path + key for key in own}
                found += [f"{key} is named by {event.to}" for key in named if not disk.is_durable(key)]
                named.add(event.to)
            disk.take(at)
        return found + [f"{key} was acknowledged" for key in named if not disk.is_durable(key)]

    def broken(self, state: State) -> str:
        self.lay_out(state)
        stage = self.stage
        try:
            now = stage.look()
            assert now == stage.after or not state.acknowledged, f"acknowledged, and lost: {now}"
            assert now in (stage.before, stage.after), f"half of it is there: {now}"
            stage.again()
            now = stage.look()
            assert now == stage.after, f"asked for again, and not there: {now}"
        except (AssertionError, LanceError) as error:
            return f"{state}: {type(error).__name__}: {error}"
        return ""

    def lay_out(self, state: State) -> None:
        """The hint last: where it says that it is the newest, nobody lists."""
        self.stage.back()
        wanted = dict(state.files)
        for path in self.base.keys() - wanted.keys():
            (self.root / path).unlink()
        for directory in sorted(state.directories):
            (self.root / directory).mkdir(exist_ok=True)
        for path in sorted(wanted, key=lambda path: (path.endswith(HINT), path)):
            if self.base.get(path) != wanted[path]:
                (self.root / path).unlink(missing_ok=True)
                (self.root / path).write_bytes(wanted[path])

    def silent_about_a_damaged_head(self, *, every: int = 1) -> list[str]:
        """Every beginning of the newest manifest, with nothing and with zeros behind it, that is not told to be one."""
        self.stage.back()
        self.stage.act()
        head = min(self.root.joinpath(TABLE, naming.VERSIONS).glob("*.manifest"))
        data = head.read_bytes()
        found = []
        for length in range(0, len(data), every):
            for behind in (b"", bytes(len(data) - length)):
                head.write_bytes(damaged := data[:length] + behind)
                with process(self.place) as manifests, suppress(CorruptHead):
                    Scene(self.place, manifests).table()
                    if damaged != data:
                        found.append(f"{length} of {len(data)} bytes, {len(behind)} zeros")
        return found

    def close(self) -> None:
        """Nothing of it is left."""
        self.stage.close()

    def _there(self) -> dict[str, bytes]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}


def written(kind: str, *, durable: bool = True) -> Written:
    return Written(DEEDS[kind], durable=durable)


def _subsets(pending: Sequence[Entry], chance: random.Random) -> Iterator[Sequence[Entry]]:
    if len(pending) <= DROPPED_AT_ONCE_MAX:
        for count in range(len(pending) + 1):
            yield from itertools.combinations(pending, count)
        return
    yield pending
    yield ()
    for _ in range(2**DROPPED_AT_ONCE_MAX):
        yield [entry for entry in pending if chance.random() < 0.5]


def _apply(entry: Entry, files: dict[str, File], directories: set[str]) -> None:
    match entry.kind:
        case "make":
            directories.add(entry.path)
        case "put":
            assert entry.file is not None
            files.pop(entry.gone, None)
            files[entry.path] = entry.file
        case "remove":
            files.pop(entry.path, None)
            directories.discard(entry.path)


def _is_reached(path: str, directories: set[str]) -> bool:
    return directories.issuperset(map(str, Path(path).parents))


def _above(path: str) -> str:
    return str(Path(path).parent)
