"""Every version of one table after a program, read once by each library: they have to see the same."""

from dataclasses import dataclass

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format.operations import Operation, Rewrite
from tests.interop.program_runner import Disagreement, History

LINEAGE = ["_row_created_at_version", "_row_last_updated_at_version"]
PLACES = ["_rowid", "_rowaddr"]
_EXPECTED = ("orphan", "index_addresses", "index_behind", "index_unproven")


@dataclass(frozen=True)
class Facts:
    """One version, as one library reads it: rows in order."""

    schema: pa.Schema
    columns: list[list[object]]
    """The table's; then row ids and addresses; then, where ids are stable, both versions."""

    @property
    def own(self) -> list[list[object]]:
        return self.columns[: len(self.schema.names)]

    @property
    def row_ids(self) -> list[object]:
        return self.columns[len(self.schema.names)]

    @property
    def lineage(self) -> list[list[object]]:
        return self.columns[len(self.schema.names) + len(PLACES) :]

    def difference(self, expected: "Facts") -> str | None:
        """NaN is itself, and zeros have signs: values are compared as Python spells them."""
        if not self.schema.equals(expected.schema, check_metadata=True):
            return f"the schema is\n{self.schema.to_string()}\nand not\n{expected.schema.to_string()}"
        names = [*self.schema.names, *PLACES, *LINEAGE]
        for name, column, others in zip(names, self.columns, expected.columns, strict=False):
            if repr(column) != repr(others):
                return f"column {name!r} is\n{column!r}\nand not\n{others!r}"
        return None


class Line:
    """The versions of a table, or of a branch of it."""

    def __init__(self, history: History, branch: str | None = None) -> None:
        self.history, self.branch = history, branch
        self.table = Table.open(history.uri, branch=branch)
        dataset = lance.dataset(history.uri)
        self.dataset = dataset if branch is None else dataset.checkout_version((branch, None))
        self.numbers: list[int] = list(self.table.version_numbers())
        self.at = {number: self.table.at(number) for number in self.numbers}
        self.operations = {number: self._operation(number) for number in self.numbers}
        self.facts = {number: self._facts(number) for number in self.numbers}
        self.unwritten: set[int] = set()
        """Fragments of ours that lack columns of which pylance wrote nulls."""
        self._check_other_reads()
        findings = [finding for finding in self.table.fsck().findings if finding.rule not in _EXPECTED]
        if findings:
            raise Disagreement(f"fsck of {self}: " + "\n".join(map(str, findings)))

    def __str__(self) -> str:
        return self.history.whose if self.branch is None else f"branch {self.branch!r} of {self.history.whose}"

    @property
    def stable(self) -> bool:
        return self.table.manifest.has_stable_row_ids

    def _operation(self, number: int) -> Operation:
        transaction = self.at[number].transaction()
        if transaction is None:
            raise Disagreement(f"version {number} of {self} does not say what made it")
        return transaction.operation

    def _facts(self, number: int) -> Facts:
        dataset = self.dataset.checkout_version(number if self.branch is None else (self.branch, number))
        names = [*dataset.schema.names, *PLACES, *(LINEAGE if self.stable else ())]
        by_pylance = _facts_of(dataset.schema, dataset.to_table(columns=names))
        by_us = _facts_of(self.at[number].schema, self.at[number].to_table(names))
        difference = by_us.difference(by_pylance)
        if difference is not None:
            raise Disagreement(f"version {number} of {self}, read by us and by pylance: {difference}")
        if dataset.count_rows() != self.at[number].count_rows():
            raise Disagreement(f"version {number} of {self}: pylance counts {dataset.count_rows()} rows, not we")
        dataset.validate()
        if not self._has_rewritten_indices(number) and dataset.read_transaction(number) is None:
            raise Disagreement(f"pylance does not see what made version {number} of {self}")
        return by_us

    def _has_rewritten_indices(self, number: int) -> bool:
        """Its Python cannot show such a transaction, of its own compactions neither (test_pylance_defects.py)."""
        operation = self.operations[number]
        return isinstance(operation, Rewrite) and bool(operation.rewritten_indices)

    def _check_other_reads(self) -> None:
        """Of the newest version: some rows by a condition, by place, and by number."""
        whole = self.facts[self.numbers[-1]]
        names, rows = whole.schema.names, len(whole.row_ids)
        first = names[0]
        condition = f"`{first}` is not null and _rowid % 3 <> 1"
        some = [row for row in (rows - 1, 0, rows // 2, 0) if 0 <= row < rows]
        for what, by_us, by_pylance in (
            (
                f"where {condition}",
                self.table.to_table([first, "_rowaddr"], condition),
                self.dataset.to_table(columns=[first, "_rowaddr"], filter=condition),
            ),
            ("from the second on", self.table.to_table(offset=1, limit=3), self.dataset.to_table(offset=1, limit=3)),
            (f"at {some}", self.table.take(some), self.dataset.take(some)),
        ):
            by_us = by_us.replace_schema_metadata(by_pylance.schema.metadata)  # pylance's `take` loses it
            difference = _facts_of(by_us.schema, by_us).difference(_facts_of(by_pylance.schema, by_pylance))
            if difference is not None:
                raise Disagreement(f"{self}: rows {what}, read by us and by pylance: {difference}")
        counts = self.table.count_rows(condition), self.dataset.count_rows(filter=condition)
        if counts[0] != counts[1]:
            raise Disagreement(f"{self}: we count {counts[0]} rows where {condition}, pylance {counts[1]}")


def _facts_of(schema: pa.Schema, rows: pa.Table) -> Facts:
    return Facts(schema, [column.to_pylist() for column in rows.columns])


def steps_of(line: Line) -> dict[int, int]:
    """Which step made a version."""
    ends = sorted(line.history.ends.items())
    return {number: next(step for step, end in ends if number <= end) for number in line.numbers}


def references(line: Line) -> dict[str, object]:
    """Tags and branches, as both libraries see them; versions by the step that made them."""
    steps = steps_of(line)
    tags, branches = line.table.tags.list(), line.table.branches.list()
    by_us = {f"tag {name}": (tag.branch, int(tag.version)) for name, tag in tags.items()}
    by_us |= {f"branch {name}": (each.parent_branch, int(each.parent_version)) for name, each in branches.items()}
    theirs, their_branches = line.dataset.tags.list(), line.dataset.branches.list()
    by_pylance = {f"tag {name}": (tag["branch"], tag["version"]) for name, tag in theirs.items()}
    by_pylance |= {
        f"branch {name}": (each["parent_branch"], each["parent_version"]) for name, each in their_branches.items()
    }
    if by_us != by_pylance:
        raise Disagreement(f"references of {line} are {by_us}; pylance sees {by_pylance}")
    return {name: (branch, steps[version]) for name, (branch, version) in by_us.items()}
