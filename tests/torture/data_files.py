"""T-FILES, file fuzzing harness: damaged bytes lead to an error of this library or to
values, and never to a hang, an untyped error or, in isolated mode, to the end of the process.

Each byte of small files of every storage version and index type is changed, and structured mutations change counts,
offsets and lengths, swap pages, truncate, and replace metadata by crafted messages. A reader runs in a process of its
own, which is replaced when it dies:

    ours        the codec in the process; index files by a filter of the table
    isolated    the same, with `trusted=False`
    verified    tables with `verify="read"`, whose files have checksums; rows that differ count as an untyped error
    pylance     pylance's own readers

    python -m tests.torture.data_files [--structured 50000] [--seconds 1200] [--seed 0] [--readers ours,pylance]

A data or deletion file, a seed and a number give the same bytes everywhere; the metadata of index files has no order.
Start reading at `run`.
"""

import argparse
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import lance.file
import numpy as np
import pyarrow as pa

from lance_core import Corrupt, IndexIgnored, LanceError, Table
from lance_core.datafiles.checksums import forget_verified_files
from lance_core.datafiles.codec import FileReader
from lance_core.datafiles.lance_codec import LanceCodec
from lance_core.datafiles.legacy_codec import LegacyFileReader
from lance_core.format.file_footer import FOOTER, SPAN
from lance_core.index.vector import graph_lists, segment
from lance_core.storage.local import LocalStore
from tests.torture.mutations import damage_bytes, mutate_message

