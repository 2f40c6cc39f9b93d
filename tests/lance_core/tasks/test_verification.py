"""Distributed verification: findings of workers equal those of fsck, and turns of a share cover all files."""

import pickle
from pathlib import Path

import pyarrow as pa

from lance_core import Table
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
