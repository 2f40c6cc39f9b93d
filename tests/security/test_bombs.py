"""No file of a table takes memory, time or stack depth merely because it claims a large size. `bombs.py` defines the
files and measures the cost of each."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lance_core import InvalidInput, Unsupported
from lance_core.coordination.idempotency import read_record as read_intent
from lance_core.coordination.leases import read_lease, read_notice
from lance_core.format import deletion_arrow, size_guard
from lance_core.limits import DELETED_ROWS_AS_ARROW, FRAGMENTS, JSON_PARTS, SMALL_PARTS, Limit
from lance_core.storage.memory import MemoryStore
from lance_core.storage.store import read_whole
from tests.security.bombs import BOMBS, READ

ROOT = Path(__file__).parents[2]
MEGABYTES_MAX = 300
"""Maximum additional memory. A message just below the weight limit takes this much to be parsed."""
SECONDS_MAX = 20.0
"""Maximum time on a busy machine; an idle one takes one second at most."""
REFUSALS = ("CapExceeded", "Corrupt", "CorruptHead", "StorageError", "Unsupported")


@pytest.mark.parametrize("part", ["{}", "[]", "0", '"":[]'])
def test_a_record_of_small_things_is_not_read(part: str) -> None:
    """Three bytes of JSON can take twenty times as much memory."""
    store = MemoryStore()
    listed = ",".join([part] * JSON_PARTS.maximum)
    store.put("a.json", f'{{"files": [{{{listed}}}]}}'.encode() if ":" in part else f'{{"files": [{listed}]}}'.encode())
    for read in (read_lease, read_notice, read_intent):
        with pytest.raises(Unsupported, match="LANCE_ASSETS_JSON_PARTS_MAX"):
            read(store, "a.json")


def test_none_of_them_hurts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.security.bombs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["name"] for each in outcomes] == list(BOMBS)
    for each in outcomes:
        assert each["outcome"] in (("read",) if each["name"] in READ else REFUSALS), each
        assert each["megabytes"] <= MEGABYTES_MAX, each
        assert each["seconds"] <= SECONDS_MAX, each


@pytest.mark.parametrize(
    ("part", "is_small"),
    [
        (b"\x12\x00", True),
        (b"\x12\x0fabcdefghijklmno", True),
        (b"\x12\x10abcdefghijklmnop", False),
        (b"\x12\x80\x00", True),
        (b"\x12\x81\x80\x80\x00a", True),
        (b"\x92\x00\x00", True),
        (b"\x92\x80\x00\x00", True),
        (b"\x82\x01\x00", True),
        (b"\x82\x01\x83\x00abc", True),
        (b"\x12\x80\x01" + b"x" * 128, False),
        (b"\x08\x00", False),
        (b"\x18\xff\xff\x7f", False),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 3, 100_003])
def test_small_parts_are_counted_however_they_are_spelt(part: bytes, is_small: bool, count: int) -> None:
    """The count is also right across the boundaries of the chunks that are counted."""
    counted = size_guard.count_small_parts(np.frombuffer(part * count, dtype=np.uint8))
    assert counted >= count if is_small else counted <= count // 10


def test_as_much_as_may_be_is_weighed() -> None:
    """A message with two bytes per part, with the maximum number of parts and one more."""
    size_guard.check_message(b"\x12\x00" * SMALL_PARTS.maximum, path="m")
    with pytest.raises(Unsupported, match="up to 2,000,001 parts of less than 16 bytes"):
        size_guard.check_message(b"\x12\x00" * (SMALL_PARTS.maximum + 1), path="m")


def test_what_is_read_is_measured_first() -> None:
    store = MemoryStore()
    limit = Limit("THINGS", 100, "bytes in a thing")
    for size in (0, 1, 99, 100):
        store.put("x", b"y" * size)
        assert read_whole(store, "x", limit) == b"y" * size
    store.put("x", b"y" * 101)
    with pytest.raises(
        Unsupported,
        match=r"x has 101 bytes in a thing, and no more than 100 are read.* set the environment variable LANCE_ASSETS",
    ):
        read_whole(store, "x", limit)


def test_large_files_are_read_in_two_pieces() -> None:
    store = MemoryStore()
    store.put("x", bytes(range(256)) * 200_000)
    assert read_whole(store, "x", Limit("THINGS", 2**30, "bytes")) == bytes(range(256)) * 200_000


def test_a_limit_is_raised_in_the_environment() -> None:
    limit = Limit.from_environment("FRAGMENTS", FRAGMENTS.maximum, "fragments", {"LANCE_ASSETS_FRAGMENTS_MAX": "5"})
    limit.check(5, path="m")
    with pytest.raises(Unsupported, match="m has 6 fragments, and no more than 5 are read"):
        limit.check(6, path="m")
    for wrong in ("", "many", "-1", "1e9", "0x10"):
        with pytest.raises(InvalidInput, match="LANCE_ASSETS_FRAGMENTS_MAX must be a positive integer"):
            Limit.from_environment("FRAGMENTS", 1, "fragments", {"LANCE_ASSETS_FRAGMENTS_MAX": wrong})
    program = "from lance_core.limits import MANIFEST_BYTES; print(MANIFEST_BYTES.maximum)"
    environment = {"LANCE_ASSETS_MANIFEST_BYTES_MAX": "77"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "77\n"


def test_deleted_rows_in_several_batches_are_counted_together() -> None:
    half = DELETED_ROWS_AS_ARROW.maximum // 2 + 1
    whole = deletion_arrow.encode(np.zeros(half, dtype=np.uint32))
    assert len(deletion_arrow.decode(whole, path="d")) == half
    with pytest.raises(Unsupported, match="deleted rows in one Arrow file"):
        deletion_arrow.decode(deletion_arrow.encode(np.zeros(2 * half, dtype=np.uint32)), path="d")