GOLDEN = Path(__file__).parents[1] / "golden/tables/0.10.0.tar.xz"
READERS = ("ours", "isolated", "verified", "pylance")
HANG_SECONDS = 30.0
MEMORY_BYTES = 8 << 30
_ROWS = 40
_SMALL_BYTES = 8_000
"""Larger files have fewer of their bytes changed."""
_COUNTS = (0, 1, 41, 2**15, 2**31, 2**32 - 1, 34 * 2**30, 2**63, 2**64 - 1)
_COLUMNS: Mapping[str, pa.Array] = {
    "number": pa.array([None if n % 7 == 0 else n for n in range(_ROWS)], pa.int64()),
    "text": pa.array([None if n % 5 == 0 else f"s{n}" * (n % 4) for n in range(_ROWS)]),
    "list": pa.array([None if n % 6 == 0 else list(range(n % 4)) for n in range(_ROWS)], pa.list_(pa.int32())),
    "words": pa.array([None if n % 6 == 0 else ["x"] * (n % 4) for n in range(_ROWS)], pa.list_(pa.string())),
    "struct": pa.array([{"a": n, "b": [1] * (n % 3)} for n in range(_ROWS)]),
    "vector": pa.array([[float(n), 1.0] for n in range(_ROWS)], pa.list_(pa.float32(), 2)),
    "category": pa.array([("a", "b", None)[n % 3] for n in range(_ROWS)]).dictionary_encode(),
    "flag": pa.array([True, None] * (_ROWS // 2)),
}
_INDICES: Mapping[str, tuple[str, str]] = {
    "BTREE": ("number", "number > 3 AND number < 20"),
    "BITMAP": ("number", "number = 5"),
    "ZONEMAP": ("number", "number < 9"),
    "BLOOMFILTER": ("number", "number = 8"),
    "LABEL_LIST": ("list", "array_has(list, 2)"),
    "NGRAM": ("text", "contains(text, 's11')"),
}
_DISTANCE = "_distance"
_NEAREST = "nearest"
"""Condition of a file of a vector index, which is read by a search."""
_VECTORS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
_VECTOR_INDICES: Mapping[str, Mapping[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_SQ": {},
    "IVF_PQ": {"num_sub_vectors": 4, "num_bits": 4},
    "IVF_RQ": {"num_bits": 3},
    "IVF_HNSW_FLAT": {"m": 4},
    "IVF_HNSW_SQ": {"m": 4},
    "IVF_HNSW_PQ": {"m": 4, "num_sub_vectors": 4, "num_bits": 4},
}


@dataclass(frozen=True)
class Subject:
    """One file that is mutated, and how it is read."""

    name: str
    uri: str
    path: str
    condition: str | None
    """Filter that uses the index; `None` for a data or deletion file."""
    original: bytes

    @property
    def is_data(self) -> bool:
        return self.path.startswith("data/")

    @property
    def is_lance_file(self) -> bool:
        return self.path.endswith(".lance") and not self.name.startswith("data 0.1")


def create_subjects(directory: Path) -> list[Subject]:
    """Create a small file of every kind."""
    subjects = []

    def add(name: str, uri: Path, pattern: str, condition: str | None = None) -> None:
        for file in sorted(uri.glob(pattern)):
            path = str(file.relative_to(uri))
            # The names of data and deletion files are random, and those of index files are not.
            full_name = name if condition is None else f"{name} {file.name}"
            subjects.append(Subject(full_name, str(uri), path, condition, file.read_bytes()))

    for version in ("2.0", "2.1", "2.2"):
        for column, values in _COLUMNS.items():
            uri = directory / f"{column}-{version}"
            Table.create(uri, pa.table({column: values}), storage_version=version)
            add(f"data {version} {column}", uri, "data/*.lance")
    for version in ("2.0", "2.2"):
        for kind, (column, condition) in _INDICES.items():
            uri = directory / f"{kind}-{version}"
            rows = pa.table({column: _COLUMNS[column], "row": range(_ROWS)})
            Table.create(uri, rows, storage_version=version).create_index(column, kind)
            add(f"{kind} {version}", uri, "_indices/*/*", condition)
    for kind, parameters in _VECTOR_INDICES.items():
        uri = directory / kind
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(_VECTORS.ravel()), _VECTORS.shape[1])
        table = Table.create(uri, pa.table({"v": vectors, "row": range(len(_VECTORS))}))
        table.create_index("v", kind, num_partitions=2, **parameters)
        add(f"{kind} 2.2", uri, "_indices/*/*", _NEAREST)
    for name, count in (("arrow", 30), ("bitmap", 6_000)):
        uri = directory / f"deleted-{name}"
        Table.create(uri, pa.table({"n": pa.array(range(count * 2), pa.int32())})).delete(
            f"n % 2 = 0 AND n < {count * 2}"
        )
        add(f"deletion {name}", uri, "_deletions/*")
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(directory / "legacy", filter="data")
    legacy = next(path for path in sorted((directory / "legacy").iterdir()) if list(path.glob("data/*.lance")))
    Table.open(legacy).record_checksums()
    add("data 0.1", legacy, "data/*.lance")
    return subjects


def create_in_other_process(directory: Path) -> list[Subject]:
    """Create the files without starting threads of the codec here, since this process forks."""
    command = [sys.executable, "-m", "tests.torture.data_files", "--create", str(directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [
        Subject(name, uri, path, condition, Path(uri, path).read_bytes())
        for name, uri, path, condition in json.loads(done.stdout)
    ]


def byte_mutation(subject: Subject, position: int, draw: random.Random) -> bytes:
    data = subject.original
    return data[:position] + bytes([data[position] ^ draw.randrange(1, 256)]) + data[position + 1 :]


def structured_mutation(subject: Subject, draw: random.Random) -> bytes:
    """Return the file with changes that keep most of its structure valid."""
    data = subject.original
    if not subject.is_lance_file:
        return damage_bytes(data, draw)
    way = draw.choices(
        (_change_column, _change_schema, _change_footer, _change_table, _swap_spans, damage_bytes, _truncate),
        (45, 8, 8, 8, 10, 15, 6),
    )[0]
    try:
        return way(data, draw)
    except (IndexError, struct.error, ValueError):
        return damage_bytes(data, draw)


def _spans(data: bytes, at: int, count: int) -> list[tuple[int, int]]:
    return [SPAN.unpack_from(data, at + number * SPAN.size) for number in range(count)]


def _change_column(data: bytes, draw: random.Random) -> bytes:
    """Mutate the metadata of one column and lay out the end of the file again."""
    start, table, buffers_at, buffer_count, count, *rest = FOOTER.unpack(data[-FOOTER.size :])
    columns = [data[at : at + length] for at, length in _spans(data, table, count)]
    chosen = draw.randrange(count)
    columns[chosen] = mutate_message(columns[chosen], draw, columns)
    body, spans = bytearray(data[:start]), []
    for column in columns:
        spans.append((len(body), len(column)))
        body += column
    new_table = len(body)
    body += b"".join(SPAN.pack(*span) for span in spans)
    new_buffers = len(body)
    body += data[buffers_at : buffers_at + buffer_count * SPAN.size]
    return bytes(body) + FOOTER.pack(start, new_table, new_buffers, buffer_count, count, *rest)


def _change_schema(data: bytes, draw: random.Random) -> bytes:
    """Mutate the descriptor, in the place of the old one if it fits, and otherwise after the columns' metadata."""
    start, table, buffers_at, buffer_count, count, *rest = FOOTER.unpack(data[-FOOTER.size :])
    buffers = _spans(data, buffers_at, buffer_count)
    at, length = buffers[0]
    changed = mutate_message(data[at : at + length], draw)
    if draw.random() < 0.1:
        changed = b"".join(
            b"\x0a" + bytes([len(each)]) + each
            for each in (
                b"\x12\x01a\x18" + bytes([n]) + b"\x20" + bytes([n - 1]) + b"*\x06struct" for n in range(1, 120)
            )
        )
        changed = b"\x0a" + bytes([len(changed) & 127 | 128, len(changed) >> 7]) + changed + b"\x10\x28"
    if len(changed) <= length:
        body = data[:at] + changed + data[at + len(changed) : -FOOTER.size]
    else:
        body = data[: -FOOTER.size] + changed
        at = len(data) - FOOTER.size
    body = body[:buffers_at] + SPAN.pack(at, len(changed)) + body[buffers_at + SPAN.size :]
    return body + FOOTER.pack(start, table, buffers_at, buffer_count, count, *rest)


def _change_footer(data: bytes, draw: random.Random) -> bytes:
    values = list(FOOTER.unpack(data[-FOOTER.size :]))
    number = draw.randrange(7)
    limit = (2**64, 2**64, 2**64, 2**32, 2**32, 2**16, 2**16)[number]
    values[number] = draw.choice((*_COUNTS, values[number] + 1, values[number] - 1, len(data))) % limit
    return data[: -FOOTER.size] + FOOTER.pack(*values)


def _change_table(data: bytes, draw: random.Random) -> bytes:
    _start, table, buffers_at, buffer_count, count, *_ = FOOTER.unpack(data[-FOOTER.size :])
    at, entries = draw.choice(((table, count), (buffers_at, buffer_count)))
    position = at + draw.randrange(entries * 2) * 8
    (value,) = struct.unpack_from("<Q", data, position)
    value = draw.choice((*_COUNTS, value + 1, value - 1, value * 2, len(data))) % 2**64
    return data[:position] + struct.pack("<Q", value) + data[position + 8 :]


def _swap_spans(data: bytes, draw: random.Random) -> bytes:
    """Swap two aligned parts of the pages, or copy one over the other."""
    start = FOOTER.unpack(data[-FOOTER.size :])[0]
    parts = max(start // 64, 1)
    one, other = draw.randrange(parts) * 64, draw.randrange(parts) * 64
    length = draw.choice((8, 16, 64))
    changed = bytearray(data)
    changed[one : one + length], changed[other : other + length] = (
        data[other : other + length],
        (data[one : one + length] if draw.random() < 0.5 else data[other : other + length]),
    )
    return bytes(changed)


def _truncate(data: bytes, draw: random.Random) -> bytes:
    """Remove the end of the file, or bytes in the middle of the pages."""
    if draw.random() < 0.5:
        return data[: draw.randrange(len(data))]
    at = draw.randrange(max(1, FOOTER.unpack(data[-FOOTER.size :])[0]))
    return data[:at] + data[at + draw.choice((1, 8, 64)) :]


def cases(subjects: Sequence[Subject], structured: int, seed: int, every: int = 1) -> list[tuple[int, int]]:
    """Return (subject, position) for each byte, and (subject, -number) for each structured mutation, shuffled."""
    result = [
        (number, position)
        for number, each in enumerate(subjects)
        for position in range(0, len(each.original), every * (1 + len(each.original) // _SMALL_BYTES))
    ]
    result += [(number % len(subjects), -1 - number) for number in range(structured)]
    random.Random(seed).shuffle(result)
    return result


def mutated(subject: Subject, position: int, seed: int) -> bytes:
    draw = random.Random(f"{subject.name} {seed} {position}")
    return byte_mutation(subject, position, draw) if position >= 0 else structured_mutation(subject, draw)


# Reading


def read_ours(subject: Subject, *, trusted: bool) -> None:
    if subject.is_data and subject.name.startswith("data 0.1"):
        reader: FileReader = LegacyFileReader.open(LocalStore(Path(subject.uri)), subject.path)
    elif subject.is_data:
        reader = LanceCodec(LocalStore(Path(subject.uri)), trusted=trusted).open(subject.path)
    else:
        query(Table.open(subject.uri, trusted=trusted), subject.condition).validate(full=True)
        return
    rows = min(reader.row_count, 100_000)
    for batch in reader.read(reader.schema.names, 0, rows):
        batch.validate(full=True)
    if rows > 5:
        for batch in reader.take(reader.schema.names, np.array([1, 5], np.int64)):
            batch.validate(full=True)


def read_verified(subject: Subject) -> None:
    """Read the rows of the table, and raise `AssertionError` if they differ from those of the undamaged file. Raise
    `Corrupt` if the rows are right because a damaged index was not used."""
    forget_verified_files()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = query(Table.open(subject.uri, verify="read"), subject.condition)
    assert has_rows(table, _expected_rows[subject.uri]), "other rows"
    if any(issubclass(each.category, IndexIgnored) for each in caught):
        raise Corrupt("is not used", path=subject.path, field="index")


def expect_rows(subject: Subject) -> None:
    """Keep the rows of an undamaged table. No index is opened, since this process would cache it."""
    table = query(Table.open(subject.uri), subject.condition, use_indices=False)
    _expected_rows[subject.uri] = table


def query(table: Table, condition: str | None, *, use_indices: bool = True) -> pa.Table:
    """Return the rows that match a condition, or the nearest rows to a vector. All rows are candidates of a search, so
    that its result is exact; it follows the graphs of partitions of any size."""
    if condition != _NEAREST:
        return table.to_table(filter=condition, use_indices=use_indices)
    name = "GRAPH_ROWS_MIN"
    for module in (graph_lists, segment):
        setattr(module, name, 2)
    return table.search("v", _VECTORS[5], 10, nprobes=2, refine=6, ef=60, columns=["row"], exact=not use_indices)


def has_rows(table: pa.Table, expected: pa.Table) -> bool:
    """Return whether a table has the expected rows. A distance of a search by an index may be rounded differently."""
    if _DISTANCE in expected.column_names:
        if not np.allclose(table[_DISTANCE], expected[_DISTANCE], rtol=1e-5, atol=1e-5):
            return False
        table, expected = table.drop_columns(_DISTANCE), expected.drop_columns(_DISTANCE)
    return repr(table.to_pylist()) == repr(expected.to_pylist())


_expected_rows: dict[str, pa.Table] = {}
"""Rows of undamaged tables."""


def read_pylance(subject: Subject) -> None:
    if subject.is_data and subject.is_lance_file:
        reader = lance.file.LanceFileReader(f"{subject.uri}/{subject.path}")
        rows = min(reader.num_rows(), 100_000)
        reader.read_range(0, rows, batch_size=65_536).to_table().validate(full=True)
        if rows > 5:
            reader.take_rows([1, 5]).to_table().validate(full=True)
    elif subject.condition == _NEAREST:
        nearest = {"column": "v", "q": _VECTORS[5], "k": 10, "nprobes": 2}
        lance.dataset(subject.uri).to_table(columns=["row"], nearest=nearest)
    else:
        lance.dataset(subject.uri).to_table(filter=subject.condition)


def outcome_of(reader: str, subject: Subject) -> str:
    """Read the file and return what happened."""
    try:
        if reader == "pylance":
            read_pylance(subject)
        elif reader == "verified":
            read_verified(subject)
        else:
            read_ours(subject, trusted=reader == "ours")
    except LanceError:
        return "error"
    except Exception as error:  # noqa: BLE001 - the harness classifies every error
        return "error" if reader == "pylance" else f"untyped {type(error).__name__}: {error}"[:300]
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return "panic"
    return "read"


# Processes


@dataclass
class Tally:
    """Result of one reader."""

    reader: str
    outcomes: Counter[str] = field(default_factory=Counter)
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def case_count(self) -> int:
        return sum(self.outcomes.values())

    def add(self, subject: Subject, position: int, outcome: str) -> None:
        short = outcome.partition(" ")[0]
        self.outcomes[short] += 1
        self.by_kind.setdefault(" ".join(subject.name.split()[:2]), Counter())[short] += 1
        if short in ("untyped", "hang", "abort") and len(self.failures) < 200:
            self.failures.append(f"{self.reader}: {subject.name} {position}: {outcome}")


def run(reader: str, subjects: Sequence[Subject], work: Sequence[tuple[int, int]], seed: int, seconds: float) -> Tally:
    """Read every mutated file by one reader, in child processes."""
    tally, started, at = Tally(reader), time.monotonic(), 0
    while at < len(work) and time.monotonic() - started < seconds:
        readable, writable = os.pipe()
        child = os.fork()
        if not child:
            os.close(readable)
            _serve(reader, subjects, work[at:], seed, writable)
        os.close(writable)
        at = _follow(tally, subjects, work, at, child, readable, started + seconds)
    tally.seconds = time.monotonic() - started
    return tally


def _follow(
    tally: Tally,
    subjects: Sequence[Subject],
    work: Sequence[tuple[int, int]],
    at: int,
    child: int,
    readable: int,
    end: float,
) -> int:
    """Record the reports of a child until it ends. Return the next case."""
    buffer, is_hanging = b"", False
    with os.fdopen(readable, "rb", buffering=0) as reports:
        while True:
            ready, _, _ = select.select([reports], [], [], HANG_SECONDS)
            if not ready:
                is_hanging = True
                break
            if not (data := reports.read(1 << 16)):
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                subject, position = work[at]
                tally.add(subjects[subject], position, line.decode())
                at += 1
            if time.monotonic() > end:
                break
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if at < len(work):
        subject, _position = work[at]
        Path(subjects[subject].uri, subjects[subject].path).write_bytes(subjects[subject].original)
    if at < len(work) and (is_hanging or (time.monotonic() <= end and status)):
        subject, position = work[at]
        ended = f"abort {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else f"abort {status}"
        tally.add(subjects[subject], position, "hang" if is_hanging else ended)
        at += 1
    return at


def _serve(reader: str, subjects: Sequence[Subject], work: Sequence[tuple[int, int]], seed: int, writable: int) -> None:
    """Read mutated files and report each outcome, in a child process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if reader != "isolated":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    code = 0
    try:
        for subject in subjects if reader == "verified" else ():
            expect_rows(subject)
        for number, position in work:
            subject = subjects[number]
            file = Path(subject.uri, subject.path)
            # A new file, because readers may cache the contents of the old one.
            changed = file.with_name(".changed")
            changed.write_bytes(mutated(subject, position, seed))
            changed.rename(file)
            outcome = outcome_of(reader, subject)
            changed.write_bytes(subject.original)
            changed.rename(file)
            os.write(writable, outcome.replace("\n", " ").encode() + b"\n")
    except BaseException as error:  # noqa: BLE001 - reported as the end of the process
        os.write(writable, f"untyped {error!r}\n".encode())
        code = 1
    os._exit(code)  # ends the decoders of this process, too


def format_tallies(tallies: Sequence[Tally]) -> str:
    out = io.StringIO()
    kinds = ("read", "error", "panic", "untyped", "hang", "abort")
    print(f"{'reader':<10} {'cases':>8} " + " ".join(f"{kind:>8}" for kind in kinds) + f" {'seconds':>8}", file=out)
    for tally in tallies:
        row = " ".join(f"{tally.outcomes[kind]:>8,}" for kind in kinds)
        print(f"{tally.reader:<10} {tally.case_count:>8,} {row} {tally.seconds:>8.0f}", file=out)
    names = sorted({name for tally in tallies for name in tally.by_kind})
    print("\naborts and hangs by kind (of cases)", file=out)
    for name in names:
        cells = []
        for tally in tallies:
            counts = tally.by_kind.get(name, Counter())
            bad = counts["abort"] + counts["hang"]
            cells.append(f"{tally.reader} {bad:,} of {sum(counts.values()):,}")
        print(f"{name:<20} " + "; ".join(cells), file=out)
    return out.getvalue()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.data_files")
    parser.add_argument("--structured", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=1, help="change one byte in every EVERY bytes")
    parser.add_argument("--seconds", type=float, default=3_600, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--create", type=Path, help="only create the files in this directory, and describe them")
    options = parser.parse_args(arguments)
    if options.create:
        print(
            json.dumps([(each.name, each.uri, each.path, each.condition) for each in create_subjects(options.create)])
        )
        return 0
    os.environ["RUST_BACKTRACE"] = "0"
    tallies = []
    directory = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    try:
        subjects = create_in_other_process(directory)
        work = cases(subjects, options.structured, options.seed, options.every)
        print(f"{len(subjects)} files, {len(work):,} cases", flush=True)
        for reader in options.readers.split(","):
            tallies.append(run(reader, subjects, work, options.seed, options.seconds))
            print(f"{reader}: {tallies[-1].case_count:,} cases", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(format_tallies(tallies), flush=True)
    for failure in (failure for tally in tallies for failure in tally.failures[:40]):
        print(failure)
    return int(any(is_broken(tally) for tally in tallies))


def is_broken(tally: Tally) -> bool:
    """Return whether a reader broke its promise: no hang and no untyped error of ours, and no abort of isolated and of
    verified reads."""
    promised = {
        "ours": ("untyped", "hang"),
        "isolated": ("untyped", "hang", "abort"),
        "verified": ("untyped", "hang", "abort"),
        "pylance": (),
    }
    return any(tally.outcomes[outcome] for outcome in promised[tally.reader])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
