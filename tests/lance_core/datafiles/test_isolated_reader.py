"""Isolated reader: it reads the same as the codec in this process, and turns whatever ends the decoder into one typed
error about the file."""

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core import Corrupt, StorageError, Table
from lance_core.datafiles import decoder_process
from lance_core.datafiles.decoder_process import DecoderEnded, DecoderProcess
from lance_core.datafiles.decoder_protocol import FileReference, Request
from lance_core.datafiles.file_checks import check_file
from lance_core.datafiles.isolated_reader import IsolatedReader
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.limits import Limit
from lance_core.storage.local import LocalStore
from lance_core.versions.location import locate
from tests.lance_core.datafiles.test_file_checks import COLUMNS, VERSIONS, write


def create_aborting_table(path: Path) -> Table:
    """Create a table with a file that aborts the codec: its only page has fewer items than rows."""
    table = Table.create(path, pa.table({"a": [None, *range(60)]}), storage_version="2.1")
    (file,) = (path / "data").iterdir()
    before, rows, after = file.read_bytes().rpartition(b"\x48\x3d")  # the field `num_items` of 61 rows
    file.write_bytes(before + rows[:1] + b"\x1c" + after)
    return table


@pytest.mark.parametrize("version", VERSIONS)
def test_reads_are_the_same(version: str, tmp_path: Path) -> None:
    write(tmp_path / "f.lance", version)
    store = LocalStore(tmp_path)
    plain, isolated = (LanceCodec(store, trusted=trusted).open("f.lance") for trusted in (True, False))
    assert isinstance(isolated, IsolatedReader)
    assert isolated.row_count == plain.row_count
    assert isolated.schema.equals(plain.schema, check_metadata=True)
    assert isolated.read_buffer(0) == plain.read_buffer(0)
    names = [name for name in COLUMNS if name != "bytes"]
    for columns, start, count in ((names, 0, plain.row_count), (["text", "list"], 3_990, 20), (["struct.x"], 5, 1)):
        expected, actual = (pa.Table.from_batches(each.read(columns, start, count)) for each in (plain, isolated))
        assert actual.equals(expected)
        assert actual.schema.equals(expected.schema, check_metadata=True)
    rows = np.array([0, 7, 4_100], np.int64)
    assert list(isolated.take(names, rows)) == list(plain.take(names, rows))


def test_untrusted_tables_are_read_and_changed(tmp_path: Path) -> None:
    """Reads, index builds, compactions and updates of an untrusted table give the same as those of a trusted one."""
    results = []
    for trusted in (True, False):
        uri = tmp_path / str(trusted)
        Table.create(uri, pa.table({"a": range(100), "s": [f"s{n % 7}" for n in range(100)]}), max_rows_per_file=30)
        table = Table.open(uri, trusted=trusted).create_index("a", "BTREE").table
        table = table.update({"s": "'new'"}, where="a < 10").table.delete("a > 90").table.compact().table
        results.append((table.to_table(filter="a < 50"), table.count_rows("s = 'new'")))
    assert results[0] == results[1]


def test_a_file_that_aborts_the_codec_is_an_error(tmp_path: Path) -> None:
    """The metadata of the file proves nothing, so it is decoded in another process also in a trusted table. Reads that
    share this process are not disturbed."""
    bad = create_aborting_table(tmp_path / "bad")
    (file,) = (tmp_path / "bad" / "data").iterdir()
    assert not check_file(LocalStore(tmp_path / "bad"), f"data/{file.name}").is_plausible
    location = locate(bad.uri)
    good = Table.create(tmp_path / "good", pa.table({"a": range(50_000)}), max_rows_per_file=5_000)
    expected = good.to_table()
    good = Table.open(tmp_path / "good", trusted=False)

    def read_bad(_number: int) -> None:
        reader = location.codec.open(f"data/{file.name}")
        with pytest.raises(Corrupt, match=rf"{file.name}: cannot be decoded: .*SIGABRT.*Restore"):
            list(reader.read(["a"], 0, 61))

    with ThreadPoolExecutor(3) as threads:
        reads = [threads.submit(good.to_table) for _ in range(4)]
        for failed in [threads.submit(read_bad, number) for number in range(2)]:
            failed.result()
        assert all(each.result() == expected for each in reads)


