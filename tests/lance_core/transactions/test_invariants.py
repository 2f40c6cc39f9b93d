"""What must hold between two versions: each rule is broken once."""

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


def framed(message: Message) -> Manifest:
    return Manifest.from_header(message, index_section=None, transaction=None, path="m")


def changed(change: Callable[[Message], None]) -> None:
    """Version 2 with fragment 1 behind fragment 0, after something was done to it."""
    message = manifest(2, ids=(0, 1))
    change(message)
    after = framed(message)
    check(framed(manifest(1, ids=(0,))), after, added=after.fragments[1:])


def test_a_good_version_passes() -> None:
    changed(lambda message: None)
    check(None, framed(manifest(1)), added=())


def _version(message: Message) -> None:
    message.version = 3


def _fragment_counter(message: Message) -> None:
    message.max_fragment_id = 0


def _row_counter(message: Message) -> None:
    message.next_row_id = 9


def _same_id(message: Message) -> None:
    message.fragments[1].id = 0


def _not_the_last(message: Message) -> None:
    message.max_fragment_id = 7


def _no_row_ids(message: Message) -> None:
    message.reader_feature_flags = 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_version, "the next version would be 3, expected 2"),
        (_fragment_counter, "max_fragment_id is 0, but the last fragment is 1"),
        (_row_counter, "next_row_id decreased from 10 to 9"),
        (_same_id, "fragment id 0 is not above 0"),
        (_not_the_last, "max_fragment_id is 7, but the last fragment is 1"),
        (_no_row_ids, "fragment 1 has no row ids"),
    ],
)
def test_our_own_mistakes_are_violations(change: Callable[[Message], None], message: str) -> None:
    with pytest.raises(InvariantViolation, match=message):
        changed(change)


def test_counters_never_go_back_without_fragments_either() -> None:
    with pytest.raises(InvariantViolation, match="max_fragment_id decreased from 4 to -1"):
        check(framed(manifest(1, ids=(4,))), framed(manifest(2)), added=())


def test_a_table_begins_at_version_1() -> None:
    with pytest.raises(InvariantViolation, match="the next version would be 2, expected 1"):
        check(None, framed(manifest(2)), added=())


def _no_rows(message: Message) -> None:
    message.fragments[1].physical_rows = 0


def _no_files(message: Message) -> None:
    message.fragments[1].ClearField("files")


def _no_fields(message: Message) -> None:
    message.fragments[1].files[0].fields[:] = [-2]


def _oldest_format(message: Message) -> None:
    message.fragments[1].files[0].file_major_version = 0


def _half_a_layout(message: Message) -> None:
    message.fragments[1].files[0].column_indices[:] = []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_no_rows, InvalidInput, "fragment 1 has no rows"),
        (_no_files, InvalidInput, "fragment 1 has no data files"),
        (_no_fields, InvalidInput, r"data file 1\.lance stores no live field"),
        (_oldest_format, InvalidInput, r"data file 1\.lance has storage version 0\.1, the table has 2\.2"),
        (_half_a_layout, Corrupt, "lists 1 fields but 0 columns"),
    ],
)
def test_a_fragment_that_is_not_whole_is_refused(
    change: Callable[[Message], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        changed(change)
