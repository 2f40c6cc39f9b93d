"""Power failure simulation: checks every state that a power failure can leave while an operation writes to local disk.

The power fails after any of the calls that change the disk. Changes that were not synced by then may be lost in any
combination: directory entries individually, and the contents of a file completely, partly or not at all. Each state is
laid out as a real table and read.

    recorded = RecordedOperation(operation)
    for state in recorded.possible_states(): assert not recorded.find_problem(state)

An acknowledged operation is present. Any other one is present completely or not at all, and can be repeated.
`syscall_recorder.py` records the calls. The codec writes files without recorded calls; they are synced afterwards and
count as written just before.
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
from tests.histories.crash_points import CrashScenario
from tests.histories.stoppable_operations import STOPPABLE_OPERATIONS, ProcessContext, StoppableOperation
from tests.histories.storage_backends import LocalDiskBackend, simulated_process
from tests.lance_core.storage.syscall_recorder import Event, SyscallRecorder

TABLE = "table"
ROOT = "."
OPERATIONS = (
    "create", "append", "append several files", "overwrite", "delete row 0", "update row 0", "update v of fragment 0",
    "upsert keys 0 and 100", "add z from v", "merge z", "drop v", "recast v", "config a=1", "restore 1", "compact",
    "tag", "move a tag", "branch", "append to a branch", "shallow clone", "deep clone", "publish",
)  # fmt: skip
COMBINED_CHANGES_MAX = 8
"""Maximum number of changes whose combinations are all tried. For more changes, as many random combinations are tried
as this many changes have."""


@dataclass(eq=False)
class DiskFile:
    data: bytes
    is_synced: bool = False

    def contents(self) -> Sequence[bytes]:
        """Return the contents that the file may have after the power failure."""
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
class DirectoryChange:
    """Change of a directory: the new name, and the one that it replaces. A directory has no file."""

    kind: str
    path: str
    file: DiskFile | None = None
    replaced_path: str = ""

    @property
    def directory(self) -> str:
        return _parent_of(self.path)


@dataclass(frozen=True)
class DiskState:
    """Contents of the disk after the power failure."""

    files: frozenset[tuple[str, bytes]]
    directories: frozenset[str]
    acknowledged: bool
    description: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.description}{', acknowledged' if self.acknowledged else ''}"


class SimulatedDisk:
    """Disk during the recorded calls: the changes that are durable, and those that a power failure may lose."""

    def __init__(self, files: Mapping[str, bytes], directories: frozenset[str], events: Sequence[Event]) -> None:
        self.files = {path: DiskFile(data, is_synced=True) for path, data in files.items()}
        self.directories = {ROOT, *directories}
        self.pending: list[DirectoryChange] = []
        self._files_by_name: dict[str, DiskFile] = dict(self.files)
        self._existing_directories = set(self.directories)
        self._events = events

    def apply_event(self, event_number: int) -> None:
        event = self._events[event_number]
        match event.kind:
            case "make":
                self._existing_directories.add(event.path)
                self.pending.append(DirectoryChange("make", event.path))
            case "write":
                self._put_file(event.path, DiskFile(self._final_content(event_number)))
            case "sync" if event.path in self._existing_directories:
                self._sync_directory(event.path)
            case "sync":
                if event.path not in self._files_by_name:
                    self._put_file(event.path, DiskFile(event.data))
                self._files_by_name[event.path].is_synced = True
            case "link":
                self._put_file(event.target, self._files_by_name[event.path])
            case "replace":
                file = self._files_by_name[event.target] = self._files_by_name.pop(event.path)
                self.pending.append(DirectoryChange("put", event.target, file, replaced_path=event.path))
            case "remove":
                self._files_by_name.pop(event.path, None)
                self.pending.append(DirectoryChange("remove", event.path))

    def is_durable(self, path: str) -> bool:
        parents = itertools.takewhile(lambda parent: parent != ROOT, map(str, Path(path).parents))
        return path in self.files and self.files[path].is_synced and self.directories.issuperset(parents)

    def possible_states(self, *, acknowledged: bool, description: str, generator: random.Random) -> Iterator[DiskState]:
        for durable_changes in _subsets(self.pending, generator):
            files, directories = dict(self.files), set(self.directories)
            for change in durable_changes:
                _apply_change(change, files, directories)
            reachable = {path: file for path, file in files.items() if _is_reachable(path, directories)}
            unsynced = list(dict.fromkeys(file for file in reachable.values() if not file.is_synced))
            choices = itertools.product(*(file.contents() for file in unsynced))
            for contents in itertools.islice(choices, 25):
                chosen_contents = dict(zip(unsynced, contents, strict=True))
                yield DiskState(
                    frozenset((path, chosen_contents.get(file, file.data)) for path, file in reachable.items()),
                    frozenset(path for path in directories if _is_reachable(path, directories)),
                    acknowledged,
                    f"{description}, {len(durable_changes)} of {len(self.pending)} changes kept",
                )

    def _put_file(self, path: str, file: DiskFile) -> None:
        self._files_by_name[path] = file
        self.pending.append(DirectoryChange("put", path, file))

    def _sync_directory(self, directory: str) -> None:
        for change in self.pending:
            if change.directory == directory:
                _apply_change(change, self.files, self.directories)
        self.pending = [change for change in self.pending if change.directory != directory]

    def _final_content(self, event_number: int) -> bytes:
        path = self._events[event_number].path
        later_events = (event for event in self._events[event_number:] if event.path == path and event.kind != "write")
        return next((event.data for event in later_events), b"")


class RecordedOperation:
    """One operation that ran once with all of its calls to the operating system recorded."""

    def __init__(self, operation: StoppableOperation, *, durable: bool = True) -> None:
        self.backend = LocalDiskBackend()
        self.scenario = CrashScenario(self.backend, operation)
        self.root = self.backend.root / "tables"
        self.scenario.restore_backend()
        self.base_files = self._read_files()
        self.directories = frozenset(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_dir())
        with pytest.MonkeyPatch.context() as patch:
            forget_synced_entries()
            recorder = SyscallRecorder(self.root / TABLE, patch)
            with simulated_process(replace(self.backend, durable=durable)) as manifest_store:
                operation.run(ProcessContext(self.backend, manifest_store))
        self.events = recorder.events

    def possible_states(self) -> list[DiskState]:
        """Return every state that a power failure can leave, each once."""
        generator = random.Random(0)
        disk = SimulatedDisk(self.base_files, self.directories, self.events)
        states: dict[DiskState, DiskState] = {}
        for event_number in range(len(self.events) + 1):
            is_last = event_number == len(self.events)
            description = (
                "at the end"
                if is_last
                else f"before call {event_number}, {self.events[event_number].kind} {self.events[event_number].path}"
            )
            for state in disk.possible_states(acknowledged=is_last, description=description, generator=generator):
                states.setdefault(state, state)
            if not is_last:
                disk.apply_event(event_number)
        return list(states.values())

    def find_ordering_violations(self) -> list[str]:
        """Return the files that were not durable when a version referenced them, and the versions that were not durable
        when they were acknowledged."""
        disk = SimulatedDisk(self.base_files, self.directories, self.events)
        violations = []
        referenced: set[str] = set()
        for event_number, event in enumerate(self.events):
            path, _, name = event.target.partition(f"{naming.VERSIONS}/")
            if event.kind == "link" and (parsed := naming.parse_manifest_name(name)):
                own = references_of(Manifest.decode(event.data, path=event.target, version=parsed[0])).own
                referenced |= {path + key for key in own}
                violations += [f"{event.target} references {key}" for key in referenced if not disk.is_durable(key)]
                referenced.add(event.target)
            disk.apply_event(event_number)
        return violations + [
            f"{key} was acknowledged before it was durable" for key in referenced if not disk.is_durable(key)
        ]

    def find_problem(self, state: DiskState) -> str:
        self.write_state(state)
        scenario = self.scenario
        try:
            contents = scenario.read_contents()
            assert contents == scenario.contents_after or not state.acknowledged, f"acknowledged and lost: {contents}"
            assert contents in (scenario.contents_before, scenario.contents_after), f"partly done: {contents}"
            scenario.repeat_operation()
            contents = scenario.read_contents()
            assert contents == scenario.contents_after, f"missing after a repetition: {contents}"
        except (AssertionError, LanceError) as error:
            return f"{state}: {type(error).__name__}: {error}"
        return ""

    def write_state(self, state: DiskState) -> None:
        """Write a state to the disk. The hint is written last, because a reader skips the listing if the hint claims to
        be the newest file."""
        self.scenario.restore_backend()
        target_files = dict(state.files)
        for path in self.base_files.keys() - target_files.keys():
            (self.root / path).unlink()
        for directory in sorted(state.directories):
            (self.root / directory).mkdir(exist_ok=True)
        for path in sorted(target_files, key=lambda path: (path.endswith(HINT), path)):
            if self.base_files.get(path) != target_files[path]:
                (self.root / path).unlink(missing_ok=True)
                (self.root / path).write_bytes(target_files[path])

    def find_undetected_damage(self, *, step: int = 1) -> list[str]:
        """Return the prefixes of the newest manifest, alone and padded with zeros, that are read without an error."""
        self.scenario.restore_backend()
        self.scenario.run_operation()
        head = min(self.root.joinpath(TABLE, naming.VERSIONS).glob("*.manifest"))
        data = head.read_bytes()
        undetected = []
        for length in range(0, len(data), step):
            for padding in (b"", bytes(len(data) - length)):
                head.write_bytes(damaged := data[:length] + padding)
                with simulated_process(self.backend) as manifest_store, suppress(CorruptHead):
                    ProcessContext(self.backend, manifest_store).open_table()
                    if damaged != data:
                        undetected.append(f"{length} of {len(data)} bytes, {len(padding)} zeros")
        return undetected

    def close(self) -> None:
        """Delete the files of the operation."""
        self.scenario.close()

    def _read_files(self) -> dict[str, bytes]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}


def record_operation(name: str, *, durable: bool = True) -> RecordedOperation:
    return RecordedOperation(STOPPABLE_OPERATIONS[name], durable=durable)


def _subsets(pending: Sequence[DirectoryChange], generator: random.Random) -> Iterator[Sequence[DirectoryChange]]:
    if len(pending) <= COMBINED_CHANGES_MAX:
        for count in range(len(pending) + 1):
            yield from itertools.combinations(pending, count)
        return
    yield pending
    yield ()
    for _ in range(2**COMBINED_CHANGES_MAX):
        yield [change for change in pending if generator.random() < 0.5]


def _apply_change(change: DirectoryChange, files: dict[str, DiskFile], directories: set[str]) -> None:
    match change.kind:
        case "make":
            directories.add(change.path)
        case "put":
            assert change.file is not None
            files.pop(change.replaced_path, None)
            files[change.path] = change.file
        case "remove":
            files.pop(change.path, None)
            directories.discard(change.path)


def _is_reachable(path: str, directories: set[str]) -> bool:
    return directories.issuperset(map(str, Path(path).parents))


def _parent_of(path: str) -> str:
    return str(Path(path).parent)
