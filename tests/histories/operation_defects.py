"""Planted defects of single operations: deletion, indices and branches; see `planted_defects.py`."""

from collections.abc import Mapping

import pytest

from lance_core import Committed, Table
from lance_core.format import refs
from lance_core.format.refs import Branch
from lance_core.format.transaction import Transaction
from lance_core.runtime import Runtime
from lance_core.table import branches
from lance_core.transactions import index_coverage, rebase
from lance_core.transactions.apply import Fork
from lance_core.versions.location import Location
from lance_core.versions.refs import create_reference
from lance_core.versions.snapshot import Snapshot
from tests.histories.defect_patch import DefectPatch


def _delete_by_wrong_condition(patch: pytest.MonkeyPatch) -> None:
    original = Table.delete

    def delete(table: Table, where: str) -> Committed:
        return original(table, where.replace("%", "+"))

    patch.setattr(Table, "delete", delete)


def _keep_coverage_of_new_index(patch: pytest.MonkeyPatch) -> None:
    """A new index covers fragments whose values a concurrent transaction has changed."""
    patch.setattr(rebase, "remove_coverage", lambda new, *_, **__: new)


def _keep_coverage_after_update(patch: pytest.MonkeyPatch) -> None:
    """An index still covers fragments whose values a transaction changes."""
    patch.setattr(index_coverage, "remove_coverage", lambda indices, *_, **__: indices)


def _publish_branch_too_early(patch: pytest.MonkeyPatch) -> None:
    """A branch is visible before it has a version."""
    original = branches._commit

    def publish_and_commit(target: Location, ours: Transaction, fork: Fork, runtime: Runtime) -> Snapshot:
        main = target.locate_main_branch(fork.branch)
        branch = Branch(fork.source.branch, fork.source.version, 0, 0, ())
        create_reference(main.store, refs.branch_path(fork.branch or ""), refs.encode_branch(branch))
        return original(target, ours, fork, runtime)

    patch.setattr(branches, "_commit", publish_and_commit)
    patch.setattr(branches, "create_reference", lambda store, path, data: True)


OPERATION_DEFECTS: Mapping[str, DefectPatch] = {
    "rows deleted by a wrong condition": _delete_by_wrong_condition,
    "coverage of a new index kept": _keep_coverage_of_new_index,
    "coverage kept after an update": _keep_coverage_after_update,
    "branch visible before its first version": _publish_branch_too_early,
}
