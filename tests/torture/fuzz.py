"""T-FUZZ, fuzzing harness: untrusted bytes lead to a `LanceError` or to a valid result, quickly and without allocating
the memory that they claim.

It works on two levels. `DECODERS` take the bytes, and every part of a manifest, a transaction and the small files is
used. `table_inputs` puts them in place of a file of a table that pylance wrote, and uses the table. The bytes come
from the golden tables, so that a kind, a seed and a number give the same input everywhere:

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
from lance_core.format import manifest_file
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_reuse import FragmentReuse, FragmentRewrite
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from tests.lance_core.corruption_cases import read_everything, write_over_history
from tests.torture.decoders import DECODERS, LINEAGE_ROWS, DecoderCheck
from tests.torture.mutations import damage_bytes, mutate_message
from tests.torture.report import Report

GOLDEN = Path(__file__).parents[1] / "golden/tables/14.0.2.tar.xz"
SECONDS_MAX = 2.0
"""Maximum CPU time of this process for one input."""
MEGABYTES_MAX = 256
"""Maximum increase of the peak memory of the process by one input."""
_SIMILAR_FAILURES_MAX = 3
_TABLE_OF_BYTE_MUTATIONS = "row_ids"
"""Table whose newest manifest is tried with every value of every byte."""
_TABLES = ("bitmap", "deletions", "indexed", "row_ids", "compaction", "history_2.2")


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
    """Number of inputs of each kind for the decoders."""
    table_inputs: int
    """Number of inputs of each file of a table."""
    values: int
    """Number of other values, up to 255, that are tried for each byte of a manifest."""
    seed: int = 0


PR = Size(structured=700, table_inputs=12, values=8)
NIGHTLY = Size(structured=50_000, table_inputs=2_000, values=255)


def split(size: Size, count: int) -> list[Size]:
    """Split the size; each part has its own seed and its part of the byte values."""
    values = [size.values // count + (number < size.values % count) for number in range(count)]
    return [
        Size(-(-size.structured // count), -(-size.table_inputs // count), values[number], size.seed + number)
        for number in range(count)
    ]


def run(size: Size) -> Report:
    started = time.monotonic()
    tally = _Tally()
    for kind, decode in DECODERS.items():
        for number in range(size.structured):
            tally.run_input(f"{kind} {size.seed} {number}", decoder_input(kind, size.seed, number), decode)
    for what, data in byte_mutations(size):
        tally.run_input(what, data, DECODERS["manifest"])
    with tempfile.TemporaryDirectory(prefix="lance-fuzz-") as place:
        for what, data, look in table_inputs(Path(place), size):
            tally.run_input(what, data, look)
    figures = {"refused": f"{tally.refused:,}", "read": f"{tally.read:,}", "slowest, s": f"{tally.slowest:.2f}"}
    return Report("fuzz", tally.count, time.monotonic() - started, tuple(tally.failures), figures)


class _Tally:
    def __init__(self) -> None:
        self.count = self.refused = self.read = 0
        self.slowest = 0.0
        self.failures: list[str] = []
        self._similar: Counter[str] = Counter()

    def run_input(self, what: str, data: bytes, use: DecoderCheck) -> None:
        self.count += 1
        before, started = _megabytes(), time.process_time()
        try:
            result = use(data)
            if isinstance(result, pa.Table):
                result.validate(full=True)
            self.read += 1
        except LanceError:
            self.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._record_failure(what, f"{type(error).__name__}: {str(error)[:200]}")
        seconds = time.process_time() - started
        self.slowest = max(self.slowest, seconds)
        if seconds > SECONDS_MAX:
            self._record_failure(what, f"took {seconds:.1f} s")
        if (grown := _megabytes() - before) > MEGABYTES_MAX:
            self._record_failure(what, f"took {grown} MB")

    def _record_failure(self, what: str, problem: str) -> None:
        """Record a failure, unless enough similar ones were recorded."""
        kind = re.sub(r"\d+", "", problem)[:80]
        self._similar[kind] += 1
        if self._similar[kind] <= _SIMILAR_FAILURES_MAX:
            self.failures.append(f"{what}: {problem}")


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# Inputs


@cache
def golden_files() -> Mapping[str, bytes]:
    with tarfile.open(GOLDEN) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


@cache
def intact_inputs(kind: str) -> tuple[bytes, ...]:
    """Return the intact inputs of a kind."""
    files = golden_files()
    manifests = [data for name, data in files.items() if name.endswith(".manifest")]
    parsed = [Manifest.decode(data, path="m") for data in manifests]
    fragments = [fragment for manifest in parsed for fragment in manifest.fragments]
    inputs: Mapping[str, Callable[[], list[bytes]]] = {
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
        "fragment reuse": lambda: [_fragment_reuse_index()],
        "tag": lambda: [_TAG],
        "branch": lambda: [_BRANCH],
        "intent": lambda: [_INTENT],
    }
    return tuple(dict.fromkeys(inputs[kind]()))


def _fragment_reuse_index() -> bytes:
    """Return a fragment reuse index of two consecutive compactions."""
    small = [Fragment.of(files=(), physical_rows=3).with_id(number) for number in range(6)]
    gone = np.array([1], dtype=np.uint32)
    first = FragmentRewrite((small[0], small[1]), (None, gone), (small[2],))
    second = FragmentRewrite((small[2], small[3]), (gone, None), (small[4], small[5]))
    return FragmentReuse.empty().with_compaction(Version(2), [first]).with_compaction(Version(5), [second]).encode()


def decoder_input(kind: str, seed: int, number: int) -> bytes:
    draw = random.Random(f"{kind} {seed} {number}")
    return _mutate(kind, draw.choice(intact_inputs(kind)), draw)


def _mutate(kind: str, whole: bytes, draw: random.Random) -> bytes:
    others = intact_inputs(kind)
    if kind == "manifest":
        return _mutate_manifest(whole, draw) if draw.random() < 0.9 else damage_bytes(whole, draw, others)
    if kind in _MESSAGES:
        return mutate_message(whole, draw, others)
    return damage_bytes(whole, draw, others)


def _mutate_manifest(data: bytes, draw: random.Random) -> bytes:
    """Mutate one or more messages of a manifest, within a frame that fits them."""
    manifest = Manifest.decode(data, path="m")
    parts = [
        manifest.index_section,
        manifest.inline_transaction,
        manifest_file.extract_manifest_message(data, path="m"),
    ]
    others = [
        manifest_file.extract_manifest_message(draw.choice(intact_inputs("manifest")), path="m"),
        intact_inputs("transaction")[0],
    ]
    present = [number for number, part in enumerate(parts) if part is not None]
    for number in {2 if draw.random() < 0.7 else draw.choice(present), *([2] if draw.random() < 0.3 else [])}:
        parts[number] = mutate_message(parts[number] or b"", draw, others)
    return manifest_file.frame_manifest(parts[0], parts[1], parts[2] or b"", before=manifest.dictionaries)


def byte_mutations(size: Size) -> Iterator[tuple[str, bytes]]:
    """Yield a manifest with other values for each byte, with all truncations and with runs of zeros."""
    whole = _newest_manifest(_TABLE_OF_BYTE_MUTATIONS)
    for at, byte in enumerate(whole):
        draw = random.Random(f"{size.seed} {at}")
        others = [value for value in range(256) if value != byte]
        for value in others if size.values >= len(others) else draw.sample(others, size.values):
            yield f"byte {at} = {value}", whole[:at] + bytes([value]) + whole[at + 1 :]
        yield f"cut at {at}", whole[:at]
        yield f"zeros from {at}", whole[:at] + bytes(min(8, len(whole) - at)) + whole[at + 8 :]


def _newest_manifest(table: str) -> bytes:
    names = sorted(
        name for name in golden_files() if name.startswith(f"{table}/_versions/") and name.endswith(".manifest")
    )
    by_version = {Manifest.decode(golden_files()[name], path=name).version: golden_files()[name] for name in names}
    return by_version[max(by_version)]


def table_inputs(place: Path, size: Size) -> Iterator[tuple[str, bytes, DecoderCheck]]:
    """Yield inputs for the manifest, the transaction and the deletion files of the newest version of each table, and
    the function that uses them."""
    for name in _TABLES:
        for path, data in golden_files().items():
            if path.startswith(f"{name}/"):
                target = place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        table = Table.open(str(place / name))
        manifest = place / name / table.manifest.path
        files: dict[str, tuple[Path, Callable[[str], object]]] = {"manifest": (manifest, read_everything)}
        for fragment in table.fragments:
            if (deleted := fragment.deletion_file) is not None:
                kind = "deletions as a bitmap" if deleted.is_bitmap else "deletions as arrow"
                files[kind] = (place / name / deleted.path, read_everything)
        if table.manifest.transaction_file is not None and table.version > 1:
            manifest.write_bytes(_remove_inline_transaction(manifest.read_bytes()))
            files["transaction"] = (
                place / name / "_transactions" / table.manifest.transaction_file,
                write_over_history,
            )
        for kind, (file, use) in files.items():
            whole = file.read_bytes()
            for number in range(size.table_inputs):
                data = _mutate(kind, whole, random.Random(f"{name} {kind} {size.seed} {number}"))
                yield (
                    f"table {name} {kind} {size.seed} {number}",
                    data,
                    _replace_file_and_use(file, whole, place / name, use),
                )


def _replace_file_and_use(file: Path, whole: bytes, table: Path, use: Callable[[str], object]) -> DecoderCheck:
    def replace_and_use(data: bytes) -> object:
        file.write_bytes(data)
        try:
            return use(str(table))
        finally:
            file.write_bytes(whole)

    return replace_and_use


def _remove_inline_transaction(data: bytes) -> bytes:
    manifest = Manifest.decode(data, path="m")
    header = manifest.copy_header()
    header.ClearField("transaction_section")
    section = manifest.index_section
    if section is not None:
        header.index_section = len(manifest.dictionaries)
    return manifest_file.frame_manifest(section, None, header.SerializeToString(), before=manifest.dictionaries)


def main() -> None:
    """Print and decode one of the decoder inputs."""
    kind, seed, number = " ".join(sys.argv[1:-2]), int(sys.argv[-2]), int(sys.argv[-1])
    data = decoder_input(kind, seed, number)
    print(f"{len(data)} bytes", data[:2000])
    DECODERS[kind](data)


if __name__ == "__main__":
    main()
