"""Commit lock: one holder per directory, no wait without limit, and no commit that depends on it."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lance_core.storage.commit_lock import commit_lock
from lance_core.storage.local import LocalStore
from lance_core.storage.store import SupportsCommitLock

HOLDER_PROGRAM = """
import sys
from pathlib import Path
from lance_core.storage.commit_lock import commit_lock
with commit_lock(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def waiter_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "commit-lock-waiter"]


def test_the_lock_has_one_holder(tmp_path: Path) -> None:
    inside: list[int] = []
    holder_counts: list[int] = []
    acquired: list[bool] = []

    def acquire_repeatedly(_number: int) -> None:
        for _ in range(20):
            with commit_lock(tmp_path, timeout_seconds=60) as is_acquired:
                inside.append(1)
                holder_counts.append(len(inside))
                acquired.append(is_acquired)
                inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(acquire_repeatedly, range(8)))
    assert set(holder_counts) == {1}
    assert acquired == [True] * 160


def test_a_writer_continues_without_the_lock_after_the_timeout(tmp_path: Path) -> None:
    with commit_lock(tmp_path):
        with commit_lock(tmp_path, timeout_seconds=0.01) as is_acquired:
            assert not is_acquired
        before = len(waiter_threads())
        for _ in range(50):  # The attempts return at once, without a thread and a descriptor each.
            with commit_lock(tmp_path, timeout_seconds=3600) as is_acquired:
                assert not is_acquired
        assert len(waiter_threads()) == before == 1
    for thread in waiter_threads():
        thread.join(60)
    with commit_lock(tmp_path, timeout_seconds=60) as is_acquired:
        assert is_acquired


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:lance is not fork-safe")
def test_a_forked_process_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    """It outlives the lock, and its parent may be killed while it holds the lock."""
    reading, writing = os.pipe()
    with commit_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test ends
            os._exit(0)
    try:
        with commit_lock(tmp_path, timeout_seconds=0) as is_acquired:
            assert is_acquired
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_waiter_that_gave_up_releases_the_lock(tmp_path: Path) -> None:
    """Its thread acquires the lock after all, and no writer uses it."""
    with commit_lock(tmp_path), commit_lock(tmp_path, timeout_seconds=0.01):
        waiters = waiter_threads()
        assert waiters
    for thread in waiters:
        thread.join(60)
        assert not thread.is_alive()
    with commit_lock(tmp_path, timeout_seconds=0) as is_acquired:
        assert is_acquired


def test_the_lock_is_released_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER_PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "True\n"
        with commit_lock(tmp_path, timeout_seconds=0.01) as is_acquired:
            assert not is_acquired
        holder.kill()
        holder.wait()
        for thread in waiter_threads():  # the waiters that gave up acquire and release the lock now
            thread.join(60)
        with commit_lock(tmp_path, timeout_seconds=60) as is_acquired:
            assert is_acquired


@pytest.mark.parametrize("name", ["missing", "file"])
def test_without_a_directory_there_is_no_lock(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with commit_lock(tmp_path / name) as is_acquired:
        assert not is_acquired


def test_a_local_store_supports_the_commit_lock(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_directory("_versions")
    assert isinstance(store, SupportsCommitLock)
    with store.commit_lock("_versions") as is_acquired:
        assert is_acquired
        with commit_lock(tmp_path / "_versions", timeout_seconds=0.01) as is_acquired_twice:
            assert not is_acquired_twice


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), commit_lock(tmp_path):
        raise ZeroDivisionError
    with commit_lock(tmp_path, timeout_seconds=0.01) as is_acquired:
        assert is_acquired
