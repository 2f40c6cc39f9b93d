"""The table of conflicts beside pylance's own: both commit the same change, planned on the same version, after the same
change of somebody else. They have to agree whether it stands, is to be tried again or is out of the question; and where
it stands for both, on the rows that are there then.

Our verdict may be stricter in the cases that `STRICTER` names, never laxer. Raw commits are compared: those of pylance
never know which rows a change affects, so here ours do not either. Kinds that pylance's Python cannot commit, or
changes it cannot express, are `theirs` only.
"""

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
from tests.lance_core.transactions.moves import MOVES, kind_of, planned, table

CONSTANT = (compatible, incompatible, plan_again)
KIND = {kind.name: kind for kind in OPERATION_TYPES}
ORDER = "CRX"
STRICTER = {
    # An index on a column that is gone would stay without meaning; the verb that builds it tells that the column went.
    ("CreateIndex on v", "Project drops v"),
    ("CreateIndex on v of 1", "Project drops v"),
    # A Project states every column with its metadata, and would undo what was set meanwhile.
    *((f"Project {what}", f"UpdateConfig field {column}")
      for what in ("drops v", "renames v", "makes v mandatory") for column in "vw"),
}  # fmt: skip
UNSAID = {"Overwrite sets a", "Update inserts 100", "Update inserts 200", "Update inserts 100 and changes 0"}
"""Their config or filter of keys has no place in pylance's Python."""
WITH_ROWS = {"Append", "CreateIndex", "DataReplacement", "Delete", "Merge", "Rewrite", "Update"}
"""What is done otherwise where row ids are stable."""
THEIRS_ONLY = {"ReserveFragments", "UpdateMemWalState", "UpdateBases"}


@dataclass
class Square:
    place: Path
    base: Version
    ours: dict[str, Operation]
    theirs: dict[str, Operation]
    """The same, of other files."""
    of_pylance: dict[str, lance.LanceOperation.BaseOperation]
    stable: bool

    def forget(self, newest: int) -> None:
        """Versions after this one never were."""
        for path in (self.place / naming.VERSIONS).iterdir():
            parsed = naming.parse_manifest_name(path.name)
            if parsed is None or parsed[0] > newest:
                path.unlink()

    def by_us(self, operation: Operation) -> tuple[str, list[str]]:
        try:
            return "C", rows_of(Table.open(str(self.place), version=self.base, durable=False).commit(operation).table)
        except RetryableConflict:
            return "R", []
        except (IncompatibleConflict, InvalidInput):
            return "X", []

    def by_pylance(self, name: str) -> tuple[str, list[str]]:
        try:
            lance.LanceDataset.commit(str(self.place), self.of_pylance[name], read_version=self.base)
        except OSError as error:
            classes = {"Retryable": "R", "Incompatible": "X", "Invalid user input": "X"}
            return next((classes[word] for word in classes if word in str(error)), str(error)), []
        return "C", rows_of(Table.open(str(self.place), durable=False))

    def differences(self, theirs: str, *, all_of_them: bool = False) -> list[str]:
        """What each change is worth after this one of somebody else; of those that have one answer whatever they
        touch, only the plainest, but for `all_of_them`."""
        Table.open(str(self.place), durable=False).commit(self.theirs[theirs])
        after = self.base + 1
        wrong = []
        for name in self.of_pylance:
            if not all_of_them and not is_worth(name, theirs, stable=self.stable):
                continue
            ours, our_rows = self.by_us(self.ours[name])
            self.forget(after)
            expected, their_rows = self.by_pylance(name)
            self.forget(after)
            if (name, theirs) in STRICTER:
                if ORDER.index(ours) <= ORDER.index(expected):
                    wrong.append(f"{name} after {theirs}: {ours}, no longer stricter than {expected}")
            elif (ours, our_rows) != (expected, their_rows):
                wrong.append(f"{name} after {theirs}: {ours} {our_rows}, pylance says {expected} {their_rows}")
        self.forget(self.base)
        return wrong


def made(place: Path, *, stable: bool) -> Square:
    """On a table at this place."""
    begun = table(place, stable=stable)
    read = {name: without_affected(operation) for name, operation in planned(begun).items()}
    square = Square(Path(begun.uri), begun.version, read, planned(begun), {}, stable)
    for name, operation in read.items():
        if kind_of(name) in THEIRS_ONLY or name in UNSAID:
            continue
        begun.commit(operation)
        written = lance.dataset(begun.uri).read_transaction(begun.version + 1)
        assert written is not None
        square.of_pylance[name] = written.operation
        square.forget(begun.version)
    return square


def rows_of(table: Table) -> list[str]:
    return sorted(map(repr, table.to_table().to_pylist()))


def without_affected(operation: Operation) -> Operation:
    return Transaction.decode(Transaction(Version(1), "", operation).encode(), path="").operation


def is_worth(ours: str, theirs: str, *, stable: bool) -> bool:
    """Where a pair has one answer whatever is touched, the plainest change of each kind is enough."""
    first = {kind_of(name): name for name in reversed(MOVES)}
    if stable and not {kind_of(ours), kind_of(theirs)} <= WITH_ROWS:
        return False
    looks_closer = RULES[KIND[kind_of(ours)]][KIND[kind_of(theirs)]] not in CONSTANT
    return looks_closer or (first[kind_of(ours)] == ours and first[kind_of(theirs)] == theirs)
