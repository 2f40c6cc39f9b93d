"""Small tables with every kind of thing that a manifest, a transaction file or a deletion file can hold, and what is
done to one of these files.

What lives here: the tables, made by pylance, which file of each is damaged, and how the table is used afterwards. That
nothing but an error of ours may come of it is asked by `test_damaged_bytes.py`.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format import framing
from lance_core.format._pb import table_pb2

ROWS = pa.table({"id": pa.array(range(6), pa.int64()), "s": [f"s{number}" for number in range(6)]})


@dataclass(frozen=True)
class Subject:
    """A file of a table that can be damaged, and looked at through the table."""

    uri: str
    file: Path
    use: Callable[[str], object]
    whole: bytes

    def damaged(self, data: bytes) -> object:
        """What comes of using the table with these bytes in the file's place."""
        self.file.write_bytes(data)
        try:
            return self.use(self.uri)
        finally:
            self.file.write_bytes(self.whole)


def plain(uri: str) -> None:
    """Two fragments, an index, deleted rows, config and metadata of every kind."""
    field = pa.field("id", pa.int64(), metadata={"unit": "piece"})
    rows = pa.table(ROWS.columns, pa.schema([field, ("s", pa.string())], {"who": "me"}))
    lance.write_dataset(rows, uri, max_rows_per_file=3)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.update_config({"a": "b"})
    dataset.update_metadata({"c": "d"})
    dataset.delete("id = 4")


def older(uri: str) -> None:
    """The transaction in the field where releases of 2025 had it."""
    plain(uri)
    path = manifest_of(uri)
    data = path.read_bytes()
    start = framing.find_manifest_position(data, size=len(data), path=path.name)
    message = table_pb2.Manifest.FromString(framing.extract_manifest_message(data, path=path.name))
    message.legacy_transaction_section = message.transaction_section
    message.ClearField("transaction_section")
    body = message.SerializeToString()
    footer = framing.FOOTER.pack(start, 0, 2, framing.MAGIC)
    path.write_bytes(data[:start] + len(body).to_bytes(4, "little") + body + footer)


def stable(uri: str) -> None:
    """Row ids and row versions in several forms."""
    lance.write_dataset(ROWS, uri, max_rows_per_file=3, enable_stable_row_ids=True)
    dataset = lance.dataset(uri)
    dataset.update({"s": "'new'"}, where="id = 1 OR id = 5")
    dataset.delete("id = 3")
    dataset.add_columns({"n": "id + 1"})


def elsewhere(uri: str) -> None:
    """A branch: its files are in another place, but for some of its own."""
    lance.write_dataset(ROWS, uri, max_rows_per_file=3)
    branch = lance.dataset(uri).create_branch("b")
    branch.delete("id = 1")


