"""Conflict matrix: compares our verdicts with those of pylance. Both libraries commit the same change, planned on the
same version, after the same concurrent change. They have to agree whether it commits, can be retried or is
incompatible, and on the resulting rows if both commit it.

Our verdict may be stricter in the cases that `STRICTER` lists, never laxer. Raw commits are compared: those of pylance
never record the affected rows, so ours do not either. Operations that the Python API of pylance cannot commit or
express occur as `theirs` only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import lance

from lance_core import IncompatibleConflict, InvalidInput, RetryableConflict, Table
from lance_core.format import naming
from lance_core.format.ids import Version
from lance_core.format.operations import Operation
from lance_core.format.transaction import Transaction
from lance_core.transactions.conflicts import OPERATION_TYPES, RULES
from lance_core.transactions.rules import compatible, incompatible, plan_again
from tests.lance_core.transactions.example_operations import PLANS, create_table, operation_name, plan_all

CONSTANT = (compatible, incompatible, plan_again)
OPERATION_TYPE_BY_NAME = {kind.name: kind for kind in OPERATION_TYPES}
ORDER = "CRX"
STRICTER = {
    # An index on a dropped column would remain without meaning; the operation that builds it reports the dropped
    # column.
    ("CreateIndex on v", "Project drops v"),
    ("CreateIndex on v of 1", "Project drops v"),
    # A Project contains every column with its metadata and would undo concurrent settings.
    *((f"Project {what}", f"UpdateConfig field {column}")
      for what in ("drops v", "renames v", "makes v mandatory") for column in "vw"),
}  # fmt: skip
NOT_EXPRESSIBLE = {"Overwrite sets a", "Update inserts 100", "Update inserts 200", "Update inserts 100 and changes 0"}
"""The Python API of pylance has no parameter for their config or key filter."""
WITH_ROWS = {"Append", "CreateIndex", "DataReplacement", "Delete", "Merge", "Rewrite", "Update"}
"""Operations that behave differently with stable row ids."""
THEIRS_ONLY = {"ReserveFragments", "UpdateMemWalState", "UpdateBases"}


@dataclass
class ConflictMatrix:
    directory: Path
    base: Version
    ours: dict[str, Operation]
    theirs: dict[str, Operation]
    """The same operations with other files."""
    operations_of_pylance: dict[str, lance.LanceOperation.BaseOperation]
    stable: bool

    def remove_versions_after(self, newest: int) -> None:
        """Remove all versions after this one."""
        for path in (self.directory / naming.VERSIONS).iterdir():
            parsed = naming.parse_manifest_name(path.name)
            if parsed is None or parsed[0] > newest:
                path.unlink()

    def commit_with_this_library(self, operation: Operation) -> tuple[str, list[str]]:
        try:
            return "C", sorted_rows(
                Table.open(str(self.directory), version=self.base, durable=False).commit(operation).table
            )
        except RetryableConflict:
            return "R", []
        except (IncompatibleConflict, InvalidInput):
            return "X", []

    def commit_with_pylance(self, name: str) -> tuple[str, list[str]]:
        try:
            lance.LanceDataset.commit(str(self.directory), self.operations_of_pylance[name], read_version=self.base)
        except OSError as error:
            classes = {"Retryable": "R", "Incompatible": "X", "Invalid user input": "X"}
            return next((classes[word] for word in classes if word in str(error)), str(error)), []
        return "C", sorted_rows(Table.open(str(self.directory), durable=False))

    def find_differences(self, theirs: str, *, all_of_them: bool = False) -> list[str]:
        """Commit this concurrent change, then each other change after it, and return the differences. For pairs with a
        constant verdict only the first change of each operation type is tried, unless `all_of_them` is set.
        """
        Table.open(str(self.directory), durable=False).commit(self.theirs[theirs])
        names = [
            name for name in self.operations_of_pylance if all_of_them or needs_test(name, theirs, stable=self.stable)
        ]
        return self.find_differences_after_commit(theirs, names)

    def find_differences_after_commit(self, theirs: str, names: Iterable[str]) -> list[str]:
        """Commit each of these changes after the concurrent one, which is committed, and return the differences."""
        version_after = self.base + 1
        differences = []
        for name in names:
            verdict, our_rows = self.commit_with_this_library(self.ours[name])
            self.remove_versions_after(version_after)
            expected_verdict, their_rows = self.commit_with_pylance(name)
            self.remove_versions_after(version_after)
            if (name, theirs) in STRICTER:
                if ORDER.index(verdict) <= ORDER.index(expected_verdict):
                    differences.append(f"{name} after {theirs}: {verdict}, no longer stricter than {expected_verdict}")
            elif (verdict, our_rows) != (expected_verdict, their_rows):
                differences.append(
                    f"{name} after {theirs}: {verdict} {our_rows}, pylance says {expected_verdict} {their_rows}"
                )
        self.remove_versions_after(self.base)
        return differences


def create_matrix(path: Path, *, stable: bool) -> ConflictMatrix:
    """Return the matrix of a new table in this directory."""
    new_table = create_table(path, stable=stable)
    without_affected_rows = {name: remove_affected_rows(operation) for name, operation in plan_all(new_table).items()}
    matrix = ConflictMatrix(
        Path(new_table.uri), new_table.version, without_affected_rows, plan_all(new_table), {}, stable
    )
    for name, operation in without_affected_rows.items():
        if operation_name(name) in THEIRS_ONLY or name in NOT_EXPRESSIBLE:
            continue
        new_table.commit(operation)
        transaction = lance.dataset(new_table.uri).read_transaction(new_table.version + 1)
        assert transaction is not None
        matrix.operations_of_pylance[name] = transaction.operation
        matrix.remove_versions_after(new_table.version)
    return matrix


def sorted_rows(table: Table) -> list[str]:
    return sorted(map(repr, table.to_table().to_pylist()))


def remove_affected_rows(operation: Operation) -> Operation:
    return Transaction.decode(Transaction(Version(1), "", operation).encode(), path="").operation


def needs_test(ours: str, theirs: str, *, stable: bool) -> bool:
    """Tell whether the pair is tested: a pair with a constant verdict is tested with the first example of each type
    only.
    """
    first_examples = {operation_name(name): name for name in reversed(PLANS)}
    if stable and not {operation_name(ours), operation_name(theirs)} <= WITH_ROWS:
        return False
    depends_on_content = (
        RULES[OPERATION_TYPE_BY_NAME[operation_name(ours)]][OPERATION_TYPE_BY_NAME[operation_name(theirs)]]
        not in CONSTANT
    )
    return depends_on_content or (
        first_examples[operation_name(ours)] == ours and first_examples[operation_name(theirs)] == theirs
    )
