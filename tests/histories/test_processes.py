"""Real processes on a real directory, killed at any moment and started again with the same intents.

What the simulation decides by a seed is left to the operating system here: it shows nothing twice, and misses what
only real files do.
"""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table

ROOT = Path(__file__).parents[2]
WORKERS = 3
LOADS = 8
KILLS = 4

WORKER = """
import sys
import pyarrow as pa
from lance_core import RetryableConflict, Table

place, worker, loads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for load in range(loads):
    value = worker * loads + load
    while True:
        try:
            committed = Table.open(place, durable=False).append(pa.table({"id": [value]}), intent=f"load {value}")
            break
        except RetryableConflict:
            continue
    print(value, committed.version, flush=True)
"""


def started(place: str, worker: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WORKER, place, str(worker), str(LOADS)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_killed_writers_write_once(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    Table.create(place, pa.schema([("id", pa.int64())]))
    chance = random.Random(7)
    running = {worker: started(place, worker) for worker in range(WORKERS)}
    acknowledged: dict[int, set[int]] = {}

    def hear(line: str) -> None:
        value, version = map(int, line.split())
        acknowledged.setdefault(value, set()).add(version)

    for _ in range(KILLS):
        worker = chance.randrange(WORKERS)
        process = running[worker]
        assert process.stdout is not None
        for _ in range(chance.randrange(1, LOADS // 2)):
            if line := process.stdout.readline():
                hear(line)
        process.kill()
        for line in process.communicate()[0].splitlines():
            if len(line.split()) == 2:
                hear(line)
        running[worker] = started(place, worker)
    for process in running.values():
        for line in process.communicate()[0].splitlines():
            hear(line)
        assert process.returncode == 0

    expected = set(range(WORKERS * LOADS))
    table = Table.open(place)
    assert Counter(table.to_table()["id"].to_pylist()) == Counter(expected)
    assert set(acknowledged) == expected
    assert all(len(versions) == 1 for versions in acknowledged.values())
    assert [info.version for info in table.versions()] == list(range(1, len(expected) + 2))
    assert lance.dataset(place).count_rows() == len(expected)
