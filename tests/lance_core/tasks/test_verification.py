"""Distributed verification: findings of workers equal those of fsck, and turns of a share cover all files."""

import os
import pickle
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.tasks.partitioning import Task
from lance_core.tasks.verification import verify_files
from tests.lance_core.tasks.in_process_workers import InProcessWorkers


def flip_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 4
    file.write_bytes(data)


def test_workers_find_what_fsck_finds(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", pa.table({"id": list(range(100))}), max_rows_per_file=5, durable=False)
    table = table.delete("id in (3, 50)").table.create_index("id", "BTREE").table
    files = sorted(path for name in ("data", "_deletions", "_indices") for path in Path(table.uri, name).rglob("*.*"))
    for file in files[::4]:
        flip_bit(file)
    files[1].unlink()
    runner = InProcessWorkers(slots=3)
    snapshot = table._snapshot
    expected = [finding for finding in table.fsck(data=True).findings if finding.rule == "checksum"]
    assert len(expected) == len(files[::4]) + 1
    report = verify_files(snapshot, runner=runner, versions="all")
    assert sorted(map(str, report.findings)) == sorted(map(str, expected))
    assert (report.verified_files, report.files, report.versions) == (len(files), len(files), (1, 2, 3))
    turns = [verify_files(snapshot, runner=runner, share=0.25, turn=turn) for turn in range(4)]
    assert sum(turn.verified_files for turn in turns) == len(files)
    assert sorted(found.path for turn in turns for found in turn.findings) == sorted(each.path for each in expected)
    assert pickle.loads(pickle.dumps(report.errors)) == report.errors


def test_workers_decode_files_without_a_hash(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    rows = pa.table({"words": [["x"] * (n % 4) for n in range(40)]})
    lance.write_dataset(rows, uri, data_storage_version="2.0", max_rows_per_file=10)
    Table.open(uri).append(rows)
    runner, table = InProcessWorkers(slots=2), Table.open(uri)
    report = verify_files(table._snapshot, runner=runner)
    assert (report.errors, report.verified_files, report.files) == ((), 1, 5)
    unhashed = Path(uri, "data", table.manifest.fragments[2].files[0].path)
    data = unhashed.read_bytes()
    unhashed.write_bytes(b"\xff" * 64 + data[64:])  # offsets of the lists
    (found,) = verify_files(table._snapshot, runner=runner, versions="all").errors
    assert (found.rule, found.path) == ("decoding", f"data/{unhashed.name}")
    assert found in table.fsck(data=True).errors


@dataclass
class CleaningWorkers(InProcessWorkers):
    """Workers that begin after a cleanup has removed old versions, and after the loss of some files."""

    table: Table | None = None
    lost: tuple[Path, ...] = ()

    def run(self, task: Task, parts: int) -> pa.Table:
        assert self.table is not None
        self.table.cleanup(older_than=timedelta(0), keep=1)
        for file in self.lost:
            file.unlink()
        return super().run(task, parts)


def test_files_that_a_concurrent_cleanup_removes_are_no_findings(tmp_path: Path) -> None:
    """A file that is missing from an existing version, the newest one or one with a tag, is still an error."""
    table = Table.create(tmp_path / "t", pa.table({"id": list(range(20))}), max_rows_per_file=5, durable=False)
    files = set(Path(table.uri, "data").iterdir())
    table = table.update({"id": "-id"}, where="id < 5").table
    (middle,) = set(Path(table.uri, "data").iterdir()) - files
    table.tags.create("middle", table.version)
    table = table.update({"id": "-id - 1"}, where="id < 5").table
    (newest,) = set(Path(table.uri, "data").iterdir()) - files - {middle}
    for manifest in Path(table.uri, "_versions").iterdir():
        os.utime(manifest, (0, 0))
    runner = CleaningWorkers(table=table, lost=(middle, newest))
    report = verify_files(table._snapshot, runner=runner, versions="all")
    assert report.versions == (1, 2, 3)
    assert sorted(each.path for each in report.findings) == sorted(f"data/{each.name}" for each in (middle, newest))
    assert len(set(Path(table.uri, "data").iterdir())) == 3
