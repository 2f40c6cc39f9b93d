"""Local store: the store contract, exclusive creation between processes, and durability before each answer.

The tests record the calls to the operating system during a write: data that is not synced in the right order could be
lost in a power failure.
"""

import errno
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from lance_core import CommitUndecided, NotFound, StorageError, Table
from lance_core.storage.local import LocalStore, forget_synced_entries
from lance_core.storage.store import Put
from tests.lance_core.storage.store_contract import StoreContract
from tests.lance_core.storage.syscall_recorder import SyscallRecorder

ROOT = Path(__file__).parents[3]
SYNCS_OF_ANCESTORS = [("fsync", "root/a"), ("fsync", "root"), ("fsync", ".")]
"""Once per process, for directories that existed before."""
PROCESSES = 4
NAMES = 100

CREATOR_PROGRAM = """
import json, sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from lance_core.storage.local import LocalStore

store = LocalStore(Path(sys.argv[1]), durable=False)
print("ready", flush=True)
sys.stdin.readline()
data = sys.argv[2].encode() * 20_000
print(json.dumps([store.create(f"d/{number}", data).name for number in range(int(sys.argv[3]))]))
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Directory on the disk; those of other tests are in memory (`tests/memory_files.py`)."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


class TestLocal(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "root", durable=False)

    def test_its_description(self, store: LocalStore, tmp_path: Path) -> None:
        assert store.description == str(tmp_path / "root")


class TestDurableLocal(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path / "root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_create_is_durable_before_it_answers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced first, then the directory with the name; new directories from the top down."""
    recorder = SyscallRecorder(root, monkeypatch)
    assert LocalStore(root).create("a/b/name", b"x") is Put.CREATED
    assert recorder.calls == [
        ("fsync", "."),
        ("fsync", "root"),
        ("fsync", "root/a"),
        ("fsync", "root/a/b/*"),
        ("link", "root/a/b/* -> root/a/b/name"),
        ("fsync", "root/a/b"),
    ]


def test_put_is_durable_before_it_returns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").mkdir(parents=True)
    recorder = SyscallRecorder(root, monkeypatch)
    LocalStore(root).put("a/name", b"x")
    assert recorder.calls == [
        ("fsync", "root/a/*"),
        ("replace", "root/a/* -> root/a/name"),
        ("fsync", "root/a"),
        *SYNCS_OF_ANCESTORS,
    ]
    recorder.calls.clear()
    LocalStore(root).put("a/name", b"y")
    assert [name for call, name in recorder.calls if call == "fsync"] == ["root/a/*", "root/a"]


