"""Lance codec: threads share the readers of open files."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter

from lance_core.datafiles.file_checks import UNCHECKED
from lance_core.datafiles.lance_codec import LanceFileReader
from lance_core.storage.local import LocalStore

ROWS = 2_000


@contextmanager
def frequent_thread_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_threads_share_a_new_reader(tmp_path: Path) -> None:
    """Threads read the schema, a buffer and rows concurrently, which the codec's own reader refuses."""
    rows = pa.table({"id": np.arange(ROWS), "text": [str(row) for row in range(ROWS)]})
    with LanceFileWriter(str(tmp_path / "f.lance"), rows.schema) as writer:
        writer.write_batch(rows)
        buffer = writer.add_global_buffer(b"buffer" * 10_000)

    def read_rows(reader: LanceFileReader) -> bool:
        return sum(batch.num_rows for batch in reader.read(["id", "text"], 0, ROWS)) == ROWS

    def take_rows(reader: LanceFileReader) -> bool:
        return sum(batch.num_rows for batch in reader.take(["id"], np.array([3, 70]))) == 2

    calls: list[Callable[[LanceFileReader], bool]] = [
        read_rows,
        take_rows,
        lambda reader: reader.schema.names == ["id", "text"],
        lambda reader: reader.read_buffer(buffer) == b"buffer" * 10_000,
    ]
    with frequent_thread_switches(), ThreadPoolExecutor(2 * len(calls)) as threads:
        for _ in range(20):
            reader = LanceFileReader(LocalStore(tmp_path), "f.lance", UNCHECKED, ("id", "text"))
            start = Barrier(2 * len(calls))

            def call(each: Callable[[LanceFileReader], bool], reader: LanceFileReader, start: Barrier) -> bool:
                start.wait()
                return all(each(reader) for _ in range(3))

            assert all(threads.map(call, calls * 2, [reader] * 2 * len(calls), [start] * 2 * len(calls)))