def nested(uri: str) -> None:
    """Types with children and parameters, columns of several files, a dropped one."""
    point = pa.struct([pa.field("x", pa.int8()), pa.field("l", pa.list_(pa.decimal128(9, 2)))])
    rows = pa.table(
        {
            "p": pa.array([{"x": 1, "l": [None]}, None], point),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "t": pa.array([1, None], pa.timestamp("us", "+05:30")),
            "f": pa.array([[1.0, 2.0], None], pa.list_(pa.float16(), 2)),
            "d": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    lance.write_dataset(rows, uri)
    dataset = lance.dataset(uri)
    dataset.add_columns({"n": "1"})
    dataset.drop_columns(["t"])


def upserted(uri: str) -> None:
    """A transaction with updated and new fragments and a filter of keys."""
    key = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    rows = pa.table(ROWS.columns, pa.schema([key, ("s", pa.string())]))
    lance.write_dataset(rows, uri)
    upsert = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    upsert.execute(pa.table([pa.array([5, 9], pa.int64()), ["x", "y"]], rows.schema))


def compacted(uri: str) -> None:
    """A rewrite with an index that was remapped."""
    lance.write_dataset(ROWS, uri, max_rows_per_file=3)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 1")
    dataset.optimize.compact_files(target_rows_per_fragment=100)


def many_deleted(uri: str) -> None:
    """A deletion file that is a bitmap, with all three kinds of containers."""
    rows = pa.table({"id": pa.array(range(140_000), pa.int32())})
    lance.write_dataset(rows, uri)
    lance.dataset(uri).delete(
        "id < 20000 AND id % 2 = 0 OR id IN (70000, 70005, 139999) OR id > 137000 AND id < 138000"
    )


def manifest_of(uri: str) -> Path:
    return min(Path(uri, "_versions").glob("*.manifest"))


def transaction_of(uri: str) -> Path:
    """Of the newest version, whose inline copy is taken away."""
    path = manifest_of(uri)
    data = path.read_bytes()
    message = table_pb2.Manifest.FromString(framing.extract_manifest_message(data, path=path.name))
    section = (
        framing.read_section(data, message.index_section, path="m", field="i")
        if message.HasField("index_section")
        else None
    )
    message.ClearField("transaction_section")
    if section is not None:
        message.index_section = 0
    path.write_bytes(framing.frame_manifest(section, None, message.SerializeToString()))
    return Path(uri, "_transactions", message.transaction_file)


def deletions_of(uri: str) -> Path:
    (path,) = Path(uri, "_deletions").iterdir()
    return path


def read(uri: str) -> pa.Table:
    """All that a reader of the newest version can be told."""
    table = Table.open(uri)
    manifest = table.manifest
    _ = (table.schema, table.timestamp, table.config, table.metadata, table.branch, table.id, manifest.storage_version)
    table.transaction()
    table.count_rows()
    table.to_table(filter="id >= 0") if "id" in table.schema.names else None
    rowids = manifest.has_stable_row_ids
    lineage = ["_row_created_at_version", "_row_last_updated_at_version"] if rowids else []
    return table.to_table([*table.schema.names, *lineage], with_row_id=True)


def judge(uri: str) -> object:
    """All that asks what the newest version did."""
    table = Table.open(uri)
    table.transaction()
    table.versions()
    stale = Table.open(uri, version=table.version - 1, durable=False)
    before = set(Path(uri).rglob("*"))
    try:
        return stale.append(stale.to_table())
    finally:
        for path in set(Path(uri).rglob("*")) - before:
            path.unlink()


TABLES: dict[str, tuple[Callable[[str], None], Callable[[str], Path], Callable[[str], object]]] = {
    "manifest": (plain, manifest_of, read),
    "manifest of 2025": (older, manifest_of, read),
    "manifest with row ids": (stable, manifest_of, read),
    "manifest of a branch": (elsewhere, manifest_of, read),
    "manifest with nested columns": (nested, manifest_of, read),
    "transaction of a deletion": (plain, transaction_of, judge),
    "transaction of an upsert": (upserted, transaction_of, judge),
    "transaction of a compaction": (compacted, transaction_of, judge),
    "transaction of a merge": (stable, transaction_of, judge),
    "deletions as arrow": (plain, deletions_of, read),
    "deletions as a bitmap": (many_deleted, deletions_of, read),
}


def subject(name: str, place: Path) -> Subject:
    make, choose, use = TABLES[name]
    uri = str(place / "t")
    shutil.rmtree(place, ignore_errors=True)
    make(uri)
    if make is elsewhere:
        uri += "/tree/b"
    file = choose(uri)
    return Subject(uri, file, use, file.read_bytes())


def changes(data: bytes, values: Callable[[int], Iterator[int]]) -> Iterator[tuple[str, bytes]]:
    """Of single bytes; `values` says which, of the byte that is there."""
    for position, byte in enumerate(data):
        for value in values(byte):
            yield f"byte {position} = {value}", data[:position] + bytes([value]) + data[position + 1 :]


def truncations(data: bytes) -> Iterator[tuple[str, bytes]]:
    for end in range(len(data)):
        yield f"cut at {end}", data[:end]
