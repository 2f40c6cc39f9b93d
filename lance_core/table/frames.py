"""Data frames: passes a table to data frame libraries, notebooks and other readers of Arrow streams.

Libraries that read Arrow streams take a `Table` directly: `polars.DataFrame(table)`, `pyarrow.table(table)`.
Each of them receives all rows; pass a `scan` instead to read fewer. Start with `TableFrames.scan`.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from lance_core import validation
from lance_core.errors import InvalidInput, LanceError
from lance_core.expressions.arrow_filters import Condition
from lance_core.scan import take as scan_take
from lance_core.scan.take import By
from lance_core.storage.optional_packages import import_package
from lance_core.table.base import TableBase
from lance_core.table.batch_shards import BatchShards
from lance_core.table.display import table_as_html
from lance_core.table.lazy_scan import HEAD_ROWS, ITERATION_HINT, Columns, Scan, SnapshotAddress
from lance_core.versions.history import version_infos

if TYPE_CHECKING:
    import pandas
    import polars

    from lance_core.table.arrow_dataset import TableDataset
    from lance_core.table.torch_datasets import TorchBatches, TorchRows

_HTML_ROWS = 10
_HTML_VERSIONS = 30
_INTERNAL_NAMES = ("runtime",)


class TableFrames(TableBase):
    """Part of `Table` that other libraries and notebooks read."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as an Arrow stream, which reads each batch when it is requested."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns as an Arrow schema."""
        return self.scan().schema.__arrow_c_schema__()

    def scan(
        self,
        columns: Columns | None = None,
        filter: Condition | None = None,
        *,
        order_by: str | Sequence[str] = (),
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        fragments: Sequence[int] | None = None,
        use_indices: bool = True,
    ) -> Scan:
        """Return a lazy scan: a description of rows that is read when they are requested.

        `columns` are names, or names of the result with their values as SQL or as `pyarrow.compute.Expression`. They
        may include `_rowid`, `_rowaddr` and `_rowoffset`. `filter` is a condition in either form; the languages differ
        for NaN, and each keeps its rules. `order_by` are names of columns of the table or of the result, each
        optionally followed by `asc` or `desc`; nulls come last. `fragments` restricts the scan to fragments with these
        ids.

        >>> cheap = table.scan({"city": "city", "gross": "price * 2"}, order_by="gross desc", limit=2)
        >>> cheap.to_table().to_pylist()
        [{'city': 'Pune', 'gross': 60.0}, {'city': 'Lima', 'gross': 40.0}]
        """
        return Scan.create(
            self._snapshot,
            columns,
            filter,
            order_by=order_by,
            limit=limit,
            offset=offset,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            fragments=fragments,
            use_indices=validation.check_flag(use_indices, "use_indices"),
        )

    def dataset(self, filter: pc.Expression | None = None) -> "TableDataset":
        """Return this version as a `pyarrow.dataset.Dataset`, whose rows match `filter`. Polars and DuckDB read only
        the columns and rows that a query needs.

        >>> import duckdb, polars
        >>> orders = table.dataset()
        >>> duckdb.sql("select sum(price) from orders where city <> 'Oslo'").fetchall()
        [(50.0,)]
        >>> polars.scan_pyarrow_dataset(orders).filter(polars.col("price") > 15).select("id").collect().rows()
        [(2,), (3,)]
        """
        from lance_core.table.arrow_dataset import TableDataset

        return TableDataset(self, filter)

    def to_torch(
        self,
        columns: Sequence[str] | None = None,
        filter: Condition | None = None,
        *,
        batch_size: int = 1024,
        style: Literal["iterable", "map"] = "iterable",
        shuffle: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> "TorchBatches | TorchRows":
        """Return the rows as a dataset of PyTorch: batches for an iteration, or single rows by their index.

        The batches are dicts of tensors, so the data loader needs `batch_size=None`. They are divided among the workers
        of the data loader and among the processes of a distributed training (`rank` of `world_size`, by default those
        of `torch.distributed`). `state_dict` and `load_state_dict` save and restore the position, as the
        `StatefulDataLoader` of torchdata expects. Workers may be forked or spawned.

        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(table.to_torch(["price"], batch_size=2), batch_size=None)
        >>> [batch["price"].tolist() for batch in loader]
        [[10.0, 20.0], [30.0]]
        """
        import_package("torch", extra="torch", needed_for="to_torch()")
        from lance_core.table.torch_datasets import TorchBatches, TorchRows

        if style not in ("iterable", "map"):
            raise InvalidInput(f"style={style!r} must be 'iterable' or 'map'")
        shards = BatchShards.create(self, columns, filter, batch_size=batch_size, shuffle=shuffle, seed=seed)
        return TorchRows(shards) if style == "map" else TorchBatches(shards, rank, world_size)

    def to_pandas(
        self,
        columns: Columns | None = None,
        filter: Condition | None = None,
        *,
        limit: int | None = None,
        **options: Any,
    ) -> "pandas.DataFrame":
        """Return the rows as a pandas data frame. `options` are those of `pyarrow.Table.to_pandas`.

        >>> table.to_pandas(columns=["id", "price"], filter="city = 'Oslo'")
           id  price
        0   1   10.0
        """
        return self.scan(columns, filter, limit=limit).to_pandas(**options)

    def to_polars(
        self, columns: Columns | None = None, filter: Condition | None = None, *, limit: int | None = None
    ) -> "polars.DataFrame":
        """Return the rows as a polars data frame.

        >>> table.to_polars(columns=["id"], filter="city = 'Oslo'").rows()
        [(1,)]
        """
        return self.scan(columns, filter, limit=limit).to_polars()

    def head(self, rows: int = HEAD_ROWS, columns: Columns | None = None) -> pa.Table:
        """Return the first rows.

        >>> table.head(2, ["id"])["id"].to_pylist()
        [1, 2]
        """
        return self.scan(columns, limit=rows).to_table()

    def sample(self, rows: int, columns: Sequence[str] | None = None, *, seed: int | None = None) -> pa.Table:
        """Return random rows, each at most once, in table order; all rows if there are fewer. The same `seed` selects
        the same rows of a version.

        >>> table.sample(2, ["id"], seed=1) == table.sample(2, ["id"], seed=1)
        True
        """
        count = validation.check_integer(rows, "rows", at_least=0, too_small="it counts rows")
        live = self._snapshot.manifest.row_count()
        offsets = sorted(random.Random(seed).sample(range(live), min(count, live)))
        return scan_take.take(self._location, self._snapshot.manifest, offsets, columns, by=By.OFFSET)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._snapshot.manifest.row_count()

    def __bool__(self) -> bool:
        """Return `True`, also for a table without rows."""
        return True

    def __iter__(self) -> NoReturn:
        raise InvalidInput(f"a table cannot be iterated; {ITERATION_HINT}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location and the version. The copy reads the manifest again."""
        return _reopen, (type(self), SnapshotAddress.of(self._snapshot))

    def _repr_html_(self) -> str:
        """Return rows, columns and the newest versions as HTML, for notebooks."""
        try:
            versions = version_infos(self._location, max(0, self._snapshot.version - _HTML_VERSIONS))
        except LanceError:  # the history is damaged, or this version has none
            versions = []
        shown = [info for info in versions if info.version <= self._snapshot.version]
        return table_as_html(f"{self!r}: {len(self):,} rows", self.head(_HTML_ROWS), shown)

    def __dir__(self) -> list[str]:
        """Return the public methods and properties, which completion then offers without internal names."""
        names = (name for name in super().__dir__() if name not in _INTERNAL_NAMES)
        return sorted(name for name in names if not name.startswith("_") or name.startswith("__"))


def _reopen(table_class: type[TableFrames], address: SnapshotAddress) -> TableFrames:
    """Open the version that a pickle names."""
    return table_class(address.load())