def test_ensure_durable_syncs_files_and_then_their_directories(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").mkdir(parents=True)
    (root / "a" / "one").touch()
    (root / "a" / "two").touch()
    recorder = SyscallRecorder(root, monkeypatch)
    LocalStore(root).ensure_durable(["a/one", "a/two"])
    assert recorder.calls == [
        ("fsync", "root/a/one"),
        ("fsync", "root/a/two"),
        ("fsync", "root/a"),
        *SYNCS_OF_ANCESTORS,
    ]


def test_unsynced_files_are_durable_before_the_file_that_follows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    for path in ("a/before", "b/before", "c/before"):
        store.put(path, b"x")
    recorder = SyscallRecorder(root, monkeypatch)
    store.put_unsynced("a/one", b"x")
    store.put_unsynced("b/two", b"x" * 2 * 1024**2)
    assert recorder.calls == [("replace", "root/a/* -> root/a/one"), ("replace", "root/b/* -> root/b/two")]
    recorder.calls.clear()
    assert store.create_after("c/name", b"x", ["a/one", "b/two"]) is Put.CREATED
    *syncs, link, last = recorder.calls
    assert syncs[:3] == [("fsync", "root/a/one"), ("fsync", "root/b/two"), ("fsync", "root/c/*")]
    assert sorted(syncs[3:]) == [("fsync", "root/a"), ("fsync", "root/b")]
    assert (link, last) == (("link", "root/c/* -> root/c/name"), ("fsync", "root/c"))
    assert store.create_after("c/name", b"y", ["a/one"]) is Put.EXISTS


@pytest.mark.parametrize("failing", ["a/one", "a", "missing"])
def test_a_file_does_not_exist_if_a_sync_before_it_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    store = LocalStore(root)
    store.put("a/before", b"x")
    store.put("c/before", b"x")
    store.put_unsynced("a/one", b"x")
    FailingSync(root / failing, monkeypatch)
    unsynced = ["a/one", *(["a/two"] if failing == "missing" else [])]
    with pytest.raises(NotFound if failing == "missing" else StorageError):
        store.create_after("c/name", b"x", unsynced)
    assert [file.name for file in (root / "c").iterdir()] == ["before"]
    if failing != "missing":
        with pytest.raises(StorageError, match="an earlier sync in this process failed"):
            store.create_after("c/name", b"x", unsynced)


def test_directories_of_other_writers_are_synced_before_the_first_answer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer created the directories and synced nothing: without their entries our file would be lost with
    them.
    """
    other_store = LocalStore(root, durable=False)
    other_store.put("a/theirs", b"x")
    other_store.put("b/theirs", b"x")
    recorder = SyscallRecorder(root, monkeypatch)
    store = LocalStore(root)
    assert store.create("a/ours", b"x") is Put.CREATED
    assert {"root/a", "root/b", "root", "."} <= {name for call, name in recorder.calls if call == "fsync"}
    recorder.calls.clear()
    other_store.put("c/theirs", b"x")
    store.put("c/ours", b"x")
    assert [name for call, name in recorder.calls if call == "fsync"] == ["root/c/*", "root/c", "root"]


def test_a_recreated_directory_is_synced_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    store.put("a/name", b"x")
    root.rename(root.with_name("elsewhere"))
    LocalStore(root, durable=False).put("a/name", b"x")
    recorder = SyscallRecorder(root, monkeypatch)
    store.put("a/name", b"y")
    assert "." in {name for call, name in recorder.calls if call == "fsync"}


def test_links_out_of_the_root_are_not_followed(root: Path) -> None:
    store = LocalStore(root, durable=False)
    store.put("a/name", b"x")
    (root.parent / "secret").write_bytes(b"y")
    (root / "a" / "out").symlink_to(root.parent / "secret")
    (root / "out").symlink_to(root.parent)
    (root / "a" / "in").symlink_to("name")
    for path in ("a/out", "out/secret"):
        with pytest.raises(StorageError, match="files outside are not opened"):
            store.read(path)
        with pytest.raises(StorageError, match="files outside are not opened"):
            store.head(path)
    with pytest.raises(StorageError, match="files outside are not opened"):
        store.create_directory("out/more")
    assert store.read("a/in") == b"x"


def test_a_directory_that_cannot_be_created_is_reported(root: Path) -> None:
    store = LocalStore(root, durable=False)
    store.put("name", b"x")
    with pytest.raises(StorageError, match=r"could not create .*root/name/below"):
        store.create_directory("name/below")


def test_a_store_without_durability_syncs_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = SyscallRecorder(root, monkeypatch)
    store = LocalStore(root, durable=False)
    store.create("a/one", b"x")
    store.put("a/two", b"x")
    store.ensure_durable(["a/one"])
    assert [call for call, _ in recorder.calls] == ["link", "replace"]


def test_processes_create_each_name_once(root: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATOR_PROGRAM, str(root), str(number), str(NAMES)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [json.loads(process.communicate()[0]) for process in processes]
    store = LocalStore(root)
    for number in range(NAMES):
        winners = [writer for writer in range(PROCESSES) if answers[writer][number] == "CREATED"]
        assert len(winners) == 1
        assert store.read(f"d/{number}") == str(winners[0]).encode() * 20_000
    assert len(list((root / "d").iterdir())) == NAMES


def test_a_replayed_link_counts_as_created(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system repeats a link whose answer was lost and reports that the name exists."""
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert LocalStore(root).create("a/name", b"x") is Put.CREATED


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_link_that_may_have_happened_is_unknown(code: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    assert LocalStore(root).create("a/name", b"x") is Put.UNKNOWN
    assert list((root / "a").iterdir()) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS])
