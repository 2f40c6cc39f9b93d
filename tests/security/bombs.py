"""Resource exhaustion: small files that demand a lot of memory, time or recursion depth. Each is put into a table,
which is then used; a separate program reports the outcome and its cost as JSON:

    python -m tests.security.bombs DIRECTORY [NAME ...]

Each bomb runs in a child process that may take `MEGABYTES` more than its parent has. Start reading at `BOMBS`.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from pyroaring import BitMap

from lance_core import LanceError, Table
from lance_core.format import deletion_arrow, manifest_file, naming, size_guard
from lance_core.format._pb import table_pb2, transaction_pb2
from lance_core.format.ids import Version
from lance_core.limits import SMALL_PARTS

MEGABYTES = 4096
"""Limit of additional address space, which only protects the machine: the test compares the memory in use. Below it,
decoder processes would not fork from their server, because they could not get the address space that they may take."""
SECONDS = 60
EMPTY_PARTS = 2_100_000
ROWS = pa.table({"id": [1, 2, 3]})
Bomb = Callable[["BombTable"], object]


@dataclass(frozen=True)
class Outcome:
    name: str
    outcome: str
    """Class name of the error, `read` if the table was used, or `died`."""
    what: str
    seconds: float
    megabytes: int


class BombTable:
    """Table of one fragment, into whose files a bomb is put."""

    def __init__(self, root: Path) -> None:
        self.table = Table.create(root / "t", ROWS, durable=False)
        self.uri = self.table.uri
        self.path = Path(self.uri, self.table.manifest.path)
        self.message = table_pb2.Manifest.FromString(
            manifest_file.extract_manifest_message(self.path.read_bytes(), path="m")
        )
        self.message.ClearField("transaction_section")

    def put(self, body: bytes, *, section: bytes | None = None, transaction: bytes | None = None) -> Table:
        self.path.write_bytes(manifest_file.frame_manifest(section, transaction, body))
        return Table.open(self.uri)

    def whole(self) -> bytes:
        return self.message.SerializeToString()

    def with_deletions(self, data: bytes, *, is_bitmap: bool, rows: int, deleted: int) -> Table:
        fragment = self.message.fragments[0]
        fragment.physical_rows = rows
        del fragment.files[:]  # their rows would be counted first
        fragment.deletion_file.file_type = int(is_bitmap)  # type: ignore[assignment]
        fragment.deletion_file.read_version, fragment.deletion_file.id = 1, 7
        fragment.deletion_file.num_deleted_rows = deleted
        self.message.reader_feature_flags |= 1
        self.message.writer_feature_flags |= 1
        file = Path(self.uri, "_deletions", f"0-1-7.{'bin' if is_bitmap else 'arrow'}")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        return self.put(self.whole())

    def with_lineage(self, row_ids: bytes, *, rows: int) -> Table:
        fragment = self.message.fragments[0]
        fragment.physical_rows = rows
        del fragment.files[:]
        fragment.inline_row_ids = row_ids
        self.message.reader_feature_flags |= 2
        self.message.writer_feature_flags |= 2
        self.message.next_row_id = 2**62
        return self.put(self.whole())


def repeated(tag: bytes, count: int = EMPTY_PARTS, *, length: bytes = b"\0") -> bytes:
    return (tag + length) * count


def delimited(tag: bytes, content: bytes) -> bytes:
    return tag + _VarintBytes(len(content)) + content


def nested(tag: bytes, depth: int) -> bytes:
    message = b""
    for _ in range(depth):
        message = delimited(tag, message)
    return message


def zeros(rows: int) -> bytes:
    """Return an Arrow file that repeats the same row."""
    return deletion_arrow.encode(np.zeros(rows, dtype=np.uint32))


def all_rows(rows: int) -> bytes:
    bitmap = BitMap()
    bitmap.add_range(0, rows)
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def manifest(tag: bytes, *, length: bytes = b"\0") -> Bomb:
    return lambda place: place.put(place.whole() + repeated(tag, length=length)).to_table()


def transaction(body: bytes) -> Bomb:
    def use(place: BombTable) -> object:
        place.message.transaction_file = "1-x.txn"
        Path(place.uri, "_transactions", "1-x.txn").write_bytes(body)
        return place.put(place.whole()).transaction()

    return use


def sparse(path: str, size: int, use: Callable[[Table], object]) -> Bomb:
    """Return a bomb that grows a file without using disk space."""

    def bomb(place: BombTable) -> object:
        file = Path(place.uri, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as opened:
            opened.truncate(size)
        return use(place.table)

    return bomb


def reference(text: str) -> Bomb:
    def use(place: BombTable) -> object:
        place.table.tags.create("t")
        Path(place.uri, "_refs/tags/t.json").write_text(text)
        return place.table.at(tag="t")

    return use


def intent(text: str) -> Bomb:
    def use(place: BombTable) -> object:
        place.table.append(ROWS, intent="i")
        (record,) = Path(place.uri, "_lance_assets/intents").iterdir()
        record.write_text(text)
        return place.table.append(ROWS, intent="i")

    return use


def hint(place: BombTable) -> object:
    """The hint is neither trusted nor read to its end."""
    Path(place.uri, "_versions/latest_version_hint.json").write_text("[" * 50_000_000)
    return Table.open(place.uri)


def clone_record(text: str) -> Bomb:
    def use(place: BombTable) -> object:
        file = Path(place.uri, "_lance_assets/clones/x.json")
        file.parent.mkdir(parents=True)
        file.write_text(text)
        return place.table.cleanup()

    return use


def footer(place: BombTable) -> object:
    """A footer that claims lengths of almost four gigabytes in a file of a few bytes."""
    data = place.path.read_bytes()
    place.path.write_bytes(data[:-16] + manifest_file.FOOTER.pack(0, 0, 2, manifest_file.MAGIC))
    with place.path.open("r+b") as file:
        file.write(b"\xff" * 4)
    return Table.open(place.uri)


def many_fields(place: BombTable) -> object:
    for number in range(100, 100 + 150_000):
        place.message.fields.add(name=str(number), id=number, parent_id=-1, logical_type="int8", nullable=True)
    return place.put(place.whole()).schema


def chain_of_fields(place: BombTable) -> object:
    for number in range(100, 20_000):
        parent = number - 1 if number > 100 else -1
        place.message.fields.add(name="s", id=number, parent_id=parent, logical_type="struct", nullable=True)
    return place.put(place.whole()).schema


def many_files(place: BombTable) -> object:
    file = place.message.fragments[0].files[0]
    place.message.fragments[0].files.extend(file for _ in range(20_000))
    return place.put(place.whole()).to_table()


def one_lineage_file_for_many(place: BombTable) -> object:
    """A file of 60 MB that twenty thousand fragments reference."""
    with Path(place.uri, "ids.bin").open("wb") as file:
        file.truncate(60_000_000)
    fragment = place.message.fragments[0]
    fragment.external_row_ids.path, fragment.external_row_ids.size = "ids.bin", 60_000_000
    for number in range(20_000):
        place.message.fragments.add().CopyFrom(fragment)
        place.message.fragments[-1].id = number + 1
    place.message.reader_feature_flags |= 2
    place.message.writer_feature_flags |= 2
    return place.put(place.whole())


def reuse_details(place: BombTable) -> object:
    index = table_pb2.IndexMetadata(name="__lance_frag_reuse", dataset_version=1, uuid=table_pb2.UUID(uuid=b"0" * 16))
    details = table_pb2.FragmentReuseIndexDetails()
    details.external.path, details.external.offset, details.external.size = "details.binpb", 2**63, 2**63
    index.index_details.type_url = "/lance.table.FragmentReuseIndexDetails"
    index.index_details.value = details.SerializeToString()
    place.message.index_section = 0
    table = place.put(place.whole(), section=table_pb2.IndexSection(indices=[index]).SerializeToString())
    return table.append(ROWS).table.compact()


def coverage(place: BombTable) -> object:
    """An index that covers every possible fragment."""
    index = table_pb2.IndexMetadata(name="i", fields=[0], dataset_version=1, uuid=table_pb2.UUID(uuid=b"0" * 16))
    index.fragment_bitmap = all_rows(2**32)
    place.message.index_section = 0
    section = table_pb2.IndexSection(indices=[index]).SerializeToString()
    table = place.put(place.whole(), section=section).append(ROWS).table
    return table.update({"id": "id + 1"}).table.fsck()


def keys(place: BombTable) -> object:
    """An upsert of another writer that lists millions of keys with one byte each."""
    theirs = transaction_pb2.Transaction(read_version=1, uuid="x")
    theirs.update.inserted_rows.exact.key_hashes.extend([1] * 8_000_000)
    return transaction(theirs.SerializeToString())(place)


BOMBS: dict[str, Bomb] = {
    "empty fragments": manifest(b"\x12"),
    "empty fragments, spelt longer": manifest(b"\x12", length=b"\x80\0"),
    "empty fragments under longer tags": manifest(b"\x92\0"),
    "empty fields": manifest(b"\x0a"),
    "empty files of one fragment": lambda place: place.put(
        place.whole() + delimited(b"\x12", repeated(b"\x12"))
    ).to_table(),
    "as many fragments as are not weighed": lambda place: place.put(
        place.whole() + repeated(b"\x12", SMALL_PARTS.maximum - 10_000)
    ).to_table(),
    "empty entries of config": lambda place: place.put(place.whole() + repeated(b"\x82\x01")).config,
    "empty base paths": lambda place: place.put(place.whole() + repeated(b"\x92\x01")).to_table(),
    "empty indices": lambda place: place.put(_indexed(place), section=repeated(b"\x0a")).indices,
    "fields nested in a message": lambda place: place.put(place.whole() + nested(b"\x12", 3_000)).to_table(),
    "groups without an end": lambda place: place.put(place.whole() + b"\x0b" * 1_000_000),
    "a number without an end": lambda place: place.put(place.whole() + b"\x18" + b"\xff" * 1_000_000),
    "a length beyond everything": lambda place: place.put(place.whole() + b"\x12" + b"\xff" * 9 + b"\x01"),
    "a section beyond the file": footer,
    "a hundred thousand fields": many_fields,
    "fields in fields": chain_of_fields,
    "twenty thousand files of one fragment": many_files,
    "a manifest of a terabyte": sparse(
        naming.manifest_path(Version(2)), 2**40, lambda table: Table.open(table.uri)
    ),
    "a tag of a terabyte": sparse("_refs/tags/t.json", 2**40, lambda table: table.at(tag="t")),
    "a branch of a terabyte": sparse("_refs/branches/b.json", 2**40, lambda table: table.branches.list()),
    "a data file of a terabyte": lambda place: sparse(
        f"data/{place.message.fragments[0].files[0].path}", 2**40, lambda table: table.to_table()
    )(place),
    "a data file of format 0.1 that is a terabyte": lambda place: _legacy(place),
    "empty parts of a transaction": transaction(delimited(b"\xa2\x06", repeated(b"\x0a"))),
    "a transaction of a terabyte": lambda place: sparse(
        "_transactions/1-x.txn", 2**40, lambda table: Table.open(table.uri).transaction()
    )(_with_transaction_file(place)),
    "ids of a deletion in a byte each": transaction(delimited(b"\xaa\x06", delimited(b"\x12", b"\x01" * 16_000_000))),
    "many ids in a byte each": lambda place: transaction(
        delimited(b"\xaa\x06", delimited(b"\x12", b"\x01" * 70_000_000))
    )(place),
    "an inline transaction of empty parts": lambda place: _inline(place, delimited(b"\xa2\x06", repeated(b"\x0a"))),
    "keys in a byte each": keys,
    "arrow, 128 million rows in 17 KB": lambda place: place.with_deletions(
        zeros(2**27), is_bitmap=False, rows=2**27, deleted=1
    ).to_table(),
    "arrow, 4 million rows": lambda place: place.with_deletions(
        zeros(2**22), is_bitmap=False, rows=2**22, deleted=1
    ).take([0]),
    "a bitmap of all rows": lambda place: place.with_deletions(
        all_rows(2**32 - 1), is_bitmap=True, rows=2**32 - 1, deleted=2**32 - 1
    ).to_table(),
    "a deletion file of a terabyte": lambda place: sparse(
        "_deletions/0-1-7.bin", 2**40, lambda table: Table.open(table.uri).to_table()
    )(_with_empty_deletions(place)),
    "row ids in a range without an end": lambda place: place.with_lineage(
        b"\x0a\x0c" + delimited(b"\x0a", b"\x10" + b"\xff" * 8 + b"\x7f"), rows=2**32 - 1
    ).to_table(with_row_id=True),
    "empty segments of row ids": lambda place: place.with_lineage(repeated(b"\x0a"), rows=3).to_table(with_row_id=True),
    "row ids of one file for many fragments": one_lineage_file_for_many,
    "a fragment reuse index beyond its file": reuse_details,
    "an index over all fragments": coverage,
    "json in json": reference("[" * 1_000_000),
    "a reference of 3 MB": reference('{"version": 1, "metadata": {"x": "%s"}}' % ("y" * 3_000_000)),
    "a number of a million digits": reference('{"version": %s}' % ("9" * 1_000_000)),
    "an intent in an intent": intent('{"files": %s' % ("[" * 1_000_000)),
    "an intent of a number beyond all": intent('{"base_version": 1e999}'),
    "a clone of a version beyond all": clone_record('{"version": 1e999, "uri": "x"}'),
    "a clone in a clone": clone_record("[" * 1_000_000),
    "a hint of 50 MB": hint,
}  # fmt: skip
READ = frozenset(("a hint of 50 MB", "keys in a byte each", "an index over all fragments", "arrow, 4 million rows"))
"""Bombs that are harmless and are read."""


def _indexed(place: BombTable) -> bytes:
    place.message.index_section = 0
    return place.whole()


def _with_transaction_file(place: BombTable) -> BombTable:
    place.message.transaction_file = "1-x.txn"
    place.put(place.whole())
    return place


def _inline(place: BombTable, body: bytes) -> object:
    place.message.transaction_section = 0
    return place.put(place.whole(), transaction=body).transaction()


def _legacy(place: BombTable) -> object:
    file = place.message.fragments[0].files[0]
    file.file_major_version, file.file_minor_version = 0, 1
    place.put(place.whole())
    path = Path(place.uri, "data", file.path)
    footer = manifest_file.FOOTER.pack(4096, 0, 2, manifest_file.MAGIC)
    with path.open("r+b") as opened:
        opened.truncate(2**40)
        opened.seek(2**40 - len(footer))
        opened.write(footer)
    return Table.open(place.uri).to_table()


def _with_empty_deletions(place: BombTable) -> BombTable:
    place.with_deletions(b"", is_bitmap=True, rows=3, deleted=1)
    return place


def run_bomb(name: str, place: Path) -> Outcome:
    """Run a bomb in a child of this process, which has already imported everything."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, json.dumps(asdict(_in_child(name, place))).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        response = pipe.read()
    _, status = os.waitpid(child, 0)
    if not response:
        return Outcome(name, "died", signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "", 0, 0)
    return Outcome(**json.loads(response))


def _in_child(name: str, place: Path) -> Outcome:
    subject = BombTable(place / str(abs(hash(name))))
    bomb = BOMBS[name]
    before, started = _megabytes(), time.monotonic()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEGABYTES * 2**20,) * 2)
    signal.alarm(SECONDS)
    try:
        bomb(subject)
        outcome, what = "read", ""
    except LanceError as error:
        outcome, what = type(error).__name__, str(error)[:400]
    except BaseException as error:  # noqa: BLE001 - the test asserts that no other error occurs
        outcome, what = f"untyped {type(error).__name__}", str(error)[:400]
    return Outcome(name, outcome, what, round(time.monotonic() - started, 2), _megabytes() - before)


def _megabytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    size_guard.check_message(b"", path="")
    for name in sys.argv[2:] or BOMBS:
        print(json.dumps(asdict(run_bomb(name, place))), flush=True)


if __name__ == "__main__":
    main()
