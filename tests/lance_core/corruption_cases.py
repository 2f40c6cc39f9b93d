"""Corruption cases: small tables that contain every construct of a manifest, a transaction file or a deletion file, and
one file of each that tests corrupt.

pylance creates the tables; each case knows its file and how the table is used afterwards. `test_corrupted_bytes.py`
checks that only errors of this library result.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format import manifest_file
from lance_core.format._pb import table_pb2

ROWS = pa.table({"id": pa.array(range(6), pa.int64()), "s": [f"s{number}" for number in range(6)]})


@dataclass(frozen=True)
class CorruptibleFile:
    """A file of a table that tests corrupt, and the use of the table that reads it."""

    uri: str
    file: Path
    use: Callable[[str], object]
    original: bytes

    def use_with(self, data: bytes) -> object:
        """Use the table with these bytes in place of the file."""
        self.file.write_bytes(data)
        try:
            return self.use(self.uri)
        finally:
            self.file.write_bytes(self.original)


def create_plain_table(uri: str) -> None:
    """Create two fragments, an index, deleted rows, and config and metadata of every type."""
    field = pa.field("id", pa.int64(), metadata={"unit": "piece"})
    rows = pa.table(ROWS.columns, pa.schema([field, ("s", pa.string())], {"who": "me"}))
    lance.write_dataset(rows, uri, max_rows_per_file=3)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.update_config({"a": "b"})
    dataset.update_metadata({"c": "d"})
    dataset.delete("id = 4")


def create_table_of_2025(uri: str) -> None:
    """Create a table whose transaction is in the field that releases of 2025 used."""
    create_plain_table(uri)
    path = manifest_of(uri)
    data = path.read_bytes()
    start = manifest_file.find_manifest_position(data, size=len(data), path=path.name)
    message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(data, path=path.name))
    message.legacy_transaction_section = message.transaction_section
    message.ClearField("transaction_section")
    body = message.SerializeToString()
    footer = manifest_file.FOOTER.pack(start, 0, 2, manifest_file.MAGIC)
    path.write_bytes(data[:start] + len(body).to_bytes(4, "little") + body + footer)


def create_table_with_row_ids(uri: str) -> None:
    """Create row ids and row versions in several encodings."""
    lance.write_dataset(ROWS, uri, max_rows_per_file=3, enable_stable_row_ids=True)
    dataset = lance.dataset(uri)
    dataset.update({"s": "'new'"}, where="id = 1 OR id = 5")
    dataset.delete("id = 3")
    dataset.add_columns({"n": "id + 1"})


def create_branch(uri: str) -> None:
    """Create a branch: most of its files are in the main branch."""
    lance.write_dataset(ROWS, uri, max_rows_per_file=3)
    branch = lance.dataset(uri).create_branch("b")
    branch.delete("id = 1")


def create_nested_table(uri: str) -> None:
    """Create types with children and parameters, columns in several files, and a dropped column."""
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


def create_upserted_table(uri: str) -> None:
    """Create a transaction with updated and new fragments and a key filter."""
    key = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    rows = pa.table(ROWS.columns, pa.schema([key, ("s", pa.string())]))
    lance.write_dataset(rows, uri)
    upsert = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    upsert.execute(pa.table([pa.array([5, 9], pa.int64()), ["x", "y"]], rows.schema))


def create_compacted_table(uri: str) -> None:
    """Create a rewrite with a remapped index."""
    lance.write_dataset(ROWS, uri, max_rows_per_file=3)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 1")
    dataset.optimize.compact_files(target_rows_per_fragment=100)


def create_table_with_many_deletions(uri: str) -> None:
    """Create a bitmap deletion file with all three container types."""
    rows = pa.table({"id": pa.array(range(140_000), pa.int32())})
    lance.write_dataset(rows, uri)
    lance.dataset(uri).delete(
        "id < 20000 AND id % 2 = 0 OR id IN (70000, 70005, 139999) OR id > 137000 AND id < 138000"
    )


def manifest_of(uri: str) -> Path:
    return min(Path(uri, "_versions").glob("*.manifest"))


def transaction_of(uri: str) -> Path:
    """Return the transaction file of the newest version, after removing its inline copy."""
    path = manifest_of(uri)
    data = path.read_bytes()
    message = table_pb2.Manifest.FromString(manifest_file.extract_manifest_message(data, path=path.name))
    section = (
        manifest_file.read_section(data, message.index_section, path="m", field="i")
        if message.HasField("index_section")
        else None
    )
    message.ClearField("transaction_section")
    if section is not None:
        message.index_section = 0
    path.write_bytes(manifest_file.frame_manifest(section, None, message.SerializeToString()))
    return Path(uri, "_transactions", message.transaction_file)


def deletions_of(uri: str) -> Path:
    (path,) = Path(uri, "_deletions").iterdir()
    return path


def read_everything(uri: str) -> pa.Table:
    """Read everything that the newest version contains."""
    table = Table.open(uri)
    manifest = table.manifest
    _ = (table.schema, table.timestamp, table.config, table.metadata, table.branch, table.id, manifest.storage_version)
    table.transaction()
    table.count_rows()
    table.to_table(filter="id >= 0") if "id" in table.schema.names else None
    rowids = manifest.has_stable_row_ids
    lineage = ["_row_created_at_version", "_row_last_updated_at_version"] if rowids else []
    return table.to_table([*table.schema.names, *lineage], with_row_id=True)


def write_over_history(uri: str) -> object:
    """Read the history and commit on top of it."""
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
    "manifest": (create_plain_table, manifest_of, read_everything),
    "manifest of 2025": (create_table_of_2025, manifest_of, read_everything),
    "manifest with row ids": (create_table_with_row_ids, manifest_of, read_everything),
    "manifest of a branch": (create_branch, manifest_of, read_everything),
    "manifest with nested columns": (create_nested_table, manifest_of, read_everything),
    "transaction of a deletion": (create_plain_table, transaction_of, write_over_history),
    "transaction of an upsert": (create_upserted_table, transaction_of, write_over_history),
    "transaction of a compaction": (create_compacted_table, transaction_of, write_over_history),
    "transaction of a merge": (create_table_with_row_ids, transaction_of, write_over_history),
    "deletions as arrow": (create_plain_table, deletions_of, read_everything),
    "deletions as a bitmap": (create_table_with_many_deletions, deletions_of, read_everything),
}


def create_case(name: str, path: Path) -> CorruptibleFile:
    make, choose, use = TABLES[name]
    uri = str(path / "t")
    shutil.rmtree(path, ignore_errors=True)
    make(uri)
    if make is create_branch:
        uri += "/tree/b"
    file = choose(uri)
    return CorruptibleFile(uri, file, use, file.read_bytes())


def changed_bytes(data: bytes, values: Callable[[int], Iterator[int]]) -> Iterator[tuple[str, bytes]]:
    """Change single bytes; `values` yields the new values for each byte."""
    for position, byte in enumerate(data):
        for value in values(byte):
            yield f"byte {position} = {value}", data[:position] + bytes([value]) + data[position + 1 :]


def truncations(data: bytes) -> Iterator[tuple[str, bytes]]:
    for end in range(len(data)):
        yield f"cut at {end}", data[:end]
