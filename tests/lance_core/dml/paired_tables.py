"""Paired tables: two copies of a table, one changed by pylance and one by lance_core, to be compared afterwards."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import lance
import pyarrow as pa

from lance_core import Table

LINEAGE = ["_row_created_at_version", "_row_last_updated_at_version"]


@dataclass(frozen=True)
class PairedTables:
    ours: str
    theirs: str
    key: str
    stable: bool

    @property
    def table(self) -> Table:
        return Table.open(self.ours, durable=False)

    @property
    def dataset(self) -> lance.LanceDataset:
        return lance.dataset(self.theirs)

    def check(self) -> None:
        """Check that both tables have the same rows, ids and row versions, and that indices find the rows of a scan.

        Both libraries read the rows of the table that lance_core changed. Row ids and versions are compared if the ids
        are stable.
        """
        expected = self.sorted_rows(lance.dataset(self.theirs).to_table())
        ours = lance.dataset(self.ours)
        ours.validate()
        assert self.sorted_rows(ours.to_table()) == expected
        assert self.sorted_rows(self.table.to_table()) == expected
        assert ours.count_rows() == self.table.count_rows() == len(expected)
        assert self.table.manifest.schema == Table.open(self.theirs).manifest.schema
        if self.stable:
            columns = [self.key, "_rowid", *LINEAGE]
            lineage = self.sorted_rows(Table.open(self.theirs).to_table(columns))
            assert self.sorted_rows(self.table.to_table(columns)) == lineage
            assert self.sorted_rows(ours.to_table(columns)) == lineage
        self.check_indices(ours)

    def check_indices(self, ours: lance.LanceDataset) -> None:
        for index in ours.list_indices():
            (column,) = index["fields"]
            for value in set(ours.to_table([column])[column].to_pylist()) - {None}:
                literal = f"'{value}'" if isinstance(value, str) else value
                query = f"{column} = {literal}"
                scanned = ours.scanner(filter=query, use_scalar_index=False).to_table()
                assert self.sorted_rows(ours.to_table(filter=query)) == self.sorted_rows(scanned)
                assert ours.count_rows(filter=query) == scanned.num_rows

    def sorted_rows(self, rows: pa.Table) -> list[str]:
        return sorted(repr(row) for row in rows.to_pylist())


def create_paired_tables(
    directory: Path, rows: pa.Table, *, stable: bool, key: str = "id", indexed: tuple[str, ...] = (), deleted: str = ""
) -> PairedTables:
    """Create two equal tables with four rows per fragment."""
    theirs = str(directory / "theirs")
    lance.write_dataset(rows, theirs, max_rows_per_file=4, enable_stable_row_ids=stable)
    for column in indexed:
        lance.dataset(theirs).create_scalar_index(column, "BTREE")
    if deleted:
        lance.dataset(theirs).delete(deleted)
    shutil.copytree(theirs, directory / "ours")
    return PairedTables(str(directory / "ours"), theirs, key, stable)
