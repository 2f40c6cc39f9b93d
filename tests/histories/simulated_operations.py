"""Simulated operations: planning, deletion files, retries and commits are those of the product, while the contents of
data files are also kept in memory, so that a history costs commits and no decoding.

The name of a row is its root followed by the changes made to it, in order: `k7.w2.w0` is row `k7` changed by `w2`, then
by `w0`. The rows of a version thus show in which order changes took effect, and the reference model (`apply_to_model`)
must show the same order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from lance_core.commit import write_protocol
from lance_core.datafiles.fragment_reader import load_deletions
from lance_core.dml.deletion_files import add_deletions, encode_offsets
from lance_core.dml.upsert import SourceKeySet
from lance_core.dml.upsert_join import InMemorySource
from lance_core.errors import InvalidInput
from lance_core.format import field_ids, naming
from lance_core.format import operations as op
from lance_core.format.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.format.ids import FragmentId, Version
from lance_core.format.key_filter import key_filter
from lance_core.format.operations import MapUpdate, Operation, UpdateMode
from lance_core.format.row_lineage import RowIdSequence
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot
from tests.lance_core.in_memory_table import STORAGE_VERSION

ARROW_SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("done", pa.string())])
SCHEMA = TableSchema.from_arrow(ARROW_SCHEMA)
NAME, DONE = 0, 1
FIELD_NAMES = {NAME: "name", DONE: "done"}
WORK_PROPERTY = "work"
"""Property that names the operation of a version."""
CONFIG_KEYS = "abc"


@dataclass(frozen=True)
class TableState:
    """Contents of a table as a reader sees them."""

    rows: tuple[str, ...]
    """Rows in any order."""
    config: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ("name", "done")

    def equals_unordered(self, other: "TableState") -> bool:
        return (sorted(self.rows), dict(self.config), self.columns) == (
            sorted(other.rows), dict(other.config), other.columns,
        )  # fmt: skip


@dataclass
class DataFileContents:
    """Contents of the data files: for each file, the values of each of its fields."""

    files: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    planned_versions: dict[str, Version] = field(default_factory=dict)
    """Version that a change was planned on, by the path of its data file."""
    _cached_rows: dict[bytes, dict[int, str]] = field(default_factory=dict)

    def write_file(self, location: Location, runtime: Runtime, values: Mapping[int, list[str]]) -> DataFile:
        path = f"{runtime.new_uuid().hex}.lance"
        self.files[path] = dict(values)
        fields = sorted(values)
        batch = pa.record_batch({FIELD_NAMES[field]: values[field] for field in fields})
        writer = location.codec.create(f"{naming.DATA}/{path}", batch.schema, STORAGE_VERSION)
        writer.write(batch)
        checksum = writer.finish()
        return DataFile.of(
            path=path,
            field_ids=fields,
            column_indices=range(len(fields)),
            version=STORAGE_VERSION,
            size=checksum.size,
            xxh3=checksum.xxh3,
        )

    def write_fragment(
        self, location: Location, runtime: Runtime, rows: Iterable[str], ids: Sequence[int] | None = None
    ) -> Fragment:
        """Write a fragment. `ids` are the stable ids of its first rows; the other rows receive theirs at commit."""
        names, done = zip(*(row.partition(".")[::2] for row in rows), strict=True)
        file = self.write_file(location, runtime, {NAME: list(names), DONE: list(done)})
        fragment = Fragment.of(files=[file], physical_rows=len(names))
        return (
            fragment.with_lineage(row_ids=RowIdSequence.of(np.array(ids, dtype=np.uint64)).encode())
            if ids
            else fragment
        )

    def live_rows(self, base: Snapshot, fragment: Fragment) -> dict[int, str]:
        """Return the live rows by their offset."""
        values = {
            field_id: self._field_values(base.location, fragment, file)[field_id]
            for file in fragment.files
            for field_id in file.field_ids
            if field_id in (NAME, DONE)
        }
        deletions = load_deletions(base.location.store, fragment)
        live_offsets = range(fragment.physical_rows) if deletions is None else np.flatnonzero(
            deletions.live_mask(0, fragment.physical_rows)
        )  # fmt: skip
        return {
            int(offset): ".".join(filter(None, (values[NAME][offset], values[DONE][offset]))) for offset in live_offsets
        }

    def _field_values(self, location: Location, fragment: Fragment, file: DataFile) -> dict[int, list[str]]:
        """Return the values of a file. A file that the product wrote is read."""
        if file.path not in self.files:
            reader = location.codec.open(file.qualified_path)
            assert reader.row_count == fragment.physical_rows, f"{file.path} has {reader.row_count} rows"
            rows = pa.Table.from_batches(reader.read([*FIELD_NAMES.values()], 0, reader.row_count))
            self.files[file.path] = {field_id: rows[name].to_pylist() for field_id, name in FIELD_NAMES.items()}
        return self.files[file.path]

    def row_ids(self, fragment: Fragment) -> dict[int, int]:
        """Return the stable row ids by offset."""
        if fragment.row_ids is None:
            return {}
        rows = fragment.physical_rows
        return dict(enumerate(RowIdSequence.decode(fragment.row_ids, rows=rows, path="").to_numpy().tolist()))

    def planned_version(self, operation: Operation) -> Version:
        """Return the version that a change was finally planned on, for operations where it matters."""
        match operation:
            case op.Delete():
                return Version(int(operation.predicate))
            case op.Update():
                files = [file for fragment in (*operation.new, *operation.updated) for file in fragment.files]
                return max(self.planned_versions.get(file.path, Version(0)) for file in files)
        return Version(0)

    def cached_rows(self, base: Snapshot, fragment: Fragment) -> dict[int, str]:
        """Return the live rows, cached. For use after the end of the history: versions share most of their fragments,
        and a fragment that is equal in two versions has the same rows."""
        key = fragment.encode()
        if key not in self._cached_rows:
            self._cached_rows[key] = self.live_rows(base, fragment)
        return self._cached_rows[key]

    def read_state(self, base: Snapshot) -> TableState:
        """Return the contents of a version. For use after the end of the history."""
        rows = [row for fragment in base.manifest.fragments for row in self.cached_rows(base, fragment).values()]
        names = tuple(each.name for each in base.manifest.schema.fields)
        config = {key: value for key, value in base.manifest.config.items() if key in CONFIG_KEYS}
        return TableState(tuple(rows), config, names)


Plan = Callable[[Snapshot], Operation | None]
AffectedRows = list[tuple[Fragment, dict[int, str]]]
"""Affected rows of each fragment, by their offsets."""


@dataclass(frozen=True)
class SimulatedOperation:
    """One requested operation. `apply_to_model` defines its meaning, `make_planner` how the product executes it."""

    kind: str
    name: str
    roots: frozenset[str] = frozenset()
    version: int = 1
    key: str = ""
    can_replan: bool = True

    def apply_to_model(self, before: TableState, history: Mapping[int, TableState], planned_on: Version) -> TableState:
        """Apply the operation to the reference model. It does not affect rows that were added after it was planned, as
        if it had run first. An upsert affects its keys in all rows."""
        rows, roots = before.rows, self.roots
        if self.kind in ("delete", "move", "rewrite column"):
            roots = roots & {row.partition(".")[0] for row in history[planned_on].rows}
        affected = [row for row in rows if row.partition(".")[0] in roots]
        others = tuple(row for row in rows if row not in affected)
        changed = tuple(f"{row}.{self.name}" for row in affected)
        match self.kind:
            case "append" | "append a key":
                return replace(before, rows=(*rows, *self.new_rows()))
            case "delete":
                return replace(before, rows=others)
            case "move" | "rewrite column":
                return replace(before, rows=(*others, *changed))
            case "upsert":
                existing_roots = {row.partition(".")[0] for row in affected}
                new = tuple(f"{root}.{self.name}" for root in sorted(self.roots - existing_roots))
                return replace(before, rows=(*others, *changed, *new))
            case "overwrite":
                return replace(before, rows=self.new_rows(), columns=("name", "done"))
            case "restore":
                return history[self.version]
            case "config":
                return replace(before, config={**before.config, self.key: self.name})
            case "add column":
                return replace(before, columns=(*before.columns, self.name))
            case "drop column":
                return replace(before, columns=tuple(name for name in before.columns if name in ("name", "done")))
        assert self.kind == "compact"
        return before

    def new_rows(self) -> tuple[str, ...]:
        if self.kind == "append a key":
            return (min(self.roots),)
        return tuple(f"{self.name}-{number}" for number in range(2))

    def make_planner(self, data_files: DataFileContents, runtime: Runtime) -> Plan:
        def plan(base: Snapshot) -> Operation | None:
            match self.kind:
                case "append" | "append a key":
                    return op.Append((data_files.write_fragment(base.location, runtime, self.new_rows()),))
                case "overwrite":
                    return op.Overwrite((data_files.write_fragment(base.location, runtime, self.new_rows()),), SCHEMA)
                case "delete":
                    return self._plan_delete(base, data_files, runtime)
                case "move" | "upsert":
                    return self._plan_move(base, data_files, runtime)
                case "rewrite column":
                    return self._plan_column_rewrite(base, data_files, runtime)
                case "compact":
                    return self._plan_compaction(base, data_files, runtime)
                case "restore":
                    return op.Restore(Version(self.version))
                case "config":
                    return op.UpdateConfig(config=MapUpdate({self.key: self.name}))
            return self._plan_schema_change(base)

        return plan

    def _find_affected_rows(self, base: Snapshot, data_files: DataFileContents) -> AffectedRows:
        affected: AffectedRows = []
        for fragment in base.manifest.fragments:
            rows = data_files.live_rows(base, fragment)
            affected_here = {offset: row for offset, row in rows.items() if row.partition(".")[0] in self.roots}
            if affected_here:
                affected.append((fragment, affected_here))
        return affected

    def _delete_rows(
        self, base: Snapshot, affected_rows: AffectedRows, runtime: Runtime
    ) -> tuple[tuple[Fragment, ...], tuple[FragmentId, ...], dict[FragmentId, bytes]]:
        updated, removed, affected = [], [], {}
        for fragment, rows in affected_rows:
            offsets = np.array(sorted(rows))
            affected[fragment.id] = encode_offsets(offsets)
            remaining = add_deletions(base.location, fragment, offsets, read_version=base.version, runtime=runtime)
            if remaining is None:
                removed.append(fragment.id)
            else:
                updated.append(remaining)
        return tuple(updated), tuple(removed), affected

    def _plan_delete(self, base: Snapshot, data_files: DataFileContents, runtime: Runtime) -> Operation:
        updated, removed, affected = self._delete_rows(base, self._find_affected_rows(base, data_files), runtime)
        return op.Delete(updated, removed, str(base.version), affected)

    def _plan_move(self, base: Snapshot, data_files: DataFileContents, runtime: Runtime) -> Operation | None:
        affected_rows = self._find_affected_rows(base, data_files)
        new_names = [f"{row}.{self.name}" for _fragment, rows in affected_rows for row in rows.values()]
        ids = [
            data_files.row_ids(fragment)[offset]
            for fragment, rows in affected_rows
            for offset in rows
            if fragment.row_ids
        ]
        keys = None
        if self.kind == "upsert":
            existing_roots = {row.partition(".")[0] for row in new_names}
            new_roots = sorted(self.roots - existing_roots)
            keys = key_filter([NAME], [pa.array(new_roots)] if new_roots else [], exact=len(self.name) % 2 == 0)
            new_names += [f"{root}.{self.name}" for root in new_roots]
        if not new_names:
            return None
        updated, removed, affected = self._delete_rows(base, affected_rows, runtime)
        new_rows = (data_files.write_fragment(base.location, runtime, new_names, ids),)
        data_files.planned_versions[new_rows[0].files[0].path] = base.version
        source_keys = SourceKeySet(
            (NAME,), InMemorySource(pa.table({"name": sorted(self.roots)}), ["name"], what="the simulation")
        )
        return op.Update(
            removed, updated, new_rows, inserted_keys=keys, affected=affected,
            source_keys=source_keys if self.kind == "upsert" else None,
        )  # fmt: skip

    def _plan_column_rewrite(self, base: Snapshot, data_files: DataFileContents, runtime: Runtime) -> Operation | None:
        affected_rows = self._find_affected_rows(base, data_files)
        updated, affected = [], {}
        for fragment, rows in affected_rows:
            (old,) = [file for file in fragment.files if DONE in file.field_ids]
            done = list(data_files.files[old.path][DONE])
            for offset in rows:
                done[offset] = f"{done[offset]}.{self.name}".strip(".")
            files = [file.without_fields({DONE}) if file == old else file for file in fragment.files]
            retained_files = [file for file in files if set(file.field_ids) != {TOMBSTONE}]
            new = data_files.write_file(base.location, runtime, {DONE: done})
            data_files.planned_versions[new.path] = base.version
            updated.append(fragment.with_files([*retained_files, new]))
            affected[fragment.id] = encode_offsets(np.array(sorted(rows)))
        if not updated:
            return None
        return op.Update(
            updated=tuple(updated), fields_modified=(DONE,), mode=UpdateMode.REWRITE_COLUMNS, affected=affected
        )  # fmt: skip

    def _plan_compaction(self, base: Snapshot, data_files: DataFileContents, runtime: Runtime) -> Operation | None:
        old = base.manifest.fragments[:3]
        rows = [row for fragment in old for row in data_files.live_rows(base, fragment).values()]
        if len(old) < 2 or not rows:
            return None
        ids = [
            data_files.row_ids(fragment)[offset]
            for fragment in old
            for offset in data_files.live_rows(base, fragment)
            if fragment.row_ids
        ]
        new = data_files.write_fragment(base.location, runtime, rows, ids)
        started = write_protocol.begin(base.location, base, verb="compact", intent=None, runtime=runtime)
        assert isinstance(started, write_protocol.StartedWrite)
        reserved = write_protocol.finish(started, op.ReserveFragments(1), properties={}, attempts=20).snapshot
        group = op.RewriteGroup(tuple(old), (new.with_id(reserved.manifest.max_fragment_id),))
        return op.Rewrite((group,), reserved_in=reserved.version)

    def _plan_schema_change(self, base: Snapshot) -> Operation | None:
        manifest, schema = base.manifest, base.manifest.schema
        if self.kind == "add column":
            first = field_ids.highest_field_id(schema, manifest.message.fragments, manifest.config) + 1
            added = TableSchema.from_arrow(pa.schema([pa.field(self.name, pa.int8())]), first_id=first)
            wider = TableSchema((*schema.fields, *added.fields), schema.metadata)
            return op.Merge(tuple(manifest.fragments), wider, preserves_nullability=True)
        initial_fields = schema.fields[:2]
        if len(initial_fields) == len(schema.fields):
            raise InvalidInput("there is no column to drop")
        return op.Project(TableSchema(initial_fields, schema.metadata), preserves_nullability=True)
