"""T-FUZZ: bytes that nobody vouches for. Whatever comes of them is an error of ours or something whole; nothing else,
at once, and without taking memory for what they say.

Two depths. `DECODERS` are handed bytes: everything that a manifest, a transaction and the small files say is asked for.
`looks` puts them into the place of a file of a table that pylance wrote, and uses the table. The bytes come from the
golden tables, so that a kind, a seed and a number are the same input everywhere:

    python -m tests.torture.fuzz manifest 0 4711
"""

import random
import re
import resource
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from lance_core import LanceError, Table
from lance_core.format import framing
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import FragmentReuse, FragmentRewrite
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from tests.lance_core.damaged import judge, read
from tests.torture.decoders import DECODERS, LINEAGE_ROWS, Judge
from tests.torture.mutations import damaged, mutated
from tests.torture.report import Report

GOLDEN = Path(__file__).parents[1] / "golden/tables/14.0.2.tar.xz"
SECONDS_MAX = 2.0
"""Of this process, for one input."""
MEGABYTES_MAX = 256
"""That one input may add to what the process ever held."""
_ALIKE_MAX = 3
_EXHAUSTED = "row_ids"
"""The table whose newest manifest is tried with every value of every byte."""
_LOOKED_AT = ("bitmap", "deletions", "indexed", "row_ids", "compaction", "history_2.2")


_MESSAGES = ("transaction", "row ids", "row versions", "fragment reuse")
_TAG = (
    b'{"branch":"dev/ann","version":3,"createdAt":"2026-01-02T03:04:05.123456789Z","updatedAt":null,'
    b'"manifestSize":500,"metadata":{"a":"b"}}'
)
_BRANCH = (
    b'{"parentBranch":"dev","identifier":{"version_mapping":[[1,"6ba7b8109dad41d180b400c04fd430c8"],[3,"x"]]},'
    b'"parentVersion":3,"createAt":1760000000,"manifestSize":500,"metadata":{}}'
)
_INTENT = (
    b'{"intent":"monday","verb":"append","base_version":1,"transaction_uuid":"6ba7b810-9dad-41d1-80b4-00c04fd430c8",'
    b'"begun_ns":1,"heartbeat_ns":2,"files":["data/x.lance"],"landing":{"version":2,"operation":"Append",'
    b'"rows_added":1,"rows_removed":0,"files":1,"bytes":10}}'
)


@dataclass(frozen=True, slots=True)
class Size:
    structured: int
    """Inputs of each kind, for the decoders."""
    looks: int
    """Inputs of each file of a table, for the table."""
    values: int
    """Of each byte of a manifest, how many of the 255 others."""
    seed: int = 0


PR = Size(structured=700, looks=12, values=8)
NIGHTLY = Size(structured=50_000, looks=2_000, values=255)


