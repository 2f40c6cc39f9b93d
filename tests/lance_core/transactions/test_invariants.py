"""Invariants between two consecutive versions: each rule is violated once."""

from collections.abc import Callable

import pytest

from lance_core import Corrupt, InvalidInput
from lance_core.format._pb import table_pb2
from lance_core.format.fragment import DataFile, Fragment, StorageVersion
from lance_core.format.manifest import Manifest
from lance_core.transactions.invariants import InvariantViolation, check

Message = table_pb2.Manifest


def manifest(version: int, *, ids: tuple[int, ...] = (), stable: bool = False) -> Message:
    message = Message(version=version, next_row_id=10)
    message.data_format.version = "2.2"
    if stable:
        message.reader_feature_flags = 2
    for id in ids:
        file = DataFile.of(path=f"{id}.lance", field_ids=[0], column_indices=[0], version=StorageVersion(2, 2), size=1)
        part = Fragment.of(files=[file], physical_rows=1)
        part.message.id = id
        message.fragments.append(part.message)
        message.max_fragment_id = id
    return message


def as_manifest(message: Message) -> Manifest:
    return Manifest.from_header(message, index_section=None, transaction=None, path="m")


def check_changed_version(change: Callable[[Message], None]) -> None:
    """Check a version 2 that adds fragment 1 to fragment 0, after `change` was applied to its message."""
    message = manifest(2, ids=(0, 1))
    change(message)
    after = as_manifest(message)
    check(as_manifest(manifest(1, ids=(0,))), after, added=after.fragments[1:])


def test_a_valid_version_passes() -> None:
    check_changed_version(lambda message: None)
    check(None, as_manifest(manifest(1)), added=())


def _skip_a_version(message: Message) -> None:
    message.version = 3


def _decrease_fragment_counter(message: Message) -> None:
    message.max_fragment_id = 0


def _decrease_row_counter(message: Message) -> None:
    message.next_row_id = 9


def _repeat_fragment_id(message: Message) -> None:
    message.fragments[1].id = 0


def _raise_fragment_counter(message: Message) -> None:
    message.max_fragment_id = 7


def _require_row_ids(message: Message) -> None:
    message.reader_feature_flags = 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_skip_a_version, "the next version would be 3, expected 2"),
        (_decrease_fragment_counter, "max_fragment_id is 0, but the last fragment is 1"),
        (_decrease_row_counter, "next_row_id decreased from 10 to 9"),
        (_repeat_fragment_id, "fragment id 0 is not above 0"),
        (_raise_fragment_counter, "max_fragment_id is 7, but the last fragment is 1"),
        (_require_row_ids, "fragment 1 has no row ids"),
    ],
)
def test_violations_are_reported(change: Callable[[Message], None], message: str) -> None:
    with pytest.raises(InvariantViolation, match=message):
        check_changed_version(change)


def test_counters_never_decrease_without_fragments() -> None:
    with pytest.raises(InvariantViolation, match="max_fragment_id decreased from 4 to -1"):
        check(as_manifest(manifest(1, ids=(4,))), as_manifest(manifest(2)), added=())


def test_a_table_begins_at_version_1() -> None:
    with pytest.raises(InvariantViolation, match="the next version would be 2, expected 1"):
        check(None, as_manifest(manifest(2)), added=())


def _remove_rows(message: Message) -> None:
    message.fragments[1].physical_rows = 0


def _remove_files(message: Message) -> None:
    message.fragments[1].ClearField("files")


def _remove_fields(message: Message) -> None:
    message.fragments[1].files[0].fields[:] = [-2]


def _set_oldest_format(message: Message) -> None:
    message.fragments[1].files[0].file_major_version = 0


def _remove_column_indices(message: Message) -> None:
    message.fragments[1].files[0].column_indices[:] = []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_remove_rows, InvalidInput, "fragment 1 has no rows"),
        (_remove_files, InvalidInput, "fragment 1 has no data files"),
        (_remove_fields, InvalidInput, r"data file 1\.lance stores no live field"),
        (_set_oldest_format, InvalidInput, r"data file 1\.lance has storage version 0\.1, the table has 2\.2"),
        (_remove_column_indices, Corrupt, "lists 1 fields but 0 columns"),
    ],
)
def test_an_incomplete_fragment_is_rejected(
    change: Callable[[Message], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_changed_version(change)
