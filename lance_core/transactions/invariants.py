"""Invariants: checks the conditions on any two consecutive versions, and on every fragment that a change adds.

The commit loop checks them before each put, in production too. `InvariantViolation` is a bug of this library and must
not reach the table. `InvalidInput` names a fragment or a schema of the caller that does not fit the table: it would
fail to read, or be read twice. The existence of files is checked before a commit begins. This module does no I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from lance_core.errors import Corrupt, InvalidInput, Unsupported
from lance_core.format.fragment import DataFile, Fragment
from lance_core.format.fragment_records import FragmentRecords
from lance_core.format.ids import Version
from lance_core.format.manifest import Manifest
from lance_core.format.schema import TableSchema
from lance_core.validation import STABLE_ROW_IDS_ADVICE

_SEARCHES_MAX = 32
"""Up to this number of files, searching the manifest's bytes for each name is cheaper than parsing all names in it."""
_FileKey: TypeAlias = tuple[str, int | None]
_Layout: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...], int, int], ...]


class InvariantViolation(AssertionError):
    """A change would have damaged the table. Nothing was written. Please report it."""


def check(
    before: Manifest | None, after: Manifest, *, added: Sequence[Fragment], number: Version | None = None
) -> None:
    """Check all invariants. `number` is the expected version if it is not the one after `before`: that of a clone or
    a detached version."""
    _check_version_number(before, after, number)
    _check_counters(before, after)
    _check_new_ids(before, after, added)
    checked: set[_Layout] = set()
    for fragment in added:
        _check_fragment(fragment, after)
        layout = _layout_of(fragment)
        if layout not in checked:  # thousands of fragments share one layout
            _check_layout(fragment, after)
            checked.add(layout)


def _check_version_number(before: Manifest | None, after: Manifest, number: Version | None) -> None:
    expected = number or (1 if before is None else before.version + 1)
    if after.version != expected:
        raise InvariantViolation(f"the next version would be {after.version}, expected {expected}")


def _check_counters(before: Manifest | None, after: Manifest) -> None:
    if before is None:
        return
    if after.max_fragment_id < before.max_fragment_id:
        raise InvariantViolation(f"max_fragment_id decreased from {before.max_fragment_id} to {after.max_fragment_id}")
    if after.next_row_id < before.next_row_id:
        raise InvariantViolation(f"next_row_id decreased from {before.next_row_id} to {after.next_row_id}")


def _check_new_ids(before: Manifest | None, after: Manifest, added: Sequence[Fragment]) -> None:
    """Check the ids of added fragments. Each id is above all assigned ids, or was reserved before and belongs to no
    fragment."""
    assigned_max = -1 if before is None else before.max_fragment_id
    last = assigned_max
    taken = set[int]()
    existing: FragmentRecords | None = None
    for fragment in added:
        if fragment.id > last:
            last = fragment.id
            continue
        if existing is None and before is not None:
            existing = before.fragment_records()
        is_taken = fragment.id in taken or (existing is not None and existing.position_of(fragment.id) is not None)
        if fragment.id > assigned_max or is_taken:
            raise InvariantViolation(f"fragment id {fragment.id} is not above {last}: ids ascend and are never reused")
        taken.add(fragment.id)
    if added and after.max_fragment_id != last:
        raise InvariantViolation(f"max_fragment_id is {after.max_fragment_id}, but the last fragment is {last}")


def _check_fragment(fragment: Fragment, after: Manifest) -> None:
    fragment.check_limits(path=after.path)
    if fragment.physical_rows < 1:
        raise InvalidInput(f"fragment {fragment.id} has no rows; omit it")
    if after.has_stable_row_ids and fragment.message.WhichOneof("row_id_sequence") is None:
        raise InvariantViolation(f"fragment {fragment.id} has no row ids, but the table has stable row ids")