def shares(size: Size, count: int) -> list[Size]:
    """Each with a seed of its own, and its part of the values."""
    values = [size.values // count + (number < size.values % count) for number in range(count)]
    return [
        Size(-(-size.structured // count), -(-size.looks // count), values[number], size.seed + number)
        for number in range(count)
    ]


def run(size: Size) -> Report:
    began = time.monotonic()
    tally = _Tally()
    for kind, decode in DECODERS.items():
        for number in range(size.structured):
            tally.tried(f"{kind} {size.seed} {number}", case(kind, size.seed, number), decode)
    for what, data in every_byte(size):
        tally.tried(what, data, DECODERS["manifest"])
    with tempfile.TemporaryDirectory(prefix="lance-fuzz-") as place:
        for what, data, look in looks(Path(place), size):
            tally.tried(what, data, look)
    figures = {"refused": f"{tally.refused:,}", "read": f"{tally.read:,}", "slowest, s": f"{tally.slowest:.2f}"}
    return Report("fuzz", tally.count, time.monotonic() - began, tuple(tally.found), figures)


class _Tally:
    def __init__(self) -> None:
        self.count = self.refused = self.read = 0
        self.slowest = 0.0
        self.found: list[str] = []
        self._alike: Counter[str] = Counter()

    def tried(self, what: str, data: bytes, use: Judge) -> None:
        self.count += 1
        before, began = _megabytes(), time.process_time()
        try:
            found = use(data)
            if isinstance(found, pa.Table):
                found.validate(full=True)
            self.read += 1
        except LanceError:
            self.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._note(what, f"{type(error).__name__}: {str(error)[:200]}")
        seconds = time.process_time() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > SECONDS_MAX:
            self._note(what, f"took {seconds:.1f} s")
        if (grown := _megabytes() - before) > MEGABYTES_MAX:
            self._note(what, f"took {grown} MB")

    def _note(self, what: str, came: str) -> None:
        """A few of a kind."""
        kind = re.sub(r"\d+", "", came)[:80]
        self._alike[kind] += 1
        if self._alike[kind] <= _ALIKE_MAX:
            self.found.append(f"{what}: {came}")


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# What the bytes are of


@cache
def golden() -> Mapping[str, bytes]:
    with tarfile.open(GOLDEN) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


@cache
def originals(kind: str) -> tuple[bytes, ...]:
    """Whole ones."""
    files = golden()
    manifests = [data for name, data in files.items() if name.endswith(".manifest")]
    parsed = [Manifest.decode(data, path="m") for data in manifests]
    fragments = [fragment for manifest in parsed for fragment in manifest.fragments]
    found: Mapping[str, Callable[[], list[bytes]]] = {
        "manifest": lambda: manifests,
        "transaction": lambda: [data for name, data in files.items() if name.endswith(".txn")],
        "deletions as arrow": lambda: [data for name, data in files.items() if name.endswith(".arrow")],
        "deletions as a bitmap": lambda: [data for name, data in files.items() if name.endswith(".bin")],
        "row ids": lambda: [ids for fragment in fragments if (ids := fragment.row_ids) is not None],
        "row versions": lambda: [
            versions
            for fragment in fragments
            for versions in (fragment.created_at, fragment.last_updated_at)
            if versions is not None and fragment.physical_rows == LINEAGE_ROWS
        ],
        "fragment reuse": lambda: [_reuse()],
        "tag": lambda: [_TAG],
        "branch": lambda: [_BRANCH],
        "intent": lambda: [_INTENT],
    }
    return tuple(dict.fromkeys(found[kind]()))


def _reuse() -> bytes:
    """Two compactions, one after the other."""
    small = [Fragment.of(files=(), physical_rows=3).with_id(number) for number in range(6)]
    gone = np.array([1], dtype=np.uint32)
    first = FragmentRewrite((small[0], small[1]), (None, gone), (small[2],))
    second = FragmentRewrite((small[2], small[3]), (gone, None), (small[4], small[5]))
    return FragmentReuse.empty().with_compaction(Version(2), [first]).with_compaction(Version(5), [second]).encode()


def case(kind: str, seed: int, number: int) -> bytes:
    draw = random.Random(f"{kind} {seed} {number}")
    return _changed(kind, draw.choice(originals(kind)), draw)


def _changed(kind: str, whole: bytes, draw: random.Random) -> bytes:
    others = originals(kind)
    if kind == "manifest":
        return _reframed(whole, draw) if draw.random() < 0.9 else damaged(whole, draw, others)
    if kind in _MESSAGES:
        return mutated(whole, draw, others)
    return damaged(whole, draw, others)


def _reframed(data: bytes, draw: random.Random) -> bytes:
    """With one or more of its messages changed, in a frame that fits."""
    manifest = Manifest.decode(data, path="m")
    parts = [manifest.index_section, manifest.inline_transaction, framing.extract_manifest_message(data, path="m")]
    others = [framing.extract_manifest_message(draw.choice(originals("manifest")), path="m"), originals("transaction")[0]]
    there = [number for number, part in enumerate(parts) if part is not None]
    for number in {2 if draw.random() < 0.7 else draw.choice(there), *([2] if draw.random() < 0.3 else [])}:
        parts[number] = mutated(parts[number] or b"", draw, others)
    return framing.frame_manifest(parts[0], parts[1], parts[2] or b"", before=manifest.dictionaries)


def every_byte(size: Size) -> Iterator[tuple[str, bytes]]:
    """Of one manifest: each byte as other values, and all truncations and runs of zeros."""
    whole = _newest(_EXHAUSTED)
    for at, byte in enumerate(whole):
        draw = random.Random(f"{size.seed} {at}")
        others = [value for value in range(256) if value != byte]
        for value in others if size.values >= len(others) else draw.sample(others, size.values):
            yield f"byte {at} = {value}", whole[:at] + bytes([value]) + whole[at + 1 :]
        yield f"cut at {at}", whole[:at]
        yield f"zeros from {at}", whole[:at] + bytes(min(8, len(whole) - at)) + whole[at + 8 :]


def _newest(table: str) -> bytes:
    names = sorted(name for name in golden() if name.startswith(f"{table}/_versions/") and name.endswith(".manifest"))
    by_version = {Manifest.decode(golden()[name], path=name).version: golden()[name] for name in names}
    return by_version[max(by_version)]


def looks(place: Path, size: Size) -> Iterator[tuple[str, bytes, Judge]]:
    """Inputs for the newest version of a table, its manifest, transaction and deletion files, and what uses it then."""
    for name in _LOOKED_AT:
        for path, data in golden().items():
            if path.startswith(f"{name}/"):
                target = place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        table = Table.open(str(place / name))
        manifest = place / name / table.manifest.path
        files: dict[str, tuple[Path, Callable[[str], object]]] = {"manifest": (manifest, read)}
        for fragment in table.fragments:
            if (deleted := fragment.deletion_file) is not None:
                kind = "deletions as a bitmap" if deleted.is_bitmap else "deletions as arrow"
                files[kind] = (place / name / deleted.path, read)
        if table.manifest.transaction_file is not None and table.version > 1:
            manifest.write_bytes(_without_inline(manifest.read_bytes()))
            files["transaction"] = (place / name / "_transactions" / table.manifest.transaction_file, judge)
        for kind, (file, use) in files.items():
            whole = file.read_bytes()
            for number in range(size.looks):
                data = _changed(kind, whole, random.Random(f"{name} {kind} {size.seed} {number}"))
                yield f"look {name} {kind} {size.seed} {number}", data, _put_and_used(file, whole, place / name, use)


def _put_and_used(file: Path, whole: bytes, table: Path, use: Callable[[str], object]) -> Judge:
    def used(data: bytes) -> object:
        file.write_bytes(data)
        try:
            return use(str(table))
        finally:
            file.write_bytes(whole)

    return used


def _without_inline(data: bytes) -> bytes:
    manifest = Manifest.decode(data, path="m")
    outline = manifest.copy_header()
    outline.ClearField("transaction_section")
    section = manifest.index_section
    if section is not None:
        outline.index_section = len(manifest.dictionaries)
    return framing.frame_manifest(section, None, outline.SerializeToString(), before=manifest.dictionaries)


def main() -> None:
    """Shows what one of the inputs for the decoders does."""
    kind, seed, number = " ".join(sys.argv[1:-2]), int(sys.argv[-2]), int(sys.argv[-1])
    data = case(kind, seed, number)
    print(f"{len(data)} bytes", data[:2000])
    DECODERS[kind](data)


if __name__ == "__main__":
    main()
