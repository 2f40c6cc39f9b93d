"""Turns at a directory: one at a time, none for ever, and none that anybody depends on."""

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

HOLDS = """
import sys
from pathlib import Path
from lance_core.storage.commit_lock import commit_lock
with commit_lock(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def standing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "commit-lock-waiter"]


def test_one_has_a_turn_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    together: list[int] = []
    turns: list[bool] = []

    def work(_number: int) -> None:
        for _ in range(20):
            with commit_lock(tmp_path, timeout_seconds=60) as mine:
                inside.append(1)
                together.append(len(inside))
                turns.append(mine)
                inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert set(together) == {1}
    assert turns == [True] * 160


def test_who_waited_long_enough_goes_on_without(tmp_path: Path) -> None:
    with commit_lock(tmp_path):
        with commit_lock(tmp_path, timeout_seconds=0.01) as mine:
            assert not mine
        before = len(standing())
        for _ in range(50):  # at once, without a thread and a descriptor each
            with commit_lock(tmp_path, timeout_seconds=3600) as mine:
                assert not mine
        assert len(standing()) == before == 1
    for thread in standing():
        thread.join(60)
    with commit_lock(tmp_path, timeout_seconds=60) as mine:
        assert mine


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:lance is not fork-safe")
def test_a_forked_process_keeps_no_turn_of_its_parent(tmp_path: Path) -> None:
    """It lives on when the turn is over, and its parent may be killed in the middle of one."""
    reading, writing = os.pipe()
    with commit_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test is over
            os._exit(0)
    try:
        with commit_lock(tmp_path, timeout_seconds=0) as mine:
            assert mine
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_turn_is_passed_on_by_one_that_gave_up(tmp_path: Path) -> None:
    """Its thread gets the turn after all, and nobody is there to use it."""
    with commit_lock(tmp_path), commit_lock(tmp_path, timeout_seconds=0.01):
        left = standing()
        assert left
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()
    with commit_lock(tmp_path, timeout_seconds=0) as mine:
        assert mine


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "True\n"
        with commit_lock(tmp_path, timeout_seconds=0.01) as mine:
            assert not mine
        holder.kill()
        holder.wait()
        for thread in standing():  # of the turn that was given up: it comes now, and is over
            thread.join(60)
        with commit_lock(tmp_path, timeout_seconds=60) as mine:
            assert mine


@pytest.mark.parametrize("name", ["missing", "file"])
def test_where_there_is_no_directory_there_is_no_turn(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with commit_lock(tmp_path / name) as mine:
        assert not mine


def test_a_local_store_takes_turns(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_directory("_versions")
    assert isinstance(store, SupportsCommitLock)
    with store.commit_lock("_versions") as mine:
        assert mine
        with commit_lock(tmp_path / "_versions", timeout_seconds=0.01) as also:
            assert not also


def test_an_error_in_a_turn_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), commit_lock(tmp_path):
        raise ZeroDivisionError
    with commit_lock(tmp_path, timeout_seconds=0.01) as mine:
        assert mine