def _layout_of(fragment: Fragment) -> _Layout:
    """Return everything that `_check_layout` depends on."""
    return tuple(
        (tuple(file.fields), tuple(file.column_indices), file.file_major_version, file.file_minor_version)
        for file in fragment.message.files
    )


def _check_layout(fragment: Fragment, after: Manifest) -> None:
    fragment.check(path=after.path)
    files = fragment.files
    if not files:
        raise InvalidInput(f"fragment {fragment.id} has no data files")
    for file in files:
        if not any(field_id >= 0 for field_id in file.message.fields):
            raise InvalidInput(f"data file {file.path} stores no live field")
        if file.version.is_legacy != after.storage_version.is_legacy:
            raise InvalidInput(
                f"data file {file.path} has storage version {file.version}, the table has {after.storage_version}"
            )


def check_schema(schema: TableSchema) -> None:
    """Check that a schema can be read back and that its declared keys are valid."""
    schema.check_keys()
    try:
        decoded = TableSchema.decode(schema.encode(), {})
        decoded.arrow  # noqa: B018 - raises if the conversion fails
    except (Corrupt, Unsupported) as error:
        raise InvalidInput(f"this schema is not valid for a table: {error}") from error


def check_no_row_ids(fragments: Iterable[Fragment]) -> None:
    """Check fragments for a table without stable row ids. If one had row ids, the next writer would conclude that the
    table has them, and all other fragments would lack theirs."""
    for fragment in fragments:
        if fragment.message.WhichOneof("row_id_sequence") is not None:
            raise InvalidInput(f"{_describe_fragment(fragment)} has stable row ids, but {STABLE_ROW_IDS_ADVICE}")


def check_fields(fragments: Sequence[Fragment], schema: TableSchema) -> None:
    """Check that each fragment stores only fields of the table, and every column that is not nullable."""
    known = schema.field_ids
    required = {top.name: {node.id for node in top.walk()} for top in schema.fields if not top.nullable}
    checked: set[tuple[tuple[int, ...], ...]] = set()
    for fragment in fragments:
        listed = tuple(file.field_ids for file in fragment.files)
        if listed in checked:
            continue  # thousands of fragments share one layout
        checked.add(listed)
        live = {field_id for ids in listed for field_id in ids if field_id >= 0}
        if unknown := live - known:
            raise InvalidInput(
                f"{_describe_fragment(fragment)} stores field {min(unknown)}, which the table does not have; write "
                "its files with the schema of the table"
            )
        for name, ids in required.items():
            if not ids & live:
                raise InvalidInput(
                    f"{_describe_fragment(fragment)} does not store column {name!r}, which is not nullable; write it "
                    "with that column"
                )


def check_files_once(fragments: Sequence[Fragment], head: Manifest | None) -> None:
    """Check that no file is listed twice, here or in the version to which the fragments are added: its rows would be
    doubled."""
    added: set[_FileKey] = set()
    for file in _file_keys(fragments):
        if file in added:
            raise InvalidInput(f"data file {file[0]} is listed twice in one change, so its rows would exist twice")
        added.add(file)
    if head is None or not _may_reference(head, added):
        return
    if known := added.intersection(_file_keys(head.fragments)):
        raise InvalidInput(
            f"data file {min(known)[0]} is already part of version {head.version}, so its rows would exist twice; "
            "commit only newly written files"
        )


def _may_reference(head: Manifest, files: set[_FileKey]) -> bool:
    """Return false only if the manifest references none of the files. Its inline transaction may contain their names
    too, which doubles no rows."""
    if len(files) > _SEARCHES_MAX:
        return True
    data = head.encode()
    return any(path.encode() in data for path, _base in files)


def _file_keys(fragments: Sequence[Fragment]) -> Iterator[_FileKey]:
    return ((file.path, file.base_id) for fragment in fragments for file in fragment.files)


def _describe_fragment(fragment: Fragment) -> str:
    files: tuple[DataFile, ...] = fragment.files
    return f"the fragment of {files[0].path}" if files else "a fragment without files"