def test_limits_of_time_and_memory_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "f.lance", "2.2")
    monkeypatch.setattr(decoder_process, "DECODER_BYTES", Limit("DECODER_BYTES", 1 << 27, "bytes"))
    process = DecoderProcess()
    file = FileReference(str(tmp_path), (), "f.lance", (), None)
    assert process.request(Request("open", file))[0] == b"O"
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(decoder_process, "DECODER_SECONDS", Limit("DECODER_SECONDS", 1, "seconds"))
    with pytest.raises(DecoderEnded, match="more than 1 seconds"):
        process.request(Request("open", file))
    assert not process.is_alive

    monkeypatch.setattr(decoder_process, "DECODER_SECONDS", Limit("DECODER_SECONDS", 100, "seconds"))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(1).random(512 * 65_536)), 512)
    write(tmp_path / "large.lance", "2.2", {"v": vectors}, batches=1)
    decoder_process.pool.forget()
    with pytest.raises(StorageError, match="DECODER_BYTES"):
        list(LanceCodec(LocalStore(tmp_path), trusted=False).open("large.lance").read(["v"], 0, 65_536))
    decoder_process.pool.forget()


def test_a_forked_process_starts_its_own(tmp_path: Path) -> None:
    write(tmp_path / "f.lance", "2.2", {"a": pa.array(range(1_000))})
    reader = LanceCodec(LocalStore(tmp_path), trusted=False).open("f.lance")
    batches = reader.read(["a"], 0, 2_000)
    first = next(batches).num_rows
    child = os.fork()
    if not child:
        os._exit(0 if sum(batch.num_rows for batch in reader.read(["a"], 0, 2_000)) == 2_000 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert first + sum(batch.num_rows for batch in batches) == 2_000


def test_a_forked_process_keeps_its_own_files() -> None:
    """A descriptor that an ended decoder has closed may be the number of another file by the time of a fork."""
    process = DecoderProcess()
    process.end()
    files = [os.dup(0) for _ in range(20)]
    child = os.fork()
    if not child:
        with suppress(OSError):
            for number in files:
                os.fstat(number)
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    for number in files:
        os.close(number)


def test_a_decoder_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    write(tmp_path / "f.lance", "2.2", {"a": pa.array(range(10))})
    decoder_process.pool.forget()
    for name in ("subprocess.Popen", "tempfile.TemporaryFile", "os.pipe", "socket.socketpair"):
        with monkeypatch.context() as patch:
            patch.setattr(name, fail)
            before = os.listdir("/proc/self/fd")
            with pytest.raises(StorageError, match=r"could not start a process that decodes.*Cannot allocate memory"):
                LanceCodec(LocalStore(tmp_path), trusted=False).open("f.lance")
            assert len(os.listdir("/proc/self/fd")) == len(before)
    assert LanceCodec(LocalStore(tmp_path), trusted=False).open("f.lance").row_count == 20


PARENT = """
import sys, time
from lance_core.datafiles.decoder_process import DecoderProcess
from lance_core.datafiles.decoder_protocol import FileReference, Request
process = DecoderProcess()
options = (("aws_secret_access_key", "SESAME"),)
process.request(Request("open", FileReference(sys.argv[1], options, "f.lance", (), None)))
print(process.pid, flush=True)
time.sleep(100)
"""


def test_the_decoder_ends_with_its_parent_and_shows_no_secret(tmp_path: Path) -> None:
    write(tmp_path / "f.lance", "2.2", {"a": pa.array(range(10))})
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        decoder = Path("/proc", parent.stdout.readline().strip())
        for shown in ("cmdline", "environ"):
            assert b"SESAME" not in (decoder / shown).read_bytes()
        parent.kill()
    deadline = time.monotonic() + 30
    while decoder.exists() and "Z" not in (decoder / "stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
        os.sched_yield()
