"""Planted defects of group commit; see `planted_defects.py`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from lance_core.commit import group_commit, intent_history, loop
from lance_core.commit.data_files import write_shared_file
from lance_core.commit.group_commit import PendingAppend
from lance_core.commit.loop import CommitResult
from lance_core.datafiles.fragment_writer import BufferedRows, RollingWriter
from lance_core.format.fragment import Fragment
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction
from lance_core.versions.location import Location
from tests.histories.defect_patch import DefectPatch


def _skip_search_for_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "parts_of", lambda transaction: ())


def _take_whole_for_part(patch: pytest.MonkeyPatch) -> None:
    """A part that is found later is taken for the transaction that holds it, or is not found."""

    def part_with_uuid(transaction: Transaction, uuid: str) -> Transaction | None:
        return transaction if transaction.uuid == uuid else None

    for module in (loop, intent_history):
        patch.setattr(module, "part_with_uuid", part_with_uuid)


def _omit_one_fragment(patch: pytest.MonkeyPatch) -> None:
    """A combined transaction lacks its first fragment."""
    original = group_commit._commit

    def commit(append: PendingAppend, transaction: Transaction, unsynced: list[str] | None) -> CommitResult:
        assert isinstance(transaction.operation, Append)
        if len(transaction.operation.fragments) > 1:
            transaction = replace(transaction, operation=Append(transaction.operation.fragments[1:]))
        return original(append, transaction, unsynced)

    patch.setattr(group_commit, "_commit", commit)


def _omit_last_rows(patch: pytest.MonkeyPatch) -> None:
    """A shared file lacks the rows of its last append."""

    def write_without_last_rows(
        location: Location,
        first: BufferedRows,
        others: Iterable[BufferedRows],
        new_uuid: Callable[[], UUID],
        unsynced: list[str] | None,
    ) -> tuple[Fragment, ...]:
        appends = [first, *others]
        writer = RollingWriter(location.codec, first.version, first.limits, new_uuid, unsynced)
        for rows in appends[:-1] or appends:
            writer.write_all(rows)
        (fragment,) = writer.finish()
        return (Fragment.of(files=fragment.files, physical_rows=sum(rows.rows for rows in appends)),)

    patch.setattr(group_commit, "write_shared_file", write_without_last_rows)


def _keep_shared_file_alone(patch: pytest.MonkeyPatch) -> None:
    """Let each append of a group that falls apart commit the whole shared file."""
    shared_files: list[tuple[Fragment, ...]] = []

    def write_and_remember(
        location: Location,
        first: BufferedRows,
        others: Iterable[BufferedRows],
        new_uuid: Callable[[], UUID],
        unsynced: list[str] | None,
    ) -> tuple[Fragment, ...]:
        shared_files.append(write_shared_file(location, first, others, new_uuid, unsynced))
        return shared_files[-1]

    def commit_alone(append: PendingAppend) -> CommitResult:
        fragments = shared_files[-1] if shared_files else ()
        return group_commit._commit(append, group_commit._with_files(append, fragments), None)

    patch.setattr(group_commit, "write_shared_file", write_and_remember)
    patch.setattr(group_commit, "commit_alone", commit_alone)


GROUP_COMMIT_DEFECTS: Mapping[str, DefectPatch] = {
    "parts not searched for": _skip_search_for_parts,
    "whole taken for its part": _take_whole_for_part,
    "fragment omitted from a group": _omit_one_fragment,
    "last rows omitted from a shared file": _omit_last_rows,
    "shared file kept by a single append": _keep_shared_file_alone,
}
