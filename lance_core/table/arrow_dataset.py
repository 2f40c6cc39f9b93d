"""Arrow dataset: one version of a table as a `pyarrow.dataset.Dataset`, for engines that push columns and filters down.

Polars and DuckDB recognize a dataset by its class and call its Python methods with the columns and the filter of a
query. DuckDB requires the class itself, and polars only the methods. `001-arrow-dataset.md` describes what each engine
calls. `Table.dataset` creates a dataset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyarrow.fs import LocalFileSystem

from lance_core import validation
from lance_core.errors import InvalidInput
from lance_core.table.base import TableBase
from lance_core.table.lazy_scan import Columns, Scan
from lance_core.versions.snapshot import Snapshot

_BATCH_ROWS = 131_072
"""Default of pyarrow for `batch_size`."""


@dataclass(frozen=True, slots=True)
class DatasetScanner:
    """Scan of a dataset, with the methods of `pyarrow.dataset.Scanner`."""

    scan: Scan
    dataset_schema: pa.Schema
    batch_rows: int

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow stream, which reads each batch when it is requested."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @property
    def projected_schema(self) -> pa.Schema:
        """Columns of the result."""
        return self.scan.schema

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a reader, which reads each batch when it is requested."""
        return pa.RecordBatchReader.from_batches(self.scan.schema, self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the rows in batches of at most `batch_size` rows."""
        return self.scan.to_batches(batch_size=self.batch_rows)

    def to_table(self) -> pa.Table:
        """Return the rows."""
        return self.scan.to_table()

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self.scan.count_rows()

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows."""
        return self.scan.head(num_rows)

    def take(self, indices: Sequence[int] | pa.Array) -> pa.Table:
        """Return the rows at these positions of the result."""
        return self.to_table().take(indices)


class TableDataset(pads.UnionDataset):  # type: ignore[misc]  # pyarrow has no type information
    """One version of a table as a dataset of pyarrow. `Table.dataset` creates it.

    All methods of `pyarrow.dataset.Dataset` read this version with the columns and the filter they receive. The base
    class holds no rows: code of Arrow that reads a dataset without its Python methods receives an error.
    """

    def __init__(self, table: TableBase, condition: pc.Expression | None = None) -> None:
        self._table, self._condition = table, condition
        self._schema = Scan.create(self._snapshot, None, None).schema
        super().__init__(self._schema, [_unreadable_dataset(self._schema, self._snapshot.location.uri)])

    @property
    def _snapshot(self) -> Snapshot:
        return self._table._snapshot

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location and the version. The copy reads the manifest again."""
        return TableDataset, (self._table, self._condition)

    def __repr__(self) -> str:
        rows = "" if self._condition is None else f", {self._condition}"
        return f"<dataset of {self._snapshot.location.uri!r}, version {self._snapshot.version}{rows}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow stream, which reads each batch when it is requested."""
        return self.scanner().__arrow_c_stream__(requested_schema)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """Condition that all rows match."""
        return pc.scalar(True)

    @property
    def children(self) -> list[pads.Dataset]:
        """Return no datasets: this dataset consists of no others."""
        return []

    def scanner(
        self,
        columns: Columns | None = None,
        filter: pc.Expression | str | None = None,
        batch_size: int = _BATCH_ROWS,
        **_tuning: object,
    ) -> DatasetScanner:
        """Return a scan of these columns and rows. Options of pyarrow that tune its own readers have no effect."""
        scan = Scan.create(self._snapshot, columns, self._combined(filter))
        return DatasetScanner(scan, self._schema, validation.check_batch_size(batch_size))

    def to_batches(self, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the rows in batches. The arguments are those of `scanner`."""
        return self.scanner(*args, **kwargs).to_batches()

    def to_table(self, *args: Any, **kwargs: Any) -> pa.Table:
        """Return the rows. The arguments are those of `scanner`."""
        return self.scanner(*args, **kwargs).to_table()

    def count_rows(self, filter: pc.Expression | str | None = None, **_tuning: object) -> int:
        """Return the number of rows, or of those that match."""
        return self.scanner([], filter).count_rows()

    def head(self, num_rows: int, *args: Any, **kwargs: Any) -> pa.Table:
        """Return the first rows. The other arguments are those of `scanner`."""
        return self.scanner(*args, **kwargs).head(num_rows)

    def take(self, indices: Sequence[int] | pa.Array, *args: Any, **kwargs: Any) -> pa.Table:
        """Return the rows at these positions. The other arguments are those of `scanner`."""
        return self.scanner(*args, **kwargs).take(indices)

    def filter(self, expression: pc.Expression) -> "TableDataset":
        """Return the dataset of the rows that match."""
        return TableDataset(self._table, cast("pc.Expression", self._combined(expression)))

    def sort_by(self, sorting: str | Sequence[tuple[str, str]], **kwargs: Any) -> pads.InMemoryDataset:
        """Return the rows in order, in memory."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **kwargs))

    def join(self, right_dataset: Any, *args: Any, **kwargs: Any) -> pads.InMemoryDataset:
        """Return the rows joined with those of another dataset, in memory. The arguments are those of pyarrow."""
        return pads.InMemoryDataset(self.to_table().join(right_dataset.to_table(), *args, **kwargs))

    def join_asof(self, right_dataset: Any, *args: Any, **kwargs: Any) -> pads.InMemoryDataset:
        """Return the rows joined with the nearest rows of another dataset, in memory."""
        return pads.InMemoryDataset(self.to_table().join_asof(right_dataset.to_table(), *args, **kwargs))

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        raise InvalidInput(
            "the schema of a dataset of a table cannot be replaced; cast the rows that to_table() returns"
        )

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        raise InvalidInput("the fragments of a table are no files that pyarrow reads; use Table.scan(fragments=[...])")

    def _combined(self, condition: pc.Expression | str | None) -> pc.Expression | str | None:
        if self._condition is None or condition is None:
            return self._condition if condition is None else condition
        if isinstance(condition, str):
            raise InvalidInput("a filtered dataset accepts expressions of pyarrow only, not the SQL of a filter")
        return self._condition & condition


def _unreadable_dataset(schema: pa.Schema, uri: str) -> pads.Dataset:
    """Return a dataset whose only file does not exist. Its path appears in the errors of reads."""
    path = f"/(Arrow itself cannot read the Lance table {uri}: pass scanner().to_reader() or to_table())"
    files, file_format = LocalFileSystem(), pads.IpcFileFormat()
    return pads.FileSystemDataset([file_format.make_fragment(path, files)], schema, file_format, files)
