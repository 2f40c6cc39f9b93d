"""Verbs over a table whose data files hardly anybody reads: what is in a file is kept beside the store too, so that a
history costs commits and no decoding. Planning, deletion files, re-running and committing are the product's own.

A row is called by its root and by all that was done to it since, in order: `k7.w2.w0` is row `k7` changed by `w2`, then
by `w0`. So the rows of a version tell in which order changes took effect, and the model (`expected`) has to tell the
same.
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
from lance_core.format.rowids import RowIdSequence
from lance_core.format.schema import TableSchema
from lance_core.runtime import Runtime
from lance_core.versions.location import Location
from lance_core.versions.snapshot import Snapshot
from tests.lance_core.world import VERSION

ARROW = pa.schema([pa.field("name", pa.string()), pa.field("done", pa.string())])
SCHEMA = TableSchema.from_arrow(ARROW)
NAME, DONE = 0, 1
NAMES = {NAME: "name", DONE: "done"}
WORK = "work"
"""The property that says whose version it is."""
MARKS = "abc"


@dataclass(frozen=True)
class State:
    """A table as people see it."""

    rows: tuple[str, ...]
    """In any order."""
    config: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ("name", "done")

    def same_as(self, other: "State") -> bool:
        return (sorted(self.rows), dict(self.config), self.columns) == (
            sorted(other.rows), dict(other.config), other.columns,
        )  # fmt: skip


@dataclass
class Disk:
    """What is in the data files: for each, the values of each of its fields."""

    files: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    planned: dict[str, Version] = field(default_factory=dict)
    """For files and deletions of changes: the version that they were planned on."""
    _at_rest: dict[bytes, dict[int, str]] = field(default_factory=dict)

    def write(self, location: Location, runtime: Runtime, values: Mapping[int, list[str]]) -> DataFile:
        path = f"{runtime.new_uuid().hex}.lance"
        self.files[path] = dict(values)
        fields = sorted(values)
        batch = pa.record_batch({NAMES[field]: values[field] for field in fields})
        writer = location.codec.create(f"{naming.DATA}/{path}", batch.schema, VERSION)
        writer.write(batch)
        count = writer.finish()
        return DataFile.of(
            path=path, field_ids=fields, column_indices=range(len(fields)), version=VERSION, size=count
        )  # fmt: skip

    def fragment(
        self, location: Location, runtime: Runtime, rows: Iterable[str], ids: Sequence[int] | None = None
    ) -> Fragment:
        """`ids` are the stable ones of rows that have some; the rows behind those get theirs at commit."""
        names, done = zip(*(row.partition(".")[::2] for row in rows), strict=True)
        file = self.write(location, runtime, {NAME: list(names), DONE: list(done)})
        made = Fragment.of(files=[file], physical_rows=len(names))
        return made.with_lineage(row_ids=RowIdSequence.of(np.array(ids, dtype=np.uint64)).encode()) if ids else made

    def rows(self, base: Snapshot, fragment: Fragment) -> dict[int, str]:
        """Live ones, by their offset."""
        values = {
            field_id: self._values(base.location, fragment, file)[field_id]
            for file in fragment.files
            for field_id in file.field_ids
            if field_id in (NAME, DONE)
        }
        deletions = load_deletions(base.location.store, fragment)
        alive = range(fragment.physical_rows) if deletions is None else np.flatnonzero(
            deletions.live_mask(0, fragment.physical_rows)
        )  # fmt: skip
        return {int(at): ".".join(filter(None, (values[NAME][at], values[DONE][at]))) for at in alive}

    def _values(self, location: Location, fragment: Fragment, file: DataFile) -> dict[int, list[str]]:
        """Of a file that the product wrote they are read."""
        if file.path not in self.files:
            reader = location.codec.open(file.qualified_path)
            assert reader.row_count == fragment.physical_rows, f"{file.path} has {reader.row_count} rows"
            found = pa.Table.from_batches(reader.read([*NAMES.values()], 0, reader.row_count))
            self.files[file.path] = {field_id: found[name].to_pylist() for field_id, name in NAMES.items()}
        return self.files[file.path]

    def ids(self, fragment: Fragment) -> dict[int, int]:
        """Stable ones, by offset."""
        if fragment.row_ids is None:
            return {}
        rows = fragment.physical_rows
        return dict(enumerate(RowIdSequence.decode(fragment.row_ids, rows=rows, path="").to_numpy().tolist()))

    def planned_on(self, operation: Operation) -> Version:
        """Which version a change was planned on in the end, for those where it matters."""
        match operation:
            case op.Delete():
                return Version(int(operation.predicate))
            case op.Update():
                files = [file for fragment in (*operation.new, *operation.updated) for file in fragment.files]
                return max(self.planned.get(file.path, Version(0)) for file in files)
        return Version(0)

    def rows_at_rest(self, base: Snapshot, fragment: Fragment) -> dict[int, str]:
        """The same when all is over: versions share most of their fragments, and what one says stays true."""
        said = fragment.encode()
        if said not in self._at_rest:
            self._at_rest[said] = self.rows(base, fragment)
        return self._at_rest[said]

    def state(self, base: Snapshot) -> State:
        """When all is over."""
        found = [row for fragment in base.manifest.fragments for row in self.rows_at_rest(base, fragment).values()]
        names = tuple(each.name for each in base.manifest.schema.fields)
        config = {key: value for key, value in base.manifest.config.items() if key in MARKS}
        return State(tuple(found), config, names)


Plan = Callable[[Snapshot], Operation | None]
Meant = list[tuple[Fragment, dict[int, str]]]
"""Rows that a verb is about, by their offsets."""


@dataclass(frozen=True)
class Verb:
    """What somebody wants. `expected` is what it means, `planning` how it is done."""

    kind: str
    work: str
    roots: frozenset[str] = frozenset()
    version: int = 1
    key: str = ""
    again: bool = True

    def expected(self, before: State, history: Mapping[int, State], planned_on: Version) -> State:
        """The same verb on the plain model. Rows that came after it was planned are not meant, as if it had been first;
        but an upsert brings keys, wherever they are."""
        rows, roots = before.rows, self.roots
        if self.kind in ("delete", "move", "rewrite column"):
            roots = roots & {row.partition(".")[0] for row in history[planned_on].rows}
        mine = [row for row in rows if row.partition(".")[0] in roots]
        others = tuple(row for row in rows if row not in mine)
        changed = tuple(f"{row}.{self.work}" for row in mine)
        match self.kind:
            case "append" | "append a key":
                return replace(before, rows=(*rows, *self.brought()))
            case "delete":
                return replace(before, rows=others)
            case "move" | "rewrite column":
                return replace(before, rows=(*others, *changed))
            case "upsert":
                there = {row.partition(".")[0] for row in mine}
                new = tuple(f"{root}.{self.work}" for root in sorted(self.roots - there))
                return replace(before, rows=(*others, *changed, *new))
            case "overwrite":
                return replace(before, rows=self.brought(), columns=("name", "done"))
            case "restore":
                return history[self.version]
            case "config":
                return replace(before, config={**before.config, self.key: self.work})
            case "add column":
                return replace(before, columns=(*before.columns, self.work))
            case "drop column":
                return replace(before, columns=tuple(name for name in before.columns if name in ("name", "done")))
        assert self.kind == "compact"
        return before

    def brought(self) -> tuple[str, ...]:
        if self.kind == "append a key":
            return (min(self.roots),)
        return tuple(f"{self.work}-{number}" for number in range(2))

    def planning(self, disk: Disk, runtime: Runtime) -> Plan:
        def plan(base: Snapshot) -> Operation | None:
            match self.kind:
                case "append" | "append a key":
                    return op.Append((disk.fragment(base.location, runtime, self.brought()),))
                case "overwrite":
                    return op.Overwrite((disk.fragment(base.location, runtime, self.brought()),), SCHEMA)
                case "delete":
                    return self._delete(base, disk, runtime)
                case "move" | "upsert":
                    return self._move(base, disk, runtime)
                case "rewrite column":
                    return self._rewrite_column(base, disk, runtime)
                case "compact":
                    return self._compact(base, disk, runtime)
                case "restore":
                    return op.Restore(Version(self.version))
                case "config":
                    return op.UpdateConfig(config=MapUpdate({self.key: self.work}))
            return self._schema(base)

        return plan

    def _meant(self, base: Snapshot, disk: Disk) -> Meant:
        found: Meant = []
        for fragment in base.manifest.fragments:
            rows = disk.rows(base, fragment)
            mine = {at: row for at, row in rows.items() if row.partition(".")[0] in self.roots}
            if mine:
                found.append((fragment, mine))
        return found

    def _without(
        self, base: Snapshot, meant: Meant, runtime: Runtime
    ) -> tuple[tuple[Fragment, ...], tuple[FragmentId, ...], dict[FragmentId, bytes]]:
        updated, removed, affected = [], [], {}
        for fragment, rows in meant:
            offsets = np.array(sorted(rows))
            affected[fragment.id] = encode_offsets(offsets)
            after = add_deletions(base.location, fragment, offsets, read_version=base.version, runtime=runtime)
            if after is None:
                removed.append(fragment.id)
            else:
                updated.append(after)
        return tuple(updated), tuple(removed), affected

    def _delete(self, base: Snapshot, disk: Disk, runtime: Runtime) -> Operation:
        updated, removed, affected = self._without(base, self._meant(base, disk), runtime)
        return op.Delete(updated, removed, str(base.version), affected)

    def _move(self, base: Snapshot, disk: Disk, runtime: Runtime) -> Operation | None:
        meant = self._meant(base, disk)
        after = [f"{row}.{self.work}" for _fragment, rows in meant for row in rows.values()]
        ids = [disk.ids(fragment)[at] for fragment, rows in meant for at in rows if fragment.row_ids]
        keys = None
        if self.kind == "upsert":
            there = {row.partition(".")[0] for row in after}
            new = sorted(self.roots - there)
            keys = key_filter([NAME], [pa.array(new)] if new else [], exact=len(self.work) % 2 == 0)
            after += [f"{root}.{self.work}" for root in new]
        if not after:
            return None
        updated, removed, affected = self._without(base, meant, runtime)
        new_rows = (disk.fragment(base.location, runtime, after, ids),)
        disk.planned[new_rows[0].files[0].path] = base.version
        brought = SourceKeySet(
            (NAME,), InMemorySource(pa.table({"name": sorted(self.roots)}), ["name"], what="the simulation")
        )
        return op.Update(
            removed, updated, new_rows, inserted_keys=keys, affected=affected,
            source_keys=brought if self.kind == "upsert" else None,
        )  # fmt: skip

    def _rewrite_column(self, base: Snapshot, disk: Disk, runtime: Runtime) -> Operation | None:
        meant = self._meant(base, disk)
        updated, affected = [], {}
        for fragment, rows in meant:
            (old,) = [file for file in fragment.files if DONE in file.field_ids]
            done = list(disk.files[old.path][DONE])
            for at in rows:
                done[at] = f"{done[at]}.{self.work}".strip(".")
            files = [file.without_fields({DONE}) if file == old else file for file in fragment.files]
            living = [file for file in files if set(file.field_ids) != {TOMBSTONE}]
            new = disk.write(base.location, runtime, {DONE: done})
            disk.planned[new.path] = base.version
            updated.append(fragment.with_files([*living, new]))
            affected[fragment.id] = encode_offsets(np.array(sorted(rows)))
        if not updated:
            return None
        return op.Update(
            updated=tuple(updated), fields_modified=(DONE,), mode=UpdateMode.REWRITE_COLUMNS, affected=affected
        )  # fmt: skip

    def _compact(self, base: Snapshot, disk: Disk, runtime: Runtime) -> Operation | None:
        old = base.manifest.fragments[:3]
        rows = [row for fragment in old for row in disk.rows(base, fragment).values()]
        if len(old) < 2 or not rows:
            return None
        ids = [disk.ids(fragment)[at] for fragment in old for at in disk.rows(base, fragment) if fragment.row_ids]
        new = disk.fragment(base.location, runtime, rows, ids)
        begun = write_protocol.begin(base.location, base, verb="compact", intent=None, runtime=runtime)
        assert isinstance(begun, write_protocol.StartedWrite)
        reserved = write_protocol.finish(begun, op.ReserveFragments(1), properties={}, attempts=20).snapshot
        group = op.RewriteGroup(tuple(old), (new.with_id(reserved.manifest.max_fragment_id),))
        return op.Rewrite((group,), reserved_in=reserved.version)

    def _schema(self, base: Snapshot) -> Operation | None:
        manifest, schema = base.manifest, base.manifest.schema
        if self.kind == "add column":
            first = field_ids.highest_field_id(schema, manifest.message.fragments, manifest.config) + 1
            added = TableSchema.from_arrow(pa.schema([pa.field(self.work, pa.int8())]), first_id=first)
            wider = TableSchema((*schema.fields, *added.fields), schema.metadata)
            return op.Merge(tuple(manifest.fragments), wider, preserves_nullability=True)
        kept = schema.fields[:2]
        if len(kept) == len(schema.fields):
            raise InvalidInput("there is no column to drop")
        return op.Project(TableSchema(kept, schema.metadata), preserves_nullability=True)
