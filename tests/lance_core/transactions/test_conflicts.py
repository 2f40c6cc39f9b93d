"""Conflicts: one case for each cell of the conflict matrix, such as `pytest -k Append-Overwrite`. Our operation comes
first, then theirs.

The expected verdicts are independent of the rules: a grid with one plain change of each operation type, and single
cases for the cells that depend on the content of the changes. `test_conflict_matrix.py` shows that pylance agrees.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core.format._pb import table_pb2, transaction_pb2
from lance_core.format.base_path import BasePath
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.ids import FragmentId, Version
from lance_core.format.index_metadata import FRAGMENT_REUSE, MEM_WAL, IndexMetadata
from lance_core.format.key_filter import key_filter
from lance_core.format.operations import (
    Append,
    Clone,
    CreateIndex,
    DataReplacement,
    Delete,
    MapUpdate,
    Merge,
    Operation,
    Overwrite,
    Progress,
    Project,
    ReserveFragments,
    Restore,
    Rewrite,
    RewriteGroup,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMemWalState,
    UpdateMode,
)
from lance_core.format.schema import TableSchema
from lance_core.format.transaction import Transaction
from lance_core.transactions import conflicts
from lance_core.transactions.committed_transaction import CommittedTransaction
from lance_core.transactions.conflicts import OPERATION_TYPES, RULES, judge
from lance_core.transactions.verdicts import Verdict
from tools.conflicts import grid

SCHEMA = TableSchema.from_arrow(pa.schema([("a", pa.int8()), ("b", pa.int8())]))
WITHOUT_B = TableSchema(SCHEMA.fields[:1], {})
SHARD, OTHER_SHARD = uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes
CURRENT = Path(conflicts.__file__).with_name("CONFLICTS.md")
LETTERS = {"C": Verdict.COMPATIBLE, "B": Verdict.REBASE, "R": Verdict.RETRY, "X": Verdict.INCOMPATIBLE}


def file(path: str, *fields: int) -> DataFile:
    columns = range(len(fields))
    return DataFile.of(path=path, field_ids=fields, column_indices=columns, version=StorageVersion(2, 2), size=1)


def fragment(number: int, path: str = "", deleted: int = 0) -> Fragment:
    created = Fragment.of(files=[file(path or f"{number}.lance", 0, 1)], physical_rows=9).with_id(number)
    return (
        created.with_deletion_file(is_bitmap=True, read_version=Version(1), number=7, rows=deleted)
        if deleted
        else created
    )


def affecting(*fragment_ids: int) -> dict[FragmentId, bytes]:
    return {FragmentId(number): BitMap([0]).serialize() for number in fragment_ids}


def delete(*fragment_ids: int, removed: tuple[int, ...] = (), raw: bool = False) -> Delete:
    updated = tuple(fragment(number, deleted=1) for number in fragment_ids)
    affected = None if raw else affecting(*fragment_ids, *removed)
    return Delete(updated, tuple(map(FragmentId, removed)), "true", affected)


def update(*fragment_ids: int, keys: bytes | None = None, removed: tuple[int, ...] = ()) -> Update:
    """An update that moves rows."""
    return Update(
        removed_ids=tuple(map(FragmentId, removed)),
        updated=tuple(fragment(number, deleted=1) for number in fragment_ids),
        new=(fragment(0, "moved.lance"),),
        inserted_keys=keys,
        affected=affecting(*fragment_ids, *removed),
    )


def update_in_place(*fragment_ids: int, field: int = 1) -> Update:
    return Update(
        updated=tuple(fragment(number, f"{number}-new.lance") for number in fragment_ids),
        fields_modified=(field,),
        mode=UpdateMode.REWRITE_COLUMNS,
        affected=affecting(*fragment_ids),
    )


class SourceOfSlice:
    """The rows of a replaced slice; the rules check only that they exist."""

    fields = (0,)

    def has_any(self, columns: Sequence[pa.ChunkedArray]) -> bool:
        raise AssertionError("a rule reads no rows")


def keys(*values: int, field: int = 0, exact: bool = True) -> bytes:
    return key_filter([field], [pa.array(values, pa.int64())] if values else [], exact=exact)


def overwrite(config: Mapping[str, str] | None = None) -> Overwrite:
    return Overwrite((), SCHEMA, config or {})


def index(
    name: str = "i", fields: tuple[int, ...] = (1,), covers: tuple[int, ...] | None = (0, 1), number: int = 5,
    kind: str = "BTree",
) -> IndexMetadata:  # fmt: skip
    message = table_pb2.IndexMetadata(name=name, fields=fields)
    message.uuid.uuid = uuid.UUID(int=number).bytes
    message.index_details.type_url = f"/lance.table.{kind}IndexDetails"
    if covers is not None:
        message.fragment_bitmap = BitMap(covers).serialize()
    return IndexMetadata(message)


def log(*progress: Progress, number: int = 9) -> IndexMetadata:
    details = table_pb2.MemWalIndexDetails()
    for each in progress:
        details.compacted_sstables.add(shard_id=table_pb2.UUID(uuid=each.shard), generation=each.generation)
    created = index(MEM_WAL, (), None, number)
    created.message.index_details.value = details.SerializeToString()
    return created


def create(*new: IndexMetadata, removed: tuple[IndexMetadata, ...] = ()) -> CreateIndex:
    return CreateIndex(new or ((index(),) if not removed else ()), removed)


def rewrite(*fragment_ids: int, reuse: bool = False) -> Rewrite:
    old = tuple(fragment(number) for number in fragment_ids)
    entry = index(FRAGMENT_REUSE, ()) if reuse else None
    return Rewrite((RewriteGroup(old, (fragment(20),)),), fragment_reuse=entry)


def replacement(*fragment_ids: int, field: int = 1) -> DataReplacement:
    return DataReplacement(tuple((FragmentId(number), file("new.lance", field)) for number in fragment_ids))


def config(**values: str | None) -> UpdateConfig:
    return UpdateConfig(config=MapUpdate(values))


def table_metadata(**values: str | None) -> UpdateConfig:
    return UpdateConfig(table_metadata=MapUpdate(values))


def schema_metadata(**values: str | None) -> UpdateConfig:
    return UpdateConfig(schema_metadata=MapUpdate(values))


def field_metadata(field: int) -> UpdateConfig:
    return UpdateConfig(field_metadata={field: MapUpdate({"k": "v"})})


def bases(path: str, number: int = 0, name: str | None = None) -> UpdateBases:
    return UpdateBases((BasePath(path, number, name),))


def decode_operation(data: bytes) -> Operation:
    return Transaction.decode(data, path="").operation


def overlay(*fragment_ids: int, field: int = 1, rows: Sequence[int] = (0,)) -> Operation:
    """A `DataOverlay` that another library committed: new values of one field in some rows."""
    message = transaction_pb2.Transaction()
    for number in fragment_ids:
        group = message.data_overlay.groups.add(fragment_id=number)
        new_values = group.overlays.add(shared_offset_bitmap=BitMap(rows).serialize())
        new_values.data_file.CopyFrom(file("overlay.lance", field).message)
    return decode_operation(message.SerializeToString())


def progress(generation: int, shard: bytes = SHARD) -> UpdateMemWalState:
    return UpdateMemWalState((Progress(shard, generation),))


APPEND, MERGE, PROJECT = Append((fragment(0, "more.lance"),)), Merge((), SCHEMA, True), Project(SCHEMA, True)
SLICE = replace(update(0), replaced_slice=SourceOfSlice())
REPLACES = create(index(number=6), removed=(index(),))
TRIM = create(index(FRAGMENT_REUSE, (), number=30), removed=(index(FRAGMENT_REUSE, (), number=31),))
BAD_TRIM = create(index(FRAGMENT_REUSE, (), number=30))
PLAIN: dict[str, Operation] = {
    "Append": APPEND,
    "Delete": delete(0),
    "Update": update(0),
    "Overwrite": overwrite(),
    "CreateIndex": create(),
    "Rewrite": rewrite(0),
    "Merge": MERGE,
    "Project": PROJECT,
    "Restore": Restore(Version(1)),
    "ReserveFragments": ReserveFragments(1),
    "UpdateConfig": config(a="1"),
    "DataReplacement": replacement(0),
    "UpdateMemWalState": progress(3),
    "UpdateBases": bases("/x"),
    "Clone": Clone(True, None, Version(1), "/x", None),
    "DataOverlay": overlay(0),
    "AppendFragmentReuseTransitions": decode_operation(b"\xa2\x07\x00"),
    "unknown": decode_operation(b"\xc2\x3e\x00"),
}
# The columns are the operation types in the same order: a plain change of each, on one fragment, one column, one key.
EXPECTED = """
Append                         CCCXCCCCXCCCXCCCRR
Delete                         CBBXCRRCXCCRXCCCRR
Update                         CBBXCRRCXCCRCCCRRR
Overwrite                      CCCRCCCCCCCCXCCCRR
CreateIndex                    CCCXRRCCXCCRXCCCRR
Rewrite                        CRRXRRRCXCCRCCCRRR
Merge                          RRRXCRRXXCCRXCCRRR
Project                        CCCXCCRRXCCCXCCCRR
Restore                        CCCCCCCCCCCCXCCCRR
ReserveFragments               CCCXCCCCXCCCCCCCRR
UpdateConfig                   CCCCCCCCCCXCCCCCRR
DataReplacement                CCRXRRRCXCCRXCCCRR
UpdateMemWalState              XXCXCCXXXCXXXCXXRR
UpdateBases                    CCCCCCCCCCCCCXCCRR
Clone                          CCCCCCCCCCCCCCCCRR
DataOverlay                    RRRRRRRRRRRRRRRRRR
AppendFragmentReuseTransitions RRRRRRRRRRRRRRRRRR
unknown                        RRRRRRRRRRRRRRRRRR
"""
GRID = {
    f"{row}-{column}": LETTERS[letter]
    for row, letters in (line.split() for line in EXPECTED.split("\n") if line)
    for column, letter in zip(PLAIN, letters, strict=True)
}
# ours, theirs, verdict, rule
CASES: dict[str, tuple[Operation, Operation, str, str]] = {
    "Append-Merge that makes mandatory": (APPEND, Merge((), SCHEMA, False), "R", "mandatory_columns"),
    "Append-Project that makes mandatory": (APPEND, Project(SCHEMA, False), "R", "mandatory_columns"),
    "Project that makes mandatory-Append": (Project(SCHEMA, False), APPEND, "R", "mandatory_columns"),
    "Project that makes mandatory-Update": (Project(SCHEMA, False), update(0), "R", "mandatory_columns"),
    "Project that makes mandatory-DataReplacement": (Project(SCHEMA, False), replacement(0), "R", "mandatory_columns"),
    "Update-Project that makes mandatory": (update(0), Project(SCHEMA, False), "R", "columns_written"),
    "Update in place-Project drops its column": (update_in_place(0), Project(WITHOUT_B, True), "R", "columns_written"),
    "Update in place-Project drops another": (update_in_place(0, field=0), Project(WITHOUT_B, True), "C", ""),
    "Delete-Delete other fragments": (delete(0), delete(1), "C", ""),
    "Delete-Delete written by hand": (delete(0, raw=True), delete(0), "R", "same_rows"),
    "Delete-Delete read from history": (delete(0), delete(0, raw=True), "B", "same_rows"),
    "Delete-Delete all of it": (delete(0), delete(removed=(0,)), "R", "same_rows"),
    "Delete all of it-Delete": (delete(removed=(0,)), delete(0), "R", "same_rows"),
    "Delete all of it-Delete all of another": (delete(removed=(0,)), delete(removed=(1,)), "C", ""),
    "Delete-Update in place": (delete(0), update_in_place(0), "R", "same_rows"),
    "Delete-Delete with other files": (delete(0), Delete((fragment(0, "other.lance", deleted=1),), (), "true",
        affecting(0)), "R", "same_rows"),
    "Update in place-Delete": (update_in_place(0), delete(0), "B", "same_rows"),
    "Update in place-Update that moves": (update_in_place(0), update(0), "B", "same_rows_or_new_keys"),
    "Update-Update in place": (update(0), update_in_place(0), "R", "same_rows_or_new_keys"),
    "Update in place-Update in place": (update_in_place(0, field=0), update_in_place(0), "R", "same_rows_or_new_keys"),
    "Update-Update other fragments": (update(0), update(1), "C", ""),
    "Delete-Rewrite other fragments": (delete(0), rewrite(1), "C", ""),
    "Delete-DataReplacement other fragments": (delete(0), replacement(1), "C", ""),
    "Update with keys-Append": (update(0, keys=keys(1)), APPEND, "R", "new_keys"),
    "Update with keys-Update without": (update(0, keys=keys(1)), update(1), "R", "same_rows_or_new_keys"),
    "Update without keys-Update with": (update(0), update(1, keys=keys(1)), "C", ""),
    "Update with keys-Update with others": (update(0, keys=keys(1)), update(1, keys=keys(2)), "C", ""),
    "Update with keys-Update with the same": (update(0, keys=keys(1)), update(1, keys=keys(2, 1)), "R",
        "same_rows_or_new_keys"),
    "Update with keys-Update with keys of another column": (update(0, keys=keys(1)), update(1, keys=keys(2, field=1)),
        "R", "same_rows_or_new_keys"),
    "Update that removes the rest-Update with others": (
        replace(update(0, keys=keys(1)), deletes_unmatched=True), update(1, keys=keys(2)),
        "R", "same_rows_or_new_keys"),
    "Update that removes the rest-Update": (replace(update(0), deletes_unmatched=True), update(1), "C", ""),
    "Update with keys-Append that was looked through": (
        update(0, keys=keys(1)), replace(APPEND, overlaps=False), "C", ""),
    "Update with keys-Append that has one": (
        update(0, keys=keys(1)), replace(APPEND, overlaps=True), "R", "new_keys"),
    "Update with no new key-Append": (update(0, keys=keys()), APPEND, "R", "new_keys"),
    "Update of a slice-Append": (SLICE, APPEND, "R", "new_keys"),
    "Update of a slice-Append elsewhere": (SLICE, replace(APPEND, overlaps=False), "C", ""),
    "Update of a slice-Append into it": (SLICE, replace(APPEND, overlaps=True), "R", "new_keys"),
    "Update of a slice-Update": (SLICE, update(1), "R", "same_rows_or_new_keys"),
    "Update of a slice-Update elsewhere": (SLICE, replace(update(1), overlaps=False), "C", ""),
    "Update of a slice-Update with keys": (SLICE, update(1, keys=keys(1)), "R", "same_rows_or_new_keys"),
    "Update of a slice-Update of its rows": (SLICE, replace(update(0), overlaps=False), "B", "same_rows_or_new_keys"),
    "Update of a slice-DataReplacement other fragments": (SLICE, replacement(1), "R", "same_fragments_or_slice"),
    "Update-DataOverlay of other rows": (update(0), overlay(0, rows=(1, 2)), "C", ""),
    "Update-DataOverlay of other fragments": (update(0), overlay(1), "C", ""),
    "Update of unknown rows-DataOverlay": (replace(update(0), affected=None), overlay(0, rows=(1,)), "R",
        "overlaid_rows"),
    "Update that removes a fragment-DataOverlay": (update(removed=(0,)), overlay(0, rows=(1,)), "R", "overlaid_rows"),
    "Update in place-DataOverlay of its column": (update_in_place(0), overlay(0, rows=(1,)), "R", "overlaid_rows"),
    "Update in place-DataOverlay of another column": (update_in_place(0), overlay(0, field=0), "C", ""),
    "Update of a slice-DataOverlay elsewhere": (SLICE, overlay(1), "R", "overlaid_rows"),
    "Rewrite-DataOverlay of other fragments": (rewrite(0), overlay(1), "C", ""),
    "Project that makes mandatory-DataOverlay": (Project(SCHEMA, False), overlay(0), "R", "mandatory_columns"),
    "Update-DataReplacement other fragments": (update(0), replacement(1), "C", ""),
    "Overwrite-Overwrite other key": (overwrite({"a": "1"}), overwrite({"b": "1"}), "R", "both_replace"),
    "Overwrite-Overwrite same key": (overwrite({"a": "1"}), overwrite({"a": "1"}), "X", "both_replace"),
    "Overwrite-UpdateConfig same key": (overwrite({"a": "1"}), config(a=None), "X", "same_config_keys"),
    "Overwrite-UpdateConfig other key": (overwrite({"a": "1"}), config(b="1"), "C", ""),
    "UpdateConfig-Overwrite same key": (config(a=None), overwrite({"a": "1"}), "X", "settings_of_what_went"),
    "UpdateConfig of columns-Overwrite": (field_metadata(0), overwrite(), "X", "settings_of_what_went"),
    "UpdateConfig of the schema-Overwrite": (schema_metadata(a="1"), overwrite(), "X", "settings_of_what_went"),
    "UpdateConfig-UpdateConfig other key": (config(a="1"), config(b="1"), "C", ""),
    "UpdateConfig-UpdateConfig set and deleted": (config(a="1"), config(a=None), "X", "same_settings"),
    "UpdateConfig-UpdateConfig both deleted": (config(a=None), config(a=None), "C", ""),
    "UpdateConfig-UpdateConfig table": (table_metadata(a="1"), table_metadata(b="1"), "C", ""),
    "UpdateConfig-UpdateConfig table same": (table_metadata(a="1"), table_metadata(a="2"), "X", "same_settings"),
    "UpdateConfig-UpdateConfig table deleted": (table_metadata(a=None), table_metadata(a=None), "X", "same_settings"),
    "UpdateConfig-UpdateConfig of the schema": (schema_metadata(a="1"), schema_metadata(b="1"), "X", "same_settings"),
    "UpdateConfig-UpdateConfig same field": (field_metadata(0), field_metadata(0), "X", "same_settings"),
    "UpdateConfig-UpdateConfig other field": (field_metadata(0), field_metadata(1), "C", ""),
    "UpdateConfig-UpdateConfig other maps": (config(a="1"), table_metadata(a="1"), "C", ""),
    "Merge-UpdateConfig of a field": (MERGE, field_metadata(0), "R", "metadata_of_columns"),
    "Merge-UpdateConfig of the schema": (MERGE, schema_metadata(a="1"), "R", "metadata_of_columns"),
    "UpdateConfig of a field-Merge": (field_metadata(0), MERGE, "R", "metadata_of_columns"),
    "Project-UpdateConfig of a field": (PROJECT, field_metadata(0), "R", "metadata_of_kept_columns"),
    "Project-UpdateConfig of the schema": (PROJECT, schema_metadata(a="1"), "C", ""),
    "UpdateConfig of a field-Project": (field_metadata(0), PROJECT, "C", ""),
    "Restore-UpdateConfig of a field": (Restore(Version(1)), field_metadata(0), "X", "metadata_of_restored_columns"),
    "UpdateConfig of the schema-Restore": (schema_metadata(a="1"), Restore(Version(1)), "X",
        "metadata_of_restored_columns"),
    "CreateIndex-CreateIndex other names": (create(index("j", number=6)), create(), "C", ""),
    "CreateIndex-CreateIndex a segment and its removal": (create(index("i", number=6)), create(removed=(index(),)), "R",
        "same_index"),
    "CreateIndex removes-CreateIndex a segment": (create(removed=(index(),)), create(index(number=6)), "R",
        "same_index"),
    "CreateIndex-CreateIndex both replace": (create(index(number=7), removed=(index(),)), REPLACES, "R", "same_index"),
    "CreateIndex-CreateIndex removed and replaced": (create(removed=(index(),)), REPLACES, "R", "same_index"),
    "CreateIndex-CreateIndex both remove": (create(removed=(index(),)), create(removed=(index(),)), "C", ""),
    "CreateIndex-CreateIndex both note reuse": (TRIM, TRIM, "R", "same_index"),
    "CreateIndex-CreateIndex both set up a log": (create(log()), create(log(number=10)), "R", "same_index"),
    "CreateIndex-Update in place under it": (create(), update_in_place(0), "B", "values_under_an_index"),
    "CreateIndex-Update in place elsewhere": (create(), update_in_place(0, field=0), "C", ""),
    "CreateIndex-Rewrite other fragments": (create(), rewrite(2), "C", ""),
    "CreateIndex-Rewrite of unknown coverage": (create(index(covers=None)), rewrite(2), "R",
        "indexed_rows_moved"),
    "CreateIndex-Rewrite that notes": (create(), rewrite(0, reuse=True), "C", ""),
    "CreateIndex NGram-Rewrite that notes": (create(index(kind="NGram")), rewrite(0, reuse=True), "R",
        "indexed_rows_moved"),
    "CreateIndex trims-Rewrite that notes": (TRIM, rewrite(0, reuse=True), "R", "indexed_rows_moved"),
    "CreateIndex trims badly-Rewrite that notes": (BAD_TRIM, rewrite(0, reuse=True), "X", "indexed_rows_moved"),
    "CreateIndex removes-Rewrite": (create(removed=(index(),)), rewrite(0), "C", ""),
    "CreateIndex-Project drops its column": (create(), Project(WITHOUT_B, True), "R", "columns_of_an_index"),
    "CreateIndex-Merge drops its column": (create(), Merge((), WITHOUT_B, True), "R", "columns_of_an_index"),
    "CreateIndex sets up a log-Merge": (create(log()), MERGE, "R", "columns_of_an_index"),
    "CreateIndex sets up a log-UpdateMemWalState": (create(log()), progress(3), "R", "log_set_up"),
    "Merge-CreateIndex sets up a log": (MERGE, create(log()), "R", "columns_of_an_index"),
    "CreateIndex-DataReplacement elsewhere": (create(), replacement(0, field=0), "C", ""),
    "DataReplacement-CreateIndex elsewhere": (replacement(0, field=0), create(), "C", ""),
    "Rewrite-CreateIndex other fragments": (rewrite(2), create(), "C", ""),
    "Rewrite-CreateIndex of unknown coverage": (rewrite(2), create(index(covers=None)), "R",
        "rows_under_new_index"),
    "Rewrite-CreateIndex trims": (rewrite(0), TRIM, "C", ""),
    "Rewrite-CreateIndex trims badly": (rewrite(0), BAD_TRIM, "X", "rows_under_new_index"),
    "Rewrite that notes-CreateIndex": (rewrite(0, 1, reuse=True), create(), "C", ""),
    "Rewrite that notes-CreateIndex half covered": (rewrite(1, 2, reuse=True), create(), "R", "rows_under_new_index"),
    "Rewrite that notes-CreateIndex trims": (rewrite(0, reuse=True), TRIM, "R", "rows_under_new_index"),
    "Rewrite that notes-CreateIndex trims badly": (rewrite(0, reuse=True), BAD_TRIM, "X", "rows_under_new_index"),
    "Rewrite-Rewrite other fragments": (rewrite(0), rewrite(1), "C", ""),
    "Rewrite-Rewrite both note": (rewrite(0, reuse=True), rewrite(1, reuse=True), "R", "both_compact"),
    "Rewrite-Rewrite one notes": (rewrite(0, reuse=True), rewrite(1), "C", ""),
    "Rewrite-Delete other fragments": (rewrite(0), delete(1), "C", ""),
    "Rewrite-Update other fragments": (rewrite(0), update(1), "C", ""),
    "DataReplacement-Delete all of it": (replacement(0), delete(removed=(0,)), "X", "target_removed"),
    "DataReplacement-Update all of it": (replacement(0), update(removed=(0,)), "X", "target_changed"),
    "DataReplacement-Update in place": (replacement(0), update_in_place(0), "R", "target_changed"),
    "DataReplacement-Update in place elsewhere": (replacement(0), update_in_place(0, field=0), "C", ""),
    "DataReplacement-Update other fragments": (replacement(0), update(1), "C", ""),
    "DataReplacement-Project drops its column": (replacement(0), Project(WITHOUT_B, True), "X",
        "target_columns_dropped"),
    "DataReplacement-Project drops another": (replacement(0, field=0), Project(WITHOUT_B, True), "C", ""),
    "DataReplacement-Project that makes mandatory": (replacement(0), Project(SCHEMA, False), "R",
        "target_columns_dropped"),
    "DataReplacement-DataReplacement other column": (replacement(0), replacement(0, field=0), "C", ""),
    "DataReplacement-DataReplacement other fragment": (replacement(0), replacement(1), "C", ""),
    "UpdateMemWalState-UpdateMemWalState earlier": (progress(3), progress(2), "R", "same_shard"),
    "UpdateMemWalState-UpdateMemWalState later": (progress(3), progress(4), "X", "same_shard"),
    "UpdateMemWalState-UpdateMemWalState other shard": (progress(3), progress(4, OTHER_SHARD), "C", ""),
    "UpdateMemWalState-Update from a log": (progress(3), Update(progress=(Progress(SHARD, 3),)), "X", "same_shard"),
    "Update from a log-UpdateMemWalState": (Update(progress=(Progress(SHARD, 3),)), progress(2), "R", "same_shard"),
    "UpdateMemWalState-CreateIndex sets it up": (progress(3), create(log()), "R", "progress_of_new_log"),
    "UpdateMemWalState-CreateIndex further on": (progress(3), create(log(Progress(SHARD, 4))), "X",
        "progress_of_new_log"),
    "UpdateBases-UpdateBases other": (bases("/x"), bases("/y"), "C", ""),
    "UpdateBases-UpdateBases same number": (bases("/x", 3), bases("/y", 3), "X", "same_place"),
    "UpdateBases-UpdateBases same name": (bases("/x", name="n"), bases("/y", name="n"), "X", "same_place"),
}  # fmt: skip


def committed(version: int, operation: Operation | None) -> CommittedTransaction:
    transaction = None if operation is None else Transaction(Version(version - 1), f"theirs-{version}", operation)
    return CommittedTransaction(Version(version), transaction)


def transaction_of(operation: Operation) -> Transaction:
    return Transaction(Version(1), "ours", operation)


@pytest.mark.parametrize("name", GRID)
def test_plain_changes(name: str) -> None:
    our_operation, theirs = name.split("-")
    assert judge(transaction_of(PLAIN[our_operation]), [committed(2, PLAIN[theirs])]).verdict is GRID[name]


@pytest.mark.parametrize("name", CASES)
def test_changes_with_content(name: str) -> None:
    our_operation, theirs, letter, rule = CASES[name]
    finding = judge(transaction_of(our_operation), [committed(2, theirs)])
    assert (finding.verdict, finding.blocks) == (LETTERS[letter], letter in "RX")
    if letter != "C":
        assert finding.rule == rule
        assert finding.theirs is not None
        assert finding.theirs.version == 2


def test_every_pair_has_a_rule() -> None:
    assert [kind.name for kind in OPERATION_TYPES] == list(PLAIN)
    for kind in OPERATION_TYPES:
        assert set(RULES[kind]) == set(OPERATION_TYPES), kind


def test_every_rule_is_documented_and_has_both_outcomes() -> None:
    """A rule that depends on the content has a case with a conflict and one without."""
    verdicts_by_rule: dict[str, set[Verdict]] = {}
    pairs = [(PLAIN[our_operation], PLAIN[theirs]) for our_operation in PLAIN for theirs in PLAIN]
    pairs += [(our_operation, theirs) for our_operation, theirs, _letter, _rule in CASES.values()]
    for our_operation, theirs in pairs:
        rule = RULES[type(our_operation)][type(theirs)]
        assert rule.__doc__
        verdicts_by_rule.setdefault(rule.__name__, set()).add(rule(our_operation, theirs))
    constant_rules = {"compatible", "incompatible", "plan_again", "unknown_change"}
    assert {name for name, verdicts in verdicts_by_rule.items() if len(verdicts) == 1} == constant_rules


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x07\x06\x0a\x04\x0a\x02\x0a\x00",  # written in 2025: the shard is not a uuid
        b"\x82\x07\x02\x12\x00",
        b"",
    ],
)
def test_an_unknown_operation_conflicts_with_everything(data: bytes) -> None:
    theirs = decode_operation(data)
    for our_operation in PLAIN.values():
        finding = judge(transaction_of(our_operation), [committed(2, theirs)])
        assert (finding.verdict, finding.rule) == (Verdict.RETRY, "unknown_change")


def test_an_unrecorded_change_conflicts_with_everything() -> None:
    """It also conflicts with operations that no other change conflicts with."""
    for our_operation in PLAIN.values():
        finding = judge(transaction_of(our_operation), [committed(2, None)])
        assert (finding.verdict, finding.rule) == (Verdict.RETRY, "unknown_change")
        assert finding.theirs is not None
        assert finding.theirs.operation == "unrecorded change"


def test_the_first_of_the_worst_conflicts_is_reported() -> None:
    history = [
        committed(2, APPEND),
        committed(3, None),
        committed(4, overwrite()),
        committed(5, overwrite()),
        committed(6, APPEND),
    ]
    finding = judge(transaction_of(APPEND), history)
    assert finding.theirs is not None
    assert (finding.verdict, finding.theirs.version) == (Verdict.INCOMPATIBLE, 4)


def test_an_empty_history_is_compatible() -> None:
    finding = judge(transaction_of(APPEND), [])
    assert (finding.verdict, finding.theirs, finding.blocks) == (Verdict.COMPATIBLE, None, False)


@pytest.mark.parametrize(
    "our_operation", [APPEND, create(), field_metadata(1)], ids=lambda our_operation: our_operation.name
)
def test_a_reassigned_field_id_is_a_conflict(our_operation: Operation) -> None:
    """Two consecutive changes reassign the id; neither alone is a conflict."""
    drop, add = Project(WITHOUT_B, True), Merge((), SCHEMA, True)
    finding = judge(transaction_of(our_operation), [committed(2, drop), committed(3, add)])
    assert finding.verdict is Verdict.RETRY
    assert finding.rule == "reused_field" or isinstance(our_operation, CreateIndex | UpdateConfig)
    assert judge(transaction_of(APPEND), [committed(2, drop)]).verdict is Verdict.COMPATIBLE
    assert judge(transaction_of(APPEND), [committed(2, add), committed(3, add)]).verdict is Verdict.COMPATIBLE


def test_verdicts_are_ordered() -> None:
    assert sorted(Verdict) == [Verdict.COMPATIBLE, Verdict.REBASE, Verdict.RETRY, Verdict.INCOMPATIBLE]


def test_the_printed_table_is_current() -> None:
    assert CURRENT.read_text(encoding="utf-8") == grid(), (
        f"regenerate it: python -m tools.conflicts > lance_core/transactions/{CURRENT.name}"
    )
