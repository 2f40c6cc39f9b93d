"""Memory of blobs: large blobs are written, read and moved by a process that can hold only a few of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEBIBYTE = 1024**2
PROGRAM = """
import json, sys
import pyarrow as pa
from lance_core import Table

place, version, blobs, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
column = pa.field("film", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
schema = pa.schema([pa.field("id", pa.int64()), column])
peaks = {}

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def measure(name, work):
    open("/proc/self/clear_refs", "w").write("5")  # resets the peak
    before = peak()
    found = work()
    peaks[name] = peak() - before
    return found

def batches():
    for number in range(blobs):
        film = pa.array([bytes([number]) * size], pa.large_binary())
        yield pa.record_batch([pa.array([number]), film], schema=schema)

def read(table, row):
    (blob,) = table.blobs("film", [row])
    parts = 0
    while part := blob.read(1 << 16):
        assert part == part[:1] * len(part)
        parts += len(part)
    assert parts == size

table = Table.create(place, pa.table([[-1], [b"small"]], schema=schema), storage_version=version)
table.to_table()
table = measure("append", lambda: table.append(batches())).table
measure("read", lambda: read(table, blobs))
table = measure("update", lambda: table.update({"id": "id + 1"}, "id >= 0")).table
table = measure("compact", lambda: table.compact(target_rows=1000)).table
read(table, blobs)
assert table.count_rows() == blobs + 1 and len(table.fragments) == 1
print(json.dumps(peaks))
"""


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_memory_is_that_of_a_few_blobs(version: str, tmp_path: Path) -> None:
    blobs, size = 10, 48 * MEBIBYTE
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "t"), version, str(blobs), str(size)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    assert peaks.pop("read") < 8 * MEBIBYTE
    for what, peak in peaks.items():
        assert peak < 6 * size, f"{what}: {peak / MEBIBYTE:.0f} MiB for {blobs} blobs of {size / MEBIBYTE:.0f} MiB"
