"""Tests of the distribution over workers, which pytest-xdist could ignore without an error."""

import re
import subprocess
import sys
from pathlib import Path

from tests.distribution import SPARK, group_of

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


def test_files_that_share_spark_or_servers_are_one_group() -> None:
    assert group_of("tests/lance_assets/spark/test_dml.py") == SPARK == group_of("tests/lance_assets/test_writes.py")
    assert group_of("tests/lance_assets/test_examples.py") == SPARK
    assert group_of("tests/lance_assets/test_demo.py") == "tests/lance_assets/test_demo.py"
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