def test_a_rejected_link_did_not_happen(code: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StorageError, match=r"could not write .*name"):
        LocalStore(root).create("a/name", b"x")
    assert list((root / "a").iterdir()) == []


def test_a_name_that_is_not_yet_durable_is_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a").mkdir(parents=True)
    fsync, calls = os.fsync, []

    def fail_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EIO, "I/O error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    assert LocalStore(root).create("a/name", b"x") is Put.UNKNOWN


def test_a_file_system_without_links_is_rejected(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(StorageError, match="without hard links"):
        LocalStore(root).create("a/name", b"x")
    assert list((root / "a").iterdir()) == []


def test_a_full_disk_fails_before_a_name_exists(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (root / "a").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", fail)
    store = LocalStore(root)
    with pytest.raises(StorageError, match=r"could not write .*name: No space left"):
        store.create("a/name", b"x")
    with pytest.raises(StorageError, match="No space left"):
        store.put("a/name", b"x")
    assert store.head("a/name") is None
    assert list(store.list("a")) == []


def test_temporary_files_and_dangling_links_are_not_listed(root: Path) -> None:
    store = LocalStore(root)
    store.put("a/name", b"x")
    (root / "a" / ".tmp-1234").write_bytes(b"left behind by a crash")
    (root / "a" / ".tmpAbC123").write_bytes(b"left behind by another library")
    (root / "a" / "dangling").symlink_to(root / "nowhere")
    assert [info.path for info in store.list("a")] == ["a/name"]


def test_errors_name_the_file(root: Path) -> None:
    store = LocalStore(root)
    store.put("a/name", b"x")
    with pytest.raises(StorageError, match=r"could not read .*root/a: "):
        store.read("a")
    with pytest.raises(StorageError, match=r"could not write .*root/a: "):
        store.put("a", b"x")


def test_the_last_change_of_a_directory_is_detected(root: Path) -> None:
    store = LocalStore(root)
    store.put_volatile("d/note", b"1")
    assert store.head_if_directory_unchanged("d/note") == store.head("d/note")
    assert store.head_if_directory_unchanged("d/nothing") is None
    written_at = (root / "d/note").stat().st_ctime_ns
    for change in (1, -1):  # later, or set by a copy of the directory
        os.utime(root / "d", ns=(0, written_at + change * 10**9))
        assert store.head_if_directory_unchanged("d/note") is None
    store.put_volatile("d/note", b"2")
    assert store.read("d/note") == b"2"
    assert store.head_if_directory_unchanged("d/note") == store.head("d/note")


def test_a_volatile_put_is_not_synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "d").mkdir(parents=True)
    recorder = SyscallRecorder(root, monkeypatch)
    LocalStore(root).put_volatile("d/note", b"1")
    assert recorder.calls == [("replace", "root/d/* -> root/d/note")]


class FailingSync:
    """`os.fsync` that fails once for one file or directory, as a disk does that lost a block, and succeeds later."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, code: int = errno.EIO) -> None:
        self.path, self.code, self.calls, self._real = path, code, 0, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        if self.path.exists() and os.path.samestat(os.fstat(descriptor), self.path.stat()):
            self.calls += 1
            if self.calls == 1:
                raise OSError(self.code, os.strerror(self.code))
        self._real(descriptor)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_of_a_directory_is_not_repeated(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store = LocalStore(root)
    store.put("a/before", b"x")
    sync = FailingSync(root / "a", monkeypatch, code)
    assert store.create("a/name", b"x") is Put.UNKNOWN
    for write in (
        lambda: store.ensure_durable(["a/name"]),
        lambda: store.put("a/other", b"y"),
        lambda: store.create("a/other", b"y"),
        lambda: LocalStore(root).put("a/other", b"y"),
    ):
        with pytest.raises(StorageError, match=r"an earlier sync in this process failed.*start the process again"):
            write()
    assert sync.calls == 1
    assert [info.path for info in store.list("a")] == ["a/before", "a/name"]
    store.put("b/name", b"x")


def test_a_failed_sync_of_a_file_is_not_repeated(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec writes data files without a sync; the store syncs them."""
    store = LocalStore(root)
    store.put("a/name", b"x")
    sync = FailingSync(root / "a" / "name", monkeypatch)
    for message in ("Input/output error", "an earlier sync in this process failed"):
        with pytest.raises(StorageError, match=message):
            store.ensure_durable(["a/name"])
    assert sync.calls == 1
    store.put("a/name", b"written again")
    store.ensure_durable(["a/name"])


def test_the_number_of_a_failed_directory_is_not_that_of_another(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    store.put("a/before", b"x")
    FailingSync(root / "a", monkeypatch)
    assert store.create("a/name", b"x") is Put.UNKNOWN
    store.delete("a/before")
    store.delete("a/name")
    (root / "a").rmdir()
    for number in range(20):
        store.put(f"{number}/name", b"x")


@pytest.mark.parametrize(
    ("directory", "create"),
    [
        ("_refs/tags", lambda table: table.tags.create("good")),
        ("data", lambda table: table.tags.create("good")),
        ("data", lambda table: table.branches.create("dev")),
    ],
)
def test_a_reference_whose_sync_failed_is_not_acknowledged(
    directory: str, create: Callable[[Table], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`data` is synced with the other directories of the table before the first write of a process."""
    table = Table.create(str(tmp_path / "t"), pa.table({"id": [1]}))
    table.tags.create("first")
    forget_synced_entries()
    FailingSync(tmp_path / "t" / directory, monkeypatch)
    with pytest.raises(StorageError, match=r"an earlier sync in this process failed|could not write .*holds"):
        create(table)


def test_a_commit_whose_sync_failed_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version exists; whether it survives a power loss is not known. This process acknowledges no repetition, and
    a later one finds the version by reading."""
    uri = str(tmp_path / "t")
    table = Table.create(uri, pa.table({"id": [1]}))
    sync = FailingSync(tmp_path / "t" / "_versions", monkeypatch)
    with pytest.raises(CommitUndecided, match=r"reading it back failed.*an earlier sync in this process failed"):
        table.append(pa.table({"id": [2]}), intent="i")
    with pytest.raises(CommitUndecided, match="version 2, but perhaps not durably"):
        Table.open(uri).append(pa.table({"id": [2]}), intent="i")
    with pytest.raises(StorageError, match="an earlier sync"):
        Table.open(uri).append(pa.table({"id": [3]}))
    assert sync.calls == 1
    program = (
        "import sys, pyarrow as pa; from lance_core import Table; "
        "made = Table.open(sys.argv[1]).append(pa.table({'id': [2]}), intent='i'); "
        "print(made.already_committed, made.version, made.table.to_table()['id'].to_pylist())"
    )
    done = subprocess.run([sys.executable, "-c", program, uri], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True 2 [1, 2]\n"


class Interrupted(Exception):
    """Raised by a signal handler."""


def interrupt_at(step: int, use: Callable[[], object]) -> bool:
    """Raise `Interrupted` at the given point of a call at which Python runs signal handlers: the start of a function or
    the return from one. Return whether the call ended before it."""
    points = itertools.count()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and next(points) == step:
            sys.setprofile(None)
            raise Interrupted

    sys.setprofile(trace)
    try:
        use()
    except (Interrupted, StorageError):
        return False
    finally:
        sys.setprofile(None)
    return True


@pytest.mark.parametrize("method", ["put", "create", "read", "ensure_durable", "put_volatile"])
def test_a_signal_handler_that_raises_leaves_no_descriptor_open(method: str, root: Path) -> None:
    store = LocalStore(root)
    store.put("d/name", b"1")
    names = map(str, itertools.count())

    uses: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(f"new-{next(names)}/name", b"1"),
        "create": lambda: store.create(f"d/{next(names)}", b"1"),
        "read": lambda: store.read("d/name"),
        "ensure_durable": lambda: store.ensure_durable(["d/name"]),
        "put_volatile": lambda: store.put_volatile("d/name", b"1"),
    }
    before = os.listdir("/proc/self/fd")
    for step in itertools.count():
        is_complete = interrupt_at(step, uses[method])
        assert os.listdir("/proc/self/fd") == before, f"interrupted at point {step}"
        if is_complete:
            break
    assert step > 5
