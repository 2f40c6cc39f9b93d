"""A slice of T-FILES (`make fuzz-files`): damaged data, deletion and index files, on disk and in an object store."""

import itertools
import json
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from lance_core import Corrupt, NotFound, Table
from lance_core.datafiles.file_checks import check_file
from lance_core.storage.factory import open_store
from lance_core.storage.object_store import ObjectStore
from tests.lance_core.storage.buckets import Bucket, s3_options
from tests.lance_core.storage.faulty_proxy import proxy_to
from tests.lance_core.storage.object_servers import s3

ROWS = 40
COLUMNS = {
    "lists": pa.array([None if n % 6 == 0 else list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int32())),
    "words": pa.array([None if n % 6 == 0 else ["x"] * (n % 4) for n in range(ROWS)], pa.list_(pa.string())),
}
FLIPS = 40


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3() as server:
        yield server.bucket()


def test_damaged_files_never_hang_or_raise_untyped_errors() -> None:
    """The harness exits with 1 if a reader hangs or raises an untyped error, or if an isolated one ends. It runs in a
    process without threads of the codec, since it forks."""
    arguments = [
        "--structured",
        "120",
        "--every",
        "1500",
        "--seconds",
        "6",
        "--seed",
        "7",
        "--readers",
        "ours,isolated,verified",
    ]
    command = [sys.executable, "-m", "tests.torture.data_files", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-2_000:]
    assert "isolated 0 of" in done.stdout
    assert "verified 0 of" in done.stdout


def test_damaged_objects_give_what_damaged_local_files_give(bucket: Bucket, tmp_path: Path) -> None:
    """One flipped bit, or a large number of buffers in the footer, ends no process. The codec uses offsets of version
    2.0 unchecked, and in every version it reserves memory for that many buffers."""
    store = open_store(bucket.uri, storage_options=bucket.options)
    assert isinstance(store, ObjectStore)
    draw, paths = random.Random(17), []
    (tmp_path / "data").mkdir()
    for name, version in itertools.product(COLUMNS, ("2.0", "2.1", "2.2")):
        rows = pa.table({name: COLUMNS[name]})
        with LanceFileWriter(str(tmp_path / "sound.lance"), rows.schema, version=version) as writer:
            writer.write_batch(rows)
        sound = (tmp_path / "sound.lance").read_bytes()
        for number in range(FLIPS if version == "2.0" else 6):
            damaged = bytearray(sound)
            if number == 1:
                struct.pack_into("<I", damaged, len(sound) - 16, 2**31)
            elif number:  # the first file stays sound
                # A quarter of the flips fall on the offsets, with which files of version 2.0 begin.
                damaged[draw.randrange(ROWS * 8 if number % 4 == 0 else len(sound))] ^= 1 << draw.randrange(8)
            paths.append(f"data/{name}-{version}-{number}.lance")
            (tmp_path / paths[-1]).write_bytes(damaged)
            store.put(paths[-1], bytes(damaged))
    request = {"uri": bucket.uri, "options": dict(bucket.options), "directory": str(tmp_path), "paths": paths}
    command = [sys.executable, "-m", "tests.security.damaged_objects"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [path for path, _, _ in results] == paths, (len(results), done.returncode, done.stderr[-2_000:])
    assert all(remote == local for _, remote, local in results), results
    kinds = {remote.split()[0] for _, remote, _ in results}
    assert "Corrupt" in kinds
    assert results[0][1].startswith("[[{'lists': None}")


@pytest.mark.parametrize(
    ("version", "writer", "first", "second"),
    [
        ("2.0", "ours", {"GET": 2, "HEAD": 1}, {"GET": 1, "HEAD": 1}),
        ("2.2", "ours", {"GET": 1}, {"GET": 1}),
        ("2.2", "pylance", {"GET": 1}, {"GET": 1}),
    ],
)
def test_the_check_of_an_object_takes_no_request(
    version: Any, writer: str, first: Mapping[str, int], second: Mapping[str, int], bucket: Bucket
) -> None:
    """But for version 2.0, of which the codec reads the end once more: the check takes one request a process."""
    uri = f"{bucket.uri}/requests-{version}-{writer}"
    if writer == "ours":
        Table.create(uri, pa.table(COLUMNS), storage_version=version, storage_options=bucket.options)
    else:
        options = dict(bucket.options)
        lance.write_dataset(pa.table(COLUMNS), uri, data_storage_version=version, storage_options=options)
    with proxy_to(bucket.options["aws_endpoint"]) as proxy:
        for expected in (first, second):
            proxy.requests.clear()
            table = Table.open(uri, storage_options=s3_options(proxy.endpoint))
            assert table.to_table().equals(pa.table(COLUMNS))
            assert Counter(method for method, path, _ in proxy.requests if "/data/" in path) == expected


def test_objects_of_another_size_are_refused(bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(bucket.uri, storage_options=bucket.options)
    rows = pa.table({"words": pa.array(["abc"] * 20_000)})
    with LanceFileWriter(str(tmp_path / "f.lance"), rows.schema, version="2.0") as writer:
        writer.write_batch(rows)
    data = (tmp_path / "f.lance").read_bytes()
    store.put("data/sized.lance", data)
    for size in (len(data) - 1, len(data) + 1, len(data) + 100_000):
        with pytest.raises(Corrupt, match=f"has {len(data)} bytes, but the table records {size}"):
            check_file(store, "data/sized.lance", size)
    assert check_file(store, "data/sized.lance").is_plausible
    with pytest.raises(NotFound, match="does not exist"):
        check_file(store, "data/missing.lance")
