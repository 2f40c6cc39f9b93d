"""History reader: every version of a table after a program, as both libraries read it; they must read the same."""

from dataclasses import dataclass

import lance
import pyarrow as pa

from lance_core import Table
from lance_core.format.operations import Operation, Rewrite
from tests.interop.program_runner import LibraryDifference, WrittenTable

LINEAGE_COLUMNS = ["_row_created_at_version", "_row_last_updated_at_version"]
ROW_COLUMNS = ["_rowid", "_rowaddr"]
_ALLOWED_FINDINGS = ("orphan", "index_addresses", "index_behind", "index_unproven")


@dataclass(frozen=True)
class VersionContent:
    """Content of one version as one library reads it, with the rows in order."""

    schema: pa.Schema
    columns: list[list[object]]
    """Columns of the table, then row ids and addresses, then, if row ids are stable, both lineage versions."""

    @property
    def table_columns(self) -> list[list[object]]:
        return self.columns[: len(self.schema.names)]

    @property
    def row_ids(self) -> list[object]:
        return self.columns[len(self.schema.names)]

    @property
    def lineage(self) -> list[list[object]]:
        return self.columns[len(self.schema.names) + len(ROW_COLUMNS) :]

    def describe_difference(self, expected: "VersionContent") -> str | None:
        """Compare values by their `repr`, so that NaN equals NaN and the sign of a zero counts."""
        if not self.schema.equals(expected.schema, check_metadata=True):
            return f"the schema is\n{self.schema.to_string()}\nand not\n{expected.schema.to_string()}"
        names = [*self.schema.names, *ROW_COLUMNS, *LINEAGE_COLUMNS]
        for name, column, expected_column in zip(names, self.columns, expected.columns, strict=False):
            if repr(column) != repr(expected_column):
                return f"column {name!r} is\n{column!r}\nand not\n{expected_column!r}"
        return None


class BranchHistory:
    """Versions of a table, or of one of its branches."""

    def __init__(self, written: WrittenTable, branch: str | None = None) -> None:
        self.written, self.branch = written, branch
        self.table = Table.open(written.uri, branch=branch)
        dataset = lance.dataset(written.uri)
        self.dataset = dataset if branch is None else dataset.checkout_version((branch, None))
        self.versions: list[int] = list(self.table.version_numbers())
        self.table_at = {version: self.table.at(version) for version in self.versions}
        self.operations = {version: self._read_operation(version) for version in self.versions}
        self.contents = {version: self._read_content(version) for version in self.versions}
        self.fragments_with_missing_columns: set[int] = set()
        """Fragments of ours that lack columns for which pylance wrote nulls."""
        self._check_other_reads()
        findings = [finding for finding in self.table.fsck().findings if finding.rule not in _ALLOWED_FINDINGS]
        if findings:
            raise LibraryDifference(f"fsck of {self}: " + "\n".join(map(str, findings)))

    def __str__(self) -> str:
        return self.written.writer if self.branch is None else f"branch {self.branch!r} of {self.written.writer}"

    @property
    def has_stable_row_ids(self) -> bool:
        return self.table.manifest.has_stable_row_ids

    def _read_operation(self, version: int) -> Operation:
        transaction = self.table_at[version].transaction()
        if transaction is None:
            raise LibraryDifference(f"version {version} of {self} has no transaction")
        return transaction.operation

    def _read_content(self, version: int) -> VersionContent:
        dataset = self.dataset.checkout_version(version if self.branch is None else (self.branch, version))
        names = [*dataset.schema.names, *ROW_COLUMNS, *(LINEAGE_COLUMNS if self.has_stable_row_ids else ())]
        theirs = _content_of(dataset.schema, dataset.to_table(columns=names))
        ours = _content_of(self.table_at[version].schema, self.table_at[version].to_table(names))
        difference = ours.describe_difference(theirs)
        if difference is not None:
            raise LibraryDifference(f"version {version} of {self}, read by us and by pylance: {difference}")
        if dataset.count_rows() != self.table_at[version].count_rows():
            raise LibraryDifference(f"version {version} of {self}: pylance counts {dataset.count_rows()} rows, not we")
        dataset.validate()
        if not self._has_rewritten_indices(version) and dataset.read_transaction(version) is None:
            raise LibraryDifference(f"pylance reads no transaction of version {version} of {self}")
        return ours

    def _has_rewritten_indices(self, version: int) -> bool:
        """The Python API of pylance cannot return such a transaction, not even of its own compactions
        (test_pylance_defects.py)."""
        operation = self.operations[version]
        return isinstance(operation, Rewrite) and bool(operation.rewritten_indices)

    def _check_other_reads(self) -> None:
        """Compare reads of the newest version by a condition, by a range and by row positions."""
        content = self.contents[self.versions[-1]]
        names, row_count = content.schema.names, len(content.row_ids)
        first = names[0]
        condition = f"`{first}` is not null and _rowid % 3 <> 1"
        positions = [row for row in (row_count - 1, 0, row_count // 2, 0) if 0 <= row < row_count]
        for name, ours, theirs in (
            (
                f"where {condition}",
                self.table.to_table([first, "_rowaddr"], condition),
                self.dataset.to_table(columns=[first, "_rowaddr"], filter=condition),
            ),
            (
                "from the second one on",
                self.table.to_table(offset=1, limit=3),
                self.dataset.to_table(offset=1, limit=3),
            ),
            (f"at {positions}", self.table.take(positions), self.dataset.take(positions)),
        ):
            ours = ours.replace_schema_metadata(theirs.schema.metadata)  # pylance's `take` loses it
            difference = _content_of(ours.schema, ours).describe_difference(_content_of(theirs.schema, theirs))
            if difference is not None:
                raise LibraryDifference(f"{self}: rows {name}, read by us and by pylance: {difference}")
        counts = self.table.count_rows(condition), self.dataset.count_rows(filter=condition)
        if counts[0] != counts[1]:
            raise LibraryDifference(f"{self}: we count {counts[0]} rows where {condition}, pylance {counts[1]}")


def _content_of(schema: pa.Schema, rows: pa.Table) -> VersionContent:
    return VersionContent(schema, [column.to_pylist() for column in rows.columns])


def steps_by_version(history: BranchHistory) -> dict[int, int]:
    """Return the number of the step that made each version."""
    ends = sorted(history.written.version_after.items())
    return {version: next(step for step, end in ends if version <= end) for version in history.versions}


def read_references(history: BranchHistory) -> dict[str, object]:
    """Return the tags and branches with the step of the version that each refers to; both libraries must list the
    same."""
    steps = steps_by_version(history)
    tags, branches = history.table.tags.list(), history.table.branches.list()
    ours = {f"tag {name}": (tag.branch, int(tag.version)) for name, tag in tags.items()}
    ours |= {f"branch {name}": (branch.parent_branch, int(branch.parent_version)) for name, branch in branches.items()}
    their_tags, their_branches = history.dataset.tags.list(), history.dataset.branches.list()
    theirs = {f"tag {name}": (tag["branch"], tag["version"]) for name, tag in their_tags.items()}
    theirs |= {
        f"branch {name}": (branch["parent_branch"], branch["parent_version"]) for name, branch in their_branches.items()
    }
    if ours != theirs:
        raise LibraryDifference(f"references of {history} are {ours}; pylance lists {theirs}")
    return {name: (branch, steps[version]) for name, (branch, version) in ours.items()}
