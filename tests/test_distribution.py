"""Tests of the distribution over workers, which pytest-xdist could ignore without an error."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from xdist.remote import Producer

from tests.distribution import PROGRAMS, SPARK, FileGroupScheduling, group_of

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import pytest
from tests.distribution import FileGroupScheduling

class Distribution:
    def pytest_xdist_make_scheduler(self, config, log):
        return FileGroupScheduling(config, log)

arguments = ["-v", "--rootdir=.", "-p", "no:cacheprovider", "-n2", "--dist=loadgroup"]
raise SystemExit(pytest.main(arguments, [Distribution()]))
"""


def test_files_that_share_spark_programs_or_servers_are_one_group() -> None:
    assert group_of("tests/lance_assets/spark/test_dml.py") == SPARK == group_of("tests/lance_assets/test_writes.py")
    assert group_of("tests/lance_assets/test_examples.py") == SPARK
    assert group_of("tests/lance_assets/test_demo.py") == PROGRAMS == group_of("tests/test_readme.py")
    assert group_of("tests/lance_assets/test_demo_crashes.py") == "tests/lance_assets/test_demo_crashes.py"
    stores = "tests/lance_core/storage/manifest_stores"
    assert group_of(f"{stores}/test_faults.py") == group_of(f"{stores}/test_tables.py") == stores
    assert group_of("tests/lance_core/storage/test_local.py") == "tests/lance_core/storage"


def test_a_file_runs_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").touch()
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(
            "import pytest\n@pytest.mark.parametrize('i', range(4))\ndef test(i): pass\n"
        )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = {name: set(re.findall(rf"\[(gw\d)\].*PASSED test_{name}", done.stdout)) for name in "ab"}
    assert sorted(map(sorted, workers.values())) == [["gw0"], ["gw1"]]


class Worker:
    """Worker that records the groups that it is given."""

    def __init__(self, name: str) -> None:
        self.gateway, self.given = SimpleNamespace(id=name), list[str]()

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += [ITEMS[number] for number in numbers]


SPARK_FILES = ("tests/lance_assets/test_writes.py", "tests/lance_assets/spark/test_dml.py")
ITEMS = [f"{file}::test" for file in (*SPARK_FILES, "tests/test_readme.py", "tests/interop/test_types.py")]


def test_spark_runs_on_the_first_worker_until_nothing_else_is_left() -> None:
    option = SimpleNamespace(tx=["popen", "popen"], dist="loadgroup", maxprocesses=None, px=[], numprocesses=2)
    config = cast(pytest.Config, SimpleNamespace(option=option, getvalue=lambda name: ["popen"] * 2))
    scheduler = FileGroupScheduling(config, Producer("test", enabled=False))
    first, second = Worker("gw0"), Worker("gw1")
    for worker in (first, second):
        scheduler.add_node(worker)
        scheduler.registered_collections[worker] = ITEMS
    for nodeid in ITEMS:
        scheduler.workqueue[scheduler._split_scope(nodeid)] = {nodeid: False}
    for worker in (second, first, second, second):
        scheduler._assign_work_unit(worker)
    assert (first.given, second.given) == ([ITEMS[0]], [ITEMS[2], ITEMS[3], ITEMS[1]])
