"""Tests of the trace parser on lines as `strace -f -y -xx` writes them."""

import pytest

from tests.syscalls.events import FileEvent
from tests.syscalls.trace_parser import UnmodelledCall, parse_trace

ROOT, REPORTS = "/t", "/reports"


def text(value: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in value.encode())


def quoted(value: str) -> str:
    return f'"{text(value)}"'


def fd(number: int, path: str) -> str:
    return f"{number}<{text(path)}>"


CWD = f"AT_FDCWD<{text('/')}>"
OPENED = f"1 openat({CWD}, {quoted('/t/a')}, O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0666) = {fd(3, '/t/a')}"


def test_writes_follow_the_offset_of_the_descriptor() -> None:
    lines = [
        OPENED,
        f"1 write({fd(3, '/t/a')}, {quoted('one')}, 3) = 3",
        f"1 writev({fd(3, '/t/a')}, [{{iov_base={quoted('tw')}}}, {{iov_base={quoted('o')}}}], 2) = 3",
        f"1 pwrite64({fd(3, '/t/a')}, {quoted('O')}, 1, 0) = 1",
        f"1 lseek({fd(3, '/t/a')}, 2, SEEK_SET) = 2",
        f"1 write({fd(3, '/t/a')}, {quoted('Exy')}, 3) = 1",
        f"1 ftruncate({fd(3, '/t/a')}, 5) = 0",
    ]
    events, files = parse_trace(lines, ROOT, REPORTS)
    assert files == {"a": b"OnEtw"}
    assert [(event.offset, event.data) for event in events if event.kind == "write"] == [
        (0, b"one"), (3, b"two"), (0, b"O"), (2, b"E"),
    ]  # fmt: skip


def test_a_sync_covers_what_ended_before_it_began() -> None:
    lines = [
        OPENED,
        f"1 fsync({fd(3, '/t/a')} <unfinished ...>",
        f"2 mkdir({quoted('/t/d')}, 0777) = 0",
        "1 <... fsync resumed>) = 0",
        f"1 fsync({fd(3, '/t/a')}) = -1 EIO (Input/output error) (INJECTED)",
    ]
    events, _ = parse_trace(lines, ROOT, REPORTS)
    assert events[1:] == [
        FileEvent("make", "d"),
        FileEvent("sync", "a", file=1, since=1),
        FileEvent("sync", "a", file=1, since=3, has_failed=True),
    ]


def test_threads_share_descriptors_and_processes_do_not() -> None:
    clone = "1 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, child_tid=0x1}, 88) = 2"
    thread = f"2 write({fd(3, '/t/a')}, {quoted('x')}, 1) = 1"
    assert parse_trace([OPENED, thread, clone], ROOT, REPORTS)[1] == {"a": b"x"}
    with pytest.raises(UnmodelledCall, match="does not open"):
        parse_trace([OPENED, thread], ROOT, REPORTS)


def test_names() -> None:
    lines = [
        OPENED,
        f"1 link({quoted('/t/a')}, {quoted('/t/b')}) = 0",
        f"1 link({quoted('/t/a')}, {quoted('/t/b')}) = -1 EEXIST (File exists)",
        f"1 renameat({CWD}, {quoted('/t/a')}, {CWD}, {quoted('/t/c')}) = 0",
        f"1 unlink({quoted('/t/b')}) = 0",
        f"1 write({fd(1, REPORTS)}, {quoted('{}')}, 2) = 2",
        f"1 openat({CWD}, {quoted('/elsewhere')}, O_WRONLY|O_CREAT, 0666) = {fd(4, '/elsewhere')}",
    ]
    events, files = parse_trace(lines, ROOT, REPORTS)
    assert [str(event) for event in events] == ["create a", "link a -> b", "rename a -> c", "remove b", "report "]
    assert files == {"c": b""}


@pytest.mark.parametrize(
    "line",
    [
        f"1 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, {fd(3, '/t/a')}, 0) = 0x7f",
        f"1 symlink({quoted('/t/a')}, {quoted('/t/b')}) = 0",
        f"1 rename({quoted('/elsewhere')}, {quoted('/t/b')}) = 0",
        "1 io_uring_setup(8, {flags=0}) = 5",
        "nonsense",
    ],
)
def test_calls_outside_the_model_are_refused(line: str) -> None:
    with pytest.raises(UnmodelledCall):
        parse_trace([OPENED, line], ROOT, REPORTS)
